"""Values and gradients of CP on an NVIDIA GPU: rows gathered, multiplied and summed in one pass, gradients scattered in
another, without a row ever being written to memory in between.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

BLOCK = 128
"""Entries of one program."""


@torch.library.custom_op("jointensor::cp_values", mutates_args=())
def cp_values(stacked: Tensor, places: Tensor) -> Tensor:
    """Σ_r Π_n stacked(places_n, r) of the entries: ``(rows, R)`` and ``(batch, modes)`` → ``(batch,)``."""
    values = stacked.new_empty(len(places))
    rank = stacked.shape[1]
    if len(places):
        _values[(triton.cdiv(len(places), BLOCK),)](
            stacked, places, values, len(places),
            rank=rank, MODES=places.shape[1], RANK=triton.next_power_of_2(rank), BLOCK=BLOCK,
        )  # fmt: skip
    return values


@torch.library.custom_op("jointensor::cp_gradient", mutates_args=())
def cp_gradient(stacked: Tensor, places: Tensor, slopes: Tensor) -> Tensor:
    """Gradient of Σ_e slopes_e · value_e with regard to ``stacked``, of its shape."""
    gradient = torch.zeros_like(stacked)
    rank = stacked.shape[1]
    if len(places):
        _gradient[(triton.cdiv(len(places), BLOCK),)](
            stacked, places, slopes, gradient, len(places),
            rank=rank, MODES=places.shape[1], RANK=triton.next_power_of_2(rank), BLOCK=BLOCK,
        )  # fmt: skip
    return gradient


@cp_values.register_fake
def _(stacked: Tensor, places: Tensor) -> Tensor:
    return stacked.new_empty(places.shape[0])


@cp_gradient.register_fake
def _(stacked: Tensor, places: Tensor, slopes: Tensor) -> Tensor:
    return torch.empty_like(stacked)


def _remember(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _backward(ctx, slopes):  # type: ignore[no-untyped-def]
    stacked, places = ctx.saved_tensors
    return cp_gradient(stacked, places, slopes.contiguous()), None


cp_values.register_autograd(_backward, setup_context=_remember)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _row(stacked, places, e, inside, m, r, rank: tl.constexpr, MODES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of one mode, ``(BLOCK, RANK)``."""
    place = tl.load(places + e * MODES + m, mask=e >= 0, other=0).to(tl.int64)
    return tl.load(stacked + place[:, None] * rank + r[None, :], mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _values(  # type: ignore[no-untyped-def]
    stacked, places, values, batch, rank: tl.constexpr, MODES: tl.constexpr, RANK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live, r = e < batch, tl.arange(0, RANK)
    e = tl.where(live, e, 0)
    inside = live[:, None] & (r < rank)[None, :]
    h = _row(stacked, places, e, inside, 0, r, rank, MODES)
    for m in tl.static_range(1, MODES):
        h *= _row(stacked, places, e, inside, m, r, rank, MODES)
    tl.store(values + e, tl.sum(h, 1), mask=live)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]
    stacked, places, slopes, gradient, batch, rank: tl.constexpr, MODES: tl.constexpr, RANK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live, r = e < batch, tl.arange(0, RANK)
    e = tl.where(live, e, 0)
    inside = live[:, None] & (r < rank)[None, :]
    slope = tl.load(slopes + e, mask=live, other=0.0)
    for n in tl.static_range(MODES):
        h = tl.where(inside, slope[:, None], 0.0)
        for m in tl.static_range(MODES):
            if m != n:
                h *= _row(stacked, places, e, inside, m, r, rank, MODES)
        place = tl.load(places + e * MODES + n).to(tl.int64)
        tl.atomic_add(gradient + place[:, None] * rank + r[None, :], h, mask=inside, sem="relaxed")
