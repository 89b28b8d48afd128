"""The run folder: everything that predictions need, and the record of how the model was made.

config.json        what was asked: absolute source, its hash, every option
checkpoints/       states of a training that is under way
model.safetensors  labels.json  history.jsonl  environment.json  report.html  report.json
metrics.json       written last, with the checksums of the others: without it the run is unfinished

A run that is written again (``--resume`` of one that was interrupted) keeps its old model until the new one is whole:
new files are written to the folder ``.new`` first, ``metrics.json`` last, and moved to their places then. Whoever opens
a run whose move was cut off finishes it (:func:`settle`).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from jointensor._version import __version__
from jointensor.atomic import sha256, write_json, write_text, write_whole
from jointensor.data.modes import Mode
from jointensor.distributed.launch import restarted
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import DataError, JointensorError, KeptRunError, ProcessGroupError, RunError
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.training.history import Epoch

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec
    from jointensor.runs.compare import CompareConfig
    from jointensor.runs.config import RunConfig

WEIGHTS, LABELS, METRICS, CONFIG = "model.safetensors", "labels.json", "metrics.json", "config.json"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"
"""States of a training that is under way."""

STAGED = ".new"
"""Folder of files that are to replace those of the run, once all of them are written."""

CELLS = "cells"
"""Fits of a comparison, a file each."""


@dataclass(frozen=True)
class Run:
    """A finished run, ready to predict."""

    path: Path
    predictor: JointPredictor | Ensemble
    modes: tuple[Mode, ...]
    spec: TableSpec | None
    config: dict[str, Any]
    metrics: dict[str, Any]


def options_of(config: RunConfig | CompareConfig) -> dict[str, Any]:
    """Every option of a command, and the checksum of its source, as they are read from ``config.json``."""
    source = Path(config.source)
    if not source.is_file():
        raise DataError(f"there is no file {source}")
    options: dict[str, Any] = json.loads(json.dumps({"source_sha256": sha256(source), **asdict(config)}))
    return options


def make_folder(path: Path) -> None:
    """A new folder, made before anything that takes long: a place that cannot be written to costs nothing."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{path} exists already; give another --out, or remove it") from None
    except OSError as error:
        raise RunError(f"{path} cannot be made: {error.strerror or error}") from error


@contextmanager
def run_folder(path: Path, options: dict[str, Any], processes: ProcessGroup = SINGLE_PROCESS) -> Iterator[None]:
    """The folder of a new run, with its configuration; only the first process touches it.

    It is removed again if the user is at fault; after any other failure it stays for ``--resume``. Processes that
    torchrun has started again continue in the folder of their earlier life: one with the same options that is not
    finished. For a process that is alone a folder that exists is an error.
    """
    if not processes.first or (processes.shared and _was_begun(path, options)):
        yield
        return
    make_folder(path)
    try:
        make_folder(path / CHECKPOINTS)
        write_json(path / CONFIG, options)
        yield
    except (ProcessGroupError, KeptRunError):
        raise
    except JointensorError:
        # with metrics only the report failed; with checkpoints a resumed run can go on from there
        if not (path / METRICS).exists() and not any((path / CHECKPOINTS).rglob("*.*")):
            shutil.rmtree(path, ignore_errors=True)
        raise


def finished_before(path: Path, options: dict[str, Any], processes: ProcessGroup) -> dict[str, Any] | None:
    """Metrics of a run that was finished when its processes were started again: what failed was its end."""

    def find() -> dict[str, Any] | None:
        if not processes.first or not processes.shared or not restarted() or not has_metrics(path):
            return None
        return read_metrics(path) if read_config(path) == options else None

    return processes.decide(find)


def _was_begun(path: Path, options: dict[str, Any]) -> bool:
    if not (path / CONFIG).exists() or has_metrics(path):
        return False
    if read_config(path) != options:
        raise RunError(f"{path} exists already, and was begun with other options; give another --out, or remove it")
    (path / CHECKPOINTS).mkdir(exist_ok=True)
    return True


def write_model(
    path: Path,
    predictor: JointPredictor | Ensemble,
    modes: tuple[Mode, ...],
    spec: TableSpec | None,
    history: list[Epoch],
) -> dict[str, str]:
    """Write the model, its labels and its history beside those of the run; returns checksums for ``metrics.json``.

    The run has them once :func:`finish_run` is called.
    """
    staged = path / STAGED
    shutil.rmtree(staged, ignore_errors=True)
    try:
        staged.mkdir()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    write_whole(staged / WEIGHTS, lambda draft: save_predictor(predictor, draft))
    labels = {"modes": [_mode_to_dict(mode) for mode in modes], "table": None if spec is None else spec.to_dict()}
    write_text(staged / LABELS, json.dumps(labels, ensure_ascii=False))
    write_text(staged / "history.jsonl", "".join(json.dumps(row.to_dict()) + "\n" for row in history))
    write_json(path / ENVIRONMENT, environment())
    return {name: sha256(staged / name) for name in (WEIGHTS, LABELS)}


def finish_run(path: Path, metrics: dict[str, Any]) -> None:
    """Write ``metrics.json`` and put it and the files of :func:`write_model` in their places."""
    write_json(path / STAGED / METRICS, metrics)
    settle(path)


def settle(path: Path) -> None:
    """Finish a replacement of a run's files that was cut off; drop one that never was whole."""
    staged = path / STAGED
    if not staged.is_dir():
        return
    try:
        if (staged / METRICS).exists():
            for name in sorted(file.name for file in staged.iterdir() if file.name != METRICS):
                (staged / name).replace(path / name)
            (staged / METRICS).replace(path / METRICS)
        shutil.rmtree(staged)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def has_metrics(path: Path) -> bool:
    """Whether a run has a model that predicts."""
    return (path / METRICS).exists()


def read_metrics(path: Path) -> dict[str, Any]:
    """The figures of a run."""
    return read_object(path / METRICS)


def load_run(path: Path | str, nonlinear: type[nn.Module] | nn.Module | None = None) -> Run:
    """A finished run from its folder; refuses what is unfinished or not what was written."""
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"there is no run folder {path}")
    if not (path / CONFIG).exists():
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}")
    if (path / STAGED / METRICS).exists():
        settle(path)
    if not (path / METRICS).exists():
        raise RunError(f"{path} is unfinished: it has no {METRICS}; continue it with: jointensor fit --resume {path}")
    metrics, config = read_object(path / METRICS), read_object(path / CONFIG)
    _check_files(path, metrics.get("files", {}))
    labels = read_object(path / LABELS)
    try:
        modes = tuple(_mode_from_dict(mode) for mode in labels["modes"])
        spec = _spec_from_dict(labels["table"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path / LABELS} is damaged: {error}") from None
    predictor = load_predictor(path / WEIGHTS, nonlinear)
    if not isinstance(predictor, JointPredictor | Ensemble) or len(predictor.shape) != len(modes):
        raise RunError(f"{path} is damaged: {WEIGHTS} is not a model for the {len(modes)} modes of {LABELS}")
    return Run(path, predictor, modes, spec, config, metrics)


def _check_files(path: Path, checksums: Any) -> None:
    """Refuse files that are not what was written. Names of other files, here or elsewhere, are not followed."""
    if not isinstance(checksums, dict) or not set(checksums) <= {WEIGHTS, LABELS}:
        raise RunError(f"{path / METRICS} is damaged: it has checksums of other files than {WEIGHTS} and {LABELS}")
    for name, expected in checksums.items():
        if not (path / name).is_file() or sha256(path / name) != expected:
            raise RunError(f"{path / name} is not the file that was written (its checksum differs); fit again")


def read_config(path: Path) -> dict[str, Any]:
    """The options of a run."""
    if not (path / CONFIG).exists():
        raise RunError(f"{path} is not a run folder: it has no {CONFIG}")
    return read_object(path / CONFIG)


def environment() -> dict[str, Any]:
    """Versions and machine, so that a figure can be understood later."""
    packages: dict[str, str | None] = {}
    for name in ("torch", "numpy", "scipy", "polars", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "jointensor": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": sys.argv,
    }


def _mode_to_dict(mode: Mode) -> dict[str, Any]:
    return {"name": mode.name, "size": mode.size, "order": mode.order, "labels": mode.labels}


def _mode_from_dict(data: dict[str, Any]) -> Mode:
    name, size, labels = data["name"], data["size"], data["labels"]
    if not isinstance(name, str) or not isinstance(size, int) or not isinstance(labels, list | None):
        raise TypeError(f"mode {name!r} has no plain name, size and labels")
    if not all(isinstance(label, str) for label in labels or ()):
        raise TypeError(f"mode {name!r} has labels that are not text")
    return Mode(name, size, None if labels is None else tuple(labels), data["order"])


def _spec_from_dict(data: dict[str, Any] | None) -> TableSpec | None:
    if data is None:
        return None
    from jointensor.data.frames import TableSpec  # noqa: PLC0415 - polars only when the run came from a table

    spec = TableSpec.from_dict(data)
    texts = (spec.value, spec.separator or "", *(spec.columns or ()))
    if not all(isinstance(text, str) for text in texts) or not isinstance(spec.header, bool):
        raise TypeError("the rules of the table are not texts")
    return spec


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object in a file of a folder, or an error that names the file."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")  # a pipe would be waited for
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is missing or damaged: {error}") from None
    if not isinstance(data, dict):
        raise RunError(f"{path} is damaged: it does not hold a JSON object")
    return data
