"""Signs of life of the processes of one job, so that one that hangs is noticed however long the others work.

Each process writes a counter to the job's store every few seconds, from a thread of its own, together with the number
of meetings that it has come to. A process that waits at a meeting reads the counters of those that are missing. A
counter that has not moved for the timeout belongs to a process that is stopped, has ended or has lost its network; one
that moves belongs to a process that works, and is waited for.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jointensor.errors import LostProcessError

MAX_INTERVAL = 2.0
"""Seconds between two signs of life; a quarter of the timeout where that is less."""

POLL = 0.05
"""Seconds between two looks at the store while a process waits for others."""


@dataclass
class PeerWatch:
    """When each of some processes was last seen alive, by this process's clock: clocks of two machines may differ."""

    timeout: float
    """Seconds without a sign of life after which a process counts as lost."""
    last_change: dict[int, float]
    """By rank: when its sign was last another one than before."""
    signs: dict[int, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, ranks: Iterable[int], timeout: float, now: float) -> PeerWatch:
        """Watch processes from now on."""
        return cls(timeout, dict.fromkeys(ranks, now))

    def see(self, rank: int, sign: str, now: float) -> None:
        """Take note of the present sign of a process."""
        if self.signs.get(rank) != sign:
            self.signs[rank], self.last_change[rank] = sign, now

    def lost(self, now: float) -> list[int]:
        """Ranks of the processes whose sign has not changed for the timeout."""
        return [rank for rank, then in self.last_change.items() if now - then >= self.timeout]


class Heartbeat:
    """Signs of life of one process, and its meetings with the others.

    All use of the store happens in one thread: an answer that never comes, because the process that keeps the store is
    stopped, must not block the process that waits for it.

    Parameters
    ----------
    store
        A ``torch.distributed.Store`` that all processes share.
    rank, size
        Number of this process, and of all processes.
    timeout
        Seconds without a sign of life after which a process counts as lost.
    clock
        Seconds that never go back.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store, self.rank, self.size, self.timeout, self.clock = store, rank, size, timeout, clock
        self.meetings = 0
        self._written = -1
        """Meetings that the others can know of."""
        self._count = 0
        self._arrived: dict[int, int] = {}
        """By rank: meetings that it has come to."""
        self._watch: PeerWatch | None = None
        """Of the others, while this process waits."""
        self._contact = clock()
        self._failure: RuntimeError | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._beat, name="jointensor heartbeat", daemon=True)

    def start(self) -> Heartbeat:
        """Begin to give signs of life."""
        self._thread.start()
        atexit.register(self.stop)  # a thread inside the store while Python ends would abort the process
        return self

    def stop(self) -> None:
        """End the thread; the last sign stays in the store."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(MAX_INTERVAL)

    def meet(self) -> None:
        """Wait until every process has come to this meeting.

        Raises
        ------
        LostProcessError
            If one of those that are missing gives no sign of life for the timeout.
        """
        with self._changed:
            self.meetings += 1
            self._contact = self.clock()
            self._watch = PeerWatch.begin((r for r in range(self.size) if r != self.rank), self.timeout, self._contact)
            self._changed.notify_all()
            try:
                while not self._all_here():
                    self._refuse_lost()
                    self._changed.wait(POLL)
            finally:
                self._watch = None

    def exchange(self) -> None:
        """Write this process's sign and, while it waits, read those of the processes that are missing."""
        with self._changed:
            self._count += 1
            meetings, watching = self.meetings, self._watch is not None
            missing = [r for r in range(self.size) if r != self.rank and self._arrived.get(r, 0) < meetings]
        self.store.set(f"alive/{self.rank}", f"{self._count} {meetings}")
        found = {rank: self._read(rank) for rank in missing} if watching else {}
        with self._changed:
            now = self._contact = self.clock()
            self._written = meetings
            for rank, sign in found.items():
                if sign is not None:
                    self._arrived[rank] = int(sign.partition(" ")[2])
                    if self._watch is not None:
                        self._watch.see(rank, sign, now)
            self._changed.notify_all()

    def _read(self, rank: int) -> str | None:
        key = f"alive/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else None

    def _beat(self) -> None:
        interval = min(MAX_INTERVAL, self.timeout / 4)
        try:
            while not self._stopping:
                self.exchange()
                with self._changed:
                    if not self._stopping:
                        self._changed.wait(interval if self._watch is None else POLL)
        except RuntimeError as error:  # what torch.distributed raises where the store has gone
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _all_here(self) -> bool:
        others = (rank for rank in range(self.size) if rank != self.rank)
        return self._written >= self.meetings and all(self._arrived.get(r, 0) >= self.meetings for r in others)

    def _refuse_lost(self) -> None:
        now = self.clock()
        if self._failure is not None:
            raise LostProcessError(
                f"the store of the {self.size} processes has gone ({str(self._failure).splitlines()[0]}): the process "
                "that keeps it has ended"
            )
        if now - self._contact >= self.timeout:
            raise LostProcessError(
                f"the store of the {self.size} processes has not answered for {self.timeout:g} s: the process that "
                "keeps it is stopped, or the network is down"
            )
        lost = [r for r in (self._watch.lost(now) if self._watch else ()) if self._arrived.get(r, 0) < self.meetings]
        if lost:
            who = f"process {lost[0]}" if len(lost) == 1 else f"processes {', '.join(map(str, lost))}"
            raise LostProcessError(
                f"{who} of {self.size} gave no sign of life for {self.timeout:g} s: stopped, ended or out of reach"
            )
