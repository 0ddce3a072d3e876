"""Whoever has nothing to do with what somebody does to an ensemble: kazoo clients, one on each member, and the members themselves.

The clients write, read and watch, each in a thread of its own, from before until after. :func:`unharmed` holds them, and the memory
and descriptors of the members' processes, against what they were.
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
"""So many of each client's are looked at afterwards; whatever was done is done before."""
SESSION_SECONDS = 10.0
_RESET_PEAK = "5"
"""``/proc/PID/clear_refs``: the peak of the resident memory is what it is from here on (proc(5))."""


class Bystander:
    """Writes ``own``, reads it, and waits until it is told that ``watched`` changed, again and again."""

    def __init__(self, member: Member, own: str, watched: str) -> None:
        self.member = member
        self.rounds = 0
        self.longest = 0.0
        """Seconds of the longest round."""
        self.trouble: list[str] = []
        self._own, self._watched = own, watched
        self._over = False
        self._fired = threading.Event()
        self._changed = threading.Condition()
        self._client = KazooClient(member.hosts, timeout=SESSION_SECONDS)
        self._client.start(WAIT_SECONDS)
        self._session = self._client.client_id
        self._client.create(own, b"")
        self._client.add_listener(lambda state: self._tell(str(state)))
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Once there is what it watches."""
        self._client.sync("/")
        self._thread.start()

    def goes_on(self, rounds: int) -> None:
        """Waits for so many rounds that begin after this. Raises AssertionError if anything went wrong."""
        with self._changed:
            wanted = self.rounds + 1 + rounds
            self._changed.wait_for(lambda: self.rounds >= wanted or self.trouble, rounds * WAIT_SECONDS)
            assert not self.trouble, f"the client of member {self.member.number}: {self.trouble}"
            assert self.rounds >= wanted, f"the client of member {self.member.number} stands still"
            assert self._client.client_id == self._session

    def stop(self) -> None:
        self._over = True
        self._fired.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_SECONDS)
        self._client.stop()
        self._client.close()

    def _tell(self, what: str) -> None:
        with self._changed:
            if not self._over:
                self.trouble.append(what)
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
            self._tell(repr(error))

    def _round(self) -> None:
        fired = self._fired = threading.Event()
        self._client.get(self._watched, watch=lambda _event: fired.set())
        data = b"%d" % self.rounds
        version = self._client.set(self._own, data).version
        assert version == self.rounds + 1, f"write {self.rounds + 1} made version {version}"
        read, stat = self._client.get(self._own)
        assert (read, stat.version) == (data, version), f"{data!r} was written, {read!r} read"
        assert self._over or fired.wait(WAIT_SECONDS), f"{self._watched} was not told of"


@contextlib.contextmanager
def bystanders(members: Sequence[Member]) -> Iterator[list[Bystander]]:
    """A client on each, which watches what the next one writes."""
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
    """This process may open as many as it can, and so may those that it starts."""
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
    """Whatever is done meanwhile, the others go on in their sessions, and no member takes more than so much more memory at any time,
    or more descriptors."""
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
        told = (
            f"member {member.number}, {resident:.0f} MiB before: {more:+.1f} MiB, {more_open:+} descriptors"
        )
        print(told)
        assert more <= mebibytes, told
        assert more_open <= descriptors, told
    print(f"the longest round of the others took {max(each.longest for each in others):.2f} s")


def _status(process: Path, name: str) -> float:
    """Of ``/proc/PID/status``, in MiB."""
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def _open(process: Path) -> int:
    return len(list((process / "fd").iterdir()))
