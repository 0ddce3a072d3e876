"""Failures and pauses of a member.

If these fail, live sessions are ended, a broken server continues, or it stops without the reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.coordinator import CoordinatorError, Settings
from cluster.coordinator.clock import Timers
from cluster.coordinator.durability.snapshot import read_snapshot
from cluster.coordinator.ensemble.contact import Contact
from cluster.coordinator.ensemble.outbox import Outbox
from cluster.coordinator.ensemble.replication import UNWATCHED_MS, WATCHED_MS
from cluster.coordinator.ensemble.snapshot import walk
from cluster.coordinator.errors import Code
from cluster.coordinator.keeper import SessionKeeper
from cluster.coordinator.metrics import ServerMetrics
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.machine import Machine
from cluster.coordinator.state.sessions import Session
from tests.coordinator.support import WAIT_SECONDS, FakeClock, RawClient

from .conftest import Ensemble, StartEnsemble
from .fake_quorum import FakeEnsemble, FakeQuorum, Sink, Source
from .test_clients import create


def failure(ensemble: Ensemble, number: int) -> str:
    failed = ensemble.servers[number].failed
    assert failed is not None
    ensemble.wait(failed.done)
    with pytest.raises(CoordinatorError) as caught:
        ensemble.call(failed.result)
    return str(caught.value)


def test_a_failed_quorum_ends_the_service_with_the_reason(ensemble: Ensemble) -> None:
    client = RawClient(ensemble.ports[1])
    client.connect()
    ensemble.call(lambda: ensemble.quorums[1].fail("its disk is broken"))
    assert "its disk is broken" in failure(ensemble, 1)
    assert client.receive() == b""
    with pytest.raises(OSError, match=r"refused|reset"):
        RawClient(ensemble.ports[1])
    client.close()
    other = RawClient(ensemble.ports[2])
    assert other.connect()[1] != 0, "another member stopped too"
    other.close()


@pytest.mark.parametrize("data", [b"", b"LCZNODES\0\0\0\1", b"x" * 100])
def test_a_snapshot_that_cannot_be_read_ends_the_service(ensemble: Ensemble, data: bytes) -> None:
    ensemble.call(lambda: ensemble.quorums[2].put(("install", Source(5, 1, data), 0)))
    assert "the snapshot of entry 5" in failure(ensemble, 2)


def test_an_installed_snapshot_replaces_the_state_and_closes_the_clients(ensemble: Ensemble) -> None:
    """The events that their watches missed and the answers to their writes are not known."""
    client = RawClient(ensemble.ports[1])
    client.connect(timeout_ms=20_000)
    assert client.request(1, Op.CREATE, create("/kept"))[2] == 0
    agreed = ensemble.replication(1).agreed

    def install() -> None:
        data = b"".join(walk(agreed))
        ensemble.quorums[1].put(("install", Source(agreed.index, agreed.term, data), 1 << 60))

    ensemble.call(install)
    assert client.receive() == b""
    ensemble.wait(lambda: ensemble.replication(1).agreed is not agreed)
    values = ensemble.servers[1].metrics.values()
    assert (values["cnt_dbinittime"], values["cnt_startup_snap_load_time"]) == (1, 0)
    again = RawClient(ensemble.ports[1])
    again.connect()
    assert again.request(1, Op.EXISTS, Writer().string("/kept").boolean(False).finish())[2] == 0
    client.close()
    again.close()


def test_an_entry_out_of_order_ends_the_service(ensemble: Ensemble) -> None:
    ensemble.call(lambda: ensemble.quorums[3].put(("entries", [(1000, 9, 0, [], None)])))
    assert "entry 1000" in failure(ensemble, 3)


def test_unknown_events_of_a_newer_quorum_are_ignored(ensemble: Ensemble) -> None:
    ensemble.call(lambda: ensemble.quorums[1].put(("weather", "sunny"), ("warning", "an even number")))
    client = RawClient(ensemble.ports[1])
    assert client.connect()[1] != 0
    client.close()


def test_a_session_that_moves_closes_its_old_connection(ensemble: Ensemble) -> None:
    first, second = RawClient(ensemble.ports[1]), RawClient(ensemble.ports[2])
    _timeout, session, password = first.connect()
    assert second.connect(session_id=session, password=password)[1] == session
    assert first.receive() == b""
    again = RawClient(ensemble.ports[2])
    assert again.connect(session_id=session, password=password)[1] == session
    assert second.receive() == b""
    for each in (first, second, again):
        each.close()


@pytest.mark.parametrize("has_session", [True, False])
def test_a_refused_client_changes_no_session(ensemble: Ensemble, has_session: bool) -> None:
    """If this failed, a client that has seen a newer state would change a session although it is refused."""
    holder, refused = RawClient(ensemble.ports[2]), RawClient(ensemble.ports[1])
    _timeout, session, password = holder.connect(timeout_ms=4000)
    # The zxid of the server that has answered: the other may not have the session yet.
    zxid = ensemble.call(lambda: ensemble.servers[2].machine.last_zxid)
    last = (session, password) if has_session else (0, bytes(16))
    with pytest.raises(ConnectionError):
        refused.connect(2000, *last, last_zxid=0x7F_0000_0000)
    created = holder.request(1, Op.CREATE, create("/mine", 1))
    assert created[1:3] == (zxid + 1, 0), "the refused client has written something"
    machine = ensemble.servers[2].machine
    assert ensemble.call(lambda: [each.timeout_ms for each in machine.sessions.all()]) == [4000]
    for each in (holder, refused):
        each.close()


def test_a_server_that_is_behind_catches_up_for_a_client(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = RawClient(ensemble.ports[1]), RawClient(ensemble.ports[2])
    _timeout, session, password = first.connect()
    quorum = ensemble.quorums[2]
    deliver, barred = quorum.deliver, quorum.barred

    def catches_up(number: int) -> None:
        monkeypatch.setattr(quorum, "deliver", deliver)
        barred(number)

    ensemble.call(lambda: monkeypatch.setattr(quorum, "deliver", lambda _until: None))
    ensemble.call(lambda: monkeypatch.setattr(quorum, "barred", catches_up))
    zxid = first.request(1, Op.CREATE, create("/seen"))[1]
    first.close()
    assert ensemble.call(lambda: ensemble.servers[2].machine.last_zxid) < zxid
    assert second.connect(session_id=session, password=password, last_zxid=zxid)[1] == session
    second.close()


def test_the_end_of_a_session_is_answered(ensemble: Ensemble) -> None:
    client = RawClient(ensemble.ports[2])
    client.connect()
    assert client.request(7, Op.CLOSE_SESSION)[:3:2] == (7, 0)
    assert client.receive() == b""
    client.close()


def test_the_end_of_a_session_is_answered_while_the_client_may_not_hear_that_it_is_alive(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = RawClient(ensemble.ports[2])
    client.connect()
    monkeypatch.setattr(ensemble.replication(2), "may_send", lambda connection: False)
    assert client.request(7, Op.CLOSE_SESSION)[:3:2] == (7, 0)
    assert client.receive() == b""
    client.close()


def test_reconfig_is_disabled_by_default(ensemble: Ensemble) -> None:
    raw = RawClient(ensemble.ports[1])
    raw.connect()
    body = Writer().string(None).string(None).string("server.1=a:1:2").i64(-1).finish()
    assert raw.request(1, Op.RECONFIG, body)[2] == Code.RECONFIG_DISABLED
    raw.close()


def test_the_leader_ends_a_silent_session_with_its_nodes_everywhere(ensemble: Ensemble) -> None:
    silent, watching = RawClient(ensemble.ports[2]), RawClient(ensemble.ports[3])
    silent.connect(timeout_ms=2000)
    assert silent.request(1, Op.CREATE, create("/e", 1))[2] == 0
    watching.connect(timeout_ms=20_000)
    watching.request(1, Op.SYNC, Writer().string("/").finish())
    assert watching.request(2, Op.EXISTS, Writer().string("/e").boolean(True).finish())[2] == 0
    assert watching.reply()[0] == -1, "no event for the deletion"
    assert watching.request(3, Op.EXISTS, Writer().string("/e").boolean(False).finish())[2] == Code.NO_NODE
    assert silent.receive() == b""
    silent.close()
    watching.close()


def test_a_server_without_contact_does_not_answer_pings(ensemble: Ensemble) -> None:
    """Its answers must stop before the leader may expire the session."""
    client = RawClient(ensemble.ports[1])
    timeout_ms, session, _password = client.connect(timeout_ms=2000)
    replication = ensemble.replication(1)
    ensemble.cut(1)
    holder = ensemble.call(lambda: ensemble.servers[1].holder(session))
    ensemble.wait(lambda: not replication.may_send(holder))
    client.send(Writer().i32(-2).i32(Op.PING).finish())
    client.socket.settimeout(WAIT_SECONDS)
    assert client.receive() == b"", "the ping was answered"
    assert timeout_ms == 2000
    client.close()


def test_writes_wait_while_the_quorum_is_full(ensemble: Ensemble) -> None:
    client = RawClient(ensemble.ports[1])
    client.connect(timeout_ms=20_000)
    quorum, replication = ensemble.quorums[1], ensemble.replication(1)
    quorum.outstanding_max = 2
    ensemble.cut(1, 2, 3)
    for number in range(50):
        client.send(Writer().i32(number).i32(Op.CREATE).finish() + create(f"/{number}"))
    ensemble.wait(lambda: replication.is_full)
    ensemble.cut()
    for number in range(50):
        assert client.reply()[:3:2] == (number, 0)
    assert not ensemble.call(lambda: replication.is_full)
    client.close()


def test_a_server_with_watches_gets_others_writes_sooner(ensemble: Ensemble) -> None:
    writer, watcher = RawClient(ensemble.ports[1]), RawClient(ensemble.ports[2])
    for client in (writer, watcher):
        client.connect(timeout_ms=20_000)
    quorum = ensemble.quorums[2]
    assert writer.request(1, Op.CREATE, create("/a", 1))[2] == 0
    ensemble.wait(lambda: quorum.wake_interval_ms == UNWATCHED_MS)
    assert watcher.request(1, Op.ADD_WATCH, Writer().string("/").i32(1).finish())[2] == 0
    assert writer.request(2, Op.CREATE, create("/b", 1))[2] == 0
    assert watcher.reply()[0] == -1
    ensemble.wait(lambda: quorum.wake_interval_ms == WATCHED_MS)
    watcher.close()
    ensemble.wait(lambda: not ensemble.servers[2].is_watched())
    assert writer.request(3, Op.CREATE, create("/c", 1))[2] == 0
    ensemble.wait(lambda: quorum.wake_interval_ms == UNWATCHED_MS)
    writer.close()


def test_metrics_are_updated_after_the_answers(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    client = RawClient(ensemble.ports[1])
    client.connect(timeout_ms=20_000)
    server, quorum, replication = ensemble.servers[1], ensemble.quorums[1], ensemble.replication(1)
    steps: list[str] = []

    def noted(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object) -> object:
            steps.append(name)
            return call(*arguments)

        return step

    def note() -> int:
        monkeypatch.setattr(quorum, "applied", noted("applied", quorum.applied))
        monkeypatch.setattr(replication._saving, "applied", noted("saving", replication._saving.applied))
        (connection,) = server.connections
        monkeypatch.setattr(connection, "send", noted("answer", connection.send))
        return int(server.metrics.counters["commit_count"])

    before = ensemble.call(note)
    assert client.request(1, Op.CREATE, create("/a", 1))[2] == 0
    ensemble.wait(lambda: "saving" in steps[steps.index("answer") :])
    assert steps[steps.index("answer") :][:3] == ["answer", "applied", "saving"]
    assert server.metrics.counters["commit_count"] == before + 1
    client.close()


def test_a_requested_snapshot_is_in_the_standalone_format(ensemble: Ensemble) -> None:
    client = RawClient(ensemble.ports[1])
    client.connect()
    assert client.request(1, Op.CREATE, create("/kept", 1))[2] == 0
    server = ensemble.servers[1]
    zxid, path = ensemble.thread.run(server.take_snapshot())
    machine = Machine(read_snapshot(path))
    assert machine.last_zxid == zxid == ensemble.call(lambda: server.machine.last_zxid)
    assert sorted(machine.tree.export()) == sorted(ensemble.call(lambda: server.machine.tree.export()))
    with pytest.raises(CoordinatorError, match="cannot be replaced by a snapshot"):
        ensemble.thread.run(server.restore(path.read_bytes()))
    client.close()


def test_only_the_newest_requested_snapshots_are_kept(start_ensemble: StartEnsemble) -> None:
    """If this failed, a nightly snapshot would fill the member's disk, or the newest would be deleted."""
    ensemble = start_ensemble(Settings(tick_time_ms=1000, snapshots_retained=3))
    ensemble.wait_until_serving()
    exports = ensemble.directory / "exports1"
    client = RawClient(ensemble.ports[1])
    client.connect()
    made: list[Path] = []
    for number in range(5):
        assert client.request(number, Op.CREATE, create(f"/{number}", 0))[2] == 0
        made.append(ensemble.thread.run(ensemble.servers[1].take_snapshot())[1])
        assert sorted(exports.iterdir()) == made[-3:]
    client.close()
    left = exports / "snapshot.0000000000000007.tmp"
    left.write_bytes(b"")
    ensemble.stop(1)
    ensemble.start(1)
    assert sorted(exports.iterdir()) == made[-3:], "an incomplete file of a crash was kept"


def test_the_metrics_show_the_time_of_the_first_snapshot(start_ensemble: StartEnsemble) -> None:
    ensemble = start_ensemble(Settings(tick_time_ms=1000, snapshot_transactions=50))
    ensemble.wait_until_serving()
    client = RawClient(ensemble.ports[2])
    client.connect()
    for each in range(100):
        assert client.request(each, Op.CREATE, create(f"/{each}"))[2] == 0
    client.close()
    ensemble.wait(lambda: 1 in ensemble.log.saved)
    ensemble.stop(1)
    ensemble.start(1)
    metrics = ensemble.servers[1].metrics
    ensemble.wait(lambda: metrics.values()["cnt_dbinittime"])
    assert metrics.values()["cnt_startup_snap_load_time"] == 1


@pytest.fixture
def written(start_ensemble: StartEnsemble, monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    """An ensemble with 100 nodes, each of which is a slice of a snapshot. No snapshot is due."""
    monkeypatch.setattr("cluster.coordinator.durability.snapshot.SLICE_NODES", 1)
    ensemble = start_ensemble(Settings(tick_time_ms=1000, snapshot_transactions=1000))
    ensemble.wait_until_serving()
    client = RawClient(ensemble.ports[2])
    client.connect()
    for each in range(100):
        assert client.request(each, Op.CREATE, create(f"/{each}"))[2] == 0
    client.close()
    ensemble.wait(lambda: ensemble.replication(1).agreed.machine.tree.find("/99"))
    assert not ensemble.log.saved
    return ensemble


def begin_snapshot(ensemble: Ensemble, number: int) -> None:
    replication = ensemble.replication(number)
    quorum = ensemble.quorums[number]
    ensemble.call(lambda: replication._saving.applied(1000, quorum, replication.agreed))


def test_a_member_whose_disk_fails_can_be_stopped(written: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sink, "finish", lambda sink: sink.quorum.fail("its disk is broken"))
    server = written.servers[1]
    begin_snapshot(written, 1)
    assert server.failed is not None
    written.wait(server.failed.done)
    written.stop(1)
    with pytest.raises(CoordinatorError, match="its disk is broken"):
        server.failed.result()
    assert 1 not in written.log.saved


def test_an_unfinished_snapshot_does_not_delay_a_stop(written: Ensemble) -> None:
    begin_snapshot(written, 1)
    written.stop(1)
    assert 1 not in written.log.saved


# If this failed, a disk without space for a snapshot would end the member.
def test_a_failed_snapshot_gives_a_warning_and_ends_nothing(
    written: Ensemble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = Sink.write

    def fail(sink: Sink, data: bytes) -> bool:
        if len(sink.data) == 0:
            sink.quorum.put(("snapshot", sink.index, "No space left on device"))
        return write(sink, data)

    monkeypatch.setattr(Sink, "write", fail)
    # The quorum reports a failed snapshot once.
    monkeypatch.setattr(Sink, "finish", lambda _sink: None)
    begin_snapshot(written, 1)
    written.wait(lambda: "no snapshot was taken: No space left on device" in caplog.text)
    client = RawClient(written.ports[1])
    client.connect()
    assert client.request(1, Op.CREATE, create("/behind"))[2] == 0
    client.close()
    server = written.servers[1]
    assert server.failed is not None
    assert not server.failed.done()
    assert not written.log.saved


class Served:
    """The part of a server that Contact uses."""

    settings = Settings(tick_time_ms=1000)

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.metrics = ServerMetrics()
        self.aborted = 0

    def abort_all(self) -> None:
        self.aborted += 1


def test_a_new_leader_gives_every_session_a_full_timeout() -> None:
    async def lead() -> None:
        served: Any = Served()
        timers = Timers(lambda call: call())
        keeper = SessionKeeper(1000, served.clock, lambda: None)
        contact = Contact(served, timers, keeper, lambda: [Session(1, 4000, b"")], lambda: True, 2000)

        def remaining_ms() -> int | None:
            deadlines = keeper.deadlines()
            return deadlines[0][0] - served.clock.now_ms if deadlines else None

        contact.took_role("follower", 1, 2, True)
        assert contact.is_serving
        assert remaining_ms() is None, "a follower expires sessions"
        contact.took_role("leader", 2, 1, True)
        assert remaining_ms() is None, "sessions expire before all earlier terms are applied"
        contact.leading(2)
        assert 4000 <= (remaining_ms() or 0) <= 5000
        served.clock.now_ms += 3000
        contact.took_role("leader", 2, 1, False)
        assert remaining_ms() is None, "a leader without a majority expires sessions"
        assert contact.is_serving, "the leader stopped serving at once"
        served.clock.now_ms += 60_000
        contact.took_role("leader", 2, 1, True)
        assert 4000 <= (remaining_ms() or 0) <= 5000
        contact.took_role("looking", 3, 0, False)
        assert (remaining_ms(), contact.leads_in) == (None, 0)
        contact.leading(2)
        assert contact.leads_in == 0, "the member leads in an old term"
        assert served.aborted == 0
        timers.end()
        contact.end()
        assert not contact.is_serving

    asyncio.run(asyncio.wait_for(lead(), WAIT_SECONDS))


def test_commands_are_proposed_and_claimed_in_order() -> None:
    async def propose() -> None:
        loop = asyncio.get_running_loop()
        log = FakeEnsemble(loop, [1], random.Random(1), lambda: 0)
        quorum = FakeQuorum(log, 1, outstanding_max=3)
        quorum.begin()
        has_space = asyncio.Event()
        timers = Timers(lambda call: call())
        outbox: Outbox[int] = Outbox(lambda call: call(), timers, has_space.set)
        for number in range(2):
            outbox.put(b"%d" % number, number)
        outbox.open(quorum)
        outbox.send()
        for number in range(2, 6):
            outbox.put(b"%d" % number, number)
        outbox.send()
        assert outbox.is_full
        assert len(outbox) == 6
        assert [data for _ticket, data in quorum.outstanding] == [b"0", b"1"], "a batch was proposed in part"
        tickets = [ticket for ticket, _data in quorum.outstanding]
        assert [outbox.claim(ticket) for ticket in tickets] == [0, 1]
        quorum.outstanding.clear()
        await has_space.wait()
        assert not outbox.is_full
        assert [data for _ticket, data in quorum.outstanding] == [b"2", b"3", b"4", b"5"]
        first = quorum.outstanding[0][0]
        outbox.forget_below(first + 2)
        assert len(outbox) == 2
        assert outbox.claim(first + 2) == 4
        with pytest.raises(AssertionError):
            outbox.claim(first + 2)
        quorum.end()
        timers.end()

    asyncio.run(asyncio.wait_for(propose(), WAIT_SECONDS))


def test_a_suspended_process_extends_every_session() -> None:
    async def suspended() -> None:
        clock, ended = FakeClock(), asyncio.Event()
        found: list[int] = []

        def due() -> None:
            found.extend(keeper.take_expired())
            if found:
                ended.set()

        keeper = SessionKeeper(10, clock, due)
        keeper.start([Session(1, 20, b"")])
        deadline = keeper.deadlines()[0][0]
        clock.now_ms = deadline + 1000  # the timer fires a second late
        while keeper.deadlines()[0][0] == deadline:
            await asyncio.sleep(0.001)
        assert not found
        clock.now_ms = keeper.deadlines()[0][0]
        await ended.wait()
        assert found == [1]
        keeper.stop()

    asyncio.run(asyncio.wait_for(suspended(), WAIT_SECONDS))
