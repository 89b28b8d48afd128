"""The processes of one fit, and their collective operations.

Every process runs the same program on its own share of the training entries. What the program does next depends on
sums over all processes (:meth:`ProcessGroup.sum`) or on the first process (:meth:`ProcessGroup.decide`), so all of them
take the same branch. Random numbers are of two kinds. Torch's state is the same everywhere; it decides what all must
agree on (initial values, Gibbs draws). Numbers that belong to a process's own entries come from
:meth:`ProcessGroup.own_random`, which leaves that state alone.

A fit in one process has the group :data:`SINGLE_PROCESS`: nothing is sent, and every collective returns its argument.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from jointensor.distributed.heartbeat import Heartbeat
from jointensor.errors import JointensorError, LostProcessError
from jointensor.random_state import seed_of

T = TypeVar("T")

CPU = torch.device("cpu")

MESSAGE_HEAD = 1024
"""Bytes of the first part of a message; most decisions need no second part."""

ERROR_REPORT_WAIT = 3.0
"""Seconds in which a process that failed has time to report its error."""


@dataclass(frozen=True)
class ProcessGroup:
    """One process among several; see the head of this module.

    The processes are joined by :func:`jointensor.distributed.launch.join_processes`, never by a fit.
    """

    rank: int = 0
    """Number of this process, from 0; process 0 decides, writes and prints."""
    size: int = 1
    device: torch.device = CPU
    """Device on which this process computes, and from which it sends."""
    store: Any = None
    """Key-value store of all processes, a ``torch.distributed.Store``; ``None`` for a single process."""
    wire: Counter[str] = field(default_factory=Counter, compare=False)
    """Bytes that this process has sent by kind of operation, counted as rings of processes send them."""
    heartbeat: Heartbeat | None = field(default=None, compare=False, repr=False)
    """Signs of life of all processes; ``None`` for a single process."""

    @property
    def shared(self) -> bool:
        """Whether processes were joined, even a single one."""
        return self.store is not None

    @property
    def first(self) -> bool:
        """Whether this is the process that decides, writes and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of ``count`` things are this process's: every ``size``-th, so that all have alike ones."""
        return slice(self.rank, count, self.size)

    def shares(self, count: int) -> list[int]:
        """How many of ``count`` things every process has.

        >>> ProcessGroup(0, 3).shares(10)
        [4, 3, 3]
        """
        return [len(range(rank, count, self.size)) for rank in range(self.size)]

    def decide(self, compute: Callable[[], T]) -> T:
        """The result of the first process (numbers, text, lists of them); all compute, since that may be training."""
        answer = compute()
        if not self.shared:
            return answer
        decision: T = json.loads(self.bytes_of(json.dumps(answer).encode() if self.first else b""))
        return decision

    def bytes_of(self, data: bytes, source: int = 0) -> bytes:
        """The bytes that process ``source`` has, on all of them."""
        if not self.shared:
            return data
        head = np.zeros(MESSAGE_HEAD, np.uint8)
        if self.rank == source:
            head[:8] = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
            head[8 : 8 + len(data)] = np.frombuffer(data[: MESSAGE_HEAD - 8], np.uint8)
        got = self._broadcast_array(head, source)
        length = int.from_bytes(got[:8].tobytes(), "little")
        rest = np.zeros(max(length - (MESSAGE_HEAD - 8), 0), np.uint8)
        if self.rank == source and len(rest):
            rest[:] = np.frombuffer(data[MESSAGE_HEAD - 8 :], np.uint8)
        more = self._broadcast_array(rest, source) if len(rest) else rest
        return got[8 : 8 + min(length, MESSAGE_HEAD - 8)].tobytes() + more.tobytes()

    def _broadcast_array(self, array: np.ndarray[Any, Any], source: int) -> np.ndarray[Any, Any]:
        return self.broadcast_(torch.from_numpy(array).to(self.device), source).cpu().numpy()

    def broadcast_(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Set a tensor to what it is in process ``source``."""
        if self.shared:
            whole = tensor.detach().contiguous()
            with self._sending("broadcast", _bytes(whole)):
                dist.broadcast(whole, source)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(whole)
        return tensor

    def sum_(self, tensor: Tensor) -> Tensor:
        """Set a tensor to its sum over all processes; the same bits everywhere."""
        if self.shared:
            with self._sending("all_reduce", 2 * (self.size - 1) * _bytes(tensor) // self.size):
                dist.all_reduce(tensor)
        return tensor

    def sum(self, *numbers: float) -> list[float]:
        """Sums of numbers over all processes, in 64 bits."""
        if not self.shared:
            return list(numbers)
        return [float(one) for one in self.sum_(torch.tensor(numbers, dtype=torch.float64, device=self.device))]

    def mean(self, values: Tensor) -> float:
        """Mean of the values of all processes."""
        if not self.shared:
            return float(values.mean())
        total, count = self.sum(float(values.double().sum()), len(values))
        return total / count if count else math.nan

    def moments(self, values: Tensor) -> tuple[float, float]:
        """Mean and standard deviation of the values of all processes."""
        if not self.shared:
            return float(values.mean()), float(values.std(correction=0))
        mean = self.mean(values)
        return mean, math.sqrt(self.mean((values.double() - mean).square()))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """What every process has of a tensor that has the same shape everywhere."""
        if not self.shared:
            return [tensor]
        tensor = tensor.contiguous()
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._sending("all_gather", (self.size - 1) * _bytes(tensor)):
            dist.all_gather(found, tensor)
        return found

    def gather_rows(self, tensor: Tensor) -> list[Tensor]:
        """The same where numbers of rows differ."""
        counts = [int(one) for one in self.gather(torch.tensor([len(tensor)], device=tensor.device))]
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        return [one[:count] for one, count in zip(self.gather(padded), counts, strict=True)]

    def sum_parts(self, parts: Tensor) -> Tensor:
        """Of ``parts (size, …)``, the sum over all processes of this process's own part."""
        if not self.shared:
            return parts[0]
        mine = torch.empty_like(parts[0])
        with self._sending("reduce_scatter", (self.size - 1) * _bytes(mine)):
            dist.reduce_scatter(mine, list(parts.contiguous()))
        return mine

    @contextmanager
    def own_random(self, *key: int) -> Iterator[None]:
        """Torch's state set to one that belongs to this process and a key; put back afterwards."""
        state: Any = np.random.SeedSequence([self.rank, *key]).generate_state(1, np.uint64)[0]
        gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if gpu else []):
            torch.default_generator.manual_seed(int(state))
            if gpu:
                with torch.cuda.device(self.device):
                    torch.cuda.manual_seed(int(state))
            yield

    def randn_like(self, tensor: Tensor) -> Tensor:
        """Normal numbers for something that belongs to this process's own entries, one of several."""
        torch.rand(())  # the next seed is another one
        with self.own_random(seed_of({"cpu": torch.get_rng_state()})):
            return torch.randn_like(tensor)

    def meet(self) -> None:
        """Wait for all processes for as long as they work: some of them fit alone meanwhile.

        Raises
        ------
        LostProcessError
            If one that is missing gives no sign of life for the timeout.
        """
        if self.heartbeat is not None:
            self.heartbeat.meet()

    def leave(self) -> None:
        """Send nothing more."""
        if self.heartbeat is not None:
            self.heartbeat.stop()
        if self.shared and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _sending(self, what: str, count: int) -> Iterator[None]:
        self.wire[what] += count
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises for peers that are gone or late
            raise LostProcessError(
                f"one of the {self.size} processes has ended or does not answer ({what}: {str(error).splitlines()[0]})"
            ) from None

    def should_report(self, error: BaseException) -> bool:
        """Whether this process should report an error: no other has reported the same, or caused it by ending."""
        if not self.shared:
            return True
        try:
            if isinstance(error, LostProcessError) and self._another_failed():
                return False
            self.store.set("failed", "yes")
            text = (
                str(error) if isinstance(error, JointensorError) and not isinstance(error, LostProcessError) else "lost"
            )
            return not isinstance(error, JointensorError) or self._count(text) == 1
        except RuntimeError:  # the store is gone as well
            return True

    def _count(self, text: str) -> int:
        return int(self.store.add(f"reported/{hashlib.sha256(text.encode()).hexdigest()}", 1))

    def _another_failed(self) -> bool:
        begin = time.monotonic()
        while time.monotonic() - begin < ERROR_REPORT_WAIT:
            if self.store.check(["failed"]):
                return True
            time.sleep(0.05)
        return False


SINGLE_PROCESS = ProcessGroup()
"""One process."""


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
