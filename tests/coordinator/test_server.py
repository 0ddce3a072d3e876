"""The server, seen by kazoo clients.

If these fail, brokers lose their registrations, or see their cluster's state late, in the wrong order or not
at all.
"""

from __future__ import annotations

import queue
import struct
import threading
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    InvalidACLError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import WatchedEvent
from kazoo.security import CREATOR_ALL_ACL, make_digest_acl

from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Id, Reader, Writer
from cluster.coordinator.protocol.replies import Event
from cluster.coordinator.protocol.requests import Op

from .conftest import Connect, OpenRaw, StartCoordinator
from .support import WAIT_SECONDS, Coordinator


class Events:
    """A watch callback that collects its events."""

    def __init__(self) -> None:
        self._queue: queue.Queue[WatchedEvent] = queue.Queue()

    def __call__(self, event: WatchedEvent) -> None:
        self._queue.put(event)

    def next(self) -> tuple[str, str]:
        event = self._queue.get(timeout=WAIT_SECONDS)
        return event.type, event.path

    def empty(self) -> bool:
        return self._queue.empty()


def notification(reply: tuple[int, int, int, bytes]) -> tuple[int, str | None]:
    """The type and the path of a WatcherEvent."""
    xid, _zxid, error, body = reply
    assert (xid, error) == (-1, 0)
    reader = Reader(body)
    event, state = reader.i32(), reader.i32()
    assert state == 3
    return event, reader.string()


class States:
    """Waits for a state of a client's session."""

    def __init__(self, client: KazooClient) -> None:
        self._queue: queue.Queue[str] = queue.Queue()
        client.add_listener(self._queue.put)

    def wait(self, state: str) -> None:
        while self._queue.get(timeout=WAIT_SECONDS) != state:
            pass


def test_create_get_set_and_delete_check_versions(client: KazooClient) -> None:
    assert client.create("/a", b"one") == "/a"
    data, stat = client.get("/a")
    assert (data, stat.version, stat.dataLength, stat.ephemeralOwner) == (b"one", 0, 3, 0)
    assert stat.czxid == stat.mzxid == stat.pzxid > 0
    assert client.set("/a", b"two", version=0).version == 1
    with pytest.raises(BadVersionError):
        client.set("/a", b"x", version=0)
    with pytest.raises(NodeExistsError):
        client.create("/a")
    with pytest.raises(NoNodeError):
        client.create("/b/c")
    client.create("/a/b")
    with pytest.raises(NotEmptyError):
        client.delete("/a")
    client.delete("/a/b")
    client.delete("/a", version=1)
    assert client.exists("/a") is None


def test_children_are_listed_and_counted(client: KazooClient) -> None:
    client.create("/p")
    for name in ("x", "y", "z"):
        client.create(f"/p/{name}")
    client.delete("/p/y")
    children, stat = client.get_children("/p", include_data=True)
    assert sorted(children) == ["x", "z"]
    assert (stat.numChildren, stat.cversion) == (2, 4)
    assert client.get_children("/zookeeper") == ["config", "quota"]


def test_sequential_names_count_every_child_ever_created(client: KazooClient) -> None:
    client.create("/s")
    assert client.create("/s/n-", sequence=True) == "/s/n-0000000000"
    client.create("/s/plain")
    client.delete("/s/n-0000000000")
    path, stat = client.create("/s/n-", b"data", sequence=True, include_data=True)
    assert (path, stat.dataLength) == ("/s/n-0000000002", 4)


def test_ephemeral_nodes_are_deleted_with_their_session(client: KazooClient, connect: Connect) -> None:
    owner = connect()
    owner.create("/e", ephemeral=True)
    owner.create("/e-", ephemeral=True, sequence=True)
    assert client.exists("/e").ephemeralOwner == owner.client_id[0]
    with pytest.raises(NoChildrenForEphemeralsError):
        client.create("/e/child")
    owner.stop()
    assert client.get_children("/") == ["zookeeper"]


def test_a_transaction_is_all_or_nothing(client: KazooClient) -> None:
    transaction = client.transaction()
    transaction.create("/t", b"1")
    transaction.create("/t/n-", sequence=True)
    transaction.set_data("/t", b"2", version=0)
    transaction.check("/t", 1)
    transaction.delete("/t/n-0000000000")
    results = transaction.commit()
    assert results[:2] == ["/t", "/t/n-0000000000"]
    assert (results[2].version, results[3], results[4]) == (1, True, True)

    transaction = client.transaction()
    transaction.set_data("/t", b"3")
    transaction.check("/t", 1)
    transaction.delete("/t")
    results = transaction.commit()
    assert [type(result) for result in results] == [RolledBackError, BadVersionError, RuntimeInconsistency]
    assert client.get("/t")[0] == b"2"


def test_data_watches_fire_once_and_before_the_new_data_is_seen(
    client: KazooClient, connect: Connect
) -> None:
    client.create("/w", b"0")
    watcher = connect()
    events = Events()
    assert watcher.exists("/later", watch=events) is None
    watcher.get("/w", watch=events)
    client.set("/w", b"1")
    client.set("/w", b"2")
    client.create("/later")
    assert watcher.get("/w")[0] in (b"1", b"2")
    assert events.next() == ("CHANGED", "/w")
    assert events.next() == ("CREATED", "/later")
    assert events.empty()


def test_child_watches_fire_for_children_only(client: KazooClient, connect: Connect) -> None:
    client.create("/c")
    watcher, events = connect(), Events()
    watcher.get_children("/c", watch=events)
    client.set("/c", b"data is no child")
    client.create("/c/x")
    assert events.next() == ("CHILD", "/c")
    watcher.get_children("/c/x", watch=events)
    watcher.get_children("/c", watch=events)
    client.delete("/c/x")
    assert {events.next(), events.next()} == {("DELETED", "/c/x"), ("CHILD", "/c")}


def test_a_refused_change_fires_nothing(client: KazooClient, connect: Connect) -> None:
    client.create("/r", b"")
    watcher, events = connect(), Events()
    watcher.get("/r", watch=events)
    transaction = client.transaction()
    transaction.set_data("/r", b"1")
    transaction.check("/r", 9)
    transaction.commit()
    client.create("/fence")
    watcher.sync("/")
    assert watcher.exists("/fence")
    assert events.empty()


def test_requests_of_one_client_are_answered_in_order(client: KazooClient) -> None:
    client.create("/o", b"")
    pending: list[Any] = []
    for number in range(300):
        pending.append(client.set_async("/o", str(number).encode()))
        pending.append(client.get_async("/o"))
    answers = [answer.get(timeout=WAIT_SECONDS) for answer in pending]
    for number in range(300):
        assert answers[2 * number].version == number + 1
        assert answers[2 * number + 1][0] == str(number).encode()
    zxids = [answer.mzxid for answer in answers[::2]]
    assert zxids == sorted(set(zxids))


def test_a_reconnect_keeps_the_session_and_its_ephemerals(coordinator: Coordinator, connect: Connect) -> None:
    owner = connect()
    session = owner.client_id
    owner.create("/e", ephemeral=True)
    states = States(owner)
    coordinator.thread.call(lambda: coordinator.server._by_session[session[0]].abort())
    states.wait(KazooState.CONNECTED)
    assert owner.client_id == session
    assert owner.exists("/e").ephemeralOwner == session[0]


def test_dropped_connections_and_reconnected_sessions_are_counted(
    coordinator: Coordinator, open_raw: OpenRaw
) -> None:
    """``connection_drop_count`` counts connections that the client or the network has ended."""
    counters = coordinator.server.metrics.counters

    def counted() -> tuple[int, int]:
        return counters["connection_drop_count"], counters["connection_revalidate_count"]

    client = open_raw()
    _timeout, session, password = client.connect()
    assert client.request(1, Op.CLOSE_SESSION)[2] == 0
    assert client.receive() == b""
    for _ in range(2):
        client = open_raw()
        _timeout, session, password = client.connect()
        client.close()
    coordinator.thread.wait(lambda: not coordinator.server.connections)
    assert coordinator.thread.call(counted) == (2, 0)
    client, other = open_raw(), open_raw()
    assert client.connect(session_id=session, password=password)[1] == session
    assert other.connect(session_id=session)[1] == 0, "a wrong password was accepted"
    assert client.receive() == b""
    coordinator.thread.wait(lambda: not coordinator.server.connections)
    assert coordinator.thread.call(counted) == (2, 2), "a connection that the server ended was counted"


def test_events_missed_while_disconnected_are_sent_on_reconnect(
    coordinator: Coordinator, client: KazooClient, open_raw: OpenRaw
) -> None:
    for path in ("/changed", "/gone", "/parent", "/same"):
        client.create(path)
    away = open_raw()
    _timeout, session, password = away.connect()
    seen = away.request(1, Op.EXISTS, Writer().string("/same").boolean(False).finish())[1]
    away.close()
    client.set("/changed", b"new")
    client.delete("/gone")
    client.create("/born")
    client.create("/parent/child")
    back = open_raw()
    assert back.connect(session_id=session, password=password, last_zxid=seen)[1] == session
    watches = Writer().i64(seen)
    watches.strings(["/changed", "/gone", "/same"]).strings(["/born", "/never"]).strings(["/parent", "/same"])
    back.send(Writer().i32(-8).i32(Op.SET_WATCHES).finish() + watches.finish())
    events = [notification(back.reply()) for _ in range(4)]
    assert events == [
        (Event.DATA_CHANGED, "/changed"),
        (Event.DELETED, "/gone"),
        (Event.CREATED, "/born"),
        (Event.CHILDREN_CHANGED, "/parent"),
    ]
    assert back.reply()[:3:2] == (-8, 0)
    client.set("/same", b"now")
    client.create("/never")
    client.create("/same/child")
    events = [notification(back.reply()) for _ in range(3)]
    assert events == [
        (Event.DATA_CHANGED, "/same"),
        (Event.CREATED, "/never"),
        (Event.CHILDREN_CHANGED, "/same"),
    ]


def test_an_event_reaches_its_client_before_the_new_data(client: KazooClient, open_raw: OpenRaw) -> None:
    client.create("/w", b"0")
    watcher = open_raw()
    watcher.connect()
    read = Writer().string("/w").boolean(True).finish()
    assert watcher.request(1, Op.GET_DATA, read)[3][4:5] == b"0"
    change = client.set_async("/w", b"1")
    notified = False
    for xid in range(2, 10_000):
        watcher.send(
            Writer().i32(xid).i32(Op.GET_DATA).finish() + Writer().string("/w").boolean(False).finish()
        )
        answer = watcher.reply()
        if answer[0] == -1:
            notified = True
            answer = watcher.reply()
        if answer[3][4:5] == b"1":
            assert notified
            break
    else:
        pytest.fail("the change never arrived")
    change.get(timeout=WAIT_SECONDS)


def test_a_persistent_recursive_watch_fires_until_it_is_removed(
    client: KazooClient, open_raw: OpenRaw
) -> None:
    watcher = open_raw()
    watcher.connect()
    assert watcher.request(1, Op.ADD_WATCH, Writer().string("/").i32(1).finish())[2] == 0
    client.create("/a")
    client.create("/a/b")
    client.set("/a/b", b"1")
    events = [notification(watcher.reply()) for _ in range(3)]
    assert events == [(Event.CREATED, "/a"), (Event.CREATED, "/a/b"), (Event.DATA_CHANGED, "/a/b")]
    remove = Writer().string("/").i32(3).finish()
    assert watcher.request(2, Op.CHECK_WATCHES, remove)[2] == 0
    assert watcher.request(3, Op.REMOVE_WATCHES, remove)[2] == 0
    assert watcher.request(4, Op.REMOVE_WATCHES, remove)[2] == Code.NO_WATCHER
    client.delete("/a/b")
    assert watcher.request(-2, Op.PING)[0] == -2


def test_a_silent_session_expires_with_its_ephemerals(
    coordinator: Coordinator, client: KazooClient, connect: Connect
) -> None:
    client.create("/stays")
    owner, gone = connect(timeout=4.0), Events()
    states = States(owner)
    owner.create("/e", ephemeral=True)
    assert client.exists("/e", watch=gone)
    session = owner.client_id[0]
    # The owner's timeout of 4 s is over; the other client's of 10 s is not.
    coordinator.pass_time(6001)
    assert gone.next() == ("DELETED", "/e")
    states.wait(KazooState.LOST)
    states.wait(KazooState.CONNECTED)
    assert owner.client_id[0] != session
    assert owner.exists("/stays")


def test_nothing_is_answered_after_a_sessions_end(open_raw: OpenRaw) -> None:
    client = open_raw()
    client.connect()
    close, ping = struct.pack(">ii", 7, Op.CLOSE_SESSION), struct.pack(">ii", -2, Op.PING)
    client.socket.sendall(struct.pack(">i", len(close)) + close + struct.pack(">i", len(ping)) + ping)
    assert client.reply()[:1] == (7,)
    assert client.receive() == b""


def test_timeouts_are_negotiated(open_raw: OpenRaw) -> None:
    assert open_raw().connect(timeout_ms=1000)[0] == 4000
    assert open_raw().connect(timeout_ms=500_000)[0] == 40_000


def test_sessions_survive_a_restart_unless_they_are_set_to_expire(
    start_coordinator: StartCoordinator, coordinator: Coordinator, connect: Connect
) -> None:
    owner = connect(timeout=40.0)
    owner.create("/e", ephemeral=True)
    session, states = owner.client_id, States(owner)
    coordinator.stop()
    states.wait(KazooState.SUSPENDED)
    second = start_coordinator(port=coordinator.port)
    states.wait(KazooState.CONNECTED)
    assert owner.client_id == session
    assert owner.exists("/e")
    second.stop()
    start_coordinator(port=coordinator.port, expire_sessions_at_start=True)
    states.wait(KazooState.LOST)
    states.wait(KazooState.CONNECTED)
    assert owner.client_id != session
    assert owner.exists("/e") is None


def test_digest_acls_are_enforced(client: KazooClient, connect: Connect) -> None:
    acl = make_digest_acl("ann", "secret", all=True)
    client.create("/private", b"x", acl=[acl])
    with pytest.raises(NoAuthError):
        client.get("/private")
    with pytest.raises(NoAuthError):
        client.create("/private/child")
    ann = connect(auth_data=[("digest", "ann:secret")])
    assert ann.get("/private")[0] == b"x"
    acls, stat = ann.get_acls("/private")
    assert (acls, stat.aversion) == ([acl], 0)
    with pytest.raises(InvalidACLError):
        ann.set_acls(
            "/private",
            [make_digest_acl("bob", "x", all=True), acl._replace(id=acl.id._replace(scheme="none"))],
        )
    assert ann.set_acls("/private", [acl], version=0).aversion == 1


def test_an_identity_with_any_characters_owns_its_nodes_after_a_restart(
    start_coordinator: StartCoordinator, coordinator: Coordinator, connect: Connect
) -> None:
    # Java's jute writes this character as two surrogates, which are not valid UTF-8.
    login = [("digest", "\N{GRINNING FACE}:secret")]
    owner = connect(auth_data=login)
    owner.create("/private", b"1", acl=CREATOR_ALL_ACL)
    assert owner.set("/private", b"2").version == 1
    coordinator.stop()
    second = start_coordinator()
    assert connect(second, auth_data=login).get("/private")[0] == b"2"
    with pytest.raises(NoAuthError):
        connect(second).get("/private")


def test_a_client_can_ask_who_it_is(open_raw: OpenRaw) -> None:
    raw = open_raw()
    raw.connect()
    raw.request(-4, Op.AUTH, Writer().i32(0).string("digest").buffer(b"ann:secret").finish())
    error, body = raw.request(1, Op.WHO_AM_I)[2:]
    assert (error, Reader(body).identities()) == (0, (Id("ip", "127.0.0.1"), Id("digest", "ann")))


def test_an_unknown_authentication_scheme_fails(connect: Connect) -> None:
    client = connect()
    with pytest.raises(AuthFailedError):
        client.add_auth("carrier-pigeon", "x")


def test_locks_and_elections_of_kazoo_work(connect: Connect) -> None:
    first, second = connect(), connect()
    finished, entered = threading.Event(), threading.Event()
    lock = first.Lock("/lock", "first")
    assert lock.acquire(timeout=WAIT_SECONDS)

    def contend() -> None:
        with second.Lock("/lock", "second"):
            entered.set()
        finished.set()

    thread = threading.Thread(target=contend)
    thread.start()
    assert not entered.is_set()
    lock.release()
    assert finished.wait(WAIT_SECONDS)
    thread.join(WAIT_SECONDS)


def test_a_reconnect_negotiates_its_timeout(coordinator: Coordinator, open_raw: OpenRaw) -> None:
    first = open_raw()
    _timeout, session, password = first.connect(timeout_ms=10_000)
    first.close()
    again = open_raw()
    assert again.connect(timeout_ms=30_000, session_id=session, password=password)[0] == 30_000
    coordinator.pass_time(20_000)
    assert again.request(-2, Op.PING)[2] == 0


def test_a_standalone_server_refuses_reconfig(open_raw: OpenRaw) -> None:
    raw = open_raw()
    raw.connect()
    body = Writer().string(None).string(None).string("server.1=a:1:2").i64(-1).finish()
    assert raw.request(1, Op.RECONFIG, body)[2] == Code.RECONFIG_DISABLED
