"""One step of Adam over a large table on an NVIDIA GPU, in one pass over memory.

Torch's fused step hands 65,536 numbers to a block, so that a table of a few million leaves half of the device idle.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

BLOCK = 2048
"""Numbers of one program."""


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    steps: Tensor,
    lr: Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float = 0.0,
) -> None:
    """Update ``parameter`` and the two moments in place; ``steps`` counts this step already, all on the device."""
    size = parameter.numel()
    _adam[(triton.cdiv(size, BLOCK),)](
        parameter, gradient, first, second, steps, lr, size, *betas, eps, decay, BLOCK=BLOCK
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _adam(parameter, gradient, first, second, steps, lr, size, beta1, beta2, eps, decay, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < size
    t = tl.load(steps)
    rate = tl.load(lr) / (1 - tl.exp2(t * tl.log2(beta1)))
    scale = 1 / tl.sqrt(1 - tl.exp2(t * tl.log2(beta2)))
    g = tl.load(gradient + at, mask=live, other=0.0)
    m = tl.load(first + at, mask=live, other=0.0)
    v = tl.load(second + at, mask=live, other=0.0)
    m += (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    p = tl.load(parameter + at, mask=live, other=0.0) * (1 - tl.load(lr) * decay) - rate * m / (
        tl.sqrt(v) * scale + eps
    )
    tl.store(parameter + at, p, mask=live)
    tl.store(first + at, m, mask=live)
    tl.store(second + at, v, mask=live)
