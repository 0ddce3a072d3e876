"""Sessions: their timeouts and passwords, and when each of them ends.

Two parts. :class:`SessionTable` is replicated state: only applied transactions change it, and every snapshot
has it. :class:`SessionExpiry` knows when this process last heard of each session. A crash forgets that, which
gives every session a full timeout. Pure: neither reads a clock. One thread.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import NamedTuple

PASSWORD_BYTES = 16
"""The length of a session's password, as in ZooKeeper."""


class Session(NamedTuple):
    """A session: its id (never 0), its negotiated timeout, and the password that a client needs to
    reconnect."""

    id: int
    timeout_ms: int
    password: bytes


class SessionTable:
    """All open sessions."""

    def __init__(self, sessions: Iterable[Session] = (), last_id: int = 0) -> None:
        self._sessions = {session.id: session for session in sessions}
        self.last_id = last_id

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._sessions

    def find(self, session_id: int) -> Session | None:
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def open(self, session: Session) -> None:
        self._sessions[session.id] = session
        self.last_id = max(self.last_id, session.id)

    def close(self, session_id: int) -> bool:
        """Removes a session. Returns False if there is none of this id."""
        return self._sessions.pop(session_id, None) is not None

    def proves(self, session_id: int, password: bytes) -> bool:
        """Whether the session is open and this is its password."""
        session = self._sessions.get(session_id)
        return session is not None and hmac.compare_digest(session.password, password)


def first_session_id(time_ms: int, server_id: int) -> int:
    """Returns the first session id, as in ZooKeeper: the server's id in the top byte, 40 bits of the time in
    milliseconds, and a counter of 16 bits. Restarts a millisecond apart give out different ids."""
    return ((server_id & 0x7F) << 56) | ((time_ms << 16) & 0x00FF_FFFF_FFFF_0000)


def deadline_of(heard_ms: int, timeout_ms: int, tick_ms: int) -> int:
    """Returns the deadline of a client that was heard from at this time, rounded up to ticks
    (``ExpiryQueue``)."""
    return ((heard_ms + timeout_ms) // tick_ms + 1) * tick_ms


class SessionExpiry:
    """Deadlines. They are rounded up to ticks, so that sessions expire in batches, and a touch is cheap."""

    def __init__(self, tick_time_ms: int) -> None:
        self._tick_ms = tick_time_ms
        self._timeouts: dict[int, int] = {}
        self._deadlines: dict[int, int] = {}
        self._buckets: dict[int, set[int]] = {}

    def track(self, session_id: int, timeout_ms: int, now_ms: int) -> None:
        """Adds a session, with a full timeout."""
        self._timeouts[session_id] = timeout_ms
        self.touch(session_id, now_ms)

    def touch(self, session_id: int, now_ms: int) -> None:
        """The session was heard from. An unknown one is ignored: its end is already proposed."""
        timeout = self._timeouts.get(session_id)
        if timeout is not None:
            self._move(session_id, deadline_of(now_ms, timeout, self._tick_ms))

    def forget(self, session_id: int) -> None:
        if self._timeouts.pop(session_id, None) is not None:
            self._leave(session_id)

    def next_deadline(self) -> int | None:
        """Returns the next deadline, by the clock of ``now_ms``."""
        return min(self._buckets, default=None)

    def deadlines(self) -> list[tuple[int, set[int]]]:
        """Returns the deadlines, by the clock of ``now_ms``, and their sessions."""
        return sorted(self._buckets.items())

    def take_expired(self, now_ms: int) -> list[int]:
        """Returns the sessions whose deadline has passed, sorted, and forgets them."""
        due = [deadline for deadline in self._buckets if deadline <= now_ms]
        expired = sorted(session_id for deadline in due for session_id in self._buckets[deadline])
        for session_id in expired:
            self.forget(session_id)
        return expired

    def postpone(self, by_ms: int) -> None:
        """Moves every deadline by more than that.

        The process did not run for this time, and has to read its clients first.
        """
        ticks = (by_ms // self._tick_ms + 1) * self._tick_ms
        for session_id, deadline in list(self._deadlines.items()):
            self._move(session_id, deadline + ticks)

    def _move(self, session_id: int, deadline: int) -> None:
        if self._deadlines.get(session_id) == deadline:
            return
        self._leave(session_id)
        self._deadlines[session_id] = deadline
        self._buckets.setdefault(deadline, set()).add(session_id)

    def _leave(self, session_id: int) -> None:
        deadline = self._deadlines.pop(session_id, None)
        if deadline is not None:
            bucket = self._buckets[deadline]
            bucket.discard(session_id)
            if not bucket:
                del self._buckets[deadline]
