"""Predictions of a finished run, written to files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import write_whole
from jointensor.data.formats import FORMATS, check_file, format_of
from jointensor.data.modes import Mode
from jointensor.data.queries import ahead, read_queries, scan_queries
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, JointensorError
from jointensor.predictors.base import CHUNK
from jointensor.predictors.serving import Serving
from jointensor.runs.folder import Run
from jointensor.runs.future import Future, entries_of

if TYPE_CHECKING:
    import polars as pl

QueryChunk = tuple["pl.DataFrame", NDArray[np.integer]]
"""Queries as they were read, and their indices, ``(rows, modes)``."""

FORMULA = r"^[=+\-@\t\r]"
"""How cells begin that spreadsheets take for formulas."""

NUMBER = r"^[+-]?[0-9]+([.][0-9]*)?([eE][+-]?[0-9]+)?$"

# Polars is imported where a table is read or written: archives need NumPy alone.


def predict_file(
    run: Run, queries: Path, out: Path, interval: float | None = None, *, safe_csv: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> tuple[int, int]:  # fmt: skip
    """Predict the queries of a file and write them with their predictions.

    Labels after the last one of an ordered mode are forecast.

    Tables come back with the columns ``prediction`` and ``unseen``; archives with the same ``indices``, the
    predictions as ``values``, and ``unseen``. With an interval there are ``lower`` and ``upper`` too. From table to
    table, memory does not grow with their number.

    Parameters
    ----------
    run, queries, out
        The model, the file of queries and the file to write.
    interval
        Share of the values that an interval holds; none are written if not given.
    safe_csv
        Whether text that a spreadsheet would take for a formula is written as text, see :func:`without_formulas`.
    on_note
        Called with a line about what happens.

    Returns
    -------
    How many queries there are, and how many have a label that no training entry had and that is not forecast.
    """
    check_name(out, ".npz", safe_csv=safe_csv)
    check_file(queries)
    answers = _Answers(Serving(run.predictor), interval, Future.of(run, on_note))
    modes = answers.future.modes
    if format_of(out).name == "npz":
        _to_archive(run, queries, out, answers)
    elif format_of(queries).tensor:
        write_tables(_with_predictions(_whole(run, queries, modes), answers), out, safe_csv=safe_csv)
    else:
        with closing(ahead(scan_queries(queries, modes, run.spec, CHUNK))) as parts:
            write_tables(_with_predictions(parts, answers), out, safe_csv=safe_csv)
    if answers.future.answered:
        on_note(f"{answers.future.answered:,} queries lie after the last label of an ordered mode, and were forecast")
    return answers.count, answers.unseen


@dataclass
class _Answers:
    """Predictions of queries, and how many there were."""

    serving: Serving
    level: float | None
    future: Future
    count: int = 0
    unseen: int = 0

    def columns(self, indices: NDArray[np.integer]) -> dict[str, NDArray[Any]]:
        """Columns to write beside the queries, ``(queries,)`` each."""
        known = self.future.known(indices)
        predicted, unseen = self.serving.answer(known)
        ends = None
        if self.level is not None:
            ends = self.serving.predictor.interval_around(known, predicted, unseen, self.level)  # (queries, 2)
        unseen &= ~self.future.answer(indices, predicted, ends, self.level)
        self.count += len(indices)
        self.unseen += int(unseen.sum())
        columns: dict[str, NDArray[Any]] = {"prediction": predicted, "unseen": unseen}
        if ends is not None:
            columns |= {"lower": ends[:, 0], "upper": ends[:, 1]}
        return columns


def _to_archive(run: Run, queries: Path, out: Path, answers: _Answers) -> None:
    asked = read_queries(queries, answers.future.modes, run.spec, values=False)
    parts = [answers.columns(asked.indices[at : at + CHUNK]) for at in _starts(len(asked.indices))]
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["values"] = columns.pop("prediction")
    given = asked.indices if asked.given is None else asked.given
    write_whole(out, lambda draft: np.savez_compressed(draft, indices=given, **columns))


def write_tables(frames: Iterable[pl.DataFrame], out: Path, *, safe_csv: bool) -> None:
    """Tables, one below the other, in the format that the name of the file says."""
    from jointensor.data.formats.writing import write_frames  # noqa: PLC0415

    safe = map(without_formulas, frames) if safe_csv else frames
    write_whole(out, lambda draft: write_frames(safe, draft))


def without_formulas(frame: pl.DataFrame) -> pl.DataFrame:
    """A table that no spreadsheet runs: text that begins like a formula gets an apostrophe in front, names of columns
    included. Numbers, those that are labels too, stay as they are.
    """
    import polars as pl  # noqa: PLC0415

    def safe(text: pl.Expr) -> pl.Expr:
        dangerous = text.str.contains(FORMULA) & ~text.str.contains(NUMBER)
        return pl.when(dangerous).then(pl.concat_str(pl.lit("'"), text)).otherwise(text)

    texts = [name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
    frame = frame.with_columns(safe(pl.col(name).cast(pl.String)).alias(name) for name in texts)
    names = pl.DataFrame({"name": frame.columns}, schema={"name": pl.String}).select(safe(pl.col("name"))).to_series()
    return frame.rename(dict(zip(frame.columns, names, strict=True)))


def _with_predictions(parts: Iterable[QueryChunk], answers: _Answers) -> Iterator[pl.DataFrame]:
    """Queries with their predictions beside them."""
    import polars as pl  # noqa: PLC0415

    from jointensor.data.frames import refuse_columns  # noqa: PLC0415

    for frame, indices in parts:
        columns = answers.columns(indices)
        refuse_columns(frame, columns)
        yield frame.with_columns(**{name: pl.Series(column) for name, column in columns.items()})


def _whole(run: Run, queries: Path, modes: tuple[Mode, ...]) -> Iterator[QueryChunk]:
    """Queries that are read whole, in parts."""
    from jointensor.data.frames import labels_frame  # noqa: PLC0415

    asked = read_queries(queries, modes, run.spec, values=False)
    for at in _starts(len(asked.indices)):
        indices = asked.indices[at : at + CHUNK]
        frame = labels_frame(modes, indices) if asked.frame is None else asked.frame.slice(at, CHUNK)
        yield frame, indices.astype(np.int64, copy=False)


def _starts(count: int) -> range:
    """Where parts of ``CHUNK`` begin; one part where there is nothing."""
    return range(0, max(count, 1), CHUNK)


def complete_file(
    run: Run,
    out: Path,
    *,
    where: str | None = None,
    top: int | None = None,
    safe_csv: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> None:
    """Fill in a part of the tensor and write it as it is formed; notes how many rows before it writes them.

    Parameters
    ----------
    run, out
        The model, and the table to write.
    where
        SQL condition over labels; all cells if not given.
    top
        Only so many missing cells, those with the largest predictions.
    safe_csv
        Whether text that a spreadsheet would take for a formula is written as text, see :func:`without_formulas`.
    on_note
        Called with a line about what happens.
    """
    from jointensor.evaluation.complete import Observed, fill_in, fill_in_top, select  # noqa: PLC0415 - polars only here

    check_name(out, safe_csv=safe_csv)
    selection = select(run.modes, where)
    observed = Observed(_observed(run, on_note), selection)
    serving = Serving(run.predictor)
    if top is None:
        on_note(f"{selection.count():,} rows will be written to {out}")
        frames = fill_in(serving, selection, observed)
    else:
        on_note(f"at most {top:,} rows, the largest of {selection.count():,} cells, will be written to {out}")
        frames = iter([fill_in_top(serving, selection, observed, top)])
    write_tables(frames, out, safe_csv=safe_csv)


def check_name(out: Path, *more: str, safe_csv: bool) -> None:
    """Refuse a name whose suffix promises another format than what would be written: a table, or ``more``."""
    if safe_csv and format_of(out).name != "delimited":
        raise ConfigError(f"--safe-csv is for .csv, .tsv and .txt; leave it out for {out}, which holds no formulas")
    tables = (suffix for one in FORMATS if not one.tensor for suffix in one.suffixes)
    suffixes = (".csv", ".tsv", ".txt", *tables, *more)
    if not out.name.lower().endswith(suffixes):
        raise ConfigError(f"{out} cannot be written: its name must end in one of {', '.join(suffixes)}")


def _observed(run: Run, on_note: Callable[[str], None]) -> SparseTensor | None:
    """The entries the run was fitted to, where its source is still what it was."""
    try:
        return entries_of(run)[0]
    except (OSError, JointensorError):
        pass
    on_note(
        f"the source {run.config.get('source')} is gone or has changed: observed cells cannot be told from missing ones"
    )
    return None
