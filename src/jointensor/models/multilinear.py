"""g: the multilinear half, a sum of blocks, each a sum of products over a subset of modes.

============  ==============================================  ==========================
block         value of an entry                               in the paper
============  ==============================================  ==========================
``mean``      one number                                      –
``bias``      Σ_n b_n(i_n)                                    –
``cp:R``      Σ_r Π_n A_n(i_n, r) over all modes              eq. (2), g itself
``tucker:K``  Σ_k W(k_1, …, k_N) Π_n A_n(i_n, k_n)            a baseline
============  ==============================================  ==========================

Every block is linear in each of its tables when the others are fixed. ``tucker:20x5x20`` has a rank per mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.factors import Factors, multiply_modes
from jointensor.models.tucker import Tucker
from jointensor.registry import nearest

BLOCKS = ("mean", "bias", "cp:R", "tucker:K")
"""How blocks are written."""


class Product(nn.Module):
    """Σ_r Π_{n ∈ modes} A_n(i_n, r): the one shape that all blocks share.

    Without modes the product is empty and the block is one number, held in ``constant``.
    """

    def __init__(self, shape: Sequence[int], modes: Sequence[int], rank: int) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.fuses = "cp_values" if len(self.modes) > 1 else None
        self.fused: Callable[[Tensor, Tensor], Tensor] | None = None
        """Values of rows by a compiled engine, see :class:`jointensor.kernels.Engine`."""
        self.factors = Factors([shape[n] for n in modes], rank) if modes else None
        self.constant = None if modes else nn.Parameter(torch.zeros(()))

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, all modes)`` → ``(batch,)``."""
        if self.constant is not None:
            return self.constant.expand(len(indices))
        assert self.factors is not None  # one of the two is there
        if len(self.modes) < indices.shape[1]:
            indices = torch.stack([indices[:, n] for n in self.modes], dim=1)
        if self.fused is not None:
            return self.fused(self.factors.stacked, self.factors.places(indices))
        rows = self.factors(indices)
        return multiply_modes(rows).sum(dim=1)  # (batch, modes, rank) → (batch, rank) → (batch,)


class Multilinear(nn.Module):
    """g = sum of named blocks.

    Parameters
    ----------
    shape
        Size of every mode.
    spec
        Blocks joined by ``+``, for example ``"mean+bias+cp:4"``; ``""`` is no block at all.
    """

    def __init__(self, shape: Sequence[int], spec: str) -> None:
        super().__init__()
        self.spec = spec
        self.blocks = nn.ModuleDict(_make_blocks(shape, spec))

    def forward(self, indices: Tensor) -> Tensor:
        """g of the entries, ``(batch, modes)`` → ``(batch,)``."""
        values = [block(indices) for name, block in self.blocks.items() if not name.startswith("bias_")]
        if len(values) < len(self.blocks):
            values.append(self._biases(indices))
        first, *others = values
        for other in others:
            first = first + other
        return first

    def _biases(self, indices: Tensor) -> Tensor:
        """Σ_n b_n(i_n) of all bias blocks, ``(batch,)``: one lookup and one scatter for all of them."""
        tables: list[Tensor] = []
        places, start = [], 0
        for n in range(indices.shape[1]):
            tables.append(self.get_parameter(f"blocks.bias_{n}.factors.stacked"))  # (I_n, 1)
            places.append(indices[:, n] + start)
            start += len(tables[-1])
        return torch.cat(tables).index_select(0, torch.cat(places)).view(len(places), -1).sum(dim=0)

    @torch.no_grad()
    def become(self, level: float) -> bool:
        """Become a constant; returns whether the blocks can: without ``mean`` they can be zero only."""
        for name, block in self.blocks.items():
            for parameter in block.parameters():
                parameter.fill_(level if name == "mean" else 0.0)
        return "mean" in self.blocks or level == 0

    @property
    def cp(self) -> Factors | None:
        """The CP block's factor matrices A_n, or ``None`` when there is no such block."""
        return self.blocks["cp"].factors if "cp" in self.blocks else None  # type: ignore[return-value]

    @property
    def tucker(self) -> Tucker | None:
        """The Tucker block, or ``None`` when there is no such block."""
        return self.blocks["tucker"] if "tucker" in self.blocks else None  # type: ignore[return-value]  # noqa: SIM401


def linear_spec(rank: int) -> str:
    """The multilinear half that the paper's R stands for."""
    return f"cp:{rank}" if rank else ""


def parse_blocks(spec: str) -> dict[str, tuple[int, ...]]:
    """Block names and ranks of ``"mean+bias+cp:4"``.

    >>> parse_blocks("mean + bias + cp:4")
    {'mean': (), 'bias': (), 'cp': (4,)}
    >>> parse_blocks("tucker:20x5x20")
    {'tucker': (20, 5, 20)}
    """
    blocks: dict[str, tuple[int, ...]] = {}
    for piece in filter(None, (piece.strip() for piece in spec.split("+"))):
        name, sign, text = piece.partition(":")
        if name not in [known.partition(":")[0] for known in BLOCKS]:
            raise ConfigError(f"there is no multilinear block '{name}'; {nearest(name, BLOCKS)}")
        if name in blocks:
            raise ConfigError(f"block '{name}' occurs twice in '{spec}'")
        ranks = text.split("x") if sign else []
        fits = not sign if name in ("mean", "bias") else len(ranks) == 1 if name == "cp" else bool(ranks)
        if not fits or not all(rank.isdecimal() and int(rank) > 0 for rank in ranks):
            raise ConfigError(
                f"'{piece}': write mean, bias, cp:R with R at least 1, tucker:K, or tucker:K1xK2x… with a rank per mode"
            )
        blocks[name] = tuple(map(int, ranks))
    return blocks


def _make_blocks(shape: Sequence[int], spec: str) -> dict[str, nn.Module]:
    every = range(len(shape))
    made: dict[str, nn.Module] = {}
    for name, ranks in parse_blocks(spec).items():
        if name == "mean":
            made["mean"] = Product(shape, (), 1)
        elif name == "bias":
            made |= {f"bias_{n}": Product(shape, (n,), 1) for n in every}
        elif name == "cp":
            made["cp"] = Product(shape, every, *ranks)
        else:
            made["tucker"] = Tucker(shape, ranks)
    return made
