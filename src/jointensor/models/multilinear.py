"""g: the multilinear half, a sum of blocks.

==================  ==================================================================  ==================
block               value of an entry                                                   in the paper
==================  ==================================================================  ==================
``mean``            one number                                                          –
``bias``            Σ_n b_n(i_n)                                                        –
``cp:R``            Σ_r Π_n A_n(i_n, r) over all modes                                  eq. (2), g itself
``pairs:K``         Σ_{n<m} Σ_k P_nm(i_n, k) Q_nm(i_m, k), tables of its own per pair   –
``fm:K``            Σ_{n<m} ⟨v_n(i_n), v_m(i_m)⟩, one vector per label                  –
``implicit:A/B``    added to v_A(i) of ``fm``: the labels of mode B that occur with i    –
``tables``          one number per observed combination of two or more modes            –
``tables:A/B``      the same for some modes only                                        –
``local:A``         residuals of the nearest entries along an ordered mode              –
``smooth:A``        a prior: rows of neighbouring labels of mode A are alike            –
``cyclic:A``        the same for a mode whose first label follows its last              –
``tucker:K``        Σ_k W(k_1, …, k_N) Π_n A_n(i_n, k_n)                                a baseline
==================  ==================================================================  ==================

Every block is linear in each of its tables when the others are fixed. ``tucker:20x5x20`` has a rank per mode.
Modes are given by position here, by name on the command line. ``local`` (and ``tables``, where blocks are not
sampled) is fitted after training, to residuals of held-out entries: see :mod:`jointensor.predictors.residual_stack`.
Each kind has a file in :mod:`jointensor.models.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.blocks.base import Block
from jointensor.models.blocks.smooth import Neighbours
from jointensor.models.blocks.spec import build_blocks, parse_blocks
from jointensor.models.factors import Factors


class Draws(nn.Module):
    """Draws of the parameters of blocks from their posterior; the noise that comes with them."""

    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.zeros(()))
        """Variance of the values around g (and f)."""

    def __len__(self) -> int:
        return len(next((one for name, one in self.named_buffers() if name != "noise"), ()))

    def names(self) -> list[str]:
        """Blocks that there are draws of."""
        return list(dict.fromkeys(name.partition("/")[0] for name, _ in self.named_buffers() if name != "noise"))

    def keep(self, name: str, drawn: list[dict[str, Tensor]], noise: float) -> None:
        """Take the draws of a block: its parameters by name, once per draw."""
        for key in drawn[0]:
            self.register_buffer(f"{name}/{key.replace('.', '/')}", torch.stack([one[key] for one in drawn]))
        self.noise.fill_(noise)

    def of(self, name: str, k: int) -> dict[str, Tensor]:
        """The k-th draw of a block's parameters."""
        buffers = dict(self.named_buffers())
        mine = [one for one in buffers if one.startswith(f"{name}/")]
        return {one.removeprefix(f"{name}/").replace("/", "."): buffers[one][k] for one in mine}

    def forget(self) -> None:
        """Have no draws."""
        for name in [name for name, _ in self.named_buffers() if name != "noise"]:
            delattr(self, name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take whatever draws there are."""
        self.forget()
        for name, value in state_dict.items():
            if name.startswith(prefix) and name != f"{prefix}noise":
                self.register_buffer(name.removeprefix(prefix), torch.zeros_like(value, device=self.noise.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


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
        pieces = parse_blocks(spec)
        self.blocks = nn.ModuleDict(build_blocks(shape, pieces))
        self.neighbours: dict[int, Neighbours] = {
            piece.numbers[0]: piece.kind.neighbours for piece in pieces if piece.kind.neighbours is not None
        }
        """Modes whose neighbouring rows are alike."""
        self.coordinates = {n: np.arange(float(shape[n])) for n in self.neighbours}
        """Where the labels of these modes lie, ``(I,)`` each."""
        self.draws = Draws()

    @property
    def named_blocks(self) -> dict[str, Block]:
        """The blocks by name."""
        return {name: cast(Block, block) for name, block in self.blocks.items()}

    def forward(self, indices: Tensor) -> Tensor:
        """g of the entries, ``(batch, modes)`` → ``(batch,)``; where there are draws, their mean."""
        if len(self.draws) and not self.training:
            return self.moments(indices)[0]
        values = []
        together: dict[Callable[..., Tensor], list[Block]] = {}
        for block in self.named_blocks.values():
            if block.sum_of_blocks is None:
                values.append(block(indices))
            else:
                together.setdefault(block.sum_of_blocks, []).append(block)
        values += [sum_of_blocks(blocks, indices) for sum_of_blocks, blocks in together.items()]
        first, *others = values
        for other in others:
            first = first + other
        return first

    def moments(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of g over the draws, ``(batch, modes)`` → ``(batch,)`` each.

        The mean of a sum of numbers is the sum of their means; products are averaged draw by draw.
        """
        blocks, drawn = self.named_blocks, set(self.draws.names())
        kept = [block for name, block in blocks.items() if name not in drawn]
        fixed = sum((block(indices) for block in kept), torch.zeros(len(indices), device=indices.device))
        mean, squares = torch.zeros_like(fixed), torch.zeros_like(fixed)
        for k in range(len(self.draws)):
            value = torch.zeros_like(fixed)
            for name in drawn:
                value = value + blocks[name].values_of_draw(self.draws.of(name, k), indices)
            mean, squares = mean + value, squares + value.square()
        count = max(len(self.draws), 1)
        mean = mean / count
        return fixed + mean, (squares / count - mean.square()).clamp_min(0.0)

    def resize_cp(self, rank: int) -> None:
        """Give CP another rank: components that there were are kept, further ones are zero."""
        if self.cp is None:
            raise ConfigError(f"blocks {self.spec} have no cp whose rank could change")
        self.cp.resize(rank)
        pieces = [f"cp:{rank}" if piece.kind.name == "cp" else str(piece) for piece in parse_blocks(self.spec)]
        self.spec = "+".join(pieces)

    def place(self, coordinates_of: Callable[[int], NDArray[np.float64]]) -> None:
        """Take the coordinates of the labels of a mode, ``(I,)``, from the tensor."""
        self.coordinates = {n: coordinates_of(n) for n in self.neighbours}

    def see(self, indices: Tensor) -> None:
        """Let blocks whose size depends on the training entries look at them, ``(entries, modes)``."""
        for block in self.named_blocks.values():
            block.see(indices)

    def init(self, level: float, spread: float | None) -> None:
        """Draw all parameters, with values of g around a level.

        ``spread``: standard deviation of the values of g; ``None`` draws factors of unit scale around zero.
        """
        blocks = self.named_blocks.values()
        for block in blocks:
            block.init(spread)
        ordered = sorted(
            (block.level_order, k, block) for k, block in enumerate(blocks) if block.level_order is not None
        )
        for _, _, block in ordered:
            level = block.init_level(level, spread)

    def forget_tables(self) -> None:
        """Set the numbers of observed combinations to zero."""
        for block in self.named_blocks.values():
            block.forget()

    def become(self, level: float) -> bool:
        """Become a constant; returns whether the blocks can: without ``mean`` they can be zero only."""
        for block in self.named_blocks.values():
            level = block.become(level)
        return level == 0

    def grow_from(self, old: Multilinear) -> None:
        """Take the parameters and draws of the same blocks of a tensor whose modes had fewer labels."""
        before = old.named_blocks
        for name, block in self.named_blocks.items():
            block.grow_from(before[name])
        self.draws.noise.copy_(old.draws.noise)
        for name in old.draws.names():
            block = self.named_blocks[name]
            drawn = [block.grow_draw(before[name], old.draws.of(name, k)) for k in range(len(old.draws))]
            self.draws.keep(name, drawn, float(old.draws.noise))

    @property
    def cp(self) -> Factors | None:
        """The CP block's factor matrices A_n, or ``None`` when there is no such block."""
        return self.blocks["cp"].factors if "cp" in self.blocks else None  # type: ignore[return-value]
