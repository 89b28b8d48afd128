"""Run folders of earlier versions load, and predict what those versions predicted.

The folders are named after the commits whose code wrote them, see ``write.py``.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from jointensor.errors import RunError
from jointensor.runs.folder import load_run
from jointensor.runs.predict import complete_file, predict_file
from tests.upgrade.write import FITS

RUNS = Path(__file__).parent / "runs"
FOLDERS = sorted(path for path in RUNS.glob("*/*") if path.is_dir())


def name_of(folder):
    return f"{folder.parent.name}-{folder.name}"


def test_every_kind_of_model_is_there_from_several_versions():
    versions = {kind: sum(folder.name == kind for folder in FOLDERS) for kind in FITS}
    assert min(versions.values()) >= 3, versions
    assert {folder.name for folder in FOLDERS} == set(FITS)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_old_folders_predict_what_they_did(folder, tmp_path):
    told = pl.read_csv(folder / "answers.csv")
    run = load_run(folder)
    with_intervals = "lower" in told.columns
    predict_file(run, folder / "queries.csv", tmp_path / "answers.csv", 0.9 if with_intervals else None)
    found = pl.read_csv(tmp_path / "answers.csv")
    assert set(told.columns) <= set(found.columns)
    np.testing.assert_allclose(found["prediction"], told["prediction"], rtol=1e-5)
    assert found["unseen"].to_list() == told["unseen"].to_list()
    assert 0 < found["unseen"].sum() < found.height
    assert found["prediction"].n_unique() > found.height // 3
    for end in ("lower", "upper") if with_intervals else ():
        np.testing.assert_allclose(found[end], told[end], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_old_folders_can_be_completed_without_their_source(folder, tmp_path):
    notes = []
    complete_file(load_run(folder), tmp_path / "top.csv", top=3, on_note=notes.append)
    assert pl.read_csv(tmp_path / "top.csv").height == 3
    assert any("gone or has changed" in note for note in notes)


def newer(folder, tmp_path, **changes):
    """The folder as a version to come might write it."""
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata, numbers = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    key = next(iter(metadata))
    save_file(numbers, path, metadata={key: json.dumps(json.loads(metadata[key]) | changes)})
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    metrics["files"] = {}
    (tmp_path / "run" / "metrics.json").write_text(json.dumps(metrics))
    return tmp_path / "run"


@pytest.mark.parametrize("changes", [{"kind": "transformer"}, {"returned": "wisdom"}])
def test_folders_of_versions_to_come_are_refused_by_name(changes, tmp_path):
    folder = newer(RUNS / "9c53db5" / "joint", tmp_path, **changes)
    with pytest.raises(RunError, match=r"not a model of this version.*(fit again|version that wrote)"):
        load_run(folder)


def test_blocks_of_versions_to_come_are_refused_by_name(tmp_path):
    folder = newer(RUNS / "9c53db5" / "blocks", tmp_path, linear="mean+bias+cp:2+magic:3")
    with pytest.raises(RunError, match="no multilinear block 'magic'"):
        load_run(folder)
