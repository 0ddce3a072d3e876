"""The work of a client in a run: seeded random requests on a few shared nodes, and sections under the
recipe's lock.

Each write has unique data, so every read shows which write it saw.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from tests.coordinator.histories.history import (
    NODE_EXISTS,
    OK,
    AddWatch,
    Check,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Hold,
    Multi,
    Operation,
    Request,
    SetData,
    Sync,
)

from .recorder import Client, LostError, Recorder

NAMES = ("a", "b", "a/x", "c")
RECONNECT_SECONDS = 20.0
WITNESSES, AUDITORS = 100, 200
"""The first client numbers of witnesses and of auditors; both only read."""
LOCK_SECONDS = 5.0
"""The longest wait for a lock."""
TRIES = 20


async def in_the_end(client: Client, work: Callable[[], Awaitable[None]]) -> None:
    """Does the work, and again after each loss of the connection."""
    for _ in range(TRIES):
        with suppress(LostError):
            if client.lost.is_set():
                await client.connect(RECONNECT_SECONDS)
            await work()
            return
    raise LostError(f"client {client.number} lost its connection {TRIES} times")


class Script:
    """One client's part of a run: ``steps`` steps, each one to three requests or a section under the lock."""

    def __init__(self, seed: int, client: Client, steps: int) -> None:
        self._chance = random.Random(f"{seed} {client.number}")
        self._client, self._steps = client, steps
        self._root = client.recorder.history.root
        self._count = 0

    async def run(self) -> None:
        """Connects, works and closes its session. Raises LostError if no server can be reached."""
        try:
            await self._client.connect(RECONNECT_SECONDS)
            for _ in range(self._steps):
                try:
                    await self._step()
                except LostError:
                    await self._again()
            await in_the_end(self._client, self._client.close)
        finally:
            await self._client.drop()

    async def _again(self) -> None:
        for _ in range(TRIES):
            try:
                await self._client.connect(RECONNECT_SECONDS)
                return
            except LostError:
                continue
        raise LostError(f"client {self._client.number} cannot connect")

    async def _step(self) -> None:
        kind = self._chance.randrange(100)
        if kind < 6:
            await self._locked()
        elif kind < 16:
            # Sent without a wait between them: the answers must keep the order.
            await asyncio.gather(*[self._client.send(self._request()) for _ in range(3)])
        elif kind < 26:
            await self._client.do(Sync(self._root))
            await self._client.do(self._read())
        else:
            await self._client.do(self._request())

    def _path(self) -> str:
        return f"{self._root}/{self._chance.choice(NAMES)}"

    def _data(self) -> bytes:
        self._count += 1
        return b"%d-%d" % (self._client.number, self._count)

    def _version(self) -> int:
        return self._chance.choice([-1, -1, 0, 1, 2, 3])

    def _read(self) -> GetData | Exists | GetChildren:
        path = self._chance.choice([self._path(), self._path(), self._root])
        watch = self._chance.random() < 0.4
        kinds: list[GetData | Exists | GetChildren] = [
            GetData(path, watch),
            Exists(path, watch),
            GetChildren(path, watch),
        ]
        return self._chance.choices(kinds, (2, 1, 1))[0]

    def _request(self) -> Request:
        chance = self._chance
        kind = chance.randrange(100)
        if kind < 18:
            return Create(self._path(), self._data(), chance.random() < 0.3)
        if kind < 22:
            return Create(f"{self._root}/queue/n-", self._data(), chance.random() < 0.5, True)
        if kind < 40:
            return SetData(self._path(), self._data(), self._version())
        if kind < 50:
            return Delete(self._path(), self._version())
        if kind < 60:
            return Multi(tuple(self._part() for _ in range(chance.randrange(1, 4))))
        if kind < 65:
            return AddWatch(self._path(), chance.random() < 0.5)
        return self._read()

    def _part(self) -> Create | SetData | Delete | Check:
        match self._chance.randrange(4):
            case 0:
                return Create(self._path(), self._data(), self._chance.random() < 0.3)
            case 1:
                return SetData(self._path(), self._data(), self._version())
            case 2:
                return Delete(self._path(), self._version())
            case _:
                return Check(self._path(), self._version())

    # ---- the lock ----

    async def _locked(self) -> None:
        client, lock = self._client, f"{self._root}/lock"
        self._count += 1
        mine = f"{client.number}-{self._count}-"
        session = client.session
        try:
            made = await client.do(Create(f"{lock}/{mine}", b"", True, True))
            if made.error == OK:
                node = made.result[0]
                first = await self._first_in(lock, node)
                if first is not None:
                    await self._hold(lock, node, first)
                else:
                    await client.do(Delete(node))
        except LostError:
            # Its node may exist. It would block the other clients while the session lives, so delete it.
            await self._again()
            if client.session == session:
                names = await client.do(GetChildren(lock))
                for name in names.result[0] if names.error == OK else ():
                    if name.startswith(mine):
                        await client.do(Delete(f"{lock}/{name}"))

    async def _first_in(self, lock: str, node: str) -> Operation | None:
        """The answer that lists ``node`` first; None if it did not come first within :data:`LOCK_SECONDS`."""
        client = self._client
        name = node.rpartition("/")[2]
        end = asyncio.get_running_loop().time() + LOCK_SECONDS
        while True:
            listed = await client.do(GetChildren(lock))
            names = sorted(listed.result[0], key=_number)
            index = names.index(name) if name in names else -1
            if index == 0:
                return listed
            if index < 0:
                return None
            before = f"{lock}/{names[index - 1]}"
            seen = len(client.recorder.history.notifications)
            there = await client.do(Exists(before, True))
            if there.error != OK:
                continue

            def is_gone(seen: int = seen, before: str = before) -> bool:
                notifications = client.recorder.history.notifications[seen:]
                return client.lost.is_set() or any(
                    each.path == before and each.client == client.number for each in notifications
                )

            try:
                async with asyncio.timeout_at(end), client.changed:
                    await client.changed.wait_for(is_gone)
            except TimeoutError:
                return None
            if client.lost.is_set():
                raise LostError("the connection broke during the wait for the lock")

    async def _hold(self, lock: str, node: str, first: Operation) -> None:
        client, recorder = self._client, self._client.recorder
        assert first.completed is not None
        client.gap_at = 0
        writes: list[int] = []
        session, begins = client.session, len(recorder.history.operations)
        released = 0
        try:
            for _ in range(self._chance.randrange(1, 4)):
                if recorder.now() > client.alive_until:
                    break
                answer = client.send(SetData(f"{self._root}/guarded", self._data()))
                writes.append(client.xid)
                await answer
            release = client.send(Delete(node))
            released = recorder.now()
            await release
        finally:
            until = min(released or recorder.now(), client.alive_until, client.gap_at or client.alive_until)
            zxids = [
                each.zxid
                for each in recorder.history.operations[begins:]
                if each.session == session
                and each.is_known
                and each.invoked < until
                and not isinstance(each.request, Delete)
            ]
            recorder.history.holds.append(
                Hold(
                    client.number,
                    session,
                    lock,
                    _number(node),
                    first.completed,
                    first.zxid,
                    until,
                    max([first.zxid, *zxids]),
                    tuple(writes),
                )
            )


def _number(name: str) -> int:
    """The sequence number at the end of a sequential node's name."""
    return int(name[-10:])


async def prepare(recorder: Recorder, servers: Sequence[tuple[str, int]], timeout_ms: int) -> None:
    """Makes the run's nodes and waits until every server has them."""
    root = recorder.history.root

    async def make(client: Client) -> None:
        for path in (root, f"{root}/queue", f"{root}/lock", f"{root}/guarded"):
            made = await client.do(Create(path, b""))
            assert made.error in (OK, NODE_EXISTS), made

    async def reach(client: Client) -> None:
        await client.do(Sync(root))

    await _with_session(Client(recorder, 0, servers, timeout_ms), make)
    for number in range(len(servers)):
        await _with_session(Client(recorder, number, servers, timeout_ms), reach)


async def _with_session(client: Client, work: Callable[[Client], Awaitable[None]]) -> None:
    """Does the work and ends the session, and both again after each loss of the connection."""

    async def do() -> None:
        await work(client)
        await client.close()

    try:
        await in_the_end(client, do)
    finally:
        await client.drop()


class Witness:
    """A client on one server that watches all nodes of a run. The history has the loss of its connection."""

    def __init__(
        self, recorder: Recorder, number: int, servers: Sequence[tuple[str, int]], timeout_ms: int
    ) -> None:
        self._client = Client(recorder, WITNESSES + number, servers, timeout_ms)
        self._client.server = number
        self._root = recorder.history.root

    async def begin(self) -> None:
        async def watch() -> None:
            await self._client.do(AddWatch(self._root, True))

        await in_the_end(self._client, watch)

    async def end(self) -> None:
        """Ends its session. All sessions of the run must have ended."""
        with suppress(LostError):
            await self._client.do(Sync(self._root))
            await self._client.close()
        await self._client.drop()


async def audit(recorder: Recorder, servers: Sequence[tuple[str, int]], timeout_ms: int) -> None:
    """Reads the remaining nodes on every server. All sessions of the run must have ended."""
    root = recorder.history.root

    async def read(client: Client) -> None:
        for path in (
            root,
            f"{root}/queue",
            f"{root}/lock",
            f"{root}/guarded",
            *(f"{root}/{name}" for name in NAMES),
        ):
            await client.do(Sync(root))
            listed = await client.do(GetChildren(path))
            await client.do(Sync(root))
            await client.do(GetData(path))
            for name in listed.result[0] if listed.error == OK else ():
                if f"{path}/{name}" not in (f"{root}/{each}" for each in NAMES):
                    await client.do(GetData(f"{path}/{name}"))

    for number in range(len(servers)):
        client = Client(recorder, AUDITORS + number, servers, timeout_ms)
        client.server = number
        await _with_session(client, read)
