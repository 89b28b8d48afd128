"""Fuzz the readers: ``python -m tests.fuzz.run`` for the full counts, ``--reader tns --count 2000`` for a few.

Inputs are read many to a process, with limits on memory and on the time of each. Allowed is a result or a
JointensorError. Anything else is a finding: another exception, a process that dies, a limit that is reached, a file
that is opened outside of the input's folder, something unpickled or executed.
Inputs follow from the seed and their number: the same are made everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.readers import COUNTS, READERS, Case, Reader

REPOSITORY = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
BATCH = 20_000
"""Inputs to a process."""
CPU_SECONDS = 10.0
"""Processor time for one input: other processes on the machine do not count."""
SECONDS = 300.0
"""Time for one input, only to find one that waits for ever."""
MEMORY = 1 << 30
"""Bytes that a process may take on top of what it has when it starts to read."""
FORBIDDEN = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
CHANGING = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.chmod", "shutil.rmtree")


@dataclass
class Tally:
    """What became of inputs."""

    read: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """Inputs that gave a result."""
        return self.outcomes["result"]


def fuzz(
    reader: str, count: int, seed: int = 0, *, kept: bool = False, coverage: Path | None = None, most: int = 20
) -> Tally:
    """Read ``count`` inputs, or with ``kept`` those of the corpus; at most ``most`` findings."""
    tally, start = Tally(), 0
    count = len(kept_cases(reader)) if kept else count
    while start < count and len(tally.findings) < most:
        start = _batch(tally, reader, start, min(start + BATCH, count), seed, kept=kept, coverage=coverage)
    return tally


def kept_cases(reader: str) -> list[Path]:
    """Folders of cases that were found once."""
    return sorted(path for path in (CORPUS / reader).glob("*") if path.is_dir())


def _batch(tally: Tally, reader: str, start: int, stop: int, seed: int, *, kept: bool, coverage: Path | None) -> int:
    """Read inputs in a process of their own; returns the number of the next one."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_quick_folder()) as folder:
        place, answer, noise = (Path(folder) / name for name in ("place", "answer", "noise"))
        place.write_bytes(bytes(8))
        command = [sys.executable, "-m", "tests.fuzz.run", "--worker", reader, str(start), str(stop), str(seed), folder]
        command += ["--kept"] if kept else []
        command += ["--coverage", str(coverage)] if coverage is not None else []
        quiet = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "NUMBA_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
        with noise.open("wb") as errors:
            code = subprocess.call(
                command, cwd=REPOSITORY, env={**os.environ, **quiet, "PYTHONFAULTHANDLER": "1"}, stderr=errors
            )
        for line in answer.read_text(encoding="utf-8").splitlines() if answer.exists() else ():
            found = json.loads(line)
            tally.outcomes.update(found.pop("outcomes", {}))
            tally.findings += [found] if found else []
        here = int.from_bytes(place.read_bytes(), "little")
        if code == 0:
            tally.read += stop - start
            return stop
        told = noise.read_text(errors="replace", encoding="utf-8")
        if here < start + 1:
            raise RuntimeError(f"the process for {reader} did not begin: {told[-2000:]}")
        tally.read += here - start
        tally.findings.append({"input": here - 1, "what": _death(code), "told": told[:600]})
        return here


def _death(code: int) -> str:
    names = {
        -signal.SIGPROF: f"took more than {CPU_SECONDS:g} s of processor time",
        -signal.SIGALRM: f"did not end within {SECONDS:g} s",
    }
    return names.get(code, f"the process ended with {code}")


def _quick_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# In the process that reads


class Watch:
    """What is done while an input is read that reading should not do."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[str] = []
        self.folder = os.path.realpath(folder)
        own = (sys.prefix, sys.base_prefix, str(REPOSITORY / "src"), str(REPOSITORY / "tests"), "/proc", "/sys")
        self.read_too = tuple(os.path.realpath(path) for path in own)
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike):
                self._opened(os.fsdecode(path), int(flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        elif event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event in CHANGING and isinstance(arguments[0], str | os.PathLike):
            self._opened(os.fsdecode(arguments[0]), 1)

    def _opened(self, path: str, writing: int) -> None:
        if path.startswith(f"{self.folder}/") and ".." not in path and not os.path.islink(path):  # noqa: PTH114
            return  # as nearly all are
        with contextlib.suppress(ValueError):  # a zero byte in it: it cannot be opened either
            path = os.path.realpath(path)
        if path.startswith(self.folder) or (not writing and path.startswith(self.read_too)):
            return
        if path == "/dev/null" or "__pycache__" in path:
            return
        self.seen.append(f"{'wrote' if writing else 'opened'} {path}")


def work(reader: Reader, cases: Iterator[tuple[int, Case]], folder: Path) -> None:
    """Read cases one after the other, and write down what should not have happened."""
    from jointensor.errors import JointensorError

    case, elsewhere = folder / "case", folder / "elsewhere"
    case.mkdir()
    elsewhere.mkdir()
    os.chdir(elsewhere)
    warnings.simplefilter("ignore")
    reader.warm_up(case)
    _limit_memory()
    watch, outcomes = Watch(case), Counter[str]()
    with (folder / "answer").open("w", encoding="utf-8") as answer, _shared(folder / "place") as place:
        watch.seen.clear()
        for number, files in cases:
            place[:] = (number + 1).to_bytes(8, "little")
            for path in case.iterdir():
                path.unlink() if path.is_file() or path.is_symlink() else shutil.rmtree(path)
            for name, data in files.items():
                (case / name).write_bytes(data)
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            wrong = None
            try:
                reader.read(case)
                outcome = "result"
            except JointensorError as error:
                outcome = type(error).__name__
                wrong = None if str(error) else "an error without a message"
            except BaseException as error:  # noqa: BLE001 - panics of polars are no Exceptions
                outcome = wrong = f"{type(error).__name__}: {error}"[:300]
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            outcomes[outcome.partition(":")[0]] += 1
            if any(elsewhere.iterdir()):
                wrong = f"wrote {[path.name for path in elsewhere.iterdir()]}"
            if watch.seen:
                wrong = "; ".join(watch.seen)
                watch.seen.clear()
            if wrong is not None:
                answer.write(json.dumps({"input": number, "what": wrong}) + "\n")
                answer.flush()
        answer.write(json.dumps({"outcomes": outcomes}) + "\n")


def _limit_memory() -> None:
    status = Path("/proc/self/statm")
    if status.exists():
        used = int(status.read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


@contextlib.contextmanager
def _shared(path: Path) -> Iterator[mmap.mmap]:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        yield place


def made(reader: Reader, start: int, stop: int, seed: int) -> Iterator[tuple[int, Case]]:
    """Inputs by number."""
    for number in range(start, stop):
        yield number, reader.case(random.Random(f"{reader.name} {seed} {number}"))


def kept(reader: str, start: int, stop: int) -> Iterator[tuple[int, Case]]:
    """Cases of the corpus by number."""
    for number, path in enumerate(kept_cases(reader)[start:stop], start):
        yield number, {file.name: file.read_bytes() for file in path.iterdir()}


def _worker(arguments: list[str]) -> None:
    name, start, stop, seed, folder, *more = arguments
    measured = None
    if "--coverage" in more:
        import coverage

        data = more[more.index("--coverage") + 1]
        source = str(REPOSITORY / "src" / "jointensor")
        measured = coverage.Coverage(data, data_suffix=True, branch=True, include=[f"{source}/*"], config_file=False)
        measured.start()
    reader = READERS[name]()
    numbers = int(start), int(stop)
    cases = kept(name, *numbers) if "--kept" in more else made(reader, *numbers, int(seed))
    work(reader, cases, Path(folder))
    if measured is not None:
        measured.stop()
        measured.save()
    sys.stdout.flush()
    os._exit(0)  # threads of polars need not be waited for


# What is shown


def keep(reader: str, finding: dict[str, Any], seed: int, found: Path) -> None:
    """Write the input of a finding to a folder."""
    made_of = READERS[reader]()
    case = made_of.case(random.Random(f"{reader} {seed} {finding['input']}"))
    target = found / reader / str(finding["input"])
    target.mkdir(parents=True, exist_ok=True)
    for name, data in case.items():
        (target / name).write_bytes(data)


def covered(reader: str, data: Path) -> list[dict[str, Any]]:
    """Lines and branches of the reader's parsers that inputs reached."""
    import coverage

    source = REPOSITORY / "src" / "jointensor"
    measured = coverage.Coverage(str(data), branch=True, config_file=False)
    measured.combine(keep=False)
    report = data.with_suffix(".json")
    wanted = [str(source / module) for module in READERS[reader].modules]
    measured.json_report(morfs=wanted, outfile=str(report))
    rows = []
    for path, one in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        total = one["summary"]
        rows.append({
            "module": path.rpartition("jointensor/")[2],
            "lines": total["covered_lines"] / max(total["num_statements"], 1),
            "branches": total["covered_branches"] / max(total["num_branches"], 1),
            "missing": one["missing_lines"],
        })  # fmt: skip
    return rows


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run and print a table."""
    if "--worker" in sys.argv:
        _worker(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reader", action="append", choices=READERS, help="one or more; all where none is given")
    parser.add_argument("--count", type=int, help="inputs of each; the full counts where it is not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coverage", type=int, default=20_000, help="inputs whose coverage is measured; 0 for none")
    parser.add_argument(
        "--found", type=Path, default=Path("runs/fuzz-found"), help="where inputs of findings are written"
    )
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for name in options.reader or READERS:
        begun, count = time.monotonic(), options.count or COUNTS[name]
        tally = fuzz(name, count, options.seed)
        seconds = time.monotonic() - begun
        say(
            f"{name}: {tally.read:,} inputs, {tally.accepted:,} of them accepted, {len(tally.findings)} findings, "
            f"{tally.read / seconds:,.0f} a second"
        )
        for finding in tally.findings:
            say(f"  input {finding['input']}: {finding['what']} {finding.get('told', '')}")
            keep(name, finding, options.seed, options.found)
        rows = _measure(name, min(options.coverage, count), options.seed) if options.coverage else []
        for row in rows:
            say(
                f"  {row['module']}: {row['lines']:.1%} of lines, {row['branches']:.1%} of branches; "
                f"lines not reached: {row['missing']}"
            )
        figures[name] = {
            "inputs": tally.read, "outcomes": dict(tally.outcomes), "findings": tally.findings,
            "seconds": round(seconds, 1), "coverage": rows,
        }  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(any(one["findings"] for one in figures.values()))


def _measure(name: str, count: int, seed: int) -> list[dict[str, Any]]:
    try:
        import coverage  # noqa: F401
    except ImportError:
        say("  coverage is not measured: pip install coverage")
        return []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "coverage"
        fuzz(name, count, seed + 1, coverage=data, most=10**6)
        return covered(name, data)


if __name__ == "__main__":
    sys.exit(main())
