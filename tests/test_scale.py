"""Memory goes with the entries and the labels, never with the cells. Measured in processes of their own.

What the system calls the largest resident set of a process (``getrusage``) begins with that of the one that started it,
so the peak of its own memory is asked for.
"""

import json
import subprocess
import sys

import pytest

HUGE = """
import json
import numpy as np
import torch
torch.set_num_threads(2)
from jointensor.runs.memory_plan import peak_memory
from jointensor import JointModel, Recipe, SparseTensor, evaluate, fit, split
rng = np.random.default_rng(0)
indices = np.unique(rng.integers(10**6, size=(10**4, 3)), axis=0)
parts = split(SparseTensor(indices, rng.standard_normal(len(indices)), (10**6,) * 3))
model = JointModel((10**6,) * 3, (2, 2))
result = fit(model, parts, Recipe(warm_epochs=1, rounds=1, refine_epochs=1, restarts=0))
predicted = result.predict(parts.test.indices)
print(json.dumps({
    "gigabytes": peak_memory() / 1e9,
    "finite": bool(np.isfinite(predicted).all()),
    "predicted": len(predicted),
    "epochs": len(result.history),
    "n": evaluate(result, parts.test)["n"],
}))
"""

NIPS = """
import json, sys
import numpy as np
import torch
torch.set_num_threads(2)
import jointensor
from jointensor.predictors import fit_baselines
from jointensor.runs.memory_plan import peak_memory
parts = jointensor.split(jointensor.read_tensor(sys.argv[1]).tensor)
baselines = fit_baselines(parts)
figures = {name: jointensor.metrics.rmse(one.predict(parts.test.indices), parts.test.values)
           for name, one in baselines.items()}
model = jointensor.JointModel(parts.train.shape, (4, 16))
recipe = jointensor.Recipe(warm_epochs=1, rounds=1, refine_epochs=1, restarts=0)
result = jointensor.fit(model, parts, recipe, fallback=baselines["bias"])
print(json.dumps({
    "gigabytes": peak_memory() / 1e9,
    "baselines": figures,
    "rmse": jointensor.evaluate(result, parts.test)["rmse"],
}))
"""


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_million_labels_in_each_of_three_modes_fit_into_two_gigabytes():
    found = run(HUGE)
    assert found["gigabytes"] < 2.0
    assert found["finite"]
    assert found["predicted"] == found["n"] == 2000
    assert found["epochs"] == 1 + 2 + 1


@pytest.mark.slow
def test_nips_with_its_baselines_fits_into_one_and_a_half_gigabytes(real):
    found = run(NIPS, real("nips_0_12.npz"))
    assert found["gigabytes"] < 1.5
    assert found["baselines"]["tables"] == pytest.approx(1.82, rel=0.01)
    assert found["rmse"] < found["baselines"]["mean"]
