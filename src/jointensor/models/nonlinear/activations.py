"""σ: the activations that an f may use, by name."""

from __future__ import annotations

from torch import nn

from jointensor.errors import ConfigError
from jointensor.registry import nearest

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}
"""Choices for σ."""


def make_activation(name: str) -> nn.Module:
    """σ by name."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation '{name}': {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()
