"""When sessions end: their deadlines and the timer that looks at them (``SessionTrackerImpl``).

Owns the timer; deadlines are :class:`.sessions.SessionExpiry`'s, and an end is a write like any other. Runs on the event
loop. A process that did not run (suspended, starved) heard nobody, so all sessions get the time that it did not run. A
crash forgets who was heard from: sessions then have a full timeout anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from .clock import Clock
from .state.sessions import Session, SessionExpiry

_logger = logging.getLogger(__name__)


class SessionKeeper:
    """Deadlines of sessions, while it is started."""

    def __init__(self, tick_time_ms: int, clock: Clock, due: Callable[[], None]) -> None:
        """``due`` is called when a deadline has passed; it is to call :meth:`take_expired`."""
        self._tick_ms = tick_time_ms
        self._clock = clock
        self._due = due
        self._expiry = SessionExpiry(tick_time_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._running = False

    def start(self, sessions: Iterable[Session]) -> None:
        """Keeps these sessions and no others, each heard from now."""
        self.stop()
        self._running = True
        now = self._clock.monotonic_ms()
        for session in sessions:
            self._expiry.track(session.id, session.timeout_ms, now)
        self._arm()

    def stop(self) -> None:
        """No session is kept any more. Safe to repeat."""
        self._running = False
        self._expiry = SessionExpiry(self._tick_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def track(self, session: Session) -> None:
        """Keeps a session, or gives it another timeout; heard from now."""
        if self._running:
            self._expiry.track(session.id, session.timeout_ms, self._clock.monotonic_ms())
            self._arm()

    def touch(self, session_id: int) -> None:
        """The session was heard from. Unknown ids are ignored: their end is on its way."""
        self._expiry.touch(session_id, self._clock.monotonic_ms())

    def forget(self, session_id: int) -> None:
        """The session is over."""
        self._expiry.forget(session_id)

    def deadlines(self) -> list[tuple[int, set[int]]]:
        """Which sessions would end when, in milliseconds of the monotonic clock."""
        return self._expiry.deadlines()

    def take_expired(self) -> list[int]:
        """Sessions whose time is over by the clock, sorted; kept no longer."""
        expired = self._expiry.take_expired(self._clock.monotonic_ms())
        for session_id in expired:
            _logger.info("session %#x expired", session_id)
        self._arm()
        return expired

    def _arm(self) -> None:
        """Wakes up at the next deadline."""
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
            # Clients' pings wait in their sockets. Hear them first.
            _logger.warning("this process did not run for %d ms; sessions get that time", late_ms)
            self._expiry.postpone(late_ms)
            self._arm()
        else:
            self._due()
