"""g: the multilinear half, a sum of blocks.

==================  ==================================================================  ==================
block               value of an entry                                                   in the paper
==================  ==================================================================  ==================
``mean``            one number                                                          –
``bias``            Σ_n b_n(i_n)                                                        –
``cp:R``            Σ_r Π_n A_n(i_n, r) over all modes                                  eq. (2), g itself
``pairs:K``         Σ_{n<m} Σ_k P_nm(i_n, k) Q_nm(i_m, k), tables of its own per pair   –
``fm:K``            Σ_{n<m} ⟨v_n(i_n), v_m(i_m)⟩, one vector per label                  –
``implicit:A/B``    to v_A(i) of ``fm``: the labels of mode B that i was seen with      –
``tables``          one number per observed combination of two or more modes            –
``tables:A/B``      the same for some modes only                                        –
``local:A``         residuals of the nearest entries along an ordered mode              –
``smooth:A``        no block: rows of neighbouring labels of mode A are alike           –
``cyclic:A``        the same for a mode that begins again after its last label          –
``tucker:K``        Σ_k W(k_1, …, k_N) Π_n A_n(i_n, k_n)                                a baseline
==================  ==================================================================  ==================

Every block is linear in each of its tables when the others are fixed. ``tucker:20x5x20`` has a rank per mode.
Modes are given by position here, by name on the command line. ``local`` (and ``tables``, where blocks are not
sampled) is fitted after everything else, to residuals of entries that were left out: see
:mod:`jointensor.predictors.residual_stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from jointensor.errors import ConfigError
from jointensor.models.blocks import Combinations, Product, SharedPairs, countable
from jointensor.models.factors import Factors
from jointensor.models.tucker import Tucker
from jointensor.registry import nearest

BLOCKS = (
    "mean", "bias", "cp:R", "pairs:K", "fm:K", "implicit:A/B", "tables", "tables:A/B", "local:A", "smooth:A",
    "cyclic:A", "tucker:K",
)  # fmt: skip
"""How blocks are written."""

BARE, RANKED, PLACED = (
    ("mean", "bias", "tables"),
    ("cp", "pairs", "fm"),
    ("implicit", "tables", "local", "smooth", "cyclic"),
)
"""Blocks without an argument, with one rank, and with modes."""


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
        state_dict.setdefault(f"{prefix}noise", torch.zeros(()))  # files of earlier versions have none
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
        self.smooth = {
            modes[0]: name.startswith("cyclic")
            for name, modes in pieces.items()
            if name.startswith(("smooth", "cyclic"))
        }
        """Modes whose neighbouring rows are alike, and whether they begin again after the last."""
        self.blocks = nn.ModuleDict(_make_blocks(shape, spec))
        self.draws = Draws()

    def forward(self, indices: Tensor) -> Tensor:
        """g of the entries, ``(batch, modes)`` → ``(batch,)``; where there are draws, their mean."""
        if len(self.draws) and not self.training:
            return self.moments(indices)[0]
        values = [block(indices) for name, block in self.blocks.items() if not name.startswith("bias_")]
        if any(name.startswith("bias_") for name in self.blocks):
            values.append(self._biases(indices))
        first, *others = values
        for other in others:
            first = first + other
        return first

    def moments(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of g over the draws, ``(batch, modes)`` → ``(batch,)`` each.

        The mean of a sum of numbers is the sum of their means; what is multiplied is averaged draw by draw.
        """
        drawn = set(self.draws.names())
        kept = {name: block for name, block in self.blocks.items() if name not in drawn}
        steady = sum((block(indices) for block in kept.values()), torch.zeros(len(indices), device=indices.device))
        mean, squares = torch.zeros_like(steady), torch.zeros_like(steady)
        for k in range(len(self.draws)):
            value = torch.zeros_like(steady)
            for name in drawn:
                value = value + drawn_values(self.blocks[name], self.draws.of(name, k), indices)
            mean, squares = mean + value, squares + value.square()
        count = max(len(self.draws), 1)
        mean = mean / count
        return steady + mean, (squares / count - mean.square()).clamp_min(0.0)

    def _biases(self, indices: Tensor) -> Tensor:
        """Σ_n b_n(i_n) of all bias blocks, ``(batch,)``: one lookup and one scatter for all of them."""
        tables: list[Tensor] = []
        places, start = [], 0
        for n in range(indices.shape[1]):
            tables.append(self.get_parameter(f"blocks.bias_{n}.factors.stacked"))  # (I_n, 1)
            places.append(indices[:, n] + start)
            start += len(tables[-1])
        return torch.cat(tables).index_select(0, torch.cat(places)).view(len(places), -1).sum(dim=0)

    def see(self, indices: Tensor) -> None:
        """Let blocks whose size depends on the training entries look at them, ``(entries, modes)``."""
        for block in self.blocks.values():
            if isinstance(block, Combinations | SharedPairs):
                block.see(indices)

    @torch.no_grad()
    def forget_tables(self) -> None:
        """Set the numbers of observed combinations to zero."""
        for block in self.blocks.values():
            if isinstance(block, Combinations):
                block.effects.zero_()

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


def drawn_values(block: nn.Module, draw: dict[str, Tensor], indices: Tensor) -> Tensor:
    """Values of a block with one draw of its parameters, ``(batch,)``."""
    if isinstance(block, SharedPairs):
        return block.values(draw["whole"], indices)
    return functional_call(block, draw, (indices,))


def linear_spec(rank: int) -> str:
    """The multilinear half that the paper's R stands for."""
    return f"cp:{rank}" if rank else ""


def parse_blocks(spec: str, find: Callable[[str], int] | None = None) -> dict[str, tuple[int, ...]]:
    """Blocks with their ranks, or the positions of their modes.

    Parameters
    ----------
    spec
        Blocks joined by ``+``.
    find
        Position of a mode by its name; without it modes are given by position.

    Examples
    --------
    >>> parse_blocks("mean + bias + cp:4")
    {'mean': (), 'bias': (), 'cp': (4,)}
    >>> parse_blocks("tucker:20x5x20")
    {'tucker': (20, 5, 20)}
    >>> parse_blocks("fm:10+implicit:user/movie", ["user", "movie", "day"].index)
    {'fm': (10,), 'implicit:0/1': (0, 1)}
    """
    blocks: dict[str, tuple[int, ...]] = {}
    for piece in filter(None, (piece.strip() for piece in spec.split("+"))):
        name, sign, text = piece.partition(":")
        if name not in [known.partition(":")[0] for known in BLOCKS]:
            raise ConfigError(f"there is no multilinear block '{name}'; {nearest(name, BLOCKS)}")
        placed = sign and name in PLACED
        numbers = _modes(piece, text, find) if placed else _ranks(piece, name, text if sign else None)
        numbers = tuple(sorted(numbers)) if placed and name == "tables" else numbers
        key = f"{name}:{'/'.join(map(str, numbers))}" if placed else name
        if key in blocks:
            raise ConfigError(f"block '{name}' occurs twice in '{spec}'")
        blocks[key] = numbers
    if any(key.startswith("implicit") for key in blocks) and "fm" not in blocks:
        raise ConfigError(f"'{spec}': implicit labels add to the vectors of an fm block; write fm:K too")
    return blocks


def by_position(spec: str, find: Callable[[str], int]) -> str:
    """The same blocks with modes by position.

    >>> by_position("cp:4+local:day", ["user", "movie", "day"].index)
    'cp:4+local:2'
    """
    ranks = {name: "x".join(map(str, numbers)) for name, numbers in parse_blocks(spec, find).items()}
    return "+".join(f"{name}:{ranks[name]}" if ranks[name] and ":" not in name else name for name in ranks)


def without_memory(spec: str, *, tables: bool) -> tuple[str, list[str]]:
    """The blocks that are trained together, and those that are fitted to what they leave: ``local``, maybe ``tables``.

    >>> without_memory("mean+cp:4+tables+local:2", tables=True)
    ('mean+cp:4', ['tables', 'local:2'])
    """
    pieces = [piece.strip() for piece in spec.split("+") if piece.strip()]
    late = [p for p in pieces if p.startswith("local") or (tables and p.partition(":")[0] == "tables")]
    return "+".join(piece for piece in pieces if piece not in late), late


def _ranks(piece: str, name: str, text: str | None) -> tuple[int, ...]:
    ranks = [] if text is None else text.split("x")
    fits = text is None if name in BARE else len(ranks) == 1 if name in RANKED else bool(ranks) and name == "tucker"
    if not fits or not all(rank.isdecimal() and int(rank) > 0 for rank in ranks):
        raise ConfigError(
            f"'{piece}': write mean, bias, cp:R with R at least 1, pairs:K, fm:K, implicit:A/B, tables, tables:A/B, "
            "local:A, smooth:A, cyclic:A, tucker:K, or tucker:K1xK2x… with a rank per mode"
        )
    return tuple(map(int, ranks))


def _modes(piece: str, text: str, find: Callable[[str], int] | None) -> tuple[int, ...]:
    names = [name.strip() for name in text.split("/")]
    if find is None and not all(name.isdecimal() for name in names):
        raise ConfigError(f"'{piece}': modes are given by position here, such as tables:0/2")
    places = tuple(int(name) if find is None else find(name) for name in names)
    wanted = {"local": (1, 1), "smooth": (1, 1), "cyclic": (1, 1), "implicit": (2, 2)}.get(
        piece.partition(":")[0], (1, 99)
    )
    if len(set(places)) != len(places) or not wanted[0] <= len(places) <= wanted[1]:
        raise ConfigError(f"'{piece}': write local:A, implicit:A/B or tables:A/B/…, different modes joined by /")
    return places


def _make_blocks(shape: Sequence[int], spec: str) -> dict[str, nn.Module]:
    parsed = parse_blocks(spec)
    implicit = [(modes[0], modes[1]) for name, modes in parsed.items() if name.startswith("implicit:")]
    for name, numbers in parsed.items():
        if ":" in name and max(numbers) >= len(shape):
            raise ConfigError(f"'{name}': the tensor has {len(shape)} modes, counted from 0")
    made: dict[str, nn.Module] = {}
    for name, numbers in parsed.items():
        if name == "fm":
            made["fm"] = SharedPairs(shape, numbers[0], implicit)
        elif name == "tucker":
            made["tucker"] = Tucker(shape, numbers)
        elif name.startswith("tables"):
            subsets = [numbers] if numbers else all_subsets(shape)
            made |= {"_".join(map(str, ("table", *modes))): Combinations(shape, modes) for modes in subsets}
        elif name in ("mean", "bias", "cp", "pairs"):
            made |= _products(shape, name, numbers[0] if numbers else 1)
    return made


def _products(shape: Sequence[int], name: str, rank: int) -> dict[str, nn.Module]:
    every = range(len(shape))
    if name == "bias":
        return {f"bias_{n}": Product(shape, (n,), 1) for n in every}
    if name == "pairs":
        return {f"pairs_{n}_{m}": Product(shape, (n, m), rank) for n, m in combinations(every, 2)}
    return {name: Product(shape, every if name == "cp" else (), rank)}


def all_subsets(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Modes of every table: two or more of them, not all; those whose combinations can be numbered."""
    every = [modes for k in range(2, len(shape)) for modes in combinations(range(len(shape)), k)]
    return [modes for modes in every if countable(shape, modes)]
