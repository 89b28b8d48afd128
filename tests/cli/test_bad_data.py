"""Sources that are refused: a message, no traceback, and no run folder."""

import numpy as np
import pytest


def _positions(folder, ending):
    path = folder / f"a.{ending}"
    if ending == "tns":
        path.write_text("1 1 1.0\n1000000000000 2 2.0\n3 3 1.5\n", encoding="utf-8")
    else:
        np.savez(path, indices=np.array([[0, 0], [2, 2], [10**12 - 1, 1]]), values=np.array([1.0, 1.5, 2.0]))
    return path


def _stamps(folder, ending):
    path, cells = folder / f"a.{ending}", np.ascontiguousarray(np.argwhere(np.ones((13, 6))))
    values = 1_700_000_000 + np.arange(78)
    if ending == "tns":
        np.savetxt(path, np.column_stack([cells + 1, values]), fmt="%d", encoding="utf-8")
    else:
        np.savez(path, indices=cells, values=values)
    return path


@pytest.mark.parametrize("options", [[], ["--memory", "1GB", "--stream"]])
@pytest.mark.parametrize("ending", ["tns", "npz"])
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_positions, "mode 'mode_0' goes up to position 1,000,000,000,000"),
        (_stamps, "subtract an offset such as 1700000000"),
    ],
)
def test_a_fit_says_what_is_wrong_and_leaves_no_folder(cli, tmp_path, write, reason, ending, options):
    code, _, err = cli("fit", write(tmp_path, ending), "--rank", "2/0", "--out", tmp_path / "run", *options)
    assert code == 1
    assert reason in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
