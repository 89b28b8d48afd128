"""Builds the tensors of the paper from the publishers' files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jointensor.data.catalogue.archives import open_member
from jointensor.data.catalogue.recipes import Recipe
from jointensor.data.formats import read_tensor, with_orders
from jointensor.data.frames import COUNT, TableSpec, frame_to_tensor
from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import DataError

MIN_RATINGS = 20
"""Users with fewer ratings are left out (the paper, on MovieLens)."""
MAX_RATINGS = 3000
"""Ratings kept of a user, the first by time (the paper, on MovieLens)."""

RATINGS = {"userId": pl.Int32, "movieId": pl.Int32, "rating": pl.Float32, "timestamp": pl.Int64}


def build(recipe: Recipe, format_: str, path: Path) -> SparseTensor:
    """The tensor of a recipe from the file with its entries.

    Parameters
    ----------
    recipe
        Names and orders of the modes.
    format_
        The publisher's file format, a key of :data:`BUILDERS`.
    path
        The file; files with labels are in the same folder.
    """
    tensor = BUILDERS[format_](recipe, path)
    return with_orders(tensor, dict(zip(recipe.modes, recipe.orders, strict=True)))


def _frostt(recipe: Recipe, path: Path) -> SparseTensor:
    """FROSTT's tensor; labels after the last one in use are dropped, as in FROSTT's own sizes."""
    tensor = read_tensor(path).tensor
    if tensor.n_modes != len(recipe.modes):
        raise DataError(f"{path} has {tensor.n_modes} modes; '{recipe.name}' has {len(recipe.modes)}")
    sizes = tensor.indices.max(axis=0) + 1
    modes = [
        Mode(name, int(size), None if mode.labels is None else mode.labels[:size])
        for name, size, mode in zip(recipe.modes, sizes, tensor.modes, strict=True)
    ]
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
        raise DataError(f"{path}: rating {(row or 0) + 1} is incomplete (is the file cut off?)")
    frame = frame.filter(pl.len().over("userId") >= MIN_RATINGS).sort("userId", "timestamp", maintain_order=True)
    frame = frame.filter(pl.int_range(pl.len()).over("userId") < MAX_RATINGS)
    if not frame.height:
        raise DataError(f"{path}: no user has {MIN_RATINGS} ratings or more")
    frame = frame.with_columns(pl.from_epoch("timestamp").dt.date())  # days in UTC
    modes = dict(zip(recipe.modes, ("userId", "movieId", "timestamp"), strict=True))
    return frame_to_tensor(frame, TableSpec.of(modes, "rating")).tensor


def _konect(recipe: Recipe, path: Path) -> SparseTensor:
    """KONECT's file: poster, wall, weight, time in seconds; ``%`` starts a comment. Every line is one post."""
    rows = _numbers(path, "out.facebook-wosn-wall", 4)
    return _count_posts(recipe, rows[:, 0], rows[:, 1], rows[:, 3])


def _mpi_wall(recipe: Recipe, path: Path) -> SparseTensor:
    """The authors' own file: owner of the wall, poster, time in seconds. Every line is one post."""
    rows = _numbers(path, path.name, 3)
    return _count_posts(recipe, rows[:, 1], rows[:, 0], rows[:, 2])


def _table(recipe: Recipe, path: Path) -> SparseTensor:
    """A table with a column for every mode and one for the values; rows of the same cell are added."""
    return read_tensor(path, TableSpec.of(recipe.modes, recipe.value, duplicates="sum")).tensor


TABLE = "table"

BUILDERS: dict[str, Callable[[Recipe, Path], SparseTensor]] = {
    "frostt": _frostt,
    "konect": _konect,
    "mpi-wall": _mpi_wall,
    "movielens": _movielens,
    TABLE: _table,
}


def _numbers(path: Path, member: str, fields: int) -> NDArray[np.int64]:
    """Lines of whole numbers between blanks or tabs, ``(lines, fields)``."""
    with open_member(path, member) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPy warns of files without lines, which are refused below
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
        raise DataError(
            f"{path}: post {int(np.argwhere(~np.isfinite(rows))[0, 0]) + 1} has a field that is not a number"
        )
    return np.floor(rows).astype(np.int64)


def _count_posts(
    recipe: Recipe, poster: NDArray[np.int64], wall: NDArray[np.int64], seconds: NDArray[np.int64]
) -> SparseTensor:
    """Posts per poster, wall and day in UTC."""
    days = pl.from_epoch(pl.Series(seconds)).dt.date()
    frame = pl.DataFrame(dict(zip(recipe.modes, (poster, wall, days), strict=True)))
    return frame_to_tensor(frame, TableSpec.of(recipe.modes, COUNT)).tensor
