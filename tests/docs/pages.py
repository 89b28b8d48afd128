"""Pages taken apart: blocks of code, what they print, and what a reader is told to expect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

FENCE = re.compile(
    r"^(?:<!-- (?P<remark>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
ANYTHING = "…"
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
PASSING = re.compile(r"epoch \d+  |compiling the exact solver")
"""Lines that come and go with the speed of the machine."""


@dataclass(frozen=True)
class Tolerance:
    """By what share numbers with a decimal point may differ, in lines that have one of some words in them."""

    share: float = 0.0
    words: tuple[str, ...] = ()

    def of(self, line: str) -> float:
        """What a line may differ by."""
        return self.share if any(word in line for word in self.words) else 0.0


@dataclass(frozen=True)
class Block:
    """Code of a page, the remark above it, and the output shown below it."""

    language: str
    code: str
    remark: str = ""
    output: str | None = None
    tolerance: Tolerance = Tolerance()


def name_of(page: Path) -> str:
    """A page as people name it: its path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks_of(text: str) -> list[Block]:
    """Fenced blocks; a block of text is the output of the code before it."""
    found: list[Block] = []
    for fence in FENCE.finditer(text):
        remark, language, code = fence["remark"] or "", fence["language"], fence["code"]
        if language != "text":
            found.append(Block(language, code, remark))
            continue
        assert found, "output without a command before it"
        assert found[-1].output is None, f"two outputs of one command:\n{code}"
        share = re.fullmatch(r"about (\d+) % in (.+)", remark)
        assert share or not remark, f"'{remark}' is no tolerance"
        near = Tolerance(int(share[1]) / 100, tuple(share[2].split(", "))) if share else Tolerance()
        assert all(word in code for word in near.words), f"'{remark}' is about lines that are not there"
        found[-1] = replace(found[-1], output=code, tolerance=near)
    return found


def commands_of(text: str) -> Iterator[str]:
    """Every command line shown, in fences and in indented blocks, continued lines joined."""
    shown = [block.code for block in blocks_of(text) if block.language == "sh"]
    shown += re.findall(r"(?:^|\n)((?: {4}(?:jointensor|make|python|pip) .*\n)+)", FENCE.sub("", text))
    for code in shown:
        for line in code.replace("\\\n", " ").splitlines():
            if line.strip():
                yield line.strip()


def difference(shown: str, printed: str, tolerance: Tolerance) -> str | None:
    """The first line of ``shown`` that is not in what was printed, where it should be; ``None`` if all are.

    A line ``…`` stands for any number of lines, ``…`` inside a line for anything. Spaces and rules of tables may be of
    any length, whole numbers must be the same, others may differ where there is a tolerance.
    """
    lines = [line for line in printed.splitlines() if line.strip() and not PASSING.match(line)]
    anywhere = False
    for expected in filter(str.strip, shown.splitlines()):
        if expected.strip() == ANYTHING:
            anywhere = True
            continue
        while anywhere and lines and not _alike(expected, lines[0], tolerance):
            lines.pop(0)
        if not lines:
            return f"{expected}   (there are no more lines)"
        if not _alike(expected, lines[0], tolerance):
            return f"{expected}\ninstead of it:\n{lines[0]}"
        lines.pop(0)
        anywhere = False
    return None if anywhere or not lines else f"(nothing more)\ninstead of it:\n{lines[0]}"


def _alike(expected: str, actual: str, tolerance: Tolerance) -> bool:
    pieces = re.split(rf"({NUMBER}|{ANYTHING})", _tidy(expected))
    pattern = "".join(
        ".*?" if piece == ANYTHING else f"({NUMBER})" if re.fullmatch(NUMBER, piece) else re.escape(piece)
        for piece in pieces
    )
    found = re.fullmatch(pattern, _tidy(actual))
    if found is None:
        return False
    numbers = [piece for piece in pieces if re.fullmatch(NUMBER, piece)]
    return all(_near(*pair, tolerance.of(expected)) for pair in zip(numbers, found.groups(), strict=True))


def _near(expected: str, actual: str, tolerance: float) -> bool:
    if expected == actual:
        return True
    if "." not in expected:
        return False
    wanted, got = (float(text.replace(",", "")) for text in (expected, actual))
    return abs(wanted - got) <= tolerance * abs(wanted)


def _tidy(line: str) -> str:
    return re.sub(r"([━─])\1+", r"\1", " ".join(line.split()))
