"""The joint model: every entry is a multilinear part plus a nonlinear part.

x̂(i_1, …, i_N) = g({A_n(i_n,:)}) + f({B_n(i_n,:)}; θ)                     eq. (1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.blocks.spec import linear_spec
from jointensor.models.factors import Factors
from jointensor.models.multilinear import Multilinear
from jointensor.models.nonlinear.base import describe_nonlinear, make_nonlinear
from jointensor.models.size import describe_model, within_memory
from jointensor.threads import PROCESS_STATE

LINKS: dict[str, Callable[[Tensor], Tensor]] = {"identity": lambda score: score, "softplus": nn.functional.softplus}
"""How the score g + f becomes a value: unchanged, or made positive for losses that need it."""

CP_FACTORS = "multilinear.blocks.cp.factors.stacked"
"""Name of the factor matrices A_n of CP in a state."""


class NonlinearHalf(nn.Module):
    """f with its own factor matrices B_n: Θ_N of the paper.

    Its values are ``scale · (f − offset)``: f itself, unless nested training has changed the scale from 1 and the
    offset from 0. A scale of 0 leaves the multilinear half alone.
    """

    scale: Tensor
    offset: Tensor

    def __init__(self, shape: Sequence[int], width: int, part: str | type[nn.Module] | nn.Module) -> None:
        super().__init__()
        self.factors = Factors(shape, width)
        self.part = make_nonlinear(part, len(shape), width)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(()))
        self.spec = describe_nonlinear(self.part, given=part)

    def forward(self, indices: Tensor) -> Tensor:
        """f of the entries, ``(batch, modes)`` → ``(batch,)``."""
        return self.scale * (self.part(self.factors(indices)) - self.offset)

    def set_scale(self, scale: float, offset: float = 0.0) -> None:
        """Make the values ``scale · (f − offset)``."""
        self.scale.fill_(scale)
        self.offset.fill_(offset)

    def grow_from(self, old: NonlinearHalf) -> None:
        """Take the parameters of an f of a tensor whose modes had fewer labels."""
        self.part.load_state_dict({name: value.cpu() for name, value in old.part.state_dict().items()})
        self.set_scale(float(old.scale), float(old.offset))
        self.factors.grow_from(old.factors, centre=True)


class JointModel(nn.Module):
    """g + f over a tensor of any number of modes.

    Parameters
    ----------
    shape
        Size of every mode, at least two modes.
    rank
        ``(R, F)``: R multilinear and F nonlinear components; either may be 0, not both.
    linear
        The multilinear half spelled out, for example ``"mean+bias+cp:4"``; replaces R.
    nonlinear
        f as a name with options, a class, or an instance.

    Examples
    --------
    >>> model = JointModel((100, 80, 60), rank=(4, 16))
    >>> model
    JointModel 100 x 80 x 60: cp:4 + julia of width 16, 21,489 parameters
    """

    def __init__(
        self,
        shape: Sequence[int],
        rank: tuple[int, int] = (4, 16),
        *,
        linear: str | None = None,
        nonlinear: str | type[nn.Module] | nn.Module = "julia",
    ) -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        self.rank = check_rank(rank)
        self.linear = linear_spec(self.rank[0]) if linear is None else linear
        self.link = "identity"
        if len(self.shape) < 2:
            raise ConfigError(f"a tensor has at least two modes, shape {self.shape} has {len(self.shape)}")
        # layers draw from torch's global random state, which a fit in another thread may use at the moment
        with PROCESS_STATE, within_memory(describe_model(self.shape, self.rank)):
            g = Multilinear(self.shape, self.linear)
            self.multilinear = g if len(g.blocks) else None
            self.nonlinear = NonlinearHalf(self.shape, self.rank[1], nonlinear) if self.rank[1] else None
        if self.multilinear is None and self.nonlinear is None:
            raise ConfigError("rank 0/0 leaves nothing to fit; give at least one component, such as 4/16")

    def score(self, indices: Tensor) -> Tensor:
        """g + f before the link, ``(batch, modes)`` → ``(batch,)``."""
        halves = [half(indices) for half in (self.multilinear, self.nonlinear) if half is not None]
        return halves[0] if len(halves) == 1 else halves[0] + halves[1]

    def forward(self, indices: Tensor) -> Tensor:
        """Values of the entries, ``(batch, modes)`` → ``(batch,)``."""
        return LINKS[self.link](self.score(indices))

    def resize_cp(self, rank: int) -> None:
        """Give CP another rank R: components that there were are kept, further ones are zero."""
        if self.multilinear is None:
            raise ConfigError("a model without a multilinear half has no rank R that could change")
        if rank == cp_rank(self):
            return
        self.multilinear.resize_cp(rank)
        self.rank, self.linear = (rank, self.rank[1]), self.multilinear.spec

    def take(self, state: Mapping[str, Tensor]) -> None:
        """Set all parameters to those of a state, whose CP may have another rank."""
        factors = state.get(CP_FACTORS)
        if factors is not None:
            self.resize_cp(factors.shape[1])
        self.load_state_dict(state)

    @property
    def linear_factors(self) -> list[Tensor]:
        """A_n of the CP block, each ``(I_n, R)``; empty without one."""
        cp = self.multilinear.cp if self.multilinear is not None else None
        return list(cp.tables) if cp is not None else []

    @property
    def nonlinear_factors(self) -> list[Tensor]:
        """B_n, each ``(I_n, F)``; empty when F = 0."""
        return [] if self.nonlinear is None else list(self.nonlinear.factors.tables)

    def linear_parameters(self) -> list[nn.Parameter]:
        """Θ_L."""
        return [] if self.multilinear is None else list(self.multilinear.parameters())

    def nonlinear_parameters(self) -> list[nn.Parameter]:
        """Θ_N."""
        return [] if self.nonlinear is None else list(self.nonlinear.parameters())

    def n_parameters(self) -> int:
        """How many numbers are learnt."""
        return sum(parameter.numel() for parameter in self.parameters())

    def config(self) -> dict[str, Any]:
        """What :meth:`from_config` needs to build the same model, weights aside."""
        part = None if self.nonlinear is None else self.nonlinear.spec
        return {
            "shape": list(self.shape),
            "rank": list(self.rank),
            "linear": self.linear,
            "nonlinear": part,
            "link": self.link,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], nonlinear: type[nn.Module] | nn.Module | None = None) -> JointModel:
        """A model of the given configuration, with all weights zero or random.

        Parameters
        ----------
        config
            What :meth:`config` returned.
        nonlinear
            f, where the configuration names one that is not registered here.
        """
        part = nonlinear if nonlinear is not None else config["nonlinear"] or "julia"
        rank = (int(config["rank"][0]), int(config["rank"][1]))
        model = cls(config["shape"], rank, linear=config["linear"], nonlinear=part)
        if config["link"] not in LINKS:
            raise ConfigError(f"link '{config['link']}' is not one of {', '.join(LINKS)}")
        model.link = config["link"]
        return model

    def grown(self, shape: Sequence[int]) -> JointModel:
        """A copy on the CPU for a tensor whose modes have more labels; :mod:`jointensor.predictors.update` fits it."""
        part = "julia" if self.nonlinear is None else self.nonlinear.spec
        model = JointModel(shape, self.rank, linear=self.linear, nonlinear=part)
        model.link = self.link
        if model.multilinear is not None and self.multilinear is not None:
            model.multilinear.grow_from(self.multilinear)
        if model.nonlinear is not None and self.nonlinear is not None:
            model.nonlinear.grow_from(self.nonlinear)
        return model

    def __repr__(self) -> str:
        width = f"{self.nonlinear.spec.partition(',')[0]} of width {self.rank[1]}" if self.nonlinear else ""
        halves = " + ".join(filter(None, (self.linear, width)))
        sizes = " x ".join(map(str, self.shape))
        return f"JointModel {sizes}: {halves}, {self.n_parameters():,} parameters"


def cp_rank(model: JointModel) -> int:
    """Components of the CP block; 0 without one. ``rank`` has another R where the blocks are spelled out."""
    factors = model.linear_factors
    return factors[0].shape[1] if factors else 0


def check_rank(rank: tuple[int, int]) -> tuple[int, int]:
    """R and F as whole numbers, neither negative."""
    try:
        linear, nonlinear = rank
        whole = int(linear) == linear >= 0 and int(nonlinear) == nonlinear >= 0
    except (TypeError, ValueError, OverflowError):  # not two things, not numbers, not finite
        whole = False
    if not whole:
        raise ConfigError(f"rank {rank!r} is not (R, F) with two whole numbers, neither negative")
    return int(linear), int(nonlinear)


MIN_BATCH = 256
"""Entries at once that have to fit into memory."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU had too little memory: for a tensor, or for what its libraries and driver need when first used."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(words in str(error) for words in ("STATUS_ALLOC_FAILED", "CUDA error: out of memory"))


def free_gpu_memory() -> None:
    """Give memory that torch keeps for later back to the GPU; never while another thread records steps."""
    with PROCESS_STATE:
        torch.cuda.empty_cache()


def evaluate_in_batches(half: Callable[[Tensor], Tensor], indices: Tensor, batch: int) -> Tensor:
    """``half`` of many entries without gradients, ``(entries, modes)`` → ``(entries,)``.

    Where a batch does not fit into a GPU's memory, smaller ones are tried.
    """
    with torch.no_grad():
        while True:
            try:
                parts = [half(indices[start : start + batch]) for start in range(0, len(indices), batch)]
                break
            except RuntimeError as error:
                if batch <= MIN_BATCH or not is_out_of_memory(error):
                    raise
            batch //= 2  # out here: the error holds on to what was computed until then
            free_gpu_memory()
        # concatenated in here: a part that is a view of a parameter would ask for gradients outside
        return torch.cat(parts) if parts else torch.zeros(0)
