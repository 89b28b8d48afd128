"""Missing values of sktime's series, panels and hierarchies; needs the extra ``sktime``."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from jointensor.errors import MissingPackageError
from jointensor.estimator import TensorCompleter

try:
    import pandas as pd
    from sktime.transformations.base import BaseTransformer
except ImportError:
    raise MissingPackageError("TensorImputer needs sktime: pip install jointensor[sktime]") from None


class TensorImputer(BaseTransformer):  # type: ignore[misc]  # sktime has no types
    """Missing values of series, filled in by a tensor of series and time; of panels, by one of instances as well.

    ``transform`` fits a :class:`~jointensor.estimator.TensorCompleter` to what it is given, and to what ``fit`` and
    ``update`` were given of other time stamps. Series and instances are learnt together. Values that are not missing
    stay as they are.

    Parameters
    ----------
    rank, validation_fraction, folds, budget, device, random_state
        As those of :class:`~jointensor.estimator.TensorCompleter`.

    Examples
    --------
    >>> from sktime.datasets import load_airline
    >>> from jointensor.sktime import TensorImputer
    >>> passengers = load_airline()
    >>> gappy = passengers.mask(passengers.index.month == 3)
    >>> filled = TensorImputer(rank=(1, 0), random_state=0, device="cpu").fit_transform(gappy)
    >>> int(gappy.isna().sum()), int(filled.isna().sum())
    (12, 0)
    """

    _tags: ClassVar[dict[str, Any]] = {
        "authors": ["jointensor"],
        "scitype:transform-input": "Series",
        "scitype:transform-output": "Series",
        "scitype:instancewise": False,
        "X_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "y_inner_mtype": "None",
        "fit_is_empty": False,
        "remember_data": True,
        "transform-returns-same-time-index": True,
        "capability:inverse_transform": False,
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "capability:missing_values:removes": True,
        "capability:categorical_in_X": False,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "python_dependencies": ["jointensor", "scikit-learn"],
    }

    def __init__(
        self,
        rank: tuple[int, int] | str | None = None,
        validation_fraction: float = 0.1,
        folds: str = "like-gaps",
        budget: float | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.rank = rank
        self.validation_fraction = validation_fraction
        self.folds = folds
        self.budget = budget
        self.device = device
        self.random_state = random_state
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: None = None) -> TensorImputer:
        """Nothing is learnt before it is known what is missing; sktime keeps the data."""
        return self

    def _transform(self, X: pd.DataFrame, y: None = None) -> pd.DataFrame:
        if not X.isna().any(axis=None):
            return X
        wide, known = _one_row_per_time(X), _one_row_per_time(self._X)
        # at the time stamps of X it is X that counts
        others = known.loc[known.index.difference(wide.index)].reindex(columns=wide.columns)
        completer = TensorCompleter(
            rank=self.rank, validation_fraction=self.validation_fraction, folds=self.folds, budget=self.budget,
            device=self.device, random_state=self.random_state,
        )  # fmt: skip
        filled = completer.impute(pd.concat([others, wide]).sort_index())
        return _rows_as_in(X, filled).astype(X.dtypes)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings with which sktime's checks make instances."""
        return [{"rank": (1, 0), "device": "cpu", "random_state": 0}, {"rank": (1, 2), "budget": 1.0, "device": "cpu"}]


def _one_row_per_time(X: pd.DataFrame) -> pd.DataFrame:
    """Instances of a panel as levels of the columns."""
    return X if X.index.nlevels == 1 else X.unstack(list(range(X.index.nlevels - 1)))


def _rows_as_in(X: pd.DataFrame, wide: pd.DataFrame) -> pd.DataFrame:
    """The rows and columns that ``X`` has, in its order."""
    if X.index.nlevels > 1:
        instances = list(range(1, X.index.nlevels))
        wide = wide.stack(instances, future_stack=True).reorder_levels([*instances, 0])
    return wide.loc[X.index, X.columns]
