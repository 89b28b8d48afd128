"""A nonlinear part of your own: check that it keeps the contract, then fit it inside JULIA and alone."""

import numpy as np
import torch
from torch import Tensor, nn

from jointensor import JointModel, Recipe, evaluate, fit, split
from jointensor.data.synthetic import make_joint
from jointensor.metrics import rmse
from jointensor.models.nonlinear import nonlinear_parts
from jointensor.testing import check_joint_model, check_nonlinear


@nonlinear_parts.register("pairs")
class Pairs(nn.Module):
    """Every pair of modes by the inner product of its rows, weighed by a small network."""

    def __init__(self, n_modes: int, width: int, *, hidden: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_modes * n_modes, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, rows: Tensor) -> Tensor:
        products = rows @ rows.transpose(1, 2)  # (batch, modes, modes)
        return self.head(torch.tanh(self.hidden(products.flatten(1)))).squeeze(-1)  # (batch,)


check_nonlinear("pairs,hidden=5")
check_joint_model("pairs")

# The tensor is a CP of rank 2 plus a function of pairs of modes, which is what this part is made for.
tensor, _ = make_joint(
    (30, 25, 20), (2, 3), lambda b: np.tanh((b[:, 1:] * b[:, :-1]).sum(axis=2)).sum(axis=1), observed=0.3
)
parts = split(tensor, seed=0)
print(f"mean         test RMSE {rmse(np.full(len(parts.test), parts.train.values.mean()), parts.test.values):.3f}")
for name, rank in (("CP alone", (2, 0)), ("pairs alone", (0, 6)), ("JULIA-pairs", (2, 4))):
    result = fit(JointModel(tensor.shape, rank, nonlinear="pairs"), parts, Recipe(batch_size=256), seed=0)
    print(f"{name:12} test RMSE {evaluate(result, parts.test)['rmse']:.3f}")
