"""The commands that a member proposes, and the clients that wait for their outcome.

Owns the order: commands are proposed, and take effect, in the order in which they were put in. Commands for
which the quorum has no space wait here. The server stops reading its clients then, so at most one turn of the
loop adds to them. Runs on the event loop. A crash forgets the clients, whose connections end with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from ..clock import Timers
from ..connection import Connection
from ..protocol.requests import ConnectRequest
from .agreed import Proposed
from .quorum import Quorum, QuorumFullError

BATCH_COMMANDS_MAX = 1024
BATCH_BYTES_MAX = 1 << 20
"""The limits of one call of ``propose``."""
FULL_PAUSE_SECONDS = 0.02
"""The time until commands are proposed to a full quorum again. An agreed command makes space sooner."""

W = TypeVar("W")


class Waiting(NamedTuple):
    """The client that waits for a command.

    For a handshake it has the time at which it was proposed, and the request. For another request it has the
    decoded command, so that the command's bytes are not decoded again.
    """

    connection: Connection | None
    asked_ms: int = 0
    request: ConnectRequest | None = None
    proposed: Proposed | None = None


NO_CLIENT = Waiting(None)
"""For a command that no client waits for."""


class Outbox(Generic[W]):
    """``W`` is the type of a command's waiting client: :class:`Waiting`.

    ``guard`` runs a call and handles its exceptions. ``has_space`` is called once all commands that waited
    for space are proposed.
    """

    def __init__(
        self, guard: Callable[[Callable[[], None]], None], timers: Timers, has_space: Callable[[], None]
    ) -> None:
        self._guard = guard
        self._timers = timers
        self._has_space = has_space
        self._quorum: Quorum | None = None
        self._unproposed: deque[tuple[bytes, W]] = deque()
        self._proposed: deque[tuple[int, W]] = deque()
        self._sending = False
        self.is_full = False
        """Whether a command waits because the quorum is full."""

    def open(self, quorum: Quorum) -> None:
        """Begins to propose commands to the quorum."""
        self._quorum = quorum

    def put(self, command: bytes, waiting: W) -> None:
        """Proposes a command: at once if no other is on its way, else together with this turn's others."""
        self._unproposed.append((command, waiting))
        if self._sending or self.is_full:
            return
        if not self._proposed:
            self._guard(self.send)
        else:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._guard, self.send)

    def send(self) -> None:
        """Proposes as many commands as the quorum has space for."""
        self._sending = False
        while self._unproposed and self._quorum is not None:
            commands: list[bytes] = []
            size = 0
            for command, _waiting in self._unproposed:
                size += len(command)
                if commands and (size > BATCH_BYTES_MAX or len(commands) == BATCH_COMMANDS_MAX):
                    break
                commands.append(command)
            try:
                ticket = self._quorum.propose(commands)
            except QuorumFullError:
                self.is_full = True
                self._timers.later("full", FULL_PAUSE_SECONDS, self.send)
                return
            for number in range(len(commands)):
                self._proposed.append((ticket + number, self._unproposed.popleft()[1]))
        if self.is_full:
            self.is_full = False
            self._has_space()

    def __len__(self) -> int:
        """The number of commands that have no outcome yet."""
        return len(self._unproposed) + len(self._proposed)

    def claim(self, ticket: int) -> W:
        """Returns the client that waits for the next command that took effect, which has this ticket."""
        found, waiting = self._proposed.popleft()
        assert found == ticket, f"command {ticket} took effect, but command {found} was proposed before it"
        return waiting

    def forget_below(self, ticket: int) -> None:
        """Forgets the commands with lower tickets: their outcomes will not be reported."""
        while self._proposed and self._proposed[0][0] < ticket:
            self._proposed.popleft()
