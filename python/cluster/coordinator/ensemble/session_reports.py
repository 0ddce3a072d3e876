"""What a member reports to its leader about the sessions of its clients, and what it may conclude from the
acknowledgement.

Owns the numbered reports, and for each session of this member the earliest time at which the leader can have
heard of it. The leader ends a session no earlier than its timeout after it heard of it. A client that hears
nothing gives up after two thirds of the timeout. So for a third of the timeout after that time the member may
send to the client: the client gives up before any member takes the session for expired. That is why no client
believes in an ephemeral node whose session is over.

Pure. Times are milliseconds of one monotonic clock. The next report repeats what a lost one had. A crash
forgets everything.
"""

from __future__ import annotations

import struct

REPORTS_MAX = 64
"""Reports that may wait for an acknowledgement. An older one is forgotten."""


class SessionReports:
    """The reports of one member."""

    def __init__(self) -> None:
        self._heard: dict[int, None] = {}
        self._sent: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._reported_ms: dict[int, int] = {}

    def heard(self, session_id: int) -> None:
        """The client of a session of this member sent something."""
        self._heard[session_id] = None

    def established(self, session_id: int, asked_ms: int) -> None:
        """A session is now this member's.

        Its handshake was proposed at this time, so the leader heard of it later.
        """
        self._reported_ms[session_id] = asked_ms
        self._heard[session_id] = None

    def gone(self, session_id: int) -> None:
        """A session is no longer this member's."""
        self._reported_ms.pop(session_id, None)
        self._heard.pop(session_id, None)

    def pack(self) -> tuple[bytes, tuple[int, ...]]:
        """Returns the next report: the sessions heard from since the last acknowledged one; it may be
        empty."""
        heard = self._heard
        for _sent_ms, sessions in self._sent.values():
            heard.update(dict.fromkeys(session for session in sessions if session in self._reported_ms))
        sessions = tuple(heard)
        self._heard = {}
        return struct.pack(f">{len(sessions)}q", *sessions), sessions

    def sent(self, number: int, now_ms: int, sessions: tuple[int, ...]) -> None:
        """The report of these sessions has this number."""
        self._sent[number] = now_ms, sessions
        if len(self._sent) > REPORTS_MAX:
            del self._sent[next(iter(self._sent))]

    def acknowledged(self, number: int) -> None:
        """The leader got this report."""
        sent_ms, sessions = self._sent.get(number, (0, ()))
        for session in sessions:
            if session in self._reported_ms:
                self._reported_ms[session] = max(self._reported_ms[session], sent_ms)
        self._sent = {each: report for each, report in self._sent.items() if each > number}

    def reported_ms(self, session_id: int) -> int | None:
        """The earliest time at which the leader can have heard of the session; None if it is not this
        member's."""
        return self._reported_ms.get(session_id)


def unpack(sessions: bytes) -> tuple[int, ...]:
    """The sessions of a report. Raises ValueError if the bytes are not a report."""
    if len(sessions) % 8:
        raise ValueError(f"{len(sessions)} bytes are not session ids")
    return struct.unpack(f">{len(sessions) // 8}q", sessions)
