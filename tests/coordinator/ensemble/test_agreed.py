"""The state that members apply from the agreed log.

If these fail, members give one command different zxids, ids or answers. Or a late write is done after its
session moved, a live session is ended, or a snapshot has a wrong state.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.coordinator.ensemble.agreed import Agreed, Proposed, decode_proposed
from cluster.coordinator.ensemble.session_reports import REPORTS_MAX, SessionReports, unpack
from cluster.coordinator.ensemble.snapshot import read, walk
from cluster.coordinator.errors import Code, JuteError
from cluster.coordinator.protocol.jute import OPEN_ACL, Acl, Id, Reader, Writer
from cluster.coordinator.protocol.replies import Created, Done, Failed
from cluster.coordinator.protocol.requests import (
    WRITES,
    CloseSession,
    CreateSession,
    Op,
    decode_write,
    encode_create_session,
    encode_refusal,
)
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.members import Member
from cluster.coordinator.state.tree import CONFIG

from .states import fingerprint

PASSWORD = b"p" * 16
MEMBERS = [Member(number, "host", 1000 + number, 2000 + number, "", number == 3) for number in (2, 1, 3)]


def born(server_id: int, timeout_ms: int = 4000) -> bytes:
    birth = CreateSession(timeout_ms, PASSWORD)
    return Proposed(
        server_id, 0, 0, Op.CREATE_SESSION, Rules.NONE, (), birth, encode_create_session(birth)
    ).encode()


def attached(session_id: int, password: bytes = PASSWORD, timeout_ms: int = 9000) -> bytes:
    found = CreateSession(timeout_ms, password)
    return Proposed(session_id, 0, 0, Op.ATTACH, Rules.NONE, (), found, encode_create_session(found)).encode()


def written(session_id: int, attachment: int, op: Op, body: bytes, term: int = 0) -> bytes:
    request = decode_write(op, Reader(body))
    return Proposed(session_id, attachment, term, op, Rules.NONE, (), request, body).encode()


def created(session_id: int, attachment: int, path: str, flags: int = 0) -> bytes:
    body = Writer().string(path).buffer(b"x").acls(OPEN).i32(flags).finish()
    return written(session_id, attachment, Op.CREATE, body)


def closed(session_id: int, attachment: int, term: int = 0) -> bytes:
    return Proposed(
        session_id, attachment, term, Op.CLOSE_SESSION, Rules.NONE, (), CloseSession(), b""
    ).encode()


def begun(term: int = 1) -> Agreed:
    agreed = Agreed()
    agreed.begin(0, 0, 0)
    agreed.begin(1, term, 0)
    return agreed


def test_proposed_commands_are_read_back_unchanged() -> None:
    body = Writer().string("/a").buffer(b"x").acls(OPEN).i32(0).finish()
    one = Proposed(
        5,
        6,
        7,
        Op.CREATE,
        Rules.ENFORCE_QUOTA,
        (Id("ip", "::1"),),
        decode_write(Op.CREATE, Reader(body)),
        body,
    )
    assert decode_proposed(one.encode()) == one
    assert decode_proposed(attached(9)).op is Op.ATTACH


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


PATHS, DATA, NUMBERS = st.none() | TEXTS, st.none() | st.binary(max_size=9), st.integers(-2, 7)
ACLS = st.lists(
    st.builds(Acl, st.integers(0, 31), st.builds(Id, TEXTS, TEXTS)) | st.just(OPEN_ACL), max_size=3
)


def made(*fields: tuple[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[bytes]:
    """Bodies of these fields. A field is a method of :class:`Writer` and a strategy for its argument."""

    def written(*values: Any) -> bytes:
        writer = Writer()
        for (method, _values), value in zip(fields, values, strict=True):
            getattr(writer, method)(value)
        return writer.finish()

    return st.builds(written, *(values for _method, values in fields))


PATH, VERSION = ("string", PATHS), ("i32", NUMBERS)
CREATE = made(PATH, ("buffer", DATA), ("acls", ACLS), ("i32", st.integers(0, 4)))
LONG = ("i64", st.integers(-2, 1 << 41))
SINGLE = {
    Op.CREATE: CREATE,
    Op.CREATE2: CREATE,
    Op.CREATE_CONTAINER: CREATE,
    Op.CREATE_TTL: made(PATH, ("buffer", DATA), ("acls", ACLS), ("i32", st.integers(5, 6)), LONG),
    Op.DELETE: made(PATH, VERSION),
    Op.SET_DATA: made(PATH, ("buffer", DATA), VERSION),
    Op.CHECK: made(PATH, VERSION),
}


def joined(operations: list[tuple[Op, bytes]]) -> bytes:
    """The body of a multi."""
    headers = [Writer().i32(op).boolean(False).i32(-1).finish() + body for op, body in operations]
    return b"".join([*headers, Writer().i32(-1).boolean(True).i32(-1).finish()])


BODIES = {
    **SINGLE,
    Op.DELETE_CONTAINER: made(PATH),
    Op.SET_ACL: made(PATH, ("acls", ACLS), VERSION),
    Op.MULTI: st.lists(
        st.sampled_from(list(SINGLE)).flatmap(lambda op: st.tuples(st.just(op), SINGLE[op])), max_size=3
    ).map(joined),
    Op.RECONFIG: made(PATH, PATH, PATH, LONG),
    Op.CLOSE_SESSION: st.just(b""),
    Op.ERROR: st.sampled_from(list(Code)).map(encode_refusal),
}


@settings(deadline=None, max_examples=500)
@given(st.data(), st.sampled_from(list(BODIES)), st.lists(st.builds(Id, TEXTS, TEXTS), max_size=3))
def test_a_command_is_the_same_after_decoding(data: st.DataObject, op: Op, identities: list[Id]) -> None:
    """The proposing member applies the client's request as it read it; all others apply the log's bytes."""
    body = data.draw(BODIES[op]) + data.draw(st.sampled_from([b"", b"more"]))
    request = decode_write(op, Reader(b"before" + body, 6))
    proposed = Proposed(1, 2, 0, op, Rules.ALL, tuple(identities), request, body)
    assert decode_proposed(proposed.encode()) == proposed


def test_the_test_above_covers_every_write() -> None:
    assert set(BODIES) == {*WRITES.values(), Op.CHECK, Op.ERROR}


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_malformed_command_is_refused(length: int) -> None:
    with pytest.raises(JuteError):
        decode_proposed(created(1, 1, "/a")[:length])
    with pytest.raises(JuteError, match="version is 3"):
        decode_proposed(b"\0\3" + created(1, 1, "/a")[2:])


def test_zxids_follow_the_term() -> None:
    agreed = begun(term=5)
    assert agreed.machine.last_zxid == 5 << 32, "the epoch is not that of ZooKeeper after an election"
    agreed.begin(2, 5, 1000)
    assert [agreed.apply(born(1)).command.zxid for _ in range(2)] == [5 << 32 | 1, 5 << 32 | 2]
    agreed.begin(3, 5, 0)
    assert agreed.apply(created(0, 0, "/x/y")).command.zxid == 5 << 32 | 3, "a refused command took no zxid"
    agreed.begin(4, 8, 0)
    assert agreed.machine.last_zxid == 8 << 32


def test_a_counter_that_overflows_begins_a_new_epoch() -> None:
    agreed = begun()
    agreed.counter = 0xFFFF_FFFE
    agreed.begin(2, 1, 0)
    zxids = [agreed.apply(born(1)).command.zxid for _ in range(2)]
    assert zxids == [1 << 32 | 0xFFFF_FFFF, 2 << 32 | 1]
    agreed.begin(3, 2, 0)
    assert agreed.machine.last_zxid == 3 << 32, "a zxid went back"


def test_times_do_not_go_back() -> None:
    agreed = begun()
    times = []
    for index, time_ms in enumerate((5000, 3000, 6000), 2):
        agreed.begin(index, 1, time_ms)
        times.append(agreed.apply(born(1)).command.time_ms)
    assert times == [5000, 5000, 6000]


def test_each_server_assigns_its_own_session_ids() -> None:
    agreed = begun()
    agreed.begin(2, 1, 1_700_000_000_000)
    ids = [agreed.apply(born(server)).command.session_id for server in (1, 3, 1, 3, 129)]
    assert len(set(ids)) == 5
    assert [number >> 56 for number in ids] == [1, 3, 1, 3, 1]
    assert ids[2] == ids[0] + 1
    assert ids[4] == ids[2] + 1, "servers 1 and 129 share the first byte and not the ids"


def test_only_a_sessions_last_connection_may_write() -> None:
    agreed = begun()
    agreed.begin(2, 1, 1000)
    session = agreed.apply(born(1)).command.session_id
    assert isinstance(agreed.apply(created(session, 1, "/first", 1)).outcome.result, Created)
    found = agreed.apply(attached(session))
    assert (found.attachment, found.outcome.opened_session is not None) == (2, True)
    assert agreed.machine.sessions.all()[0].timeout_ms == 9000
    before = agreed.machine.last_zxid
    late = agreed.apply(created(session, 1, "/late"))
    assert late.outcome.result == Failed(Code.SESSION_MOVED)
    assert agreed.machine.last_zxid == before + 1
    assert agreed.machine.tree.find("/late") is None
    assert agreed.apply(closed(session, 1)).outcome.result == Failed(Code.SESSION_MOVED)
    assert isinstance(agreed.apply(created(session, 2, "/second")).outcome.result, Created)
    assert agreed.apply(closed(session, 2)).outcome.result == Done(Op.CLOSE_SESSION)
    assert agreed.machine.tree.find("/first") is None
    assert agreed.apply(created(session, 2, "/x")).outcome.result == Failed(Code.SESSION_EXPIRED)
    assert agreed.apply(attached(session)).outcome.result == Failed(Code.SESSION_EXPIRED)
    assert not agreed.attachments


def test_a_wrong_password_does_not_move_a_session() -> None:
    agreed = begun()
    agreed.begin(2, 1, 1000)
    session = agreed.apply(born(1)).command.session_id
    assert agreed.apply(attached(session, b"x" * 16)).outcome.opened_session is None
    assert agreed.attachments == {session: 1}


def test_a_leader_can_end_a_session_in_its_own_term_only() -> None:
    agreed = begun()
    agreed.begin(2, 1, 1000)
    session = agreed.apply(born(1)).command.session_id
    agreed.begin(3, 2, 0)
    agreed.begin(4, 2, 2000)
    assert agreed.apply(closed(session, 1, term=1)).outcome.result == Failed(Code.SESSION_MOVED)
    assert agreed.apply(attached(session)).attachment == 2
    moved = agreed.apply(closed(session, 1, term=2))
    assert moved.outcome.closed_session == 0, "a session was ended after it had moved"
    assert agreed.apply(closed(session, 2, term=2)).outcome.closed_session == session


def test_the_members_are_written_to_the_configuration_node() -> None:
    agreed = Agreed()
    agreed.begin(0, 0, 0)
    assert agreed.apply_members(MEMBERS) is None
    text = (
        "server.1=host:1001:2001:participant\nserver.2=host:1002:2002:participant\n"
        "server.3=host:1003:2003:observer\n"
    )
    node = agreed.machine.tree.node(CONFIG)
    assert node.state.data == f"{text}version=0".encode()
    assert node.stat().mzxid == 0
    agreed.begin(1, 1, 0)
    assert agreed.apply_members(MEMBERS[::-1]) is None, "the node was written without a change"
    agreed.begin(2, 1, 0)
    changed = agreed.apply_members(MEMBERS[:2])
    assert changed is not None
    assert [change.path for change in changed.outcome.changes] == [CONFIG]
    assert (node.state.data or b"").endswith(b"participant\nversion=100000001")
    assert node.stat().mzxid == agreed.machine.last_zxid == 1 << 32 | 1


def random_command(chance: random.Random, agreed: Agreed) -> bytes:
    sessions = list(agreed.attachments.items())
    what = chance.random()
    if not sessions or what < 0.1:
        return born(chance.randint(1, 3))
    session, attachment = chance.choice(sessions)
    if what < 0.15:
        return attached(session)
    if what < 0.18:
        return closed(session, attachment)
    path = f"/{chance.choice('abcdefgh')}"
    if what < 0.5:
        return created(session, attachment, path, chance.choice((0, 1, 2)))
    if what < 0.8:
        body = Writer().string(path).buffer(str(what).encode()).i32(-1).finish()
        return written(session, attachment, Op.SET_DATA, body)
    if what < 0.85:
        body = Writer().string(path).acls(OPEN[:1] * chance.randint(1, 3)).i32(-1).finish()
        return written(session, attachment, Op.SET_ACL, body)
    return written(session, attachment, Op.DELETE, Writer().string(path).i32(-1).finish())


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_has_the_state_of_its_begin(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.coordinator.durability.snapshot.SLICE_NODES", 2)
    chance = random.Random(seed)
    agreed = begun()
    agreed.begin(2, 1, 1_700_000_000_000)
    for _ in range(chance.randint(0, 100)):
        agreed.apply(random_command(chance, agreed))
    expected = fingerprint(agreed)
    pieces = []
    for piece in walk(agreed):
        pieces.append(piece)
        for _ in range(chance.randint(0, 5)):
            agreed.apply(random_command(chance, agreed))
    assert fingerprint(read(b"".join(pieces))) == expected, f"seed {seed}"
    assert not agreed.machine.tree._walks
    again = walk(agreed)
    next(again)
    again.close()
    whole = b"".join(walk(agreed))
    copy = read(whole)
    assert fingerprint(copy) == fingerprint(agreed)
    # Both states apply later commands alike.
    following = [random_command(chance, agreed) for _ in range(10)]
    assert [agreed.apply(each) for each in following] == [copy.apply(each) for each in following]


def test_a_malformed_snapshot_is_refused() -> None:
    agreed = begun()
    agreed.apply(born(1))
    agreed.apply_members(MEMBERS)
    whole = b"".join(walk(agreed))
    for length in range(len(whole)):
        with pytest.raises((JuteError, ValueError)):
            read(whole[:length])
    with pytest.raises(JuteError, match="after the last node"):
        read(whole + b"x")


# ---- reports of sessions ----


def test_an_acknowledged_report_has_the_time_of_its_sending() -> None:
    reports = SessionReports()
    reports.established(1, 100)
    assert reports.reported_ms(1) == 100
    packed, sessions = reports.pack()
    assert unpack(packed) == sessions == (1,)
    reports.sent(1, 500, sessions)
    reports.heard(1)
    assert reports.reported_ms(1) == 100, "a report counted before it was acknowledged"
    reports.acknowledged(1)
    assert reports.reported_ms(1) == 500
    reports.sent(2, 900, reports.pack()[1])
    reports.acknowledged(1)
    assert reports.reported_ms(1) == 500
    reports.acknowledged(2)
    assert reports.reported_ms(1) == 900


def test_a_lost_report_is_repeated_in_the_next() -> None:
    reports = SessionReports()
    for session in (1, 2, 3):
        reports.established(session, 0)
    reports.sent(1, 10, reports.pack()[1])
    reports.gone(2)
    reports.heard(1)
    packed, sessions = reports.pack()
    assert set(unpack(packed)) == set(sessions) == {1, 3}
    reports.sent(2, 20, sessions)
    reports.acknowledged(2)
    assert (reports.reported_ms(1), reports.reported_ms(2), reports.reported_ms(3)) == (20, None, 20)
    assert reports.pack()[1] == ()


def test_the_number_of_unacknowledged_reports_is_limited() -> None:
    reports = SessionReports()
    reports.established(1, 0)
    for number in range(3 * REPORTS_MAX):
        reports.sent(number, number, reports.pack()[1])
    assert len(reports._sent) == REPORTS_MAX
    reports.acknowledged(3 * REPORTS_MAX - 1)
    assert reports.reported_ms(1) == 3 * REPORTS_MAX - 1
