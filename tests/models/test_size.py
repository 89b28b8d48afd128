"""Models larger than memory are refused by name and amount, before they are allocated."""

import pytest
import torch
from torch import nn

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.errors import ConfigError
from jointensor.models import size
from jointensor.models.joint import JointModel
from jointensor.models.size import total_memory, within_memory
from jointensor.training.fit import check_fit
from jointensor.training.recipe import make_recipe


@pytest.fixture
def memory(monkeypatch):
    """Let there be so many bytes of memory."""
    return lambda count: monkeypatch.setattr(size, "total_memory", lambda: float(count))


@pytest.mark.parametrize(
    ("rank", "options"),
    [
        ((10**9, 0), {}),
        ((10**30, 0), {}),
        ((0, 10**9), {}),
        ((0, 10**9), {"nonlinear": "mlp"}),
        ((0, 10**30), {}),
        ((0, 0), {"linear": "mean+fm:1000000000000"}),
        ((0, 0), {"linear": "pairs:1000000000000"}),
    ],
)
def test_a_model_beyond_any_memory_is_refused_by_its_rank_and_shape(rank, options):
    words = rf"rank {rank[0]}/{rank[1]} of a 300 x 200 x 100 tensor needs at least .* GB of memory"
    with pytest.raises(ConfigError, match=words):
        JointModel((300, 200, 100), rank, **options)


def test_the_bound_is_the_bytes_of_all_parameters(memory):
    model = JointModel((30, 20, 10), (4, 8))
    network = sum(one.numel() for one in model.nonlinear.part.parameters())
    bytes_ = 4 * (60 * 4 + 60 * 8 + network)
    memory(bytes_ + 1000)  # the network is tried on a few rows
    JointModel((30, 20, 10), (4, 8))
    memory(bytes_ - 4)
    with pytest.raises(ConfigError, match="rank 4/8 of a 30 x 20 x 10 tensor"):
        JointModel((30, 20, 10), (4, 8))


def test_a_network_of_ones_own_is_counted_too(memory):
    class Wide(nn.Module):
        def __init__(self, n_modes, width):
            super().__init__()
            self.head = nn.Linear(n_modes * width, 1)
            self.more = nn.Parameter(torch.zeros(1000, 1000))

        def forward(self, rows):
            return self.head(rows.flatten(1)).squeeze(-1)

    memory(10**6)
    with pytest.raises(ConfigError, match=r"needs at least 0.0 GB of memory, and there are 0.0 GB"):
        JointModel((3, 2), (0, 2), nonlinear=Wide)


def test_systems_of_the_exact_solver_are_counted_before_a_fit(memory):
    parts = split(make_joint((9, 8, 7), (2, 0), observed=300, seed=3)[0], seed=0)
    model = JointModel((9, 8, 7), (1000, 0))
    memory(3 * 10**6)
    with pytest.raises(ConfigError, match="one system of the exact solver for rank 1000/0"):
        check_fit(model, parts, make_recipe("default"))
    check_fit(model, parts, make_recipe("paper"))  # descends: has no systems


def test_memory_is_that_of_the_machine_or_of_its_container(monkeypatch, tmp_path):
    monkeypatch.setattr(size, "CGROUP", tmp_path / "memory.max")
    machine = total_memory()
    assert machine > 10**6
    (tmp_path / "memory.max").write_text("1000000\n", encoding="ascii")
    assert total_memory() == 10**6
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert total_memory() == machine


def test_nothing_is_counted_outside(memory):
    with within_memory("this"):
        pass
    memory(0)
    assert torch.zeros(10).shape == (10,)
