"""Common to all experiments: where data come from, fits that are kept, and pages with claims."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from jointensor.atomic import sha256, write_text
from jointensor.bench.intervals import half_width, standard_errors
from jointensor.bench.records import Record, kept, origin, provenance, read_record, records_in
from jointensor.data.formats import read_tensor
from jointensor.data.formats.npz import write as write_npz
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError
from jointensor.reproduce.paper import DATASETS
from jointensor.runs.compare import CompareConfig, OnFit, check_comparison, make_fits
from jointensor.runs.compare_table import rows_of
from jointensor.runs.config import Listener
from jointensor.runs.model_specs import parse_model

STAND_INS = {
    "MovieLens": "ml_25m_first100k",
    "Facebook": "facebook_wall_1yr",
    "Healthcare": "healthcare_hhs_county",
    "Enron-Emails": "enron_sent",
    "NeurIPS": "nips_0_12",
    "Uber-Pickups": "uber_apr_jun",
}
"""Public tensors of the same kind, for those that are too large or not public; a file named as the paper's data set
(``Facebook.npz``) comes first."""

LARGE = 500_000
"""Entries of a tensor whose fits take long, and differ little from seed to seed."""
SEEDS, SEEDS_LARGE = 5, 3
"""Seeds of a fit, and of one to a large tensor: intervals of fewer decide hardly anything."""

CUT = "ᵗ"
CUT_NOTE = f"{CUT} At least one fit ended before it had converged: by its number of epochs, or by `--budget`."

QUICK = {"warm_epochs": 1, "rounds": 1, "refine_epochs": 2, "restarts": 0}
"""Changes to a recipe that only shows that it runs."""


@dataclass(frozen=True)
class Setting:
    """How an experiment is run.

    Parameters
    ----------
    out
        Folder for the records of fits, and for pages and pictures; what is finished there is not run again.
    data
        Folder with the tensors; none are needed with ``quick``, nor for what is finished.
    pages
        Folder for pages and pictures, instead of ``out``.
    quick
        Small generated tensors and short training: shows that it runs, and nothing else.
    seeds, seeds_large
        Seeds of every fit, and of fits to tensors of more than ``LARGE`` entries.
    datasets
        Of the paper, by its names.
    teacher
        How planted networks are drawn; see :data:`jointensor.reproduce.planted.TEACHERS`.
    budget
        Seconds for one fit.
    finished
        Show what is finished, and fit nothing.
    """

    out: Path
    data: Path | None = None
    pages: Path | None = None
    quick: bool = False
    seeds: int = SEEDS
    seeds_large: int = SEEDS_LARGE
    datasets: tuple[str, ...] = DATASETS
    teacher: str = "scaled"
    device: str = "auto"
    budget: float | None = None
    jobs: int = 1
    finished: bool = False
    on_fit: OnFit | None = None

    def source(self, dataset: str) -> Path:
        """File of the tensor that is used for one of the paper's."""
        if self.quick:
            return self._generated(dataset)
        if self.data is None:
            raise ConfigError("give the folder of the tensors: --data FOLDER, or --quick for small generated ones")
        names = [f"{dataset}.npz", f"{STAND_INS[dataset]}.npz"]
        found = [self.data / name for name in names if (self.data / name).is_file()]
        if not found:
            raise DataError(f"{self.data} has neither {' nor '.join(names)}; see jointensor data list")
        return found[0]

    def tensor(self, dataset: str) -> SparseTensor:
        """The tensor that is used for one of the paper's."""
        return read_tensor(str(self.source(dataset))).tensor

    def compared(
        self, name: str, dataset: str, models: Sequence[str], recipe: str = "paper", seeds: int | None = None
    ) -> dict[str, Any]:
        """Rows of a comparison on one tensor, by model; its records lie in a folder of this name."""
        folder = self.out / name / dataset
        if not self.finished:
            self._fit(dataset, models, recipe, seeds, folder)
        records = [one for one in records_in(folder, failed=True) if one["model"] in models]
        return {row["model"]: row for row in rows_of(models, records)}

    def kept(self, name: str, compute: Callable[[], Record]) -> Record | None:
        """A record that is made once and read from then on; ``None`` where it is not to be made."""
        path = self.out / f"{name}.json"
        return read_record(path) if self.finished else kept(path, compute)

    def records(self, name: str) -> list[Record]:
        """All records of an experiment."""
        return records_in(self.out / name, "**/*.json", failed=True)

    def checksum(self, dataset: str) -> dict[str, str]:
        """Name of the file of a tensor, and SHA-256 of its bytes."""
        path = self.source(dataset)
        return {path.name: sha256(path)}

    def _fit(self, dataset: str, models: Sequence[str], recipe: str, seeds: int | None, folder: Path) -> None:
        """Make the records that are not there yet; refuse those that were made in another way."""
        config = CompareConfig(
            folds="random",  # as in the paper
            source=str(self.source(dataset).resolve()),
            models=tuple(models),
            seeds=self._seeds(dataset) if seeds is None or self.quick else seeds,
            recipe=recipe,
            recipe_changes=dict(QUICK) if self.quick else {},
            device=self.device,
            budget=self.budget,
        )
        how = {
            "data": self.checksum(dataset), "recipe": recipe, "changes": config.recipe_changes, "budget": self.budget,
        }  # fmt: skip
        for one in records_in(folder):
            for key, value in how.items():
                if one.get(key) != value:
                    raise ConfigError(
                        f"records in {folder} were made with {key} {one.get(key)}, not {value}; remove them, "
                        "or give another --out"
                    )
        check_comparison(config, self.jobs, Listener())
        folder.mkdir(parents=True, exist_ok=True)
        make_fits(config, folder, jobs=self.jobs, on_fit=self.on_fit, facts=provenance() | how)

    def _seeds(self, dataset: str) -> int:
        if self.quick:
            return 1
        return self.seeds_large if len(self.tensor(dataset)) > LARGE else self.seeds

    def _generated(self, dataset: str) -> Path:
        path = self.out / "data" / f"{dataset}.npz"
        if not path.exists():
            shape = (12, 10, 8, 6) if dataset in ("Enron-Emails", "NeurIPS", "Uber-Pickups") else (20, 16, 12)
            made, _ = make_joint(shape, (2, 0), observed=1200, noise=0.3, seed=DATASETS.index(dataset))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_npz(made.with_values(np.abs(made.values) + 0.1), path)
        return path


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, and what we found: ``holds``, ``does not hold``, ``not decided`` by the seeds that were
    run, or why it cannot be tested.
    """

    claim: str
    answer: str
    because: str


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    pictures: dict[str, str] = field(default_factory=dict)
    """SVG drawings by their titles."""


def holds_or_not(true: bool) -> str:  # noqa: FBT001 - a yes or a no
    """The answer to a claim that is true or not."""
    return "holds" if true else "does not hold"


def answered(claim: str, won: int, total: int, because: str) -> Finding:
    """A claim that is about every case."""
    if not total:
        return Finding(claim, "cannot be tested here", because or "no case was run")
    return Finding(claim, holds_or_not(won == total), f"{won} of {total}: {because}")


Verdict = Literal["yes", "no", "not decided"]

ANSWERS: dict[Verdict, str] = {"yes": "holds", "no": "does not hold", "not decided": "not decided"}
"""What a verdict says about a claim."""


def below(one: dict[str, Any], other: dict[str, Any]) -> Verdict:
    """Whether a method's mean RMSE is below another's, by Welch's interval for their difference over seeds.

    A method whose fits all have no figure is behind. With one fit of either nothing is decided, except that of a
    baseline, which does not depend on the seed.
    """
    if not one["fits"] or not other["fits"]:
        return "not decided"  # not run yet
    if one["rmse"] is None or other["rmse"] is None:
        return "not decided" if one["rmse"] is other["rmse"] else "no" if one["rmse"] is None else "yes"
    random = [row for row in (one, other) if parse_model(row["model"]).baseline is None]
    if any(row["rmse_sd"] is None for row in random):
        return "not decided"
    squares = [row["rmse_sd"] ** 2 / row["judged"] for row in random]
    difference, variance = one["rmse"] - other["rmse"], sum(squares)
    if variance:
        freedom = variance**2 / sum(s**2 / (row["judged"] - 1) for s, row in zip(squares, random, strict=True))
        half = standard_errors(freedom) * math.sqrt(variance)
    else:
        half = 0.0
    return "yes" if difference < -half else "no" if difference > half else "not decided"


def below_in_pairs(pairs: Sequence[tuple[float, float]]) -> tuple[Verdict, str]:
    """Whether the first of two errors of a tensor is the lower one, by the interval for their geometric mean ratio.

    A tensor counts alike whatever its scale.
    """
    lower = f"lower on {sum(a < b for a, b in pairs)} of {len(pairs)} tensors"
    logs = [math.log(a / b) for a, b in pairs]
    if len(logs) < 2:
        return "not decided", lower
    half = half_width(logs)
    ends = fmean(logs) - half, fmean(logs) + half
    mean, low, high = (f"{math.exp(one):.3g}" for one in (fmean(logs), *ends))
    verdict: Verdict = "yes" if ends[1] < 0 else "no" if ends[0] > 0 else "not decided"
    return verdict, f"{lower}; mean ratio {mean}, 95 % interval {low} to {high}"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Whether every one is a yes; no as soon as one is a no."""
    found = list(verdicts)
    return "no" if "no" in found else "not decided" if "not decided" in found or not found else "yes"


def decided(claim: str, verdicts: Sequence[Verdict], because: str) -> Finding:
    """A claim about every case, each of which is decided or not."""
    if not verdicts:
        return Finding(claim, "cannot be tested here", because or "no case was run")
    counts = [f"{word} {verdicts.count(word)}" for word in get_args(Verdict) if word in verdicts]
    return Finding(claim, ANSWERS[all_of(verdicts)], f"{', '.join(counts)} of {len(verdicts)}: {because}")


def as_markdown(outcome: Outcome, name: str, source: str = "") -> str:
    """The page of an experiment; ``source`` says where its figures come from."""
    text = [f"# {outcome.title}", "", _table(outcome.header, outcome.rows)]
    if outcome.findings:
        rows = [(one.claim, one.answer, one.because) for one in outcome.findings]
        text += ["", _table(("claim of the paper", "answer", "because"), rows)]
    cut = any(cell.endswith(CUT) or f"{CUT} " in cell for row in outcome.rows for cell in row)
    notes = [f"- {note}" for note in [*outcome.notes, *([CUT_NOTE] if cut else [])]]
    text += ["", *notes] if notes else []
    for title in outcome.pictures:
        text += ["", f"![{title}]({picture_name(name, title)})"]
    text += ["", source] if source else []
    return "\n".join(text) + "\n"


def picture_name(page: str, title: str) -> str:
    """File of a picture: the page, and the words of the title."""
    return f"{page}-{'-'.join(re.findall('[a-z0-9]+', title.lower()))}.svg"


def source_of(name: str, setting: Setting) -> str:
    """The command of a page, seconds that a fit was given, and commits and machines of its records."""
    page = page_name(name, setting)
    options = [f"--teacher {setting.teacher}"] * (page != name) + ["--quick"] * setting.quick
    command = " ".join(["jointensor reproduce", name, *options])
    records = setting.records(page)
    if not records:
        return f"`{command}`, from the paper's own figures."
    budgets = sorted({f"{one['budget']:g} s" for one in records if "model" in one and one.get("budget") is not None})
    limit = f" A fit was given {' or '.join(budgets)}." if budgets else ""
    return f"`{command}`.{limit} {origin(records)}"


def page_name(name: str, setting: Setting) -> str:
    """Of the page of an experiment, without an ending; and of the folder of its records."""
    return name if name != "figure2" or setting.teacher == "scaled" else f"{name}-{setting.teacher}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def write_outcome(outcome: Outcome, setting: Setting, name: str) -> Path:
    """The page and its pictures; returns where the page is."""
    page, folder = page_name(name, setting), setting.pages or setting.out
    folder.mkdir(parents=True, exist_ok=True)
    for title, drawing in outcome.pictures.items():
        write_text(folder / picture_name(page, title), drawing)
    write_text(folder / f"{page}.md", as_markdown(outcome, page, source_of(name, setting)))
    return folder / f"{page}.md"


def figure(row: dict[str, Any] | None, key: str = "rmse", digits: int = 4) -> str:
    """A figure with its spread, and a mark where a fit ended before it had converged."""
    if row is None or row.get("fits") == 0:
        return "–"
    if row.get(key) is None:
        return "failed"
    spread = row.get(f"{key}_sd")
    text = f"{row[key]:.{digits}g}" + ("" if spread is None else f" ± {spread:.2g}")
    return text + (CUT if row.get("not_converged") else "")


def number(value: float | None, digits: int = 3, missing: str = "–") -> str:
    """A number in few digits."""
    return missing if value is None else f"{value:.{digits}g}"


def beside(ours: str, theirs: float | None) -> str:
    """Our figure, and the paper's in brackets."""
    return ours if theirs is None else f"{ours} [{theirs:g}]"
