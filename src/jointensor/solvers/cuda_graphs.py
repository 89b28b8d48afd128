"""Steps on an NVIDIA GPU without waiting for the host: a step is recorded once and replayed.

Entries, shuffling, batches, losses and the optimiser stay on the device; the host hears of an epoch at its end.

Fits in several threads have streams of their own. One of them at a time records or compiles (:data:`PROCESS_STATE`):
what torch does for that concerns all threads. Each records on its own stream, since the memory in which matrix products
are computed belongs to a stream: steps of two fits that were recorded on the same one could not be replayed side by
side.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from jointensor.data.store import Entries, Half
from jointensor.kernels.triton_adam import adam_step
from jointensor.models.joint import LINKS, free_gpu_memory, is_out_of_memory
from jointensor.solvers.losses import Loss
from jointensor.solvers.sgd import FrozenHalf, Sgd
from jointensor.threads import PROCESS_STATE

WARM_UP_STEPS = 3
"""Steps before recording: libraries set themselves up in them. They are steps of training like all others."""

STEPS_PER_REPLAY = 8
"""Steps of one replay: a replay costs the host a few microseconds, and steps of a small batch take little more."""

COMPILE_AFTER_SECONDS = 10.0
"""Seconds of a descent after which torch's compiler is worth the seconds it takes itself, even with a full cache."""

MIN_TABLE_NUMBERS = 1 << 16
"""Parameters of more numbers than this have an Adam kernel of their own."""


class DeviceAdam:
    """Adam with its counts and rates on the device, so that it can be replayed.

    Parameters
    ----------
    groups
        ``params`` and their ``lr``, as torch's optimisers take them.
    decay
        Weight decay, as AdamW has it.
    """

    def __init__(self, groups: list[dict[str, Any]], decay: float = 0.0) -> None:
        self.decay = decay
        self.parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        device = self.parameters[0].device
        self.steps = torch.zeros((), device=device)
        self.param_groups: list[dict[str, Any]] = []
        """Learning rates; the parameters are in ``tables`` and ``rest``."""
        self.tables: list[tuple[nn.Parameter, Tensor, Tensor, Tensor]] = []
        small: list[dict[str, Any]] = []
        for group in groups:
            rate = torch.tensor(group["lr"], device=device)
            self.param_groups.append({"lr": rate, "initial_lr": group["lr"]})
            small.append({"params": [p for p in group["params"] if p.numel() <= MIN_TABLE_NUMBERS], "lr": rate})
            large = [p for p in group["params"] if p.numel() > MIN_TABLE_NUMBERS]
            self.tables += [(p, torch.zeros_like(p), torch.zeros_like(p), rate) for p in large]
        small = [group for group in small if group["params"]]
        self.rest = torch.optim.AdamW(small, fused=True, capturable=True, weight_decay=decay) if small else None

    @torch.no_grad()
    def step(self) -> None:
        """One step with the gradients as they are."""
        self.steps += 1
        for table, first, second, rate in self.tables:
            if table.grad is not None:
                adam_step(table, table.grad, first, second, self.steps, rate, (0.9, 0.999), 1e-8, self.decay)
        if self.rest is not None:
            self.rest.step()

    def state_dict(self) -> dict[str, Any]:
        """What it has learnt of the gradients so far, and its rates."""
        return {
            "steps": self.steps,
            "rates": [float(group["lr"]) for group in self.param_groups],
            "tables": [[first, second] for _, first, second, _ in self.tables],
            "rest": {} if self.rest is None else self.rest.state_dict()["state"],
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from that; everything stays where recorded steps look for it."""
        self.steps.copy_(state_dict["steps"])
        for group, rate in zip(self.param_groups, state_dict["rates"], strict=True):
            group["lr"].fill_(rate)
        for (_, first, second, _), moments in zip(self.tables, state_dict["tables"], strict=True):
            first.copy_(moments[0])
            second.copy_(moments[1])
        if self.rest is not None:
            rates = [group["lr"] for group in self.rest.param_groups]
            self.rest.load_state_dict({**self.rest.state_dict(), "state": state_dict["rest"]})
            for group, rate in zip(self.rest.param_groups, rates, strict=True):  # it has made copies of them
                group["lr"] = rate

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None


@dataclass
class GraphSteps:
    """The steps of :class:`~jointensor.solvers.sgd.Sgd`, replayed from a CUDA graph.

    One object belongs to one :class:`~jointensor.solvers.sgd.Sgd`: graphs hold the addresses of its optimiser's state.
    """

    compiled: bool = False
    """Whether torch's compiler was called for."""
    single: torch.cuda.CUDAGraph | None = None
    many: torch.cuda.CUDAGraph | None = None
    taken: int = 0
    """Steps so far that were not replayed."""
    unrecorded: bool = False
    """Whether steps cannot be recorded: they wait for the host, as some modules do, or memory lasts for a step only."""
    losses_of: Callable[..., Tensor] = field(default_factory=lambda: batch_losses)
    """What one step computes, compiled or not."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    spent: float = 0.0
    """Seconds of the epochs so far."""

    def epoch(self, sgd: Sgd, half: Half, frozen: FrozenHalf, train: Entries) -> float:
        """One shuffled pass; the mean loss of the batches as they came."""
        begin, entries = time.perf_counter(), len(train)
        size = min(sgd.batch_size, entries)
        if not self.buffers:
            self.buffers = _allocate(train, size)
        if not self.compiled and not self.unrecorded and self.spent >= COMPILE_AFTER_SECONDS:
            self.compile()
        given = self.buffers
        scores = frozen.train
        given["rest"].copy_(scores) if isinstance(scores, Tensor) else given["rest"].fill_(scores)  # type: ignore[arg-type]
        generator, device = sgd.generators.local, train.values.device
        given["order"].copy_(torch.randperm(entries, device=device, dtype=torch.int32, generator=generator))
        given["total"].zero_()
        given["position"].zero_()
        for first, last in sgd.pieces(entries // size):
            self._whole_batches(sgd, half, train, last - first)
        if entries % size:
            self._graph_step(sgd, half, train, entries % size, batch_losses)
        loss = float(given["total"]) / entries  # the one time the host waits
        self.spent += time.perf_counter() - begin
        return loss

    def reset(self) -> None:
        """Record steps anew: the batch size has changed."""
        self.single = self.many = None
        self.taken, self.buffers, self.unrecorded = 0, {}, False

    def compile(self) -> None:
        """Have torch compile the steps from now on; they are recorded anew."""
        self.losses_of, self.compiled = torch.compile(batch_losses, dynamic=False), True
        self.single = self.many = None
        self.taken = 0

    def _whole_batches(self, sgd: Sgd, half: Half, train: Entries, count: int) -> None:
        done = 0
        while done < count:
            if self.unrecorded or self.taken < WARM_UP_STEPS:
                self._first_step(sgd, half, train)
                done += 1
            elif self.single is None or self.many is None:
                self._record_both(sgd, half, train)
            elif count - done >= STEPS_PER_REPLAY:
                self.many.replay()
                done += STEPS_PER_REPLAY
            else:
                self.single.replay()
                done += 1

    def _first_step(self, sgd: Sgd, half: Half, train: Entries) -> None:
        """A step that is not replayed; the last one before recording shows whether it waits for the host."""
        self.taken += 1
        size, losses_of = len(self.buffers["slots"]), self.losses_of
        if self.taken == 1:  # kernels are compiled in it
            with PROCESS_STATE:
                self._compiling_step(sgd, half, train, size)
        elif self.taken != WARM_UP_STEPS:
            self._graph_step(sgd, half, train, size, losses_of)
        else:
            with operations_that_wait() as found:
                self._graph_step(sgd, half, train, size, losses_of)
            self.unrecorded = self.unrecorded or bool(found)

    def _compiling_step(self, sgd: Sgd, half: Half, train: Entries, size: int) -> None:
        if self.losses_of is not batch_losses:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # advice on matrix products that the recipe has decided on
                    self._graph_step(sgd, half, train, size, self.losses_of)
                return
            except torch._dynamo.exc.TorchDynamoException:  # nothing to compile with: do without
                self.losses_of = batch_losses
        self._graph_step(sgd, half, train, size, batch_losses)

    def _record_both(self, sgd: Sgd, half: Half, train: Entries) -> None:
        """One step and several as graphs; these keep memory of their own: without it steps go unrecorded."""
        with PROCESS_STATE:
            free_gpu_memory()  # what the first steps were computed in is not what graphs may use
            try:
                both = [self._record(sgd, half, train, steps) for steps in (1, STEPS_PER_REPLAY)]
                self.single, self.many = both
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self.unrecorded = True

    def _record(self, sgd: Sgd, half: Half, train: Entries, steps: int) -> torch.cuda.CUDAGraph:
        graph, recording = torch.cuda.CUDAGraph(), _recording_stream(train.values.device)
        gc.collect()
        gc.disable()  # a graph that is thrown away while another is recorded would spoil it
        try:
            with (
                warnings.catch_warnings(),
                torch.cuda.graph(graph, stream=recording, capture_error_mode="thread_local"),
            ):
                warnings.simplefilter("ignore")  # a graph that memory did not last for is empty, and torch says so
                for _ in range(steps):
                    self._graph_step(sgd, half, train, len(self.buffers["slots"]), self.losses_of)
        except RuntimeError as error:  # a recording that memory did not last for ends with an error of its own
            if isinstance(error.__context__, RuntimeError) and is_out_of_memory(error.__context__):
                raise error.__context__ from None
            raise
        finally:
            gc.enable()
        return graph

    def _graph_step(self, sgd: Sgd, half: Half, train: Entries, size: int, losses_of: Callable[..., Tensor]) -> None:
        given = self.buffers
        sgd.optimizer.zero_grad()
        places = given["slots"][:size] + given["position"]
        losses = losses_of(sgd.loss, half, train, given["order"], given["rest"], places)
        share = given["share"] if size == len(given["share"]) else torch.full_like(losses, 1 / size)
        # the mean is taken here, not in what is compiled: fused with what comes before it, it runs on a few blocks
        losses.backward(share)  # type: ignore[no-untyped-call]
        sgd.optimizer.step()
        sgd.optimizer.zero_grad()
        given["total"] += losses.detach().sum()
        given["position"] += size


def _recording_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream of a fit beside others; ``None``, which is one of torch's, for a fit on the stream of all."""
    own = torch.cuda.current_stream(device)
    return None if own == torch.cuda.default_stream(device) else own


@contextmanager
def operations_that_wait() -> Iterator[list[str]]:
    """Filled with a line for every operation of this thread that waits for the device, as far as torch notices them.

    Torch notices those of all threads, by a warning: as errors they would end the fits of others.
    """
    thread, found = get_ident(), []
    with PROCESS_STATE, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype, once per process
        torch.cuda.set_sync_debug_mode("warn")
        warnings.simplefilter("always")
        show = warnings.showwarning

        def hear(message: Warning | str, *about: Any, **more: Any) -> None:
            if "synchroniz" not in str(message):
                show(message, *about, **more)
            elif get_ident() == thread:
                found.append(str(message))

        warnings.showwarning = hear
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def batch_losses(loss: Loss, half: Half, train: Entries, order: Tensor, rest: Tensor, places: Tensor) -> Tensor:
    """Losses of the entries at some places of a shuffled order, ``(batch,)``."""
    chosen = order.index_select(0, places)
    score = half(train.indices.index_select(0, chosen)) + rest.index_select(0, chosen)
    return loss.elementwise(LINKS[loss.link](score), train.values.index_select(0, chosen))


def _allocate(train: Entries, size: int) -> dict[str, Tensor]:
    device, entries = train.values.device, len(train)
    return {
        "rest": torch.empty(entries, device=device),
        "order": torch.empty(entries, dtype=torch.int32, device=device),
        "slots": torch.arange(size, dtype=torch.int32, device=device),
        "total": torch.zeros((), device=device),
        "position": torch.zeros((), dtype=torch.int32, device=device),
        "share": torch.full((size,), 1 / size, device=device),
    }
