"""Text of the command line made into a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jointensor.data.files import file_kind
from jointensor.data.split import check_share
from jointensor.errors import ConfigError
from jointensor.experiments.run import RunConfig
from jointensor.models.multilinear import linear_spec, parse_blocks
from jointensor.registry import parse_value
from jointensor.training.recipe import make_recipe


def fit_config(
    source: Path,
    *,
    modes: str | None,
    mode: Sequence[str] | None,
    value: str | None,
    duplicates: str,
    order: str | None,
    rank: str,
    changes: Sequence[str] | None,
    loss: str | None,
    test_file: Path | None,
    engine: str,
    no_restart: bool,
    separator: str | None,
    no_header: bool,
    columns: str | None,
    **same: Any,
) -> RunConfig:
    """The configuration that the options of ``fit`` stand for, checked before anything is read."""
    if engine not in ("auto", "reference"):
        raise ConfigError(f"engine '{engine}' is not here; known are auto, reference")
    recipe_changes = _pairs(changes or (), "--set")
    if loss is not None:
        recipe_changes["loss"] = loss
    if no_restart:
        recipe_changes["restarts"] = 0
    make_recipe(same["recipe"], **recipe_changes)
    if test_file is not None and same["split"] != "standard":
        raise ConfigError("give --test-file or --split, not both: a test file decides what is tested")
    if same["split"].startswith("first:") and same["test"] == 0:
        raise ConfigError("--split first:N tests on the other entries; --test 0 goes with the standard split")
    check_share("test", same["test"])
    check_share("valid", same["valid"])
    numbers = parse_rank(rank)
    if not numbers[1] and not parse_blocks(linear_spec(numbers[0]) if same["linear"] is None else same["linear"]):
        raise ConfigError(f"rank {rank} leaves nothing to fit; give at least one component, such as --rank 4/16")
    return RunConfig(
        source=str(source.resolve()),
        table=_table(source, modes, mode, value, duplicates, separator, columns, header=not no_header),
        orders=_pairs((order or "").split(",") if order else (), "--order"),
        rank=numbers,
        recipe_changes=recipe_changes,
        engine=engine,
        test_file=None if test_file is None else str(test_file.resolve()),
        **same,
    )


def parse_rank(text: str) -> tuple[int, int]:
    """``R/F`` as two numbers.

    >>> parse_rank("4/16")
    (4, 16)
    """
    pieces = text.split("/")
    if len(pieces) != 2 or not all(piece.strip().isdigit() for piece in pieces):
        raise ConfigError(f"rank '{text}' is not R/F, two whole numbers such as 4/16")
    return int(pieces[0]), int(pieces[1])


def _table(
    source: Path,
    modes: str | None,
    mode: Sequence[str] | None,
    value: str | None,
    duplicates: str,
    separator: str | None,
    columns: str | None,
    *,
    header: bool,
) -> dict[str, Any] | None:
    if file_kind(source) in ("npz", "tns"):
        if modes or mode or value:
            raise ConfigError(
                f"{source} says itself what its modes and values are; leave out --modes, --mode and --value"
            )
        return None
    from jointensor.data.tables import TableSpec

    if modes and mode:
        raise ConfigError("give the modes by --modes or by --mode, not both")
    texts = list(mode or ()) or [name.strip() for name in (modes or "").split(",") if name.strip()]
    names = tuple(name.strip() for name in columns.split(",")) if columns else None
    if value is not None and value in texts:
        raise ConfigError(f"'{value}' is named as a mode and as the value; it can be one of them")
    if texts and value is None:
        raise ConfigError("name the column of values with --value, or count rows with --value count")
    marks = {"\\t": "\t", "tab": "\t"}
    return TableSpec.of(
        texts,
        value or "",
        duplicates=duplicates,
        separator=marks.get(separator or "", separator),
        header=header,
        columns=names,
    ).to_dict()


def _pairs(texts: Sequence[str], option: str) -> dict[str, Any]:
    made = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"{option} '{text}': write NAME=VALUE")
        made[key.strip()] = parse_value(value.strip())
    return made
