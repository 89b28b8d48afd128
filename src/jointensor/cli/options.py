"""Options of the command line as a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jointensor.data.formats import format_of
from jointensor.data.split import check_share, draws_folds, fold_rule
from jointensor.errors import ConfigError
from jointensor.kernels.engines import ENGINES
from jointensor.models.blocks import linear_spec, parse_blocks
from jointensor.models.nonlinear import make_nonlinear
from jointensor.models.size import within_memory
from jointensor.registry import nearest, parse_value
from jointensor.runs.compare import CompareConfig
from jointensor.runs.config import AUTO, DEFAULT_RANK, RunConfig
from jointensor.runs.memory_plan import parse_memory
from jointensor.runs.model_specs import parse_models
from jointensor.search.budget import check_budget
from jointensor.training.recipe import make_recipe

AUTO_DECIDES = {"linear": None, "nonlinear": "julia", "recipe": "default", "refit": False}
"""Options that a search decides by itself, and their defaults."""


def fit_config(
    source: Path,
    *,
    rank: str | None,
    changes: Sequence[str] | None,
    loss: str | None,
    test_file: Path | None,
    queries: Path | None,
    engine: str,
    memory: str | None,
    no_restart: bool,
    **same: Any,
) -> RunConfig:
    """The configuration that the options of ``fit`` stand for, checked before anything is read."""
    if engine not in ENGINES:
        raise ConfigError(f"there is no engine '{engine}'; {nearest(engine, ENGINES)}")
    if test_file is not None and same["split"] != "standard":
        raise ConfigError("give --test-file or --split, not both: a test file decides what is tested")
    check_folds(same["split"], same["folds"], queries)
    if memory is not None and (queries is not None or fold_rule(same["folds"])[0] not in ("like-gaps", "random")):
        what = "--for" if queries is not None else f"--folds {same['folds'].partition(':')[0]}:…"
        raise ConfigError(f"{what} needs all entries in memory: leave out --memory, or {what.partition(' ')[0]}")
    if same["stream"] and memory is None:
        raise ConfigError("--stream goes with --memory, such as --memory 4GB")
    reading = read_options(source, **{name: same.pop(name) for name in READING})
    recipe_changes = _recipe_changes(same, changes, loss, no_restart=no_restart)
    _check_split(same)
    numbers: tuple[int, int] | str | None = AUTO
    if rank == AUTO:
        _check_auto(same, recipe_changes)
    elif same["budget_fits"] is not None:
        raise ConfigError("--budget-fits counts the fits of a search; it goes with --rank auto")
    else:
        numbers = None if rank is None else parse_rank(rank)
        _check_model(numbers or DEFAULT_RANK, same["linear"], same["nonlinear"], _count_modes(reading["table"]))
    return RunConfig(
        **reading,
        rank=numbers,
        recipe_changes=recipe_changes,
        engine=engine,
        memory=None if memory is None else parse_memory(memory),
        test_file=None if test_file is None else str(test_file.resolve()),
        queries=None if queries is None else str(queries.resolve()),
        **same,
    )


def check_folds(split: str, folds: str, queries: Path | None = None) -> None:
    """Refuse folds that are not known, or that the split does not draw."""
    kind, _ = fold_rule(folds)
    given = kind != "like-gaps"
    if given and queries is not None:
        raise ConfigError("give --folds or --for, not both: queries say what validation entries look like")
    if (given or queries is not None) and not draws_folds(split, given=True):
        option = "--folds" if given else "--for"
        raise ConfigError(f"{option} does not go with --split {split}, which says what is left out together")


def _check_auto(same: dict[str, Any], changes: dict[str, Any]) -> None:
    """Refuse options that a search would decide by itself."""
    check_budget(same["budget"], same["budget_fits"])
    given = [name for name, usual in AUTO_DECIDES.items() if same[name] != usual] + [f"set {name}" for name in changes]
    if given:
        raise ConfigError(f"--rank auto chooses by itself; leave out --{given[0]}, or give --rank R/F")


def impute_config(source: Path, *, rank: str | None, valid: float, seed: int, **same: Any) -> RunConfig:
    """The configuration that the options of ``impute`` stand for: a fit without test entries."""
    check_share("valid", valid)
    numbers = rank if rank is None or rank == AUTO else parse_rank(rank)
    return RunConfig(str(source), rank=numbers, test=0.0, valid=valid, split_seed=seed, seed=seed, **same)


def compare_config(
    source: Path,
    models: Sequence[str],
    *,
    changes: Sequence[str] | None,
    loss: str | None,
    no_restart: bool,
    **same: Any,
) -> CompareConfig:
    """The configuration that the options of ``compare`` stand for, checked before anything is read."""
    parse_models(models)
    check_folds(same["split"], same["folds"])
    reading = read_options(source, **{name: same.pop(name) for name in READING})
    recipe_changes = _recipe_changes(same, changes, loss, no_restart=no_restart)
    _check_split(same)
    if same["test"] == 0:
        raise ConfigError("a comparison needs test entries; give a --test share above 0")
    return CompareConfig(models=tuple(models), recipe_changes=recipe_changes, **reading, **same)


READING = ("modes", "mode", "value", "duplicates", "order", "separator", "no_header", "columns")
"""Options that say how a source is read."""


def read_options(source: Path, *, order: str | None, **table: Any) -> dict[str, Any]:
    """How a source is read, by the options that say so."""
    return {
        "source": str(source.resolve()),
        "table": _table(source, **table),
        "orders": _pairs(order.split(",") if order else (), "--order"),
    }


def numbers(text: str, name: str) -> list[int]:
    """``0,1,2`` as whole numbers.

    >>> numbers("0,1,2", "linear")
    [0, 1, 2]
    """
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(piece.isdecimal() for piece in pieces):
        raise ConfigError(f"--{name}-ranks '{text}' is not a list of whole numbers such as 0,1,2,4")
    return sorted({int(piece) for piece in pieces})


def _recipe_changes(
    same: dict[str, Any], changes: Sequence[str] | None, loss: str | None, *, no_restart: bool
) -> dict[str, Any]:
    made = _pairs(changes or (), "--set")
    if loss is not None:
        made["loss"] = loss
    if no_restart:
        made["restarts"] = 0
    make_recipe(same["recipe"], **made)
    return made


def _check_split(same: dict[str, Any]) -> None:
    if same["split"].startswith("first:") and same["test"] == 0:
        raise ConfigError("--split first:N tests on the other entries; --test 0 goes with the standard split")
    check_share("test", same["test"])
    check_share("valid", same["valid"])


def _count_modes(table: dict[str, Any] | None) -> int | None:
    """How many modes there will be, where the options say so."""
    return len(table["modes"]) if table is not None and table["modes"] else None


def _check_model(rank: tuple[int, int], linear: str | None, nonlinear: str, n_modes: int | None) -> None:
    """Refuse what can be seen to be wrong without the tensor."""
    names: dict[str, int] = {}  # of modes, in any order: the tensor is not there yet
    blocks = parse_blocks(
        linear_spec(rank[0]) if linear is None else linear, lambda name: names.setdefault(name, len(names))
    )
    if n_modes is not None:
        for piece in blocks:
            piece.kind.check_ranks(piece.numbers, n_modes)
    if rank[1]:
        with within_memory(f"rank {rank[0]}/{rank[1]}"):
            make_nonlinear(nonlinear, n_modes or 2, rank[1])  # two modes are the least a network can refuse
    elif not blocks:
        raise ConfigError(
            f"rank {rank[0]}/{rank[1]} leaves nothing to fit; give at least one component, such as --rank 4/16"
        )


def parse_rank(text: str) -> tuple[int, int]:
    """``R/F`` as two numbers.

    >>> parse_rank("4/16")
    (4, 16)
    """
    pieces = text.split("/")
    if len(pieces) != 2 or not all(piece.strip().isdecimal() for piece in pieces):
        raise ConfigError(f"rank '{text}' is not R/F, two whole numbers such as 4/16, or auto")
    return int(pieces[0]), int(pieces[1])


def _table(
    source: Path,
    *,
    modes: str | None,
    mode: Sequence[str] | None,
    value: str | None,
    duplicates: str,
    separator: str | None,
    no_header: bool,
    columns: str | None,
) -> dict[str, Any] | None:
    if format_of(source).tensor:
        if modes or mode or value:
            raise ConfigError(
                f"{source} says itself what its modes and values are; leave out --modes, --mode and --value"
            )
        return None
    from jointensor.data.frames import TableSpec

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
        header=not no_header,
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
