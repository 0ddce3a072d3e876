"""Well-formed hostile requests.

Every server applies the log, again at each start. If these fail, one client's request can stop all servers
for good, or keep them busy for a long time.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from cluster.coordinator import connection as connection_module
from cluster.coordinator import server as server_module
from cluster.coordinator.ensemble.agreed import Agreed, Proposed
from cluster.coordinator.ensemble.reconfiguration import TEXT_LETTERS_MAX, reconfigured
from cluster.coordinator.errors import Code, CoordinatorError, ZooKeeperError
from cluster.coordinator.protocol import replies
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Stat, Writer
from cluster.coordinator.protocol.replies import Failed, MultiDone
from cluster.coordinator.protocol.requests import (
    SEQUENTIAL,
    Check,
    Create,
    CreateSession,
    Delete,
    Multi,
    Op,
    Reconfig,
    SetAcl,
    SetData,
    Write,
    encode_reconfig,
)
from cluster.coordinator.state import acl as access
from cluster.coordinator.state import quota
from cluster.coordinator.state.acl import ANYONE, OPEN, Rules, Subject
from cluster.coordinator.state.machine import Command, Machine, Outcome
from cluster.coordinator.state.members import Member, parse_members
from cluster.coordinator.state.tree import Change, NodeState, Tree
from cluster.coordinator.transfer import begin_directory
from cluster.properties import parse_properties

from .conftest import Connect, StartCoordinator
from .support import WAIT_SECONDS, Coordinator, RawClient

LONG_MAX = (1 << 63) - 1
DIGITS = "9" * 4300
"""The longest number that Python converts from text; the next number is too long to convert back."""
MEMBERS = tuple(Member(n, f"h{n}", 2000 + n, 3000 + n, f"0.0.0.0:{4000 + n}", False) for n in (1, 2, 3))


@pytest.mark.parametrize("number", [DIGITS, "1" + DIGITS, str(LONG_MAX + 1), "-" + str(LONG_MAX + 2)])
def test_a_counter_above_64_bits_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        quota.decode_track(f"count={number},bytes=0".encode())


def test_a_counter_overflows_as_javas_long() -> None:
    track = quota.decode_track(f"count=+{'0' * 5000}{LONG_MAX},bytes=-{LONG_MAX + 1}".encode())
    assert track[:2] == (LONG_MAX, -LONG_MAX - 1)
    assert quota.decode_track(track.plus(1, -1).encode())[:2] == (-LONG_MAX - 1, LONG_MAX)


def test_an_unreadable_counter_stops_no_write(
    coordinator: Coordinator, connect: Connect, start_coordinator: StartCoordinator
) -> None:
    client = connect()
    client.create("/x")
    client.create("/zookeeper/quota/x")
    client.create("/zookeeper/quota/x/zookeeper_limits", b"count=5,bytes=-1")
    client.create("/zookeeper/quota/x/zookeeper_stats", b"")
    hostile = f"count={DIGITS},bytes=0".encode()
    client.set("/zookeeper/quota/x/zookeeper_stats", hostile)
    client.create("/x/a", b"1")
    assert client.get("/zookeeper/quota/x/zookeeper_stats")[0] == hostile
    coordinator.stop()
    assert connect(start_coordinator()).get("/x/a")[0] == b"1"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Reconfig(None, "0" * 20 + "1" * 5000, None, -1), Code.MARSHALLING_ERROR),
        (Reconfig(None, "1" * 5000, None, -1), Code.MARSHALLING_ERROR),
        (Reconfig(None, str(LONG_MAX + 1), None, -1), Code.MARSHALLING_ERROR),
        (Reconfig("server.4=" + ":1" * 20_000, None, None, -1), Code.BAD_ARGUMENTS),
        (Reconfig("server.4=h4:1:2;" + "3" * 20_000, None, None, -1), Code.BAD_ARGUMENTS),
        (Reconfig("server.4=\ud800:1:2;3", None, None, -1), Code.BAD_ARGUMENTS),
        (Reconfig("server.4=h4:1:2;3" + "," * TEXT_LETTERS_MAX, None, None, -1), Code.BAD_ARGUMENTS),
        (Reconfig(None, None, "server.1=h\\ud800:1:2;3\nserver.2=h2:1:2;3", -1), Code.BAD_ARGUMENTS),
        (Reconfig(None, None, "x\\\n" * 30_000, -1), Code.BAD_ARGUMENTS),
        (Reconfig(None, None, "server.1=" + ":1\\\n" * 30_000, -1), Code.BAD_ARGUMENTS),
        (Reconfig(",".join(["server.3=h4:1:2;3"] * 513), None, None, -1), Code.BAD_ARGUMENTS),
    ],
    ids=[
        "zeros-and-digits",
        "digits",
        "above-64-bits",
        "ports",
        "a-long-port",
        "half-a-character",
        "commas",
        "half-a-character-escaped",
        "continued-lines",
        "a-continued-server-line",
        "many-servers",
    ],
)
@pytest.mark.timeout(10)
def test_hostile_texts_of_a_reconfig_are_refused(request_: Reconfig, code: Code) -> None:
    with pytest.raises(ZooKeeperError) as raised:
        reconfigured(MEMBERS, request_, Rules.NONE)
    assert raised.value.code is code


def test_leading_zeros_of_a_server_number_are_ignored() -> None:
    left = reconfigured(MEMBERS, Reconfig(None, "0" * 5000 + "3", None, -1), Rules.NONE)
    assert left == MEMBERS[:2]


@pytest.mark.parametrize("host", ["[a b]", "[a\u2028b]", "a\x85b", "\udfff", "[::1;2]", "[a|b]"])
def test_a_host_that_cannot_be_written_and_read_is_refused(host: str) -> None:
    with pytest.raises(CoordinatorError, match="has to be"):
        parse_members({"server.1": f"{host}:1:2"})


def test_lines_continue_as_in_javas_properties() -> None:
    text = "a=1\\\n  2\\\n3\nb=\\\\\nc=x\\\\\\\n y\n\\\n# no comment\n#comment\\\nd=e\\"
    assert parse_properties(text) == {"a": "123", "b": "\\", "c": "x\\y", "#": "no comment", "d": "e"}


class CountingAcl(Sequence[Acl]):
    """An ACL that counts the entries that were read."""

    def __init__(self, entries: Sequence[Acl]) -> None:
        self._entries = entries
        self.entries_read = 0

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Acl: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Acl]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._entries[index]

    def __iter__(self) -> Iterator[Acl]:
        for entry in self._entries:
            self.entries_read += 1
            yield entry


def test_an_acl_is_read_up_to_the_entry_that_matches() -> None:
    acl = CountingAcl(
        [Acl(1, Id("digest", "a:b")), Acl(31, ANYONE), *[Acl(31, Id("digest", f"{n}:x")) for n in range(9)]]
    )
    assert Subject(()).may(access.WRITE, acl)
    assert acl.entries_read == 2


def test_one_request_checks_an_acl_once() -> None:
    # No entry matches the client's identities.
    acl = CountingAcl([Acl(31, Id("digest", f"{n}:x")) for n in range(1000)])
    own = tuple(Id("digest", f"other-{n}:x") for n in range(1000))
    subject = Subject(own).remembering()
    for _ in range(1000):
        assert not subject.may(access.WRITE, acl)
    assert acl.entries_read == 1000
    assert not subject.may(access.READ, acl)
    assert acl.entries_read == 2000


def test_a_multi_checks_an_acl_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = 0
    granted = Subject._is_granted

    def counting(self: Subject, permission: int, acl: Sequence[Acl]) -> bool:
        nonlocal checks
        checks += 1
        return granted(self, permission, acl)

    machine = Machine()
    _apply(machine, Create("/a", b"", [Acl(31, Id("ip", "1.2.3.4")), Acl(31, ANYONE)], 0))
    monkeypatch.setattr(Subject, "_is_granted", counting)
    done = _apply(machine, Multi([Check("/a", -1)] * 500), Op.MULTI)
    assert isinstance(done.result, MultiDone)
    assert len(done.result.results) == 500
    assert checks == 1


def test_invalid_addresses_are_not_cached() -> None:
    before = access._parsed_network.cache_info().currsize, access._parsed_address.cache_info().currsize
    for number in range(50):
        text = f"{number}." * 5000
        with pytest.raises(ZooKeeperError):
            access.resolve([Acl(31, Id("ip", text))], Subject(()), "/a")
        assert not Subject((Id("ip", "1.2.3.4"),)).may(1, [Acl(31, Id("ip", text))])
    after = access._parsed_network.cache_info().currsize, access._parsed_address.cache_info().currsize
    # The client's own address may be cached.
    assert after[0] == before[0]
    assert after[1] <= before[1] + 1


def test_a_new_counter_counts_its_own_subtree_only() -> None:
    machine = Machine()
    for path in ("/a", "/a/b", "/a/b/c", "/ab", "/zookeeper/quota/a"):
        _apply(machine, Create(path, b"12", list(OPEN), 0))
    _apply(machine, Create("/zookeeper/quota/a/zookeeper_limits", b"count=9,bytes=-1", list(OPEN), 0))
    _apply(machine, Create("/zookeeper/quota/a/zookeeper_stats", b"", list(OPEN), 0))
    assert machine.tree.node("/zookeeper/quota/a/zookeeper_stats").state.data == b"count=3,bytes=6"


def _command(machine: Machine, request: Write, op: Op, rules: Rules = Rules.ALL) -> Command:
    return Command(machine.last_zxid + 1, 1, 1, op, rules, (), request, b"")


def _apply(machine: Machine, request: Write, op: Op = Op.CREATE) -> Outcome:
    if 1 not in machine.sessions:
        machine.apply(_command(machine, CreateSession(1000, bytes(16)), Op.CREATE_SESSION))
    return machine.apply(_command(machine, request, op, Rules.NONE))


def test_a_defect_refuses_its_command_and_undoes_its_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Tree, *args: object) -> Change:
        raise KeyError("a defect")

    machine = Machine()
    monkeypatch.setattr(Tree, "set_data", broken)
    multi = Multi([Create("/a", b"", list(OPEN), 0), SetData("/a", b"1", -1)])
    assert _apply(machine, multi, Op.MULTI) == Outcome(Failed(Code.MARSHALLING_ERROR), [])
    assert machine.tree.find("/a") is None
    assert "a defect" in caplog.text


def test_a_lack_of_memory_ends_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Tree, *args: object) -> Change:
        raise MemoryError

    machine = Machine()
    monkeypatch.setattr(Tree, "set_data", broken)
    with pytest.raises(MemoryError):
        _apply(machine, SetData("/", b"1", -1), Op.SET_DATA)


def test_a_server_that_cannot_apply_stops_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator, client: KazooClient
) -> None:
    def broken(self: Machine, command: Command) -> Outcome:
        raise MemoryError("no memory")

    failed = coordinator.server.failed
    assert failed is not None

    async def fail() -> str:
        monkeypatch.setattr(Machine, "apply", broken)
        client.create_async("/a", b"", OPEN_ACL_UNSAFE)
        try:
            await asyncio.wait_for(asyncio.shield(failed), WAIT_SECONDS)
        except CoordinatorError as error:
            return str(error)
        return ""

    assert "no memory" in coordinator.thread.run(fail())


_NUMBERS = st.sampled_from(
    ["0", "-1", "7", str(LONG_MAX), str(-LONG_MAX - 1), str(LONG_MAX + 1), DIGITS, "x", ""]
)
_DATA = st.one_of(
    st.none(),
    st.binary(max_size=4),
    st.builds("count={},bytes={}".format, _NUMBERS, _NUMBERS).map(str.encode),
    st.builds("count={};byteHardLimit={};countHardLimit={}".format, _NUMBERS, _NUMBERS, _NUMBERS).map(
        str.encode
    ),
)
_NAMES = st.sampled_from(
    ["", "a", "b", "\x00", ".", "..", "\ud7ff", "é", "zookeeper_limits", "zookeeper_stats", "x" * 300]
)
_PATHS = st.one_of(
    st.none(),
    st.sampled_from(
        ["/", "", "/a", "/a/b", "/zookeeper/config", "/zookeeper/quota", "/zookeeper/quota/a"]
        + [f"/zookeeper/quota{path}/zookeeper_{what}" for path in ("", "/a") for what in ("limits", "stats")]
    ),
    st.lists(_NAMES, max_size=4).map("/".join),
)
_ACLS = st.lists(
    st.builds(
        Acl,
        st.integers(-1, 32),
        st.one_of(
            st.just(ANYONE),
            st.builds(
                Id,
                st.sampled_from(["world", "auth", "digest", "ip", "sasl", "x509", "super", ""]),
                st.text(max_size=9),
            ),
        ),
    ),
    max_size=3,
)
_VERSIONS = st.sampled_from([-1, 0, 1, -(1 << 31), (1 << 31) - 1])
_SIMPLE = st.one_of(
    st.builds(
        Create,
        _PATHS,
        _DATA,
        _ACLS | st.just(list(OPEN)),
        st.integers(-1, 8),
        st.sampled_from([Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL]),
        st.sampled_from([-1, 0, 1, LONG_MAX]),
    ),
    st.builds(Delete, _PATHS, _VERSIONS),
    st.builds(SetData, _PATHS, _DATA, _VERSIONS),
    st.builds(Check, _PATHS, _VERSIONS),
)
_TEXTS = st.one_of(
    st.none(),
    st.text(st.sampled_from("server.=:;,|[]0123456789h \\u\n\ud800-"), max_size=40),
    st.sampled_from(["1", "server.4=h4:1:2;3", "server.1=h:1:2;3,server.2=i:1:2;3", "server.9=[::1]:1:2"]),
)


@settings(max_examples=300, deadline=None)
@given(
    requests=st.lists(
        st.one_of(
            _SIMPLE,
            st.builds(SetAcl, _PATHS, _ACLS, _VERSIONS),
            st.builds(Multi, st.lists(_SIMPLE, max_size=4)),
        ),
        max_size=12,
    ),
    rules=st.integers(0, Rules.ALL).map(access.rules_of),
)
def test_every_request_has_an_outcome_and_no_defect(
    requests: list[Create | Delete | SetData | SetAcl | Check | Multi], rules: Rules
) -> None:
    machine = Machine()
    machine.apply(_command(machine, CreateSession(1000, bytes(16)), Op.CREATE_SESSION))
    defects: list[Exception] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "cluster.coordinator.state.machine._logger.error",
            lambda *a, exc_info, **k: defects.append(exc_info),
        )
        for request in requests:
            outcome = machine.apply(_command(machine, request, Op.SET_DATA, rules))
            assert outcome.result is not None
    assert not defects
    # A snapshot can restore the resulting state.
    assert len(Tree.restore(machine.tree.export())) == len(machine.tree)


@settings(max_examples=300, deadline=None)
@given(st.builds(Reconfig, _TEXTS, _TEXTS, _TEXTS, st.just(-1)))
@example(Reconfig("=", None, None, -1))
def test_every_reconfig_has_an_answer(request: Reconfig) -> None:
    try:
        found = reconfigured(MEMBERS, request, Rules.NONE)
    except ZooKeeperError as error:
        code, found = error.code, ()
    else:
        code = Code.OK
    assert code in (Code.OK, Code.BAD_ARGUMENTS, Code.MARSHALLING_ERROR)
    assert all(each.host.encode() for each in found)


def test_a_defect_in_a_reconfig_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("cluster.coordinator.ensemble.agreed.reconfigured", broken)
    agreed = Agreed()
    agreed.begin(0, 1, 1)
    agreed.apply_members(MEMBERS)
    request = Reconfig(None, "3", None, -1)
    proposed = Proposed(0, 0, 1, Op.RECONFIG, Rules.NONE, (), request, encode_reconfig(request))
    assert agreed.apply(proposed.encode()).outcome == Outcome(Failed(Code.MARSHALLING_ERROR), [])


# ---- overflowing numbers, and defects ----

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
PLAIN = NodeState(b"", OPEN, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def stat_of(body: bytes) -> Stat:
    """The Stat at the end of an answer."""
    return Stat._make(struct.unpack(">qqqqiiiqiiq", body[-68:]))


def wrapped(number: int) -> int:
    """The number as a Java int, which wraps."""
    return (number - INT_MIN) % (1 << 32) + INT_MIN


# If this failed, a node from an old ZooKeeper with such a number would end the connection of every client
# that reads it.
@pytest.mark.parametrize("creations", [INT_MIN, -(1 << 30) - 1, -(1 << 30), -1, 1 << 30, INT_MAX])
def test_a_cversion_wraps_as_javas_int_in_every_answer(
    start_coordinator: StartCoordinator, tmp_path: Path, creations: int
) -> None:
    machine = Machine()
    nodes = [*machine.tree.export(), ("/p", PLAIN._replace(creations=creations)), ("/p/c", PLAIN)]
    begin_directory(tmp_path / "imported", machine.export()._replace(nodes=nodes, last_zxid=7))
    client = RawClient(start_coordinator(tmp_path / "imported").port)
    client.connect()
    path = Writer().string("/p").finish()
    for op, body in (
        (Op.EXISTS, path + b"\0"),
        (Op.GET_DATA, path + b"\0"),
        (Op.GET_CHILDREN2, path + b"\0"),
        (Op.GET_ACL, path),
        (Op.SET_DATA, path + Writer().buffer(b"").i32(-1).finish()),
        (Op.SET_ACL, path + Writer().acls(OPEN).i32(-1).finish()),
    ):
        _xid, _zxid, code, answer = client.request(1, op, body)
        assert code == 0, op
        assert stat_of(answer).cversion == wrapped(2 * creations - 1), op
    # A multi that writes the node, and a multi that reads it.
    set_data = (
        Writer().i32(Op.SET_DATA).boolean(False).i32(-1).finish()
        + path
        + Writer().buffer(b"").i32(-1).finish()
    )
    _xid, _zxid, code, answer = client.request(
        1, Op.MULTI, set_data + Writer().i32(-1).boolean(True).i32(-1).finish()
    )
    assert code == 0
    assert stat_of(answer[:-9]).cversion == wrapped(2 * creations - 1)
    get_children = Writer().i32(Op.GET_CHILDREN).boolean(False).i32(-1).finish() + path + b"\0"
    get_data = Writer().i32(Op.GET_DATA).boolean(False).i32(-1).finish() + path + b"\0"
    end = Writer().i32(-1).boolean(True).i32(-1).finish()
    _xid, _zxid, code, answer = client.request(1, Op.MULTI_READ, get_children + get_data + end)
    assert code == 0
    assert stat_of(answer[:-9]).cversion == wrapped(2 * creations - 1)
    # A sequential child's number is the count of creations, which stops at the largest int.
    create = Writer().string("/p/s-").buffer(b"").acls(OPEN).i32(SEQUENTIAL).finish()
    _xid, _zxid, code, answer = client.request(1, Op.CREATE, create)
    assert code == 0
    assert Reader(answer).string() == f"/p/s-{creations:010d}"
    _xid, _zxid, code, answer = client.request(1, Op.EXISTS, path + b"\0")
    assert (code, stat_of(answer).cversion) == (0, wrapped(2 * min(creations + 1, INT_MAX) - 2))
    client.close()


def test_versions_wrap_and_skip_minus_one(start_coordinator: StartCoordinator, tmp_path: Path) -> None:
    machine = Machine()
    states = {"/max": INT_MAX, "/min": INT_MIN, "/before": -2}
    nodes = [(path, PLAIN._replace(version=at, acl_version=at)) for path, at in states.items()]
    begin_directory(
        tmp_path / "imported", machine.export()._replace(nodes=[*machine.tree.export(), *nodes], last_zxid=7)
    )
    client = RawClient(start_coordinator(tmp_path / "imported").port)
    client.connect()
    for path, version in (("/max", INT_MIN), ("/min", INT_MIN + 1), ("/before", 0)):
        body = Writer().string(path).buffer(b"").i32(-1).finish()
        _xid, _zxid, code, answer = client.request(1, Op.SET_DATA, body)
        assert (code, stat_of(answer).version) == (0, version)
        _xid, _zxid, code, answer = client.request(
            1, Op.SET_ACL, Writer().string(path).acls(OPEN).i32(-1).finish()
        )
        assert (code, stat_of(answer).aversion) == (0, version)
    client.close()


# If this failed, a defect in one request would end the client's connection and lose the answers of its other
# requests.
@pytest.mark.parametrize("broken", ["answer", "decode_read", "decode_write", "encode_result"])
def test_a_defect_in_one_request_does_not_affect_the_others(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    module = {"answer": server_module, "encode_result": replies}.get(broken, connection_module)
    right = getattr(module, broken)
    calls = 0

    def defective(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyError("a defect")
        return right(*arguments)

    client = RawClient(coordinator.port)
    client.connect()
    coordinator.thread.call(lambda: monkeypatch.setattr(module, broken, defective))
    for number in range(3):
        path = Writer().string(f"/{number}").finish()
        creation = path + Writer().buffer(b"").acls(OPEN).i32(0).finish()
        client.send(Writer().i32(2 * number).i32(Op.CREATE).finish() + creation)
        client.send(Writer().i32(2 * number + 1).i32(Op.EXISTS).finish() + path + b"\0")
    codes = [client.reply()[:3:2] for _ in range(6)]
    refused = 2 if broken in ("decode_write", "encode_result") else 3
    expected = [(xid, Code.MARSHALLING_ERROR if xid == refused else Code.OK) for xid in range(6)]
    if broken == "decode_write":
        expected[3] = (3, Code.NO_NODE)
    assert codes == expected
    assert "a defect" in caplog.text
    assert client.request(7, Op.PING)[2] == 0
    client.close()
