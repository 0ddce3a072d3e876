"""What a member tells its leader of the sessions that it hears from, and what it may rely on.

Owns the rounds, and for each session of this member a time at which the leader heard of it at the earliest. The leader ends a
session no earlier than its timeout after that; a client that hears nothing gives up after two thirds of it. So whoever
sends something to a client while a third of the timeout has not passed since that time knows that the client gives up before
anybody may believe the session over: an ephemeral node outlives its session by nothing, whatever is cut off from what.

Pure; times are milliseconds of one monotonic clock. A round that is lost is in the next one again.
"""

from __future__ import annotations

import struct

ROUNDS_MAX = 64
"""So many rounds may be on their way; of what came before nothing is learned."""


class Touches:
    """Sessions of one member."""

    def __init__(self) -> None:
        self._heard: dict[int, None] = {}
        self._rounds: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._known: dict[int, int] = {}

    def heard(self, session_id: int) -> None:
        """A session of this member was heard from."""
        self._heard[session_id] = None

    def established(self, session_id: int, asked_ms: int) -> None:
        """A session is this member's; what made it so was asked for at this time, so the leader heard of it later."""
        self._known[session_id] = asked_ms
        self._heard[session_id] = None

    def gone(self, session_id: int) -> None:
        """A session is not this member's any more."""
        self._known.pop(session_id, None)
        self._heard.pop(session_id, None)

    def pack(self) -> tuple[bytes, tuple[int, ...]]:
        """The next round: what was heard from since the last that arrived; nothing if there is none."""
        heard = self._heard
        for _sent, sessions in self._rounds.values():
            heard.update(dict.fromkeys(session for session in sessions if session in self._known))
        sessions = tuple(heard)
        self._heard = {}
        return struct.pack(f">{len(sessions)}q", *sessions), sessions

    def sent(self, number: int, now_ms: int, sessions: tuple[int, ...]) -> None:
        """The round has this number."""
        self._rounds[number] = now_ms, sessions
        if len(self._rounds) > ROUNDS_MAX:
            del self._rounds[next(iter(self._rounds))]

    def acknowledged(self, number: int) -> None:
        """The leader had this round."""
        sent_ms, sessions = self._rounds.get(number, (0, ()))
        for session in sessions:
            if session in self._known:
                self._known[session] = max(self._known[session], sent_ms)
        self._rounds = {each: of_it for each, of_it in self._rounds.items() if each > number}

    def known_ms(self, session_id: int) -> int | None:
        """When the leader heard of the session at the earliest; None if it is not this member's."""
        return self._known.get(session_id)


def unpack(sessions: bytes) -> tuple[int, ...]:
    """The sessions of a round. Raises ValueError for what is none."""
    if len(sessions) % 8:
        raise ValueError(f"{len(sessions)} bytes are no session ids")
    return struct.unpack(f">{len(sessions) // 8}q", sessions)
