"""What a member proposes, and who waits for what comes of it.

Owns the order: what is put in first is proposed first, and counts first. What the quorum has no room for waits here; the server
reads its clients no further then, so it is as much as one turn of the loop brought. Runs on the event loop; a crash forgets
who waited, for their connections go with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..clock import Timers
from .quorum import Quorum, QuorumFullError

BATCH_COMMANDS = 1024
BATCH_BYTES = 1 << 20
"""What is proposed in one call."""
FULL_PAUSE = 0.02
"""Seconds until the quorum is asked again whether there is room, if nothing is agreed on before."""

W = TypeVar("W")


class Outbox(Generic[W]):
    """``W`` is who waits for a command. ``guard`` runs what this turn of the loop proposes; ``has_room`` is called once
    everything that waited is proposed."""

    def __init__(
        self, guard: Callable[[Callable[[], None]], None], timers: Timers, has_room: Callable[[], None]
    ) -> None:
        self._guard = guard
        self._timers = timers
        self._has_room = has_room
        self._quorum: Quorum | None = None
        self._unproposed: deque[tuple[bytes, W]] = deque()
        self._proposed: deque[tuple[int, W]] = deque()
        self._sending = False
        self.is_full = False
        """Whether there is something that the quorum had no room for."""

    def open(self, quorum: Quorum) -> None:
        """Commands go there from here on."""
        self._quorum = quorum

    def put(self, command: bytes, waiting: W) -> None:
        """Proposes a command: at once if nothing is on its way, otherwise with others of this turn of the loop."""
        self._unproposed.append((command, waiting))
        if self._sending or self.is_full:
            return
        if not self._proposed:
            self._guard(self.send)
        else:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._guard, self.send)

    def send(self) -> None:
        """Proposes what is there, as far as there is room."""
        self._sending = False
        while self._unproposed and self._quorum is not None:
            commands: list[bytes] = []
            size = 0
            for command, _waiting in self._unproposed:
                size += len(command)
                if commands and (size > BATCH_BYTES or len(commands) == BATCH_COMMANDS):
                    break
                commands.append(command)
            try:
                ticket = self._quorum.propose(commands)
            except QuorumFullError:
                self.is_full = True
                self._timers.later("full", FULL_PAUSE, self.send)
                return
            for number in range(len(commands)):
                self._proposed.append((ticket + number, self._unproposed.popleft()[1]))
        if self.is_full:
            self.is_full = False
            self._has_room()

    def __len__(self) -> int:
        """Commands that nothing came of yet."""
        return len(self._unproposed) + len(self._proposed)

    @property
    def is_empty(self) -> bool:
        """Nobody waits for a command."""
        return not self._proposed and not self._unproposed

    def claim(self, ticket: int) -> W:
        """Who waits for the next command that counts, which has this ticket."""
        found, waiting = self._proposed.popleft()
        assert found == ticket, f"command {ticket} counted, and {found} is the next that was proposed"
        return waiting

    def forget_below(self, ticket: int) -> None:
        """Of commands with tickets below this one nothing will be heard."""
        while self._proposed and self._proposed[0][0] < ticket:
            self._proposed.popleft()
