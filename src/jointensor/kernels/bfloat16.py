"""Two linear layers with a ReLU between them in 16 bits, for training on CPUs with instructions for it.

Weights, sums of gradients and everything else stay in 32 bits, and predictions are made in 32 bits.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear, relu

MIN_SHORT_WEIGHTS = 4096
"""Weights of a layer from which on 16 bits are faster; smaller layers spend their time elsewhere."""


def linear_relu_linear_16(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """``(batch, D)`` → ``(batch, F)`` with weights ``(H, D)``, ``(H,)``, ``(F, H)``, ``(F,)``."""
    with torch.autocast("cpu", torch.bfloat16, enabled=torch.is_grad_enabled() and w1.numel() >= MIN_SHORT_WEIGHTS):
        return linear(relu(linear(x, w1, b1)), w2, b2).to(x.dtype)


@lru_cache(maxsize=1)
def multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for it, as far as the system says."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
