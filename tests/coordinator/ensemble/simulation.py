"""A simulated ensemble: real servers over :mod:`.fake_quorum`, and random clients on transports in memory.

The event loop's time moves only when nothing is left to do. One seed gives one history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.coordinator import CoordinatorServer, Settings
from cluster.coordinator.durability import snapshot
from cluster.coordinator.ensemble.agreed import Agreed
from cluster.coordinator.ensemble.replication import EnsembleReplication
from cluster.coordinator.ensemble.snapshot import read, walk
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import Rules

from .fake_quorum import Delays, FakeEnsemble, FakeQuorum, Sink
from .replay import Replay
from .simulated_clients import TIMEOUT_MS, Link, SimulatedClient
from .simulated_loop import SimulatedClock, SimulatedLoop
from .states import fingerprint

TICK_MS = 1000


class CheckedSink(Sink):
    """Checks that a snapshot is the state at the begin of its walk."""

    expected: tuple[object, ...]

    def finish(self) -> None:
        assert fingerprint(read(bytes(self.data))) == self.expected, "the walk is not the state at its index"
        self.quorum.ensemble.walks += 1
        super().finish()


class CheckedQuorum(FakeQuorum):
    replication: EnsembleReplication

    def snapshot_begin(self, index: int) -> Sink:
        sink = super().snapshot_begin(index)
        checked = CheckedSink(sink.quorum, sink.index, sink.counted)
        checked.expected = fingerprint(self.replication.agreed)
        return checked


@dataclass
class SimulatedMember:
    """A server. ``start`` and ``stop`` simulate those of its process."""

    world: World
    number: int
    server: CoordinatorServer | None = None
    quorum: CheckedQuorum | None = None

    async def start(self, wiped: bool = False) -> None:
        world = self.world
        quorum = self.quorum = CheckedQuorum(world.ensemble, self.number, world.outstanding_max, wiped)

        def replicate(service: Any) -> EnsembleReplication:
            replication = EnsembleReplication(
                service,
                lambda: quorum,
                server_id=self.number,
                sync_limit=world.sync_limit,
                directory=world.directory / str(self.number),
                exports=world.directory,
                chance=world.chance,
            )
            quorum.replication = replication
            return replication

        settings = Settings(
            tick_time_ms=TICK_MS,
            max_client_connections=0,
            snapshot_transactions=world.snapshot_every,
            read_only_mode=world.read_only,
            reconfig_enabled=True,
            rules=Rules.SKIP_ACL | Rules.ONE_VOTER,
        )
        clock = SimulatedClock(world.loop, self.number * 1_000_003)
        server = CoordinatorServer(
            world.directory, port=-1, settings=settings, clock=clock, replicate=replicate
        )
        await server.start()
        self.server = server

    async def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop()
            self.world.require_alive(server)

    @property
    def agreed(self) -> Agreed:
        assert self.server is not None
        replication = self.server.replication
        assert isinstance(replication, EnsembleReplication)
        return replication.agreed


@dataclass
class World:
    """The members, the clients and the history of one seed."""

    seed: int
    directory: Path
    members_count: int = 3
    observers_count: int = 0
    clients_count: int = 5
    seconds: float = 25.0
    read_only: bool = False
    loop: SimulatedLoop = field(default_factory=SimulatedLoop)
    highest: int = 0
    unanswered: int = 0
    reconfigured: int = 0
    outstanding_max: int = 1000
    snapshot_every: int = 1000
    reported_expired: list[int] = field(default_factory=list)
    """The sessions that a server has reported as expired."""
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.outstanding_max = self.chance.choice((8, 1000))
        self.snapshot_every = self.chance.choice((40, 400))
        self.sync_limit = self.chance.choice((2, 20))
        delays = Delays(delivery=self.chance.choice(((0.0005, 0.006), (0.0005, 0.1), (0.0005, 0.6))))
        ids = range(1, self.members_count + 1)
        observers = range(self.members_count + 1, self.members_count + self.observers_count + 1)
        clock = SimulatedClock(self.loop, 0)
        self.ensemble = FakeEnsemble(
            self.loop, list(ids), self.chance, clock.wall_ms, delays, observers=list(observers)
        )
        self.members = {number: SimulatedMember(self, number) for number in [*ids, *observers]}
        self.clients = [
            SimulatedClient(self, f"c{number}", only_reads=number < 2) for number in range(self.clients_count)
        ]

    def network_delay(self) -> float:
        return self.chance.uniform(0.0002, 0.003)

    def deliver(self, link: Link, call: Callable[..., None], *arguments: object) -> None:
        link.last_delivery = max(link.last_delivery + 1e-6, self.loop.now + self.network_delay())
        self.loop.call_at(link.last_delivery, call, *arguments)

    def require_alive(self, server: CoordinatorServer) -> None:
        assert server.failed is not None
        if server.failed.done():
            server.failed.result()

    # ---- the history ----

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot, "SLICE_NODES", 2)
            self._run()

    def _run(self) -> None:
        self.loop.set_exception_handler(self._went_wrong)
        try:
            self._complete(self._history())
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    def _went_wrong(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}")
        if isinstance(error, BaseException):
            self.failure = error
        self.loop.stop()

    def _complete(self, history: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(history)
        try:
            self.loop.run_until_complete(task)
        except RuntimeError:
            if not self.errors:
                raise
        if self.errors:
            task.cancel()
            raise AssertionError(self.errors[0]) from getattr(self, "failure", None)

    async def _end(self) -> None:
        for client in self.clients:
            client.dead = True
        for member in self.members.values():
            if member.server is not None:
                await member.server.stop()

    async def _history(self) -> None:
        for member in self.members.values():
            await member.start()
        lives = [self.loop.create_task(client.live(self.loop.now + self.seconds)) for client in self.clients]
        nemesis = self.loop.create_task(self._nemesis(self.loop.now + self.seconds - 5))
        for task in (*lives, nemesis):
            await task
        await self._heal()
        for client in self.clients:
            client.dead = True
            client.leave()
        await asyncio.sleep(3 * TIMEOUT_MS / 1000)
        await self._settle()
        self.check()

    async def _nemesis(self, until: float) -> None:
        ensemble, chance = self.ensemble, self.chance
        while self.loop.now < until:
            await asyncio.sleep(chance.uniform(0.1, 4.0))
            what = chance.random()
            number = chance.choice(sorted(self.members))
            member = self.members[number]
            if what < 0.3:
                ensemble.depose()
            elif what < 0.6:
                ensemble.cut ^= {number}
                # Clients may be cut off together with the member.
                for client in self.clients:
                    alone = number in ensemble.cut and chance.random() < 0.5
                    client.reaches = {number} if alone else set(self.members)
                ensemble.changed()
            elif what < 0.7:
                ensemble.cut = (
                    set() if ensemble.cut else set(list(self.members)[: len(self.members) // 2 + 1])
                )
                ensemble.changed()
            elif what < 0.9:
                if member.server is None:
                    await member.start(wiped=chance.random() < 0.5)
                else:
                    await member.stop()
            for each in self.members.values():
                if each.server is not None:
                    self.require_alive(each.server)

    async def _heal(self) -> None:
        self.ensemble.cut = set()
        for client in self.clients:
            client.reaches = set(self.members)
        for member in self.members.values():
            if member.server is None:
                await member.start()
        self.ensemble.changed()

    async def _settle(self) -> None:
        """Waits until every member has applied the whole log."""
        for _ in range(1000):
            if all(member.agreed.index == len(self.ensemble.log) - 1 for member in self.members.values()):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(
            f"not every member has applied all {len(self.ensemble.log)} entries: "
            f"{[member.agreed.index for member in self.members.values()]}"
        )

    # ---- checks ----

    def check(self) -> None:
        for member in self.members.values():
            assert member.server is not None
            self.require_alive(member.server)
        replayed = Replay(self)
        self.reconfigured = replayed.reconfigured
        prints = {member.number: fingerprint(member.agreed) for member in self.members.values()}
        for number, found in prints.items():
            assert found == fingerprint(replayed.agreed), f"member {number} has another state than the log"
        whole = read(b"".join(walk(replayed.agreed)))
        assert fingerprint(whole) == fingerprint(replayed.agreed)
        for client in self.clients:
            written = 0
            for answer in client.answers:
                replayed.check(client, answer)
                if answer.request.op in (Op.CREATE, Op.SET_DATA, Op.DELETE, Op.CLOSE_SESSION, Op.RECONFIG):
                    assert answer.zxid > written, "a client's writes took effect in another order"
                    written = answer.zxid
            order = [client.sent[body] for body in replayed.effective if body in client.sent]
            assert order == sorted(order), f"{client.name}'s requests took effect in the order {order}"
        # All clients are gone, so no session and no ephemeral node may be left.
        assert not len(replayed.agreed.machine.sessions), "a session of a client that is gone is left"
        assert not replayed.agreed.machine.tree.ephemeral_count()
        for session, at in replayed.expired:
            for client in self.clients:
                times = [time for time in client.received_at.get(session, ()) if time <= at]
                if times:
                    silent_ms = (at - times[-1]) * 1000
                    assert silent_ms >= TIMEOUT_MS * 2 / 3, (
                        f"session {session:#x} ended {silent_ms:.0f} ms after an answer to {client.name}"
                    )
        for session in self.reported_expired:
            assert session in replayed.over, f"session {session:#x} was reported as expired, and is open"
