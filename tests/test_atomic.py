"""Files that are whole or not there, and drafts of killed processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jointensor import atomic
from jointensor.atomic import DRAFT, sha256, write_text, write_whole
from jointensor.errors import RunError

KILLED = """
import os, signal, sys
from pathlib import Path
from jointensor.atomic import write_whole
write_whole(Path(sys.argv[1]), lambda draft: (draft.write_text("half"), os.kill(os.getpid(), signal.SIGKILL)))
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_draft_of_a_killed_process_is_removed_by_the_next_that_writes_there(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "answers.csv"], check=False)
    assert done.returncode < 0
    (left,) = names(tmp_path)
    assert left.startswith(DRAFT)
    write_text(tmp_path / "other.csv", "whole")
    assert names(tmp_path) == ["other.csv"]


def test_drafts_of_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_is_running", lambda pid: pid == 77)
    mine = {f"{DRAFT}77-abc": True, f"{DRAFT}78-abc": False, f"{DRAFT}x-abc": True, ".writing-other-0-78-a": True}
    for name in mine:
        (tmp_path / name).mkdir()
        (tmp_path / name / "draft").touch()
    write_text(tmp_path / "file", "whole")
    assert names(tmp_path) == sorted(["file", *(name for name, stays in mine.items() if stays)])


def test_this_process_runs_and_one_that_was_waited_for_does_not():
    assert atomic._is_running(os.getpid())
    assert atomic._is_running(1)  # somebody else's, perhaps
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert not atomic._is_running(done.pid)


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    write_text(tmp_path / "file", "before")

    def fail(draft):
        draft.write_text("half", encoding="utf-8")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="file cannot be written: No space left"):
        write_whole(tmp_path / "file", fail)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text(encoding="utf-8") == "before"


def test_only_regular_files_have_a_checksum(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(RunError, match="is not a regular file"):
            sha256(path)
    write_text(tmp_path / "file", "")
    assert sha256(tmp_path / "file").startswith("e3b0c442")
