"""The same random calls of kazoo clients to Apache ZooKeeper 3.9 and to our coordinator.

Each call's result or exception, every stat and every watch event is compared. If these fail, a Python program
gets another result from our coordinator. :mod:`.test_zookeeper` compares the bytes on the wire.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import Callback, EventType, WatchedEvent, ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl, make_digest_acl

from cluster.coordinator import Settings
from tests.compat.zookeeper_peer import TICK_MS, apache_zookeeper, our_coordinator
from tests.coordinator.support import WAIT_SECONDS

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

CLIENTS = 3
HISTORIES = 3
CALLS = 150
NEW_SESSION = 0.02
"""The probability that a client ends its session and opens another."""

Step = Callable[[KazooClient, Callable[[WatchedEvent], None]], Any]
"""A call of a client; the second argument is the callback of its watches."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of Apache's server and of ours."""
    directory: Path = tmp_path_factory.mktemp("kazoo-histories")
    settings = Settings(tick_time_ms=TICK_MS, max_client_connections=0)
    with apache_zookeeper(directory, {}, {}) as theirs, our_coordinator(directory, settings) as ours:
        yield theirs, ours


class Client(KazooClient):
    """Sorts children, which Apache's server lists in hash order.

    The order decides how much a recursive delete removes before it is refused.
    """

    def get_children(self, *args: Any) -> Any:
        found = super().get_children(*args)
        return (sorted(found[0]), found[1]) if isinstance(found, tuple) else sorted(found)


class Side:
    """The clients of one server."""

    def __init__(self, port: int) -> None:
        self._clients = [Client(f"127.0.0.1:{port}", timeout=20 * TICK_MS / 1000) for _ in range(CLIENTS)]
        self._sessions: dict[int, int] = {0: 0}
        self._events: list[list[WatchedEvent]] = [[] for _ in self._clients]
        for number in range(CLIENTS):
            self._start(number)
        self._clients[0].create("/first", b"", makepath=True)
        self._base = self._clients[0].exists("/first").czxid
        self._clients[0].delete("/first")

    def _start(self, number: int) -> None:
        client = self._clients[number]
        client.start(WAIT_SECONDS)
        self._sessions[client.client_id[0]] = len(self._sessions)

    def do(self, number: int, step: Step) -> tuple[Any, list[list[tuple[str, str]]]]:
        """The result of a client's call, and the events that each client has received since the last step."""
        try:
            found = self._plain(step(self._clients[number], self._events[number].append))
        except (KazooException, ValueError) as error:
            found = type(error).__name__
        return found, self._heard()

    def new_session(self, number: int) -> list[list[tuple[str, str]]]:
        """The client ends its session and opens another."""
        self._clients[number].stop()
        self._events[number].clear()
        self._start(number)
        return self._heard()

    def _heard(self) -> list[list[tuple[str, str]]]:
        """Each client's events since the last step, sorted because Apache deletes nodes in hash order."""
        for client in self._clients:
            client.sync("/")
            dispatched = threading.Event()
            client.handler.dispatch_callback(Callback("test", dispatched.set, ()))
            assert dispatched.wait(WAIT_SECONDS)
        # Events of type NONE are kazoo's own, about connections; they come at any time.
        heard = [
            sorted((each.type, each.path) for each in events if each.type != EventType.NONE)
            for events in self._events
        ]
        for events in self._events:
            events.clear()
        return heard

    def _plain(self, value: Any) -> Any:
        """The value, made comparable: relative transaction ids, numbered sessions, no times."""
        if isinstance(value, ZnodeStat):
            fields = value._asdict()
            for name in ("ctime", "mtime"):
                del fields[name]
            for name in ("czxid", "mzxid", "pzxid"):
                fields[name] = max(fields[name] - self._base, -1)
            fields["ephemeralOwner"] = self._sessions[fields["ephemeralOwner"]]
            return fields
        if isinstance(value, Exception):
            return type(value).__name__
        if isinstance(value, tuple | list):
            return [self._plain(each) for each in value]
        return value

    def close(self) -> None:
        for client in self._clients:
            client.stop()
            client.close()


class History:
    """The random calls of a seed, below its own root."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.root = f"/k{seed}"

    def step(self) -> tuple[str, Step]:
        """The next call's description, and the call."""
        chance = self.chance
        path, other = self._path(), self._path()
        data = chance.choice([b"", b"x", chance.randbytes(20)])
        version = chance.choice([-1, -1, -1, 0, 1, 2])
        acl = chance.choice(
            [
                *[OPEN_ACL_UNSAFE] * 4,
                READ_ACL_UNSAFE,
                [make_digest_acl("ann", "secret", all=True)],
                [make_acl("auth", "", all=True), make_acl("ip", "127.0.0.0/8", read=True)],
            ]
        )
        ephemeral, sequence, include = (chance.random() < 0.3 for _ in range(3))
        kind = chance.randrange(100)
        named: dict[int, tuple[str, Step]] = {
            25: ("create", lambda c, _: c.create(path, data, acl, ephemeral, sequence, include_data=include)),
            28: ("create with parents", lambda c, _: c.create(f"{path}/b/c", data, makepath=True)),
            38: ("delete", lambda c, _: c.delete(path, version)),
            41: ("delete recursively", lambda c, _: c.delete(f"{self.root}/a", recursive=True)),
            52: ("set", lambda c, _: c.set(path, data, version)),
            62: ("get", lambda c, watch: c.get(path, watch)),
            72: ("exists", lambda c, watch: c.exists(path, watch)),
            82: ("get_children", lambda c, watch: c.get_children(path, watch, include)),
            85: ("get_acls", lambda c, _: _acls(c.get_acls(path))),
            88: ("set_acls", lambda c, _: c.set_acls(path, acl, version)),
            90: ("ensure_path", lambda c, _: c.ensure_path(f"{path}/a")),
            91: ("add_auth", lambda c, _: c.add_auth("digest", "ann:secret")),
            100: ("transaction", self._transaction(path, other, data, version)),
        }
        name, step = next(named[least] for least in sorted(named) if kind < least)
        return (
            f"{name} of {path} (and {other}), {data!r}, version {version}, {acl}, {ephemeral}, {sequence}",
            step,
        )

    def _transaction(self, path: str, other: str, data: bytes, version: int) -> Step:
        parts = [self.chance.randrange(4) for _ in range(self.chance.randrange(1, 5))]

        def step(client: KazooClient, _watch: object) -> Any:
            transaction = client.transaction()
            for part in parts:
                if part == 0:
                    transaction.create(other, data)
                elif part == 1:
                    transaction.set_data(path, data, version)
                elif part == 2:
                    transaction.check(path, max(version, 0))
                else:
                    transaction.delete(other, version)
            return transaction.commit()

        return step

    def _path(self) -> str:
        depth = self.chance.choice([0, 1, 1, 1, 2, 2])
        return self.root + "".join(f"/{self.chance.choice('ab')}" for _ in range(depth))


def _acls(found: Any) -> Any:
    return sorted(map(str, found[0])), found[1]


def play(servers: tuple[int, int], seed: int) -> None:
    history = History(seed)
    theirs, ours = (Side(port) for port in servers)
    calls: list[str] = []
    try:
        for side in (theirs, ours):
            side.do(0, lambda client, _: client.create(history.root))
        for _ in range(CALLS):
            number = history.chance.randrange(CLIENTS)
            if history.chance.random() < NEW_SESSION:
                calls.append(f"client {number} opens a new session")
                expected, got = theirs.new_session(number), ours.new_session(number)
            else:
                name, step = history.step()
                calls.append(f"client {number}: {name}")
                expected, got = theirs.do(number, step), ours.do(number, step)
            assert got == expected, "\n".join(
                [f"seed {seed}: theirs, ours:", str(expected), str(got), *calls[-12:]]
            )
    finally:
        theirs.close()
        ours.close()


def test_random_histories_of_kazoo_clients_are_the_same(servers: tuple[int, int]) -> None:
    minutes = float(os.environ.get("LOGCORE_FUZZ_MINUTES", "0"))
    if minutes == 0:
        for seed in range(HISTORIES):
            play(servers, seed)
        return
    end, seed = time.monotonic() + minutes * 60, time.time_ns() // 1000
    while time.monotonic() < end:
        play(servers, seed)
        seed += 1
