"""``local:A``: residuals of the nearest entries along an ordered mode, by kriging after training."""

from __future__ import annotations

from jointensor.models.blocks.base import Kind, register, some_modes

register(Kind("local", ("local:A",), "local:A with one mode", some_modes(1, 1), residual_model="kriging"))
