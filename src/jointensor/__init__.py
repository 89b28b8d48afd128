"""Fill in the missing entries of large, sparse, N-way tensors.

Every entry is a multilinear part plus a nonlinear part, trained by alternating optimisation (JULIA).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jointensor._version import __version__

if TYPE_CHECKING:
    from jointensor.data.formats import read_tensor, write_tensor
    from jointensor.data.split import split
    from jointensor.data.tensor import SparseTensor
    from jointensor.estimator import TensorCompleter
    from jointensor.evaluation.evaluate import evaluate
    from jointensor.evaluation.matching import match_factors
    from jointensor.models.joint import JointModel
    from jointensor.training.fit import fit
    from jointensor.training.recipe import Recipe

_HOMES = {
    "JointModel": "jointensor.models.joint",
    "Recipe": "jointensor.training.recipe",
    "SparseTensor": "jointensor.data.tensor",
    "TensorCompleter": "jointensor.estimator",
    "evaluate": "jointensor.evaluation.evaluate",
    "fit": "jointensor.training.fit",
    "match_factors": "jointensor.evaluation.matching",
    "read_tensor": "jointensor.data.formats",
    "split": "jointensor.data.split",
    "write_tensor": "jointensor.data.formats",
}

__all__ = [
    "JointModel",
    "Recipe",
    "SparseTensor",
    "TensorCompleter",
    "__version__",
    "evaluate",
    "fit",
    "match_factors",
    "read_tensor",
    "split",
    "write_tensor",
]


def __getattr__(name: str) -> Any:
    # Names are looked up when first used, so that `jointensor --help` does not load torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'jointensor' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
