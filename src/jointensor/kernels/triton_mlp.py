"""A linear layer, a ReLU and another linear layer on an NVIDIA GPU, without the hidden layer ever being in memory.

y = relu(x W₁ᵀ + b₁) W₂ᵀ + b₂, for many short rows x. The hidden layer of JULIA's network is F² wide, so that writing
and reading it costs more than computing it again wherever it is needed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor, nn

from jointensor.kernels.engines import MIN_SHORT_WEIGHTS

ROWS = 128
"""Rows of x in one tile."""

HIDDEN = 32
"""Hidden units that are in registers at a time."""

PROGRAMS = 512
"""Programs among which the tiles are dealt where gradients of the weights are summed up."""


MAX_INPUTS, MAX_OUTPUTS = 128, 32
"""Wider layers do not fit in registers; plain torch is used then."""


SHARED = 200_000
"""Bytes of shared memory that a program may need."""


def linear_relu_linear_short(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """As :func:`linear_relu_linear`, with products of TF32, 10 bits of mantissa, in wide layers while training."""
    return linear_relu_linear(x, w1, b1, w2, b2, exact=w1.numel() < MIN_SHORT_WEIGHTS or not torch.is_grad_enabled())


def linear_relu_linear(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, *, exact: bool = True) -> Tensor:
    """``(batch, D)`` → ``(batch, F)`` with weights ``(H, D)``, ``(H,)``, ``(F, H)``, ``(F,)``."""
    if x.shape[1] <= MAX_INPUTS and len(b2) <= MAX_OUTPUTS and _tiles_fit(x.device):
        return two_layers(x, w1, b1, w2, b2, exact)
    hidden = nn.functional.relu(nn.functional.linear(x, w1, b1))
    return nn.functional.linear(hidden, w2, b2)


def _tiles_fit(device: torch.device) -> bool:
    """Whether the tiles fit on the device: those of desktop cards are smaller."""
    if device.type != "cuda":
        return True
    about: Any = torch.cuda.get_device_properties(device)  # torch's own stubs lack the field
    return int(about.shared_memory_per_block_optin) >= SHARED


@torch.library.custom_op("jointensor::two_layers", mutates_args=())
def two_layers(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, exact: bool) -> Tensor:
    """As :func:`linear_relu_linear`."""
    y = x.new_empty(len(x), len(w2))
    if len(x):
        _forward[(triton.cdiv(len(x), ROWS),)](
            x, w1, b1, w2, b2, y, len(x), *_sizes(w1, w2), **_tiles(w1, w2, exact=exact)
        )
    return y


@torch.library.custom_op("jointensor::two_layers_gradient", mutates_args=())
def two_layers_gradient(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    slopes: Tensor,
    exact: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of Σ slopes · y with regard to x, W₁, b₁ and W₂; that of b₂ is the sum of the slopes."""
    dx, dw1, db1, dw2 = torch.empty_like(x), torch.zeros_like(w1), torch.zeros_like(b1), torch.zeros_like(w2)
    if len(x):
        sizes, tiles = _sizes(w1, w2), _tiles(w1, w2, exact=exact)
        _input_gradient[(triton.cdiv(len(x), ROWS),)](x, w1, b1, w2, slopes, dx, len(x), *sizes, **tiles)
        chunks = triton.cdiv(len(w1), tiles["CHUNK"])
        stripes = max(1, min(PROGRAMS // chunks, triton.cdiv(len(x), ROWS)))
        _weight_gradient[(chunks, stripes)](x, w1, b1, w2, slopes, dw1, db1, dw2, len(x), *sizes, **tiles)
    return dx, dw1, db1, dw2


@two_layers.register_fake
def _(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, exact: bool) -> Tensor:
    return x.new_empty(x.shape[0], w2.shape[0])


@two_layers_gradient.register_fake
def _(  # type: ignore[no-untyped-def]
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    slopes: Tensor,
    exact: bool,
):
    return torch.empty_like(x), torch.empty_like(w1), torch.empty_like(b1), torch.empty_like(w2)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:4])
    ctx.exact = inputs[5]


def _backward(ctx, slopes):  # type: ignore[no-untyped-def]
    slopes = slopes.contiguous()
    return *two_layers_gradient(*ctx.saved_tensors, slopes, ctx.exact), slopes.sum(dim=0), None


two_layers.register_autograd(_backward, setup_context=_remember)


def _sizes(w1: Tensor, w2: Tensor) -> tuple[int, int, int]:
    return w1.shape[1], w1.shape[0], w2.shape[0]


def _tiles(w1: Tensor, w2: Tensor, *, exact: bool) -> dict[str, Any]:
    """Sizes of the tiles, padded to what a matrix product takes."""
    padded = [max(16, triton.next_power_of_2(size)) for size in (w1.shape[1], w2.shape[0], w1.shape[0])]
    return {
        "D": padded[0], "F": padded[1], "CHUNK": min(HIDDEN, padded[2]), "ROWS": ROWS,
        "PRECISION": "tf32x3" if exact else "tf32", "num_warps": 4, "num_stages": 1 if padded[0] > 64 else 3,
    }  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _tile(source, first, count, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some rows of a matrix, ``(ROWS, WIDTH)``; zero outside of it."""
    row, column = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < count)[:, None] & (column < width)[None, :]
    return tl.load(source + row.to(tl.int64)[:, None] * width + column[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _columns(w2, first, hidden, outputs, F: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some columns of W₂, ``(F, CHUNK)``."""
    f, j = tl.arange(0, F), first + tl.arange(0, CHUNK)
    inside = (f < outputs)[:, None] & (j < hidden)[None, :]
    return tl.load(w2 + f[:, None] * hidden + j[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _before(x, w, b1, first, hidden, CHUNK: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some hidden units before their ReLU, ``(ROWS, CHUNK)``."""
    j = first + tl.arange(0, CHUNK)
    return tl.dot(x, tl.trans(w), input_precision=PRECISION) + tl.load(b1 + j, mask=j < hidden, other=0.0)[None, :]


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(  # type: ignore[no-untyped-def]
    x, w1, b1, w2, b2, y, batch, width, hidden, outputs,
    D: tl.constexpr, F: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    xs = _tile(x, first, batch, width, ROWS, D)
    row, f = first + tl.arange(0, ROWS), tl.arange(0, F)
    out = tl.zeros((ROWS, F), tl.float32)
    for chunk in range(0, hidden, CHUNK):
        w = _tile(w1, chunk, hidden, width, CHUNK, D)
        h = tl.maximum(_before(xs, w, b1, chunk, hidden, CHUNK, PRECISION), 0.0)
        out += tl.dot(h, tl.trans(_columns(w2, chunk, hidden, outputs, F, CHUNK)), input_precision=PRECISION)
    out += tl.load(b2 + f, mask=f < outputs, other=0.0)[None, :]
    inside = (row < batch)[:, None] & (f < outputs)[None, :]
    tl.store(y + row.to(tl.int64)[:, None] * outputs + f[None, :], out, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _input_gradient(  # type: ignore[no-untyped-def]
    x, w1, b1, w2, slopes, dx, batch, width, hidden, outputs,
    D: tl.constexpr, F: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    xs = _tile(x, first, batch, width, ROWS, D)
    dy = _tile(slopes, first, batch, outputs, ROWS, F)
    row, d = first + tl.arange(0, ROWS), tl.arange(0, D)
    out = tl.zeros((ROWS, D), tl.float32)
    for chunk in range(0, hidden, CHUNK):
        w = _tile(w1, chunk, hidden, width, CHUNK, D)
        before = _before(xs, w, b1, chunk, hidden, CHUNK, PRECISION)
        dh = tl.dot(dy, _columns(w2, chunk, hidden, outputs, F, CHUNK), input_precision=PRECISION)
        out += tl.dot(tl.where(before > 0, dh, 0.0), w, input_precision=PRECISION)
    inside = (row < batch)[:, None] & (d < width)[None, :]
    tl.store(dx + row.to(tl.int64)[:, None] * width + d[None, :], out, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _weight_gradient(  # type: ignore[no-untyped-def]
    x, w1, b1, w2, slopes, dw1, db1, dw2, batch, width, hidden, outputs,
    D: tl.constexpr, F: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk of the hidden units over every so many tiles; the sums stay in registers until the end."""
    chunk = tl.program_id(0) * CHUNK
    w, columns = _tile(w1, chunk, hidden, width, CHUNK, D), _columns(w2, chunk, hidden, outputs, F, CHUNK)
    sum_w1 = tl.zeros((CHUNK, D), tl.float32)
    sum_b1 = tl.zeros((CHUNK,), tl.float32)
    sum_w2 = tl.zeros((F, CHUNK), tl.float32)
    for first in range(tl.program_id(1) * ROWS, batch, tl.num_programs(1) * ROWS):
        xs = _tile(x, first, batch, width, ROWS, D)
        dy = _tile(slopes, first, batch, outputs, ROWS, F)
        before = _before(xs, w, b1, chunk, hidden, CHUNK, PRECISION)
        dh = tl.where(before > 0, tl.dot(dy, columns, input_precision=PRECISION), 0.0)
        sum_w1 += tl.dot(tl.trans(dh), xs, input_precision=PRECISION)
        sum_w2 += tl.dot(tl.trans(dy), tl.maximum(before, 0.0), input_precision=PRECISION)
        sum_b1 += tl.sum(dh, 0)
    j, d, f = chunk + tl.arange(0, CHUNK), tl.arange(0, D), tl.arange(0, F)
    unit = j < hidden
    tl.atomic_add(
        dw1 + j[:, None] * width + d[None, :], sum_w1, mask=unit[:, None] & (d < width)[None, :], sem="relaxed"
    )
    tl.atomic_add(
        dw2 + f[:, None] * hidden + j[None, :], sum_w2, mask=(f < outputs)[:, None] & unit[None, :], sem="relaxed"
    )
    tl.atomic_add(db1 + j, sum_b1, mask=unit, sem="relaxed")
