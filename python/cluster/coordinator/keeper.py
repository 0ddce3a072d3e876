"""The end of sessions: their deadlines, and the timer that looks at them (``SessionTrackerImpl``).

Owns the timer. :class:`.state.sessions.SessionExpiry` has the deadlines, and the end of a session is a write
like any other. Runs on the event loop. If the process did not run for a while (it was suspended, or had no
processor), every session gets that time. A crash forgets when clients were heard from: every session has a
full timeout then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from .clock import Clock
from .state.sessions import Session, SessionExpiry

_logger = logging.getLogger(__name__)


class SessionKeeper:
    """The deadlines of sessions, while it is started."""

    def __init__(self, tick_time_ms: int, clock: Clock, due: Callable[[], None]) -> None:
        """``due`` is called when a deadline has passed, and calls :meth:`take_expired`."""
        self._tick_ms = tick_time_ms
        self._clock = clock
        self._due = due
        self._expiry = SessionExpiry(tick_time_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._running = False

    def start(self, sessions: Iterable[Session]) -> None:
        """Begins with these sessions, each with a full timeout."""
        self.stop()
        self._running = True
        now = self._clock.monotonic_ms()
        for session in sessions:
            self._expiry.track(session.id, session.timeout_ms, now)
        self._arm()

    def stop(self) -> None:
        """Forgets all sessions. Safe to repeat."""
        self._running = False
        self._expiry = SessionExpiry(self._tick_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def track(self, session: Session) -> None:
        """Adds a session, or changes its timeout. It has a full timeout."""
        if self._running:
            self._expiry.track(session.id, session.timeout_ms, self._clock.monotonic_ms())
            self._arm()

    def touch(self, session_id: int) -> None:
        """The session was heard from. An unknown one is ignored: its end is already proposed."""
        self._expiry.touch(session_id, self._clock.monotonic_ms())

    def forget(self, session_id: int) -> None:
        """The session is over."""
        self._expiry.forget(session_id)

    def deadlines(self) -> list[tuple[int, set[int]]]:
        """Returns the deadlines in milliseconds of the monotonic clock, and their sessions."""
        return self._expiry.deadlines()

    def take_expired(self) -> list[int]:
        """Returns the sessions whose time is over, sorted, and forgets them."""
        expired = self._expiry.take_expired(self._clock.monotonic_ms())
        for session_id in expired:
            _logger.info("session %#x expired", session_id)
        self._arm()
        return expired

    def _arm(self) -> None:
        """Sets the timer to the next deadline."""
        deadline = self._expiry.next_deadline()
        if deadline is None or not self._running:
            return
        if self._timer is not None:
            if self._armed_for <= deadline:
                return
            self._timer.cancel()
        delay_ms = max(deadline - self._clock.monotonic_ms(), 1)
        self._armed_for = deadline
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._woken)

    def _woken(self) -> None:
        self._timer = None
        late_ms = self._clock.monotonic_ms() - self._armed_for
        if late_ms > self._tick_ms:
            # Clients' pings wait in the sockets, and have to be read first.
            _logger.warning("this process did not run for %d ms; every session gets that time", late_ms)
            self._expiry.postpone(late_ms)
            self._arm()
        else:
            self._due()
