"""Clients that must not notice what a test does to an ensemble: a kazoo client on each member.

The clients write, read and watch, each in its own thread, before, during and after the test's own requests.
:func:`unharmed` checks that they go on, and that the members' memory and descriptors stay within limits.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from kazoo.client import KazooClient

from tests.coordinator.support import WAIT_SECONDS

from .members import Ensemble, Member

ROUNDS = 3
"""Rounds that each client must complete afterwards."""
SESSION_SECONDS = 10.0
_RESET_PEAK = "5"
"""Written to ``/proc/PID/clear_refs``, it resets the peak of the resident memory (proc(5))."""


class Bystander:
    """In each round: writes ``own``, reads it, and waits for the watch on ``watched`` to fire."""

    def __init__(self, member: Member, own: str, watched: str) -> None:
        self.member = member
        self.rounds = 0
        self.longest = 0.0
        """Seconds of the longest round."""
        self.failures: list[str] = []
        self._own, self._watched = own, watched
        self._over = False
        self._fired = threading.Event()
        self._changed = threading.Condition()
        self._client = KazooClient(member.hosts, timeout=SESSION_SECONDS)
        self._client.start(WAIT_SECONDS)
        self._session = self._client.client_id
        self._client.create(own, b"")
        self._client.add_listener(lambda state: self._failed(str(state)))
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Starts the rounds. The watched node must exist."""
        self._client.sync("/")
        self._thread.start()

    def goes_on(self, rounds: int) -> None:
        """Waits for ``rounds`` rounds that begin after this call. Raises AssertionError if one failed."""
        with self._changed:
            wanted = self.rounds + 1 + rounds
            self._changed.wait_for(lambda: self.rounds >= wanted or self.failures, rounds * WAIT_SECONDS)
            assert not self.failures, f"the client of member {self.member.number}: {self.failures}"
            assert self.rounds >= wanted, f"the client of member {self.member.number} makes no progress"
            assert self._client.client_id == self._session

    def stop(self) -> None:
        self._over = True
        self._fired.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_SECONDS)
        self._client.stop()
        self._client.close()

    def _failed(self, reason: str) -> None:
        with self._changed:
            if not self._over:
                self.failures.append(reason)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._over:
                began = time.monotonic()
                self._round()
                with self._changed:
                    self.rounds += 1
                    self.longest = max(self.longest, time.monotonic() - began)
                    self._changed.notify_all()
        except Exception as error:
            self._failed(repr(error))

    def _round(self) -> None:
        fired = self._fired = threading.Event()
        self._client.get(self._watched, watch=lambda _event: fired.set())
        data = b"%d" % self.rounds
        version = self._client.set(self._own, data).version
        assert version == self.rounds + 1, f"write {self.rounds + 1} made version {version}"
        read, stat = self._client.get(self._own)
        assert (read, stat.version) == (data, version), f"{data!r} was written, {read!r} read"
        assert self._over or fired.wait(WAIT_SECONDS), f"the watch on {self._watched} did not fire"


@contextlib.contextmanager
def bystanders(members: Sequence[Member]) -> Iterator[list[Bystander]]:
    """A client on each member, which watches the node that the next client writes."""
    paths = [f"/bystander-{uuid.uuid4().hex}" for _ in members]
    started: list[Bystander] = []
    try:
        for number, member in enumerate(members):
            started.append(Bystander(member, paths[number], paths[(number + 1) % len(paths)]))
        for each in started:
            each.begin()
        yield started
    finally:
        for each in started:
            each.stop()


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Raises the soft limit of descriptors to the hard one, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def unharmed(
    ensemble: Ensemble, others: Sequence[Bystander], mebibytes: float, descriptors: int = 1000
) -> Iterator[None]:
    """Checks that the body harms nobody else.

    The other clients keep their sessions and complete more rounds. No member's memory grows by more than
    ``mebibytes`` at any time, nor its open descriptors by more than ``descriptors``.
    """
    before = []
    for member in ensemble.members:
        process = Path(f"/proc/{member.pid}")
        (process / "clear_refs").write_text(_RESET_PEAK)
        before.append((member.pid, _status(process, "VmRSS"), _open(process)))
    yield
    for each in others:
        each.goes_on(ROUNDS)
    for member, (pid, resident, opened) in zip(ensemble.members, before, strict=True):
        assert member.pid == pid
        process = Path(f"/proc/{pid}")
        more, more_open = _status(process, "VmHWM") - resident, _open(process) - opened
        change = (
            f"member {member.number}, {resident:.0f} MiB before: {more:+.1f} MiB, {more_open:+} descriptors"
        )
        print(change)
        assert more <= mebibytes, change
        assert more_open <= descriptors, change
    print(f"the longest round of the other clients took {max(each.longest for each in others):.2f} s")


def _status(process: Path, name: str) -> float:
    """A field of ``/proc/PID/status``, in MiB."""
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def _open(process: Path) -> int:
    return len(list((process / "fd").iterdir()))
