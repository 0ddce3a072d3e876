"""kazoo clients on three servers. If these fail, clients see more than one ZooKeeper in an ensemble."""

from __future__ import annotations

import queue
import re
import struct
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import NoNodeError, NotReadOnlyCallError
from kazoo.protocol.states import KeeperState

from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN
from tests.coordinator.support import WAIT_SECONDS, RawClient
from tests.coordinator.test_bad_input import reads_and_writes_unread
from tests.coordinator.test_server import Events, States

from .conftest import SETTINGS, Connect, Ensemble, StartEnsemble


def create(path: str, flags: int = 0) -> bytes:
    return Writer().string(path).buffer(b"x").acls(OPEN).i32(flags).finish()


def test_a_write_at_one_server_is_read_at_the_others(connect_to: Connect) -> None:
    clients = [connect_to(number) for number in (1, 2, 3)]
    for number, client in enumerate(clients):
        client.create(f"/n{number}", str(number).encode(), ephemeral=number == 1)
    for client in clients:
        client.sync("/")
        assert [client.get(f"/n{number}")[0] for number in range(3)] == [b"0", b"1", b"2"]
        assert client.get("/n1")[1].ephemeralOwner == clients[1].client_id[0]
    assert len({client.client_id[0] for client in clients}) == 3
    stats = [client.get("/n0")[1] for client in clients]
    assert stats[0] == stats[1] == stats[2]
    assert stats[0].czxid >> 32 >= 1, "the zxid has no epoch of an election"


def test_an_election_only_delays_writes(ensemble: Ensemble, connect_to: Connect) -> None:
    client = connect_to(1)
    states = States(client)
    client.create("/c", b"")
    pending = []
    for number in range(400):
        pending.append(client.set_async("/c", str(number).encode()))
        if number % 100 == 50:
            ensemble.call(ensemble.log.depose)
    versions = [each.get(timeout=WAIT_SECONDS).version for each in pending]
    assert versions == list(range(1, 401)), "a write was lost, done twice or out of order"
    assert client.state == KazooState.CONNECTED
    assert states._queue.empty(), "the client lost its connection"


def test_a_session_continues_at_another_server(ensemble: Ensemble, connect_to: Connect) -> None:
    owner, watcher = connect_to(), connect_to(2)
    session = owner.client_id[0]
    owner.create("/e", b"1", ephemeral=True)
    events = Events()
    watcher.sync("/")
    assert watcher.exists("/e", watch=events)
    states = States(owner)
    at = next(
        number
        for number in (1, 2, 3)
        if ensemble.call(lambda number=number: ensemble.servers[number].holder(session)) is not None
    )
    if at == 2:
        ensemble.call(lambda: ensemble.servers[at].holder(session).abort())
    else:
        ensemble.stop(at)
    states.wait(KazooState.SUSPENDED)
    states.wait(KazooState.CONNECTED)
    assert owner.client_id[0] == session
    owner.set("/e", b"2")
    assert events.next() == ("CHANGED", "/e")
    owner.stop()
    watcher.sync("/")
    assert watcher.exists("/e") is None


def test_a_late_write_of_a_moved_session_closes_its_connection(ensemble: Ensemble) -> None:
    """ZooKeeper does so too when the session has moved to another server."""
    first, second = RawClient(ensemble.ports[1]), RawClient(ensemble.ports[2])
    _timeout, session, password = first.connect()
    assert first.request(1, Op.CREATE, create("/mine", 1))[2] == 0
    quorum = ensemble.quorums[1]
    # Later proposals of server 1 arrive after the session's move.
    ensemble.call(lambda: ensemble.log.cut.add(1))
    first.send(struct.pack(">ii", 2, Op.CREATE) + create("/late"))
    ensemble.wait(lambda: len(quorum.outstanding) == 1)
    assert second.connect(session_id=session, password=password)[1] == session
    assert second.request(3, Op.CREATE, create("/second"))[2] == 0
    ensemble.cut()
    assert first.receive() == b"", "the late write was answered"
    ensemble.wait(lambda: not quorum.outstanding)
    assert second.request(4, Op.SYNC, Writer().string("/").finish())[2] == 0
    assert second.request(5, Op.EXISTS, Writer().string("/late").boolean(False).finish())[2] == Code.NO_NODE
    assert second.request(6, Op.EXISTS, Writer().string("/mine").boolean(False).finish())[2] == 0
    first.close()
    second.close()


def test_reads_do_not_see_later_writes_of_the_same_client(ensemble: Ensemble, connect_to: Connect) -> None:
    raw, other = RawClient(ensemble.ports[2]), connect_to(2)

    def written() -> None:
        while other.get("/n")[1].version < 2:
            pass

    reads_and_writes_unread(raw, written)
    raw.close()


def test_a_wrong_password_gets_no_session(ensemble: Ensemble) -> None:
    first, second = RawClient(ensemble.ports[1]), RawClient(ensemble.ports[2])
    _timeout, session, _password = first.connect()
    assert second.connect(session_id=session, password=b"x" * 16)[1] == 0
    assert first.request(-2, Op.PING)[0] == -2, "a guess ended the session at another server"
    first.close()
    second.close()


def test_a_client_that_has_seen_a_newer_state_is_refused(ensemble: Ensemble) -> None:
    raw = RawClient(ensemble.ports[3])
    with pytest.raises(ConnectionError):
        raw.connect(last_zxid=1 << 60)
    raw.close()


def test_without_a_majority_clients_are_disconnected_and_reconnect(
    ensemble: Ensemble, connect_to: Connect
) -> None:
    client = connect_to(timeout=40.0)
    client.create("/e", ephemeral=True)
    states = States(client)
    ensemble.cut(1, 2, 3)
    states.wait(KazooState.SUSPENDED)
    ensemble.wait(lambda: not any(server.is_serving for server in ensemble.servers.values()))
    assert ensemble.ask(1, "srvr") == "This ZooKeeper instance is not currently serving requests\n"
    assert ensemble.ask(1, "isro") == "null"
    assert ensemble.ask(1, "ruok") == "imok"
    ensemble.cut()
    states.wait(KazooState.CONNECTED)
    assert client.exists("/e")


def test_read_only_clients_are_served_without_a_majority(ensemble: Ensemble, connect_to: Connect) -> None:
    client = connect_to(1, read_only=True, timeout=40.0)
    client.create("/r", b"before")
    states: queue.Queue[Any] = queue.Queue()
    client.add_listener(lambda state: states.put(client._session_callback and client.client_state))
    ensemble.cut(1, 2, 3)
    ensemble.wait(lambda: ensemble.servers[1].replication.is_reading_only)
    while states.get(timeout=WAIT_SECONDS) != KeeperState.CONNECTED_RO:
        pass
    assert client.get("/r")[0] == b"before"
    with pytest.raises(NotReadOnlyCallError):
        client.set("/r", b"after")
    assert ensemble.ask(1, "isro") == "ro"
    assert "\nMode: read-only\n" in ensemble.ask(1, "srvr")
    writer = RawClient(ensemble.ports[1])
    with pytest.raises(ConnectionError):
        writer.connect()
    writer.close()
    ensemble.cut()
    while states.get(timeout=WAIT_SECONDS) != KeeperState.CONNECTED:
        pass
    client.set("/r", b"after")


def test_a_server_that_has_applied_nothing_serves_no_reads(
    start_ensemble: StartEnsemble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If this failed, a member that starts alone would show an empty tree to read-only clients."""
    monkeypatch.setattr("cluster.coordinator.ensemble.contact.READ_ONLY_MS_MIN", 10)
    ensemble = start_ensemble(replace(SETTINGS, tick_time_ms=50), numbers=(1,))
    ensemble.wait(lambda: "no reads are served, either" in caplog.text)
    assert ensemble.ask(1, "isro") == "null"
    raw = RawClient(ensemble.ports[1])
    raw.send(struct.pack(">iqiqi", 0, 0, 10_000, 0, 16) + bytes(16) + b"\1")
    assert raw.receive() == b"", "a read-only client was served"
    raw.close()
    ensemble.start(2)
    ensemble.wait_until_serving(1, 2)
    ensemble.cut(1, 2)
    ensemble.wait(lambda: ensemble.servers[1].replication.is_reading_only)


def test_a_server_without_contact_refuses_clients(start_ensemble: StartEnsemble) -> None:
    ensemble = start_ensemble(numbers=(1,))
    raw = RawClient(ensemble.ports[1])
    with pytest.raises(ConnectionError):
        raw.connect()
    raw.close()
    ensemble.start(2)
    ensemble.wait_until_serving(1, 2)
    client = RawClient(ensemble.ports[1])
    assert client.connect()[1] != 0
    client.close()


def test_the_words_show_the_mode(ensemble: Ensemble, connect_to: Connect) -> None:
    client = connect_to()
    client.create("/x")
    modes = {}
    for number in (1, 2, 3):
        found = re.search(r"^Mode: (.*)$", ensemble.ask(number, "srvr"), re.MULTILINE)
        assert found is not None
        modes[number] = found[1]
    leader = ensemble.call(lambda: ensemble.log.leader)
    assert modes == {number: "leader" if number == leader else "follower" for number in (1, 2, 3)}
    ensemble.wait(lambda: ensemble.replication(leader).gauges()["synced_followers"] == 2)
    values = dict(line.split("\t") for line in ensemble.ask(leader, "mntr").splitlines())
    assert values["zk_server_state"] == "leader"
    assert (values["zk_learners"], values["zk_synced_followers"], values["zk_quorum_size"]) == ("2", "2", "3")
    assert values["zk_peer_state"] == "leading - broadcast"
    follower = next(number for number in modes if number != leader)
    values = dict(line.split("\t") for line in ensemble.ask(follower, "mntr").splitlines())
    assert values["zk_server_state"] == "follower"
    assert "zk_learners" not in values
    conf = ensemble.ask(follower, "conf")
    assert f"serverId={0}\n" in conf
    assert "syncLimit=2\nelectionAlg=3\n" in conf
    assert "peerType=0\nmembership: \nserver.1=127.0.0.1:2001:3001:participant\n" in conf


def test_the_configuration_node_follows_the_members(ensemble: Ensemble, connect_to: Connect) -> None:
    client = connect_to(1)
    data, stat = client.get("/zookeeper/config")
    lines = "".join(f"server.{n}=127.0.0.1:{2000 + n}:{3000 + n}:participant\n" for n in (1, 2, 3))
    assert data.decode() == lines + "version=0"
    events = Events()
    client.get("/zookeeper/config", watch=events)
    members = ensemble.log.members[:2]
    ensemble.call(lambda: ensemble.log.append([], members))
    assert events.next() == ("CHANGED", "/zookeeper/config")
    data, changed = client.get("/zookeeper/config")
    assert data.decode() == "".join(lines.splitlines(keepends=True)[:2]) + f"version={changed.mzxid:x}"
    assert changed.mzxid > stat.mzxid


def test_a_late_member_begins_with_a_snapshot(start_ensemble: StartEnsemble) -> None:
    ensemble = start_ensemble(replace(SETTINGS, snapshot_transactions=40), (1, 2))
    ensemble.wait_until_serving(1, 2)
    client = KazooClient(hosts=ensemble.hosts, timeout=10.0)
    client.start(timeout=WAIT_SECONDS)
    client.create("/s")
    for number in range(200):
        client.create(f"/s/{number}")
    ensemble.wait(lambda: ensemble.log.first_kept > 0)
    ensemble.start(3)
    ensemble.wait_until_serving(3)
    raw = KazooClient(hosts=f"127.0.0.1:{ensemble.ports[3]}", timeout=10.0)
    raw.start(timeout=WAIT_SECONDS)
    raw.sync("/")
    assert len(raw.get_children("/s")) == 200
    with pytest.raises(NoNodeError):
        raw.get("/nothing")
    raw.stop()
    raw.close()
    client.stop()
    client.close()


def test_only_one_client_has_kazoos_lock(ensemble: Ensemble, connect_to: Connect) -> None:
    acquired: queue.Queue[str] = queue.Queue()
    clients = [connect_to(number) for number in (1, 2, 3)]
    first = clients[0].Lock("/lock", "first")
    assert first.acquire(timeout=WAIT_SECONDS)
    others = []
    for number, client in enumerate(clients[1:], 2):
        lock = client.Lock("/lock", str(number))
        result = client.handler.spawn(
            lambda lock=lock, number=number: (lock.acquire(), acquired.put(str(number)), lock.release())
        )
        others.append(result)
    ensemble.call(ensemble.log.depose)
    assert acquired.empty()
    first.release()
    assert {acquired.get(timeout=WAIT_SECONDS), acquired.get(timeout=WAIT_SECONDS)} == {"2", "3"}
