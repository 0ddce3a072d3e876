"""Stops a consumer's group thread at every request and event, where a test makes its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cluster import Consumer
from cluster.client._group import Event, GenerationEnded, Membership, Standing
from tests.client.conftest import WAIT


class Director:
    """Stops the group thread of one consumer at its next point until `step` or `let_go`.

    The points are: before and after each of the thread's requests, and before each event it posts. Made
    before the consumer subscribes.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._changed = threading.Condition()
        self._at: str | None = None
        self._arrivals = 0
        self._permits = 0
        self._free = False
        self._waits: Callable[[], bool] = lambda: True
        """Whether the thread waits for the application to do something."""
        self.points: list[str] = []
        """Every point the thread has come to."""
        self.next_heartbeat: Exception | None = None
        """The next heartbeat raises this in place of the coordinator's answer."""
        group: Any = consumer._group
        self._group = group
        protocol = group._protocol
        for name in {"join", "sync", "heartbeat", "leave"}.intersection(dir(protocol)):
            setattr(protocol, name, self._around(name, getattr(protocol, name)))
        group._topics.find = self._around("find", group._topics.find)
        post = group._post

        def stop_and_post(event: Event) -> None:
            self._stop(f"post {type(event).__name__}")
            post(event)

        group._post = stop_and_post
        next_membership, is_revoking = group._next_membership, group._is_revoking

        def wait_for_membership() -> Membership | None:
            self._wait_while(lambda: group._current is None or group._current.leaving)
            try:
                return next_membership()
            finally:
                self._wait_while(lambda: False)

        def wait_for_revocation(membership: Membership) -> bool:
            # A member sends heartbeats meanwhile; one that is lost does nothing.
            lost = membership.standing is Standing.OUTSIDE
            self._wait_while(lambda: lost and membership.revoking and membership.standing is Standing.OUTSIDE)
            try:
                return is_revoking(membership)
            finally:
                self._wait_while(lambda: False)

        group._next_membership = wait_for_membership
        group._is_revoking = wait_for_revocation

    def _wait_while(self, waits: Callable[[], bool]) -> None:
        with self._changed:
            self._waits = waits
            self._changed.notify_all()

    def _around(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any) -> Any:
            if threading.current_thread() is not self._group._thread:
                return ask(*arguments)
            self._stop(f"before {name}")
            instead, self.next_heartbeat = (
                (self.next_heartbeat, None) if name == "heartbeat" else (None, self.next_heartbeat)
            )
            if instead is not None:
                raise instead
            try:
                return ask(*arguments)
            finally:
                self._stop(f"after {name}")

        return asked

    def _stop(self, point: str) -> None:
        with self._changed:
            self._at = point
            self._arrivals += 1
            self.points.append(point)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._free or self._permits > 0, WAIT), point
            self._permits -= not self._free
            self._at = None

    def step(self) -> None:
        """Lets the thread go on to its next point. Returns when it is there, or has nothing to do."""
        with self._changed:
            assert self._changed.wait_for(self._stopped, WAIT), "the thread is nowhere"
            if self._at is None:
                return
            arrivals = self._arrivals
            self._permits += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._waits() or self._arrivals > arrivals, WAIT)

    def wait(self) -> str:
        """Waits until the thread is at a point, or for the application; the point's name."""
        with self._changed:
            assert self._changed.wait_for(self._stopped, WAIT), "the thread is nowhere"
            return self._at or "waiting"

    def _stopped(self) -> bool:
        return self._at is not None or self._waits()

    def let_go(self) -> None:
        """The thread is not stopped any more."""
        with self._changed:
            self._free = True
            self.points.clear()
            self._changed.notify_all()

    def is_quiet(self) -> bool:
        """Whether the thread, let go, only sends heartbeats, and the coordinator answers them."""
        return self.points[-4:] == ["before heartbeat", "after heartbeat"] * 2

    def rebalance(self) -> None:
        """The coordinator ends the generation."""
        self.next_heartbeat = GenerationEnded(lost=False)

    def fence(self) -> None:
        """The coordinator says that it has removed the member."""
        self.next_heartbeat = GenerationEnded(lost=True)

    def remove_member(self) -> None:
        """The coordinator removes the member."""
        member_id = self._group.member_id
        if member_id:
            self._group._protocol.leave(member_id, WAIT)
