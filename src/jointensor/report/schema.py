"""What the files of a run folder must hold for a page to be made of them, and a check that names what does not.

A pattern is plain data: ``int``, ``float`` (a finite number), ``str`` and ``bool`` stand for values; ``(p, None)`` for
a ``p`` that may be null; ``[p]`` for a list of any length, ``[p, q]`` for a list of two; a dict for an object with
these keys, those with ``?`` at their end being optional; ``{str: p}`` for an object with any keys. Other keys are
ignored.
"""

from __future__ import annotations

import sys
from typing import Any

from jointensor.errors import RunError

FIGURES = {"rmse": (float, None), "mae": (float, None), "rfe": (float, None), "n": int}
JUDGED = {**FIGURES, "warm": FIGURES, "cold": FIGURES}

METRICS = {
    "test": (JUDGED, None),
    "valid": (JUDGED, None),
    "returned": {"joint?": {"test": (JUDGED, None), "valid": (JUDGED, None)}},
    "baselines": {str: {"test": (FIGURES, None), "valid": (FIGURES, None)}},
    "outcome": str,
    "epochs": (int, None),
    "fits": int,
    "seconds": float,
    "restarts": int,
    "parameters": int,
    "device": str,
    "nonlinear_dead": bool,
    "attempts": [{"outcome": str, "epochs": int, "seconds": float, "valid_rfe": (float, None)}],
    "notes": [str],
    "search?": (
        {
            "reason": str,
            "trials": [
                {
                    "name": str,
                    "rmse": (float, None),
                    "spread": (float, None),
                    "folds": int,
                    "seconds": float,
                    "weight": (float, None),
                }
            ],
        },
        None,
    ),
}

POINT, LABELLED, AXIS = [float, float], [str, float], [float, str]

FACTS = {
    "data?": {
        "shape": [int],
        "entries": int,
        "density": float,
        "values": {"edges": [float], "counts": [int], "mean": float, "sd": float, "low": float, "high": float},
        "modes": [
            {
                "name": str,
                "size": int,
                "least": int,
                "median": float,
                "most": int,
                "without": int,
                "half?": int,
                "top?": [[str, int]],
                "curve": [POINT],
                "labels": ([AXIS], None),
            }
        ],
    },
    "history?": [
        {
            "attempt": int,
            "epochs": [{"epoch": int, "train": (float, None), "valid": (float, None), "phase": str}],
        }
    ],
    "quality?": (
        {
            "n": int,
            "points": [POINT],
            "modes": [
                {"name": str, "worst": [[str, float, int]], "curve": ([POINT], None), "labels": ([AXIS], None)},
            ],
            "calibration": ([POINT], None),
        },
        None,
    ),
    "components?": [
        {
            "weight": float,
            "share": float,
            "modes": [
                {"name": str, "curve": ([POINT], None), "labels": ([AXIS], None), "top": ([LABELLED], None)},
            ],
        }
    ],
    "filled?": {
        "modes": [str],
        "rows": [{"labels": [str], "value": float, "interval": ([float, float], None)}],
    },
}

CONFIG = {"source": str, "budget?": (float, None), "recipe_changes?": {"loss?": str}}

COMPARISON = {**CONFIG, "models": [str]}

ENVIRONMENT = {
    "jointensor": str,
    "python": str,
    "packages": {str: (str, None)},
    "platform": str,
    "threads": int,
    "gpu": (str, None),
    "command": [str],
}

FIT = {
    "model": str,
    "test": (FIGURES, None),
    "success": bool,
    "mean_rmse?": (float, None),
    "seconds?": float,
    "seconds_per_epoch?": (float, None),
    "parameters?": int,
    "restarts?": int,
    "nonlinear_dead?": bool,
    "outcome?": str,
}
"""One fit of a comparison, or why there is none."""


def check(data: Any, pattern: Any, file: object) -> Any:
    """The data themselves, if they are as a pattern says.

    Raises
    ------
    RunError
        That names the file and the place in it.
    """
    try:
        _check(data, pattern, "")
    except _MismatchError as error:
        raise RunError(f"{file} is damaged: {error}") from None
    return data


class _MismatchError(Exception):
    """Data that are not as their pattern says."""


def _check(data: Any, pattern: Any, place: str) -> None:
    if isinstance(pattern, tuple):
        if data is not None:
            _check(data, pattern[0], place)
    elif isinstance(pattern, dict):
        _check_object(data, pattern, place)
    elif isinstance(pattern, list):
        _check_list(data, pattern, place)
    elif not _is_a(data, pattern):
        raise _MismatchError(f"{place or 'all of it'} is {_shown(data)}, not {NAMES[pattern]}")


NAMES = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}


def _is_a(data: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(data, int | float) and not isinstance(data, bool) and abs(data) <= sys.float_info.max
    return isinstance(data, kind) and (kind is bool or not isinstance(data, bool))


def _check_object(data: Any, pattern: dict[Any, Any], place: str) -> None:
    if not isinstance(data, dict):
        raise _MismatchError(f"{place or 'all of it'} is {_shown(data)}, not an object")
    if str in pattern:
        for key, value in data.items():
            _check(value, pattern[str], f"{place}.{key}" if place else key)
        return
    for name, inner in pattern.items():
        key = name.removesuffix("?")
        where = f"{place}.{key}" if place else key
        if key in data:
            _check(data[key], inner, where)
        elif key == name:
            raise _MismatchError(f"{where} is not there")


def _check_list(data: Any, pattern: list[Any], place: str) -> None:
    if not isinstance(data, list):
        raise _MismatchError(f"{place} is {_shown(data)}, not a list")
    if len(pattern) > 1 and len(data) != len(pattern):
        raise _MismatchError(f"{place} has {len(data)} members, not {len(pattern)}")
    for k, value in enumerate(data):
        _check(value, pattern[k if len(pattern) > 1 else 0], f"{place}[{k}]")


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."
