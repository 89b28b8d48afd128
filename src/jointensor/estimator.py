"""The library as a scikit-learn regressor: columns of labels in, values out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from jointensor.data.expressions import ModeExpression, as_labels
from jointensor.data.frames import TableSpec, encode_frame, encode_wider, frame_to_cells, frame_to_tensor
from jointensor.data.split import Asked, Split, groups_of, new_modes, split, with_folds
from jointensor.data.tensor import SparseTensor, replace_cells
from jointensor.data.wide import WideFrame
from jointensor.errors import ConfigError, DataError, MissingPackageError
from jointensor.evaluation.evaluate import calibrate_on
from jointensor.models.joint import JointModel, check_rank
from jointensor.predictors import fit_baselines
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.runs.config import DEFAULT_RANK
from jointensor.runs.forecast import forecast
from jointensor.runs.impute import fill_gaps
from jointensor.runs.interrupt import stop_on_interrupt
from jointensor.search.default_fit import DefaultFit, default_fit
from jointensor.search.families import FitOptions
from jointensor.search.search import search
from jointensor.search.workers import Workers
from jointensor.threads import PROCESS_STATE
from jointensor.training.fit import Fit, fit, pick_device
from jointensor.training.recipe import Recipe, make_recipe

try:
    from sklearn.base import BaseEstimator, RegressorMixin, clone
    from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingPackageError(
        "TensorCompleter needs scikit-learn 1.6 or newer: pip install jointensor[sklearn]"
    ) from None

if TYPE_CHECKING:
    from jointensor.data.modes import Mode


class TensorCompleter(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Regression on columns of labels: every column is a mode of a tensor, every row an observed entry.

    A label is what it says, not how it is stored: 3, 3.0 and "3" are one label, "03" is another. A row
    with a label that no training entry had is predicted from the additive biases, to which the
    unseen label adds nothing.

    Parameters
    ----------
    rank
        ``None``: a few models, mixed by the validation entries; ``(4, 16)`` where ``linear``, ``nonlinear``, ``recipe``
        or ``loss`` describe a single model. ``(R, F)``: one model of R multilinear and F nonlinear components; either
        may be 0, not both. ``"auto"``: blocks, components and everything else are chosen by cross-validation within
        ``budget`` (600 s if not given) or ``budget_fits``.
    linear
        The multilinear half spelled out, for example ``"mean+bias+cp:4"``; replaces R.
    nonlinear
        f as a name with options (``"julia,gate=sigmoid"``), a class, or an instance. An instance is
        copied by every fit and never trained itself.
    recipe
        Every number of training, by name or as a :class:`~jointensor.training.recipe.Recipe`.
    loss
        ``squared``, ``absolute``, ``huber`` or ``kl``; ``None`` takes the recipe's.
    validation_fraction
        Share of the entries, rounded down, that decides when to stop instead of being learnt from; without a rank,
        and settings of a single model, it chooses and is learnt from afterwards. With 0, or too few entries for one,
        the training error decides.
    folds
        How these entries, and folds of ``rank="auto"``, are drawn: ``like-gaps``, as the missing cells lie; ``random``;
        ``group:MODE,MODE``, those with the same labels of these modes together; ``slices:MODE``, whole labels;
        ``time:MODE``, the last ones. ``like-gaps`` becomes like the queries that ``fit`` is given.
    duplicates
        What rows that share all their labels become: one entry with their ``mean``, ``sum``, ``count`` or
        ``last`` value, or an ``error``. Files with such rows are refused unless told otherwise; here
        they are normal, since scikit-learn resamples with replacement and repeated measurements are
        plain rows to it.
    budget
        Seconds after which training stops with the best state so far; ``None`` sets no limit.
    budget_fits
        For ``rank="auto"``: a number of fits instead of seconds. The same number and ``random_state`` give the same
        result on every machine load.
    device
        ``auto`` takes a GPU where there is one.
    random_state
        Decides which entries validate, and everything random in training. The same number gives the same
        predictions on the same device; ``None`` draws anew from NumPy's global state.

    Attributes
    ----------
    n_features_in_
        Number of modes.
    feature_names_in_
        Names of the columns, where X had text for them; they name the modes too.
    observed_
        The entries that were learnt from, as a :class:`~jointensor.data.tensor.SparseTensor`.
    modes_
        The modes with their labels, as :class:`~jointensor.data.modes.Mode` objects.
    model_
        The trained :class:`~jointensor.models.joint.JointModel`.
    fit_
        The whole :class:`~jointensor.training.fit.Fit` of a single model.
    mixture_
        For ``rank=None``: what was fitted and mixed, a :class:`~jointensor.search.default_fit.DefaultFit`.
    auto_
        For ``rank="auto"``: what was tried, what was chosen and why.
    predictor_
        The fitted predictor.
    linear_factors_
        Factor matrices A_n of the CP block, each ``(labels, R)``, rows in the order of the mode's labels;
        empty without such a block.
    history_
        One dict per epoch of a single model.
    outcome_
        How training ended: ``converged``, ``budget``, ``interrupted``, ``diverged`` or ``dead``.

    Examples
    --------
    >>> from jointensor import TensorCompleter
    >>> strength = {"ann": 1.0, "bob": 2.0, "eve": 3.0, "joe": 4.0}
    >>> X = [[user, film, day] for user in strength for film in (1, 2, 3) for day in ("mon", "tue")]
    >>> y = [strength[user] * film for user, film, _ in X]
    >>> completer = TensorCompleter(linear="mean+bias+cp:1", rank=(0, 4), random_state=0, device="cpu").fit(X, y)
    >>> [mode.labels for mode in completer.modes_]
    [('ann', 'bob', 'eve', 'joe'), ('1', '2', '3'), ('mon', 'tue')]
    >>> completer.score(X, y) > 0.9
    True
    >>> completer.predict([["ann", 2, "tue"], ["someone else", 2, "tue"]]).shape
    (2,)
    """

    def __init__(  # noqa: PLR0913 - scikit-learn's settings are arguments of the constructor
        self,
        *,
        rank: tuple[int, int] | str | None = None,
        linear: str | None = None,
        nonlinear: str | type[nn.Module] | nn.Module = "julia",
        recipe: str | Recipe = "default",
        loss: str | None = None,
        validation_fraction: float = 0.1,
        folds: str = "like-gaps",
        duplicates: str = "mean",
        budget: float | None = None,
        budget_fits: int | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.rank = rank
        self.linear = linear
        self.nonlinear = nonlinear
        self.recipe = recipe
        self.loss = loss
        self.validation_fraction = validation_fraction
        self.folds = folds
        self.duplicates = duplicates
        self.budget = budget
        self.budget_fits = budget_fits
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, queries: Any = None) -> TensorCompleter:
        """Learn from observed entries.

        Parameters
        ----------
        X
            One column of labels per mode, at least two: a pandas, polars or pyarrow frame, a NumPy array, or
            a list of rows. Text, whole numbers, fractions and dates, mixed where they have to be.
        y
            One finite number per row.
        queries
            Labels of the cells that will be asked for, in the columns of X, if they are known: what validates and
            calibrates is drawn so that it looks like them. They may have labels that X does not have.
        """
        columns = self._columns(X, least=2)
        validate_data(self, X, y, skip_check_array=True)
        names = [str(name) for name in getattr(self, "feature_names_in_", [f"x{n}" for n in range(len(columns))])]
        tensor = self.observed_ = frame_to_tensor(*self._observed(columns, names, y)).tensor
        return self._fit_tensor(tensor, None if queries is None else self._asked(queries, tensor.modes))

    def _fit_tensor(self, tensor: SparseTensor, asked: Asked | None = None) -> TensorCompleter:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.modes_: tuple[Mode, ...] = tensor.modes
        if self.rank == "auto":
            return self._search(tensor, seed, asked)
        if self.budget_fits is not None:
            raise ConfigError(f"budget_fits={self.budget_fits} counts the fits of a search; it goes with rank='auto'")
        parts = split(tensor, test=0.0, valid=self.validation_fraction, seed=seed)
        parts = with_folds(parts, self.folds, self.validation_fraction, asked)
        if self._mixes(parts):
            return self._mix(parts, seed)
        recipe = make_recipe(self.recipe, **({} if self.loss is None else {"loss": self.loss}))
        self.fit_: Fit = fit(
            self._new_model(tensor.shape, recipe, seed),
            parts,
            recipe,
            seed=seed,
            device=self.device,
            budget=math.inf if self.budget is None else self.budget,
        )
        held = parts.test if len(parts.test) else parts.valid
        calibration = calibrate_on(
            self.fit_.predictor, (held.indices, held.values), parts.train.shape, _groups_of(held, parts)
        )
        self.history_ = [epoch.to_dict() for epoch in self.fit_.history]
        self.outcome_: str = self.fit_.outcome
        return self._with_predictor(replace(self.fit_.predictor, calibration=calibration))

    def _mixes(self, parts: Split) -> bool:
        """Whether a few models are mixed by the validation entries: no setting describes a single one."""
        given = {"rank": None, "linear": None, "nonlinear": "julia", "loss": None, "recipe": "default"}
        return len(parts.valid) > 0 and all(getattr(self, name) == usual for name, usual in given.items())

    def _mix(self, parts: Split, seed: int) -> TensorCompleter:
        """A few models, mixed by the validation entries."""
        with stop_on_interrupt() as stopping:
            seconds = math.inf if self.budget is None else self.budget
            groups = new_modes(parts.together)
            options = FitOptions(seed, self.device, groups=groups, seconds=seconds, stopping=stopping)
            with Workers.of(pick_device(self.device), len(parts.train)) as workers:
                self.mixture_: DefaultFit = default_fit(parts, fit_baselines(parts), options, workers=workers)
        self.history_, self.outcome_ = [], self.mixture_.outcome
        valid = parts.valid.indices, parts.valid.values
        calibration = calibrate_on(self.mixture_.validated, valid, parts.train.shape, _groups_of(parts.valid, parts))
        return self._with_predictor(replace(self.mixture_.predictor, calibration=calibration))

    def _asked(self, queries: Any, modes: tuple[Mode, ...]) -> Asked:
        """Cells that will be asked for, with labels that the modes do not have yet."""
        if self.folds != "like-gaps":
            raise ConfigError(f"folds='{self.folds}' says what validates, and so do queries; leave out one of them")
        columns = self._columns(queries, least=len(modes))
        if len(columns) != len(modes):
            raise DataError(f"queries have {len(columns)} columns, X has {len(modes)}; give those of X, in its order")
        return Asked(*encode_wider(_table(columns, [mode.name for mode in modes]), modes, None))

    def _search(self, tensor: SparseTensor, seed: int, asked: Asked | None) -> TensorCompleter:
        """Everything chosen by validation."""
        given = [
            n for n, usual in (("linear", None), ("nonlinear", "julia"), ("loss", None)) if getattr(self, n) != usual
        ]
        if given:
            raise ConfigError(f"rank 'auto' chooses {given[0]} by itself; leave it as it is, or give rank=(R, F)")
        with stop_on_interrupt() as stopping:
            self.auto_ = search(
                tensor, seed=seed, budget=self.budget, budget_fits=self.budget_fits, device=self.device,
                groups=with_folds(split(tensor, test=0.0, seed=seed), self.folds, 0.0, asked).together,
                stopping=stopping,
            )  # fmt: skip
        self.history_, self.outcome_ = [], self.auto_.outcome
        return self._with_predictor(self.auto_.predictor)

    def _with_predictor(self, predictor: JointPredictor | Ensemble) -> TensorCompleter:
        """Keep a fitted predictor, and what can be read from it."""
        self.predictor_ = predictor
        self.model_: JointModel | None = predictor.model
        factors = [] if self.model_ is None else self.model_.eval().linear_factors
        self.linear_factors_ = [table.cpu().numpy().copy() for table in factors]
        return self

    def _observed(self, columns: Sequence[pl.Series], names: Sequence[str], y: Any) -> tuple[pl.DataFrame, TableSpec]:
        """Labels and values as a table, and how it becomes a tensor."""
        table, value, numbers = _table(columns, names), _free_name(names), _numbers(y, self)
        check_consistent_length(table, numbers)
        spec = TableSpec(tuple(ModeExpression(n, n) for n in names), value, self.duplicates)  # type: ignore[arg-type]
        return table.with_columns(pl.Series(value, numbers)), spec

    def partial_fit(self, X: Any, y: Any) -> TensorCompleter:
        """Add entries, and labels that were not there before, to a fitted model; the first call fits.

        Only the rows of new labels are learnt, everything else stays as it is: much faster than ``fit``, and nearly as
        good for the new labels.

        Parameters
        ----------
        X, y
            As in ``fit``: the new entries only.
        """
        if not hasattr(self, "predictor_"):
            return self.fit(X, y)
        columns = self._columns(X)
        validate_data(self, X, y, reset=False, skip_check_array=True)
        fresh = frame_to_cells(*self._observed(columns, [mode.name for mode in self.modes_], y))
        modes = tuple(known.with_more(new.labels or ()) for known, new in zip(self.modes_, fresh.modes, strict=True))
        places = [mode.encode(new.labels or range(new.size)) for mode, new in zip(modes, fresh.modes, strict=True)]
        indices = np.stack([place[fresh.indices[:, n]] for n, place in enumerate(places)], axis=1)
        more = SparseTensor.part(indices, fresh.values, modes)
        predictor = self.predictor_.with_entries(more)
        self.observed_ = replace_cells(self.observed_, more)
        self.modes_ = modes
        return self._with_predictor(predictor)

    def predict(self, X: Any, return_interval: float | None = None) -> Any:
        """Values of entries, observed or not, in the order of the rows.

        Parameters
        ----------
        X
            Labels, in the columns of ``fit``. Labels that ``fit`` did not see are allowed, missing ones are not.
        return_interval
            A share such as 0.9: also return lower and upper ends that hold this share of the values, ``(rows, 2)``.
        """
        check_is_fitted(self)
        columns = self._columns(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        table = _table(columns, [mode.name for mode in self.modes_])
        # double, so that sums over many rows in a metric are as exact as for any other regressor
        indices = encode_frame(table, self.modes_, None)
        values = self.predictor_.predict(indices).astype(np.float64)
        if return_interval is None:
            return values
        return values, self.predictor_.interval(indices, return_interval).astype(np.float64)

    def impute(self, frame: Any, *, time: Any = None, return_interval: float | None = None) -> Any:
        """The frame with its gaps filled in: a row per time stamp, a column per series.

        Observed values, types of columns, order, index and names stay as they are; a frame without gaps is returned
        without a fit. Fitted is a copy of this estimator, with the same settings: to series × time, or to series × date
        × time where the stamps are at the same times of every day. Series are measured in standard deviations from
        their means. Columns of several levels are several modes. A series without any value is filled in by the means
        of the others at the same time.

        Parameters
        ----------
        frame
            pandas, polars or pyarrow; NaN and null are gaps. Series are columns of numbers; in columns of whole numbers
            predictions are rounded.
        time
            The column of time stamps, which are dates, times, texts of them, or numbers, in any order, each once. If
            not given: the index of a pandas frame; of others, the only column of dates or times.
        return_interval
            A share such as 0.9: also return two frames with the lower and upper ends of intervals that hold this share
            of the values. Where a value was observed, both are that value.

        Examples
        --------
        >>> import numpy as np, pandas as pd
        >>> from jointensor import TensorCompleter
        >>> hours = pd.date_range("2024-01-01", periods=96, freq="h")
        >>> wave = np.sin(np.arange(96) / 4)
        >>> frame = pd.DataFrame({"a": wave, "b": 3 * wave + 1}, index=hours)
        >>> gappy = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
        >>> filled = TensorCompleter(rank=(1, 0), random_state=0, device="cpu").impute(gappy)
        >>> int(gappy.isna().sum().sum()), int(filled.isna().sum().sum())
        (19, 0)
        """
        wide = WideFrame.of(frame, time)
        fill = fill_gaps(wide.panel, lambda tensor: clone(self)._fit_tensor(tensor).predictor_, return_interval)
        if fill.ends is None:
            return wide.filled(fill.values)
        return wide.filled(fill.values), *(wide.filled(ends) for ends in fill.ends.T)

    def forecast(self, horizon: int, by: str | None = None, return_interval: float | None = None) -> pl.DataFrame:
        """Values of every combination of the other labels at the labels that come next.

        A forecaster is fitted to the entries that were given to ``fit`` and ``partial_fit``; the completion model has
        no part in it.

        Parameters
        ----------
        horizon
            Labels after the last one.
        by
            The ordered mode, or a calendar mode and a clock mode: ``"day+hour"``. ``None`` finds it by names and dates.
        return_interval
            A share such as 0.9: also columns ``lower`` and ``upper`` that hold this share of the values.

        Returns
        -------
        One row per label and series: the labels, ``forecast``, and the simple forecasts beside it.
        """
        check_is_fitted(self)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        found = forecast(self.observed_, horizon, by, return_interval, seed=seed)
        return found.frame(self.observed_.modes)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        # columns of distinct numbers, as scikit-learn's checks send, have no label twice: nothing to learn from
        tags.regressor_tags.poor_score = True
        return tags

    def _new_model(self, shape: Sequence[int], recipe: Recipe, seed: int) -> JointModel:
        """An untrained model; a module that the user gave is copied, and torch's random state is restored."""
        part = deepcopy(self.nonlinear) if isinstance(self.nonlinear, nn.Module) else self.nonlinear
        with PROCESS_STATE, torch.random.fork_rng(devices=[]):
            # for what a module draws when it is made and training does not reset; it is made on the CPU,
            # and torch.manual_seed would move the GPU's state too
            torch.default_generator.manual_seed(seed)
            assert not isinstance(self.rank, str)  # "auto" went another way
            rank = DEFAULT_RANK if self.rank is None else self.rank
            linear = recipe.linear(check_rank(rank)[0]) if self.linear is None else self.linear
            return JointModel(shape, rank, linear=linear, nonlinear=part)

    def _columns(self, X: Any, least: int = 1) -> list[pl.Series]:
        """Label text of every column, of ``least`` at least, of a frame, an array or a list of rows."""
        if nw.dependencies.is_into_dataframe(X):
            return _frame_columns(X, least, type(self).__name__)
        if isinstance(X, (list, tuple)):
            X = _as_objects(X)  # NumPy would write the numbers of a mixed list as text: 3.0 would not be 3
        # missing labels are looked for below: this check would pass over None and stumble over pandas.NA
        array = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_features=least, estimator=self)
        return [_column_labels(array[:, n], f"x{n}") for n in range(array.shape[1])]


def _groups_of(held: SparseTensor, parts: Split) -> NDArray[np.integer] | None:
    """Which of the held-out entries were left out together; ``None`` if none were."""
    return groups_of(held, parts.together)[1] if parts.together else None


def _as_objects(rows: Sequence[Any]) -> Any:
    """Rows as an object array; rows of unequal length are left for scikit-learn to refuse."""
    try:
        return np.array(rows, dtype=object)
    except ValueError:
        return rows


def _frame_columns(X: Any, least: int, who: str) -> list[pl.Series]:
    """Label text of a frame, column by column, each by its own type."""
    frame = nw.from_native(X, eager_only=True)
    for found, needed, what in zip(frame.shape, (1, least), ("sample", "feature"), strict=True):
        if found < needed:  # in the words of scikit-learn, which only knows how to check arrays
            size = f"{found} {what}(s) (shape={frame.shape})"
            raise DataError(f"Found array with {size} while a minimum of {needed} is required by {who}.")
    columns = []
    for series in frame.iter_columns():
        mixed = series.dtype == nw.Object
        columns.append(_column_labels(series.to_numpy() if mixed else series.to_polars(), str(series.name)))
    return columns


def _column_labels(column: Any, name: str) -> pl.Series:
    """A column as label text, by the library's rule for its type; mixed columns type by type."""
    if not (isinstance(column, np.ndarray) and column.dtype == object):
        return _checked_labels(column, name)
    rows_of: dict[type, list[int]] = {}
    for row, value in enumerate(column):
        rows_of.setdefault(type(value), []).append(row)
    labels = np.empty(len(column), dtype=object)
    for kind, rows in rows_of.items():
        alike = column[rows].tolist()
        # NumPy knows its own scalars best: a list of its dates in nanoseconds would be read as whole numbers
        values = np.array(alike) if issubclass(kind, np.generic) else alike
        labels[rows] = _checked_labels(values, name).to_list()
    return pl.Series(labels.tolist(), dtype=pl.String)


def _checked_labels(values: Any, name: str) -> pl.Series:
    """Label text of values of one type, none of them missing."""
    try:
        column = pl.Series(name, np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise DataError(f"column '{name}' of X has values that are no labels, such as {values[0]!r}") from None
    missing = column.null_count() or (column.dtype.is_float() and not column.is_finite().all())
    if missing:
        raise DataError(f"column '{name}' of X contains NaN, infinity or a missing value; drop these rows")
    return as_labels(column)


def _table(columns: Sequence[pl.Series], names: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(dict(zip(names, columns, strict=True)))


def _numbers(y: Any, estimator: TensorCompleter) -> NDArray[np.float64]:
    """The target as numbers, one per row."""
    flat = column_or_1d(y, warn=True)
    numbers: NDArray[Any] = check_array(flat, ensure_2d=False, dtype="numeric", input_name="y", estimator=estimator)
    return numbers.astype(np.float64)


def _free_name(taken: Sequence[str]) -> str:
    """A name for the value that no mode has."""
    name = "value"
    while name in taken:
        name += "_"
    return name
