"""The entries of a run: read, split, and the same to everything after, whether they are in memory or on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.formats import count_entries, order_modes, read_tensor, scan_source
from jointensor.data.formats.base import ChunkedSource, Reading
from jointensor.data.modes import Mode, find_mode
from jointensor.data.queries import read_asked, read_entries, scan_entries
from jointensor.data.shard_writer import ShardedTensor, Share, load_shards, write_shards
from jointensor.data.shards import Shards, read_header
from jointensor.data.split import (
    QUERIES,
    Split,
    SplitAssignment,
    SplitRule,
    blocks_of,
    groups_of,
    in_words,
    pattern_of_gaps,
    split,
    with_folds,
)
from jointensor.data.tensor import SparseTensor, join
from jointensor.distributed.process_group import ProcessGroup
from jointensor.errors import DataError, JointensorError, RunError
from jointensor.evaluation.evaluate import Entries
from jointensor.evaluation.mask import Mask
from jointensor.kernels import pick_engine
from jointensor.models.blocks.spec import by_position, split_residual_blocks
from jointensor.models.joint import JointModel, cp_rank
from jointensor.predictors import Mean, Predictor, Tables, fit_baselines, fit_bias
from jointensor.predictors.biases import fit_bias_streamed
from jointensor.runs.config import AUTO, Listener, RunConfig
from jointensor.runs.folder import CHECKPOINTS
from jointensor.runs.memory_plan import MemoryPlan, check_labels, fits_in_memory
from jointensor.solvers.data_parallel import sum_shares
from jointensor.training.fit import Fit, fit
from jointensor.training.from_disk import Request
from jointensor.training.recipe import Recipe, make_recipe
from jointensor.training.trainer import MemoryLimits

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

SHARDS, SORTED_CELLS, ASSIGNMENT = "shards", "sorting", "assignment"
"""Names among the checkpoints: shards, removed when the run is finished; cells while they are sorted, and the side of
the split of every entry while shards are written."""

MAX_REPORT_ENTRIES = 400_000
"""Entries of a run from disk that its intervals and its report are made from."""


@dataclass(frozen=True)
class InMemory:
    """Entries in memory."""

    reading: Reading
    parts: Split
    test: Entries
    notes: list[str]
    """What is worth knowing of the source and the split."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The axes."""
        return self.reading.tensor.modes

    @property
    def spec(self) -> TableSpec | None:
        """How a table became a tensor."""
        return self.reading.spec

    @property
    def counts(self) -> dict[str, int]:
        """Entries of every part."""
        parts = {"train": len(self.parts.train), "valid": len(self.parts.valid), "test": len(self.test[1])}
        return parts | {"all": len(self.reading.tensor)}

    def entries_per_process(self, processes: ProcessGroup) -> list[int]:
        """Training entries that every process has in a fit: every so many-th."""
        return processes.shares(len(self.parts.train))

    @property
    def valid(self) -> SparseTensor:
        """Validation entries."""
        return self.parts.valid

    @property
    def split_record(self) -> dict[str, Any]:
        """What is left out together, and why."""
        pattern = self.parts.pattern
        why = None if pattern is None else pattern.to_dict(self.modes)
        return {"together": in_words(self.parts.together, self.modes), "pattern": why}

    @property
    def validation_is_like_gaps(self) -> bool:
        """Whether validation entries look like the missing cells, and test entries are drawn one by one."""
        grouped = self.parts.rule == "like-gaps" or self.parts.rule.startswith("group")
        given = len(self.test[1]) > len(self.parts.test)  # by a test file
        return bool(self.parts.together) and not grouped and not given and len(self.parts.valid) > 0

    def left_out_together(self, entries: Entries) -> NDArray[np.integer] | None:
        """Group of every held-out entry, ``(entries,)``; ``None`` where they were not left out in groups."""
        part = next((one for one in (self.parts.test, self.valid) if one.indices is entries[0]), None)
        return groups_of(part, self.parts.together)[1] if part is not None and self.parts.together else None

    def test_parts(self) -> Iterator[Entries]:
        """Test entries, in one part."""
        yield self.test

    def held_out(self) -> Entries:
        """Test entries, or validation entries where there are none."""
        return self.test if len(self.test[1]) else (self.valid.indices, self.valid.values)

    def learnt_from(self, *, validation: bool) -> SparseTensor | None:
        """Training entries, and validation entries if these were learnt from as well."""
        return join(self.parts.train, self.parts.valid) if validation else self.parts.train

    def mask(self) -> Mask | None:
        """Which cells were learnt from, and which validate."""
        return Mask(self.parts.train, self.parts.valid, tuple(n for n, _ in blocks_of(self.parts.together)))

    def without_validation(self) -> InMemory:
        """The same with validation entries among the training entries."""
        train, valid = self.parts.train, self.parts.valid
        nothing = valid.take(np.zeros(0, dtype=np.int64))
        return replace(self, parts=replace(self.parts, train=join(train, valid), valid=nothing))

    def without_held_out(self) -> InMemory:
        """The same with all entries among the training entries."""
        return replace(self, parts=split(self.reading.tensor, test=0.0, valid=0.0, seed=self.parts.seed))

    def sample(self) -> SparseTensor:
        """All entries."""
        return self.reading.tensor

    def fit_baselines(self, processes: ProcessGroup) -> dict[str, Predictor]:
        """Baselines by name: all of them for the process that reports; the others need ``bias`` alone."""
        if processes.first:
            return fit_baselines(self.parts)
        return {"bias": fit_bias(self.parts.train, self.parts.valid)}

    def fit(self, model: JointModel, recipe: Recipe, bias: Tables | None, **options: Any) -> Fit:
        """Train on the training entries."""
        return fit(model, self.parts, recipe, fallback=bias, **options)


@dataclass(frozen=True)
class OnDisk:
    """Entries in shards on disk."""

    source: ChunkedSource
    shards: ShardedTensor
    plan: MemoryPlan
    config: RunConfig
    processes: ProcessGroup
    shares: list[int]
    """Training entries of every process."""
    notes: list[str]

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The axes."""
        return self.shards.modes

    @property
    def spec(self) -> TableSpec | None:
        """How a table became a tensor."""
        return self.source.spec

    @property
    def counts(self) -> dict[str, int]:
        """Entries of every part."""
        found = self.shards
        return {"train": found.summary.n, "valid": len(found.valid), "test": len(found.test), "all": found.entries}

    def entries_per_process(self, processes: ProcessGroup) -> list[int]:
        """Training entries that every process has in a fit: those of its shards."""
        return self.shares

    @property
    def valid(self) -> SparseTensor:
        """Validation entries; a sample, where there are very many."""
        return self.shards.valid

    @property
    def split_record(self) -> dict[str, Any]:
        """How the split was drawn, and that nothing is left out together."""
        return {"drawn": self.shards.how, "together": "single cells", "pattern": None}

    validation_is_like_gaps = False
    """Both are drawn entry by entry."""

    def left_out_together(self, entries: Entries) -> None:
        """None: every entry is on its own."""

    def learnt_from(self, *, validation: bool) -> None:
        """None: training entries are not in memory."""

    def mask(self) -> None:
        """None, for the same reason."""

    def test_parts(self) -> Iterator[Entries]:
        """Test entries, a shard at a time."""
        return ((block.indices, block.values) for block in self.shards.test.blocks())

    def held_out(self) -> Entries:
        """A sample of the test entries, or the validation entries where there are none."""
        if len(self.shards.test):
            return _sample(self.shards.test, MAX_REPORT_ENTRIES)
        return self.valid.indices, self.valid.values

    def without_held_out(self) -> OnDisk:
        """The same with all entries that are in shards or in memory among the training entries, in other shards."""
        before, folder = self.shards, self.shards.train.folder / "all"
        stored = (before.train,) if self.config.test_file else (before.train, before.test)
        blocks = chain.from_iterable(one.blocks() for one in stored)
        valid = before.valid.indices.astype(np.int32), before.valid.values
        chunks = chain([valid], ((one.indices, one.values) for one in blocks))
        assignment = SplitAssignment(SplitRule(test=0.0, valid=0.0), before.entries, folder, 0)
        rule, share = {"rows": self.plan.rows}, Share(self.processes.rank, self.processes.size)
        shards = load_shards(folder, self.modes, rule)
        if shards is None:
            shards = write_shards(folder, chunks, self.modes, assignment, self.plan.rows, rule, share=share)
        self.processes.meet()
        return replace(self, shards=sum_shares(shards, self.processes))

    def sample(self) -> SparseTensor:
        """A sample of the training entries."""
        return SparseTensor.part(*_sample(self.shards.train, MAX_REPORT_ENTRIES), self.modes)

    def fit_baselines(self, processes: ProcessGroup) -> dict[str, Predictor]:
        """Mean and biases; tables and interpolation need all entries in memory."""
        engine = pick_engine("reference" if self.config.engine == "reference" else "auto", "cpu")
        return {"mean": Mean(self.shards.summary.mean), "bias": fit_bias_streamed(self.shards, engine, processes)}

    def fit(self, model: JointModel, recipe: Recipe, bias: Tables | None, **options: Any) -> Fit:
        """Train on the training entries."""
        limits = MemoryLimits(self.plan.systems, self.plan.batch)
        return fit(model, self.shards, recipe, fallback=bias, limits=limits, **options)


Dataset = InMemory | OnDisk
"""Entries of a run, split."""


def read_source(source: str, table: dict[str, Any] | None, orders: dict[str, str]) -> Reading:
    """The tensor of a run, read again by the same rules."""
    spec = None
    if table is not None:
        from jointensor.data.frames import TableSpec  # noqa: PLC0415 - polars only for tables

        spec = TableSpec.from_dict(table)
    reading = read_tensor(source, spec, orders)
    if not len(reading.tensor):
        raise DataError(f"{source} has no entries")
    return reading


def stays_on_disk(config: RunConfig, listener: Listener) -> bool:
    """Whether the entries are more than ``--memory`` holds, or are to stay on disk anyway."""
    if config.memory is None:
        return False
    if config.stream or not fits_in_memory(*count_entries(Path(config.source), config.table), config.memory):
        return True
    listener.on_note("entries are held in memory: --memory is enough for that")
    return False


def from_disk_request(config: RunConfig) -> Request:
    """The options of a run that a fit from disk may refuse."""
    recipe = make_recipe(config.recipe, **config.recipe_changes)
    searches = config.rank == AUTO
    return Request(
        linear=config.linear or ("" if searches else recipe.linear(config.rank_pair[0])),
        recipe=recipe,
        split=config.split,
        searches=searches,
    )


def read_in_memory(config: RunConfig) -> Reading:
    """The whole source."""
    return read_source(config.source, config.table, config.orders)


def entries_folder(path: Path, processes: ProcessGroup) -> Path:
    """Where a process of a run keeps entries on disk: among the checkpoints, or beside the first process's."""
    return path / CHECKPOINTS if processes.first else path / CHECKPOINTS / f"process-{processes.rank}"


def read_in_chunks(folder: Path, config: RunConfig) -> ChunkedSource:
    """The source as chunks that can be read in turn."""
    source = scan_source(Path(config.source), config.table, folder / SORTED_CELLS)
    return replace(source, modes=order_modes(source.modes, config.orders))


def split_in_memory(config: RunConfig, reading: Reading) -> InMemory:
    """Training, validation and test entries."""
    share = 0.0 if config.test_file else config.test
    parts = split(reading.tensor, rule=config.split, test=share, valid=config.valid, seed=config.split_seed)
    asked = None if config.queries is None else read_asked(config.queries, reading.tensor.modes, reading.spec)
    parts = with_folds(parts, config.folds, config.valid, asked)
    test: Entries = parts.test.indices, parts.test.values
    if config.test_file is not None:
        test = read_entries(config.test_file, reading.tensor.modes, reading.spec)
    return InMemory(reading, parts, test, [*reading.notes, *fold_notes(reading.tensor, parts)])


def fold_notes(tensor: SparseTensor, parts: Split) -> list[str]:
    """How validation entries were drawn, where that was found from missing cells or from queries; and what to do where
    test entries are not like them.
    """
    pattern = parts.pattern
    if pattern is None:
        return []
    said = pattern.in_words(tensor.modes)
    if parts.rule == "like-gaps":
        return [f"{said}, and tested by others"] if parts.together else []
    if pattern.cells == QUERIES:
        return [said]
    if parts.together:
        tested = "tested on single entries, which are easier; --split like-gaps tests on such groups"
        return [f"{said}; --folds random: single entries", *([tested] if len(parts.test) else [])]
    gaps = pattern_of_gaps(tensor, parts.seed) if len(parts.test) else pattern
    if not gaps.groups:
        return []
    return [
        f"{gaps.how_cells_lie(tensor.modes)}, but test entries do not; "
        "--split like-gaps tests and validates as cells are missing"
    ]


def split_on_disk(
    folder: Path, config: RunConfig, source: ChunkedSource, listener: Listener, processes: ProcessGroup
) -> OnDisk:
    """Shards of training and test entries; those of an interrupted run where they are whole."""
    assert config.memory is not None  # that is why entries are on disk
    recipe = make_recipe(config.recipe, **config.recipe_changes)
    shape = [mode.size for mode in source.modes]
    linear = linear_blocks(config, recipe, source.modes, whole=True)
    check_labels(config.memory, shape, sum(config.rank_pair))
    model = JointModel(shape, config.rank_pair, linear=linear, nonlinear=config.nonlinear)
    if recipe.max_rank > cp_rank(model) > 0:
        model.resize_cp(recipe.max_rank)  # R may grow to it
    plan = MemoryPlan.of(config.memory, model)
    shards = _write_shards(folder, config, source, plan, listener, Share(processes.rank, processes.size))
    processes.meet()  # one may read faster than the others
    own = torch.tensor(len(shards.train), device=processes.device)
    shares, shards = [int(one) for one in processes.gather(own)], sum_shares(shards, processes)
    return OnDisk(source, shards, plan, config, processes, shares, [*source.notes, *_disk_notes(shards, config)])


def make_model(config: RunConfig, recipe: Recipe, modes: tuple[Mode, ...]) -> JointModel:
    """The model of a run, without the blocks that are fitted to its residuals."""
    linear = linear_blocks(config, recipe, modes)
    return JointModel([mode.size for mode in modes], config.rank_pair, linear=linear, nonlinear=config.nonlinear)


def linear_blocks(config: RunConfig, recipe: Recipe, modes: tuple[Mode, ...], *, whole: bool = False) -> str:
    """The multilinear blocks, modes by position; ``whole`` includes the blocks that are fitted to residuals."""
    if config.linear is None:
        return recipe.linear(config.rank_pair[0])
    spelled = by_position(config.linear, lambda name: find_mode(modes, name))
    return spelled if whole else split_residual_blocks(spelled, sampled=recipe.linear_solver == "gibbs")[0]


@contextmanager
def tidy(folder: Path) -> Iterator[None]:
    """Leave nothing among the checkpoints that a resumed run cannot use: unsorted cells, shards that are not whole."""
    try:
        yield
    except (JointensorError, OSError) as error:
        if read_header(folder / SHARDS) is None:
            shutil.rmtree(folder / SHARDS, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, JointensorError):
            raise RunError(f"entries cannot be kept in {folder}: {error.strerror or error}") from error
        raise
    finally:
        shutil.rmtree(folder / SORTED_CELLS, ignore_errors=True)
        (folder / ASSIGNMENT).unlink(missing_ok=True)


def _write_shards(
    folder: Path, config: RunConfig, source: ChunkedSource, plan: MemoryPlan, listener: Listener, share: Share
) -> ShardedTensor:
    rule = {**config.split_record(), "rows": plan.rows, **vars(share)}
    before = load_shards(folder / SHARDS, source.modes, rule)
    if before is not None:
        listener.on_note("taking the shards that were written before the interruption")
        return before
    listener.on_note(f"writing {source.entries:,} entries to shards of about {plan.rows:,}")
    folder.mkdir(parents=True, exist_ok=True)
    how = SplitRule(config.split, 0.0 if config.test_file else config.test, config.valid, config.split_seed)
    assignment = SplitAssignment(how, source.entries, folder / ASSIGNMENT, plan.permutation)
    test = None
    if config.test_file is not None and share.rank == 0:
        test = scan_entries(Path(config.test_file), source.modes, source.spec, folder / SORTED_CELLS)
    return write_shards(
        folder / SHARDS, source.chunks(), source.modes, assignment, plan.rows, rule, test=test, share=share
    )


def _disk_notes(shards: ShardedTensor, config: RunConfig) -> list[str]:
    notes = [f"entries stay on disk: {shards.entries:,} of them are more than --memory holds with all that a fit keeps"]
    if config.stream:
        notes = ["entries stay on disk, as --stream asks"]
    if shards.how == "hashed":
        notes.append("the split is drawn by a hash of each entry's position: its permutation would not fit into memory")
    if len(shards.valid) >= SplitRule.max_valid:
        notes.append(f"validation entries are a sample of {len(shards.valid):,}; the others are not used")
    if len(shards.train) > MAX_REPORT_ENTRIES:
        notes.append(f"counts per label and values in the report are of {MAX_REPORT_ENTRIES:,} training entries")
    return notes


def _sample(shards: Shards, wanted: int) -> Entries:
    """About so many entries, of every shard in proportion."""
    indices, values, share = [], [], min(1.0, wanted / len(shards))
    for k, count in enumerate(shards.counts):
        block, chosen = shards.read(k), np.random.default_rng(k).choice(count, round(share * count), replace=False)
        indices.append(block.indices[chosen])
        values.append(block.values[chosen])
    return np.concatenate(indices), np.concatenate(values)
