"""From the publisher's files to the tensor of the paper."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.catalogue.archives import open_member
from jointensor.data.catalogue.recipes import Recipe
from jointensor.data.formats import format_of, read_tensor, with_orders
from jointensor.data.formats.npz import read_archive, texts_of
from jointensor.data.frames import TableSpec
from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import DataError

FEWEST_RATINGS = 20
"""Users with fewer are left out (the paper, on MovieLens)."""
MOST_RATINGS = 3000
"""Of a user with more, the first by time are kept (the paper, on MovieLens)."""
DAY = 86_400

RATINGS = {"userId": pl.Int32, "movieId": pl.Int32, "rating": pl.Float32, "timestamp": pl.Int64}


def build(recipe: Recipe, format_: str, path: Path) -> SparseTensor:
    """The tensor of a recipe from the file with its entries.

    Parameters
    ----------
    recipe
        Names and orders of the modes.
    format_
        How the file is written, one of :data:`~jointensor.data.catalogue.recipes.FORMATS`.
    path
        The file; those with labels lie beside it.
    """
    tensor = _BUILDERS[format_](recipe, path)
    return with_orders(tensor, dict(zip(recipe.modes, recipe.orders, strict=True)))


def read_stand_in(path: Path) -> SparseTensor:
    """A tensor as it is, with the labels that ``NAME_labels.npz`` beside ``NAME.npz`` has for its modes.

    Labels belong to the one mode that has as many positions, the first that fits where there are several.
    """
    tensor = read_tensor(path).tensor
    beside = path.with_name(f"{path.stem}_labels.npz")
    if format_of(path).name != "npz" or not beside.is_file():
        return tensor
    arrays = read_archive(beside)
    modes = list(tensor.modes)
    for key in arrays:
        labels = texts_of(arrays, key) or ()
        fitting = [n for n, mode in enumerate(tensor.modes) if mode.size == len(labels)]
        if len(fitting) == 1 and modes[fitting[0]].labels is None and len(set(labels)) == len(labels):
            modes[fitting[0]] = replace(modes[fitting[0]], labels=labels)
    return tensor.over(tuple(modes))


def _frostt(recipe: Recipe, path: Path) -> SparseTensor:
    """FROSTT's tensor; labels past the last that is used are left out, as FROSTT's own sizes do."""
    tensor = read_tensor(path).tensor
    if tensor.n_modes != len(recipe.modes):
        raise DataError(f"{path} has {tensor.n_modes} modes; '{recipe.name}' has {len(recipe.modes)}")
    sizes = tensor.indices.max(axis=0) + 1
    modes = [
        Mode(name, int(size), None if mode.labels is None else mode.labels[:size])
        for name, size, mode in zip(recipe.modes, sizes, tensor.modes, strict=True)
    ]
    return tensor.over(tuple(modes)) if tensor.shape == tuple(sizes) else _with_modes(tensor, modes)


def _with_modes(tensor: SparseTensor, modes: list[Mode]) -> SparseTensor:
    return SparseTensor(tensor.indices, tensor.values, modes)


def _movielens(recipe: Recipe, path: Path) -> SparseTensor:
    """``userId,movieId,rating,timestamp`` with a header; times in seconds."""
    with open_member(path, "ratings.csv") as file:
        data = file.read()
    try:
        frame = pl.read_csv(io.BytesIO(data), schema_overrides=RATINGS)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path} cannot be read as ratings: {str(error).strip().splitlines()[0]}") from None
    if frame.columns != list(RATINGS):
        raise DataError(f"{path}: the columns are {', '.join(frame.columns)}, expected {', '.join(RATINGS)}")
    if frame.null_count().sum_horizontal()[0]:
        row = frame.select(pl.any_horizontal(pl.all().is_null())).to_series().arg_max()
        raise DataError(f"{path}: rating {(row or 0) + 1} is not whole (is the file cut off?)")
    frame = frame.filter(pl.len().over("userId") >= FEWEST_RATINGS).sort("userId", "timestamp", maintain_order=True)
    frame = frame.filter(pl.int_range(pl.len()).over("userId") < MOST_RATINGS)
    if not frame.height:
        raise DataError(f"{path}: no user has {FEWEST_RATINGS} ratings or more")
    users, movies, ratings, times = (frame[name].to_numpy() for name in RATINGS)
    modes, indices = _encode(recipe, users, movies, times)
    order = np.argsort(cell_keys(indices, [mode.size for mode in modes]), kind="stable")
    return SparseTensor(indices[order], ratings[order], modes)


def _konect(recipe: Recipe, path: Path) -> SparseTensor:
    """KONECT: from, to, weight, time in seconds; ``%`` starts a comment. Every line is one post."""
    rows = _numbers(path, "out.facebook-wosn-wall", 4)
    return _count(recipe, poster=rows[:, 0], wall=rows[:, 1], times=rows[:, 3])


def _mpi_wall(recipe: Recipe, path: Path) -> SparseTensor:
    """The authors' own file: owner of the wall, poster, time in seconds. Every line is one post."""
    rows = _numbers(path, path.name, 3)
    return _count(recipe, poster=rows[:, 1], wall=rows[:, 0], times=rows[:, 2])


def _table(recipe: Recipe, path: Path) -> SparseTensor:
    """A table with a column for every mode and one for the values; rows of one cell are added up."""
    return read_tensor(path, TableSpec.of(recipe.modes, recipe.value, duplicates="sum")).tensor


_BUILDERS: dict[str, Callable[[Recipe, Path], SparseTensor]] = {
    "frostt": _frostt,
    "konect": _konect,
    "mpi-wall": _mpi_wall,
    "movielens": _movielens,
    "table": _table,
}


def _numbers(path: Path, member: str, fields: int) -> NDArray[np.int64]:
    """Lines of whole numbers between blanks or tabs, ``(lines, fields)``."""
    with open_member(path, member) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPy's on files without lines, which are refused below
        text = io.TextIOWrapper(file, encoding="ascii", errors="replace")
        try:
            rows = np.loadtxt(text, dtype=np.float64, comments="%", ndmin=2)
        except ValueError as error:
            raise DataError(f"{path} cannot be read as posts: {error} (is the file cut off?)") from None
    if not rows.size:
        raise DataError(f"{path} has no posts")
    if rows.shape[1] != fields:
        raise DataError(f"{path} has {rows.shape[1]} fields in a line, expected {fields}")
    if not np.isfinite(rows).all():
        raise DataError(f"{path}: post {int(np.argwhere(~np.isfinite(rows))[0, 0]) + 1} has a field that is no number")
    return np.floor(rows).astype(np.int64)


def _count(
    recipe: Recipe, *, poster: NDArray[np.int64], wall: NDArray[np.int64], times: NDArray[np.int64]
) -> SparseTensor:
    """Posts per cell, sorted by index."""
    modes, indices = _encode(recipe, poster, wall, times)
    _, first, counts = np.unique(cell_keys(indices, [m.size for m in modes]), return_index=True, return_counts=True)
    return SparseTensor(indices[first], counts, modes)


def _encode(
    recipe: Recipe, first: NDArray[Any], second: NDArray[Any], times: NDArray[Any]
) -> tuple[list[Mode], NDArray[np.int32]]:
    """Modes and ``(rows, 3)`` positions of two columns of numbers and one of times, which become days in UTC."""
    modes, codes = [], []
    for name, column in zip(recipe.modes, (first, second, times // DAY), strict=True):
        distinct, positions = np.unique(column, return_inverse=True)
        labels = distinct.astype("datetime64[D]") if column is not first and column is not second else distinct
        modes.append(Mode(name, len(distinct), tuple(labels.astype(str).tolist())))
        codes.append(positions.astype(np.int32))
    return modes, np.stack(codes, axis=1)
