"""Answers of a finished run, written to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jointensor.atomic import sha256, write_whole
from jointensor.data.files import file_kind, read_queries, write_table
from jointensor.data.sparse import SparseTensor
from jointensor.errors import ConfigError, JointensorError
from jointensor.experiments.folder import Run
from jointensor.experiments.run import RunConfig, read_source


def predict_file(run: Run, queries: Path, out: Path, interval: float | None = None) -> tuple[int, int]:
    """Predict the queries of a file and write them with their answers; returns how many, and how many unseen.

    Tables come back with the columns ``prediction`` and ``unseen``; archives with the same ``indices``, the
    predictions as ``values``, and ``unseen``. With an interval there are ``lower`` and ``upper`` too.
    """
    _check_name(out, ("npz",))
    asked = read_queries(queries, run.modes, run.spec, values=False)
    predicted, unseen = run.predictor.predict(asked.indices), run.predictor.unseen(asked.indices)
    ends: dict[str, Any] = {}
    if interval is not None:
        both = run.predictor.interval(asked.indices, interval)
        ends = {"lower": both[:, 0], "upper": both[:, 1]}
    if file_kind(out) == "npz":
        given = asked.indices if asked.given is None else asked.given
        write_whole(
            out, lambda draft: np.savez_compressed(draft, indices=given, values=predicted, unseen=unseen, **ends)
        )
        return len(predicted), int(unseen.sum())
    import polars as pl  # noqa: PLC0415 - archives need NumPy alone

    from jointensor.data.tables import labels_frame, refuse_columns  # noqa: PLC0415

    frame = labels_frame(run.modes, asked.indices) if asked.frame is None else asked.frame
    refuse_columns(frame, ("prediction", "unseen", *ends))
    answer = frame.with_columns(
        prediction=pl.Series(predicted),
        unseen=pl.Series(unseen),
        **{name: pl.Series(end) for name, end in ends.items()},
    )
    write_whole(out, lambda draft: write_table(answer, draft))
    return len(predicted), int(unseen.sum())


def complete_file(
    run: Run,
    out: Path,
    *,
    where: str | None = None,
    top: int | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> None:
    """Fill in a part of the tensor and write it; says how many rows before it writes them."""
    from jointensor.evaluation.complete import fill_in, fill_in_top, select  # noqa: PLC0415 - polars only here

    _check_name(out, ())
    selection = select(run.modes, where)
    observed = _observed(run, on_note)
    if top is None:
        on_note(f"{selection.count():,} rows will be written to {out}")
        frame = fill_in(run.predictor, selection, observed)
    else:
        on_note(f"at most {top:,} rows, the largest of {selection.count():,} cells, will be written to {out}")
        frame = fill_in_top(run.predictor, selection, observed, top)
    write_whole(out, lambda draft: write_table(frame, draft))


def _check_name(out: Path, more: tuple[str, ...]) -> None:
    """Refuse a name whose ending promises another format than what would be written."""
    endings = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson")
    if file_kind(out) not in more and not out.name.lower().endswith(endings):
        known = ", ".join((*endings, *(f".{kind}" for kind in more)))
        raise ConfigError(f"{out} cannot be written: its name must end in one of {known}")


def _observed(run: Run, on_note: Callable[[str], None]) -> SparseTensor | None:
    """The entries the run was fitted to, where its source is still what it was."""
    stored = dict(run.config)
    expected = stored.pop("source_sha256", None)
    try:
        config = RunConfig.from_dict(stored)
        if sha256(Path(config.source)) == expected:
            return read_source(config.source, config.table, config.orders).tensor
    except (OSError, JointensorError):
        pass
    on_note(
        f"the source {stored.get('source')} is gone or has changed: observed cells cannot be told from missing ones"
    )
    return None
