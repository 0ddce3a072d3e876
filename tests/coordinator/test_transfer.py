"""Moving in from Apache ZooKeeper and out again. If these fail, a node, a version, an owner or a session is
another one after the move, or damaged or incomplete files are taken for whole ones."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cli import main
from cluster.coordinator import CoordinatorError, Settings
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.protocol.jute import Acl, Id, Writer, frame
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN, digest_identity
from cluster.coordinator.state.machine import Machine, State
from cluster.coordinator.state.sessions import Session
from cluster.coordinator.state.tree import CONFIG, CONTAINER_OWNER, TTL_OWNER, NodeState
from cluster.coordinator.transfer import (
    Address,
    Contradiction,
    Credentials,
    Damaged,
    begin_directory,
    load_directory,
    own,
    parse_addresses,
    read_directory,
    read_ensemble,
    write_directory,
)
from cluster.coordinator.transfer import ensemble as live
from cluster.coordinator.transfer.common import decode_text, session_password
from cluster.coordinator.transfer.snapshots import write_snapshot
from cluster.coordinator.transfer.transactions import decode_transaction

from .apache_files import (
    LOG_HEADER,
    Leader,
    add_sections,
    create_body,
    payload,
    record,
    tree_digest,
    write_directory_of,
    write_log,
)
from .conftest import StartCoordinator
from .support import WAIT_SECONDS, RawClient

SESSION = 0x0100_0000_0000_0001
SUPER = b"super:secret"


def comparable(state: State) -> State:
    return state._replace(nodes=sorted(state.nodes), sessions=sorted(state.sessions))


def quiet(*_told: object) -> None: ...


def no_nodes(zxid: int = 0) -> State:
    return Machine().export()._replace(last_zxid=zxid)


def versioned(directory: Path, state: State) -> Path:
    """The version-2 of a dataDir with one snapshot."""
    inside = directory / "version-2"
    inside.mkdir(parents=True)
    write_snapshot(inside, state, quiet)
    return inside


def rich_state() -> State:
    """One of everything that a node can be."""
    me = Session(SESSION, 30_000, session_password(SESSION))
    negative = Session(
        -0x3800_0000_0000_0005, 4000, session_password(-0x3800_0000_0000_0005)
    )  # of a server 200
    nodes = dict(no_nodes().nodes)

    def add(path: str, **changed: object) -> None:
        plain = NodeState(b"x", OPEN, 1, 2, 3, 1000, 2000, 4, 0, 0, 0)
        nodes[path] = plain._replace(**changed)  # type: ignore[arg-type]

    add("/a", creations=(1 << 31) - 1, version=-2, acl_version=7, pzxid=0x2_0000_0009)
    add("/a/null", data=None)
    add("/a/empty", data=b"", acl=())
    add(
        "/a/ä-€",
        acl=(
            Acl(31, Id("digest", "ann:h")),
            Acl(1, Id("sasl", "\U0001f600@R")),
            Acl(1, Id("sasl", "\U0001f600@R")),
        ),
    )
    add("/a-b", data=bytes(range(256)) * 20_000)
    add("/c", owner=CONTAINER_OWNER, creations=5)
    add("/c/d")
    add("/t", owner=TTL_OWNER | 12345)
    add("/t/below")
    add("/e", owner=me.id)
    add("/n", owner=negative.id)
    return State(0x2_0000_0010, me.id, [me, negative], list(nodes.items()))


# ---- there and back ----


def test_everything_comes_back_as_it_went_out(tmp_path: Path) -> None:
    state = rich_state()
    notes = write_directory(tmp_path / "out", state)
    assert [note for note in notes if "TTL" in note]
    files = {path.name: path for path in (tmp_path / "out" / "version-2").iterdir()}
    assert sorted(files) == ["acceptedEpoch", "currentEpoch", "snapshot.0000000200000010"]
    assert files["currentEpoch"].read_text() == "2"
    moved = read_directory(tmp_path / "out")
    assert comparable(moved.state) == comparable(state)
    begin_directory(tmp_path / "ours", moved.state)
    ours = load_directory(tmp_path / "ours")
    # Jute, which our own snapshots are in, has no characters beyond the basic plane.
    emoji = [path for path, node in state.nodes if any("\U0001f600" in entry.id.id for entry in node.acl)]
    kept = [each for each in state.nodes if each[0] not in emoji]
    assert comparable(
        ours._replace(nodes=[each for each in ours.nodes if each[0] not in emoji])
    ) == comparable(state._replace(nodes=kept))


def test_a_zipped_snapshot_is_read(tmp_path: Path) -> None:
    inside = versioned(tmp_path, rich_state())
    (plain,) = inside.iterdir()
    (inside / "snapshot.200000010.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert comparable(read_directory(tmp_path).state) == comparable(rich_state())


def test_an_untouched_tree_goes_out_and_in(tmp_path: Path) -> None:
    assert write_directory(tmp_path / "out", no_nodes()) == []
    assert comparable(read_directory(tmp_path / "out").state) == comparable(no_nodes())


def test_passwords_are_those_of_javas_random() -> None:
    """The first numbers of ``new java.util.Random(0)``, which everybody knows."""
    expected = struct.pack("<iiii", -1155484576, -723955400, 1033096058, -1690734402)
    assert session_password(0xB3415C00) == expected


def test_java_writes_surrogates_one_by_one() -> None:
    assert decode_text(b"a\xed\xa0\xbd\xed\xb8\x80b") == "a\U0001f600b"
    assert decode_text("ä\U0001f600".encode()) == "ä\U0001f600"
    assert decode_text(b"\xff!") == "\ufffd!"
    assert decode_text(b"\xed\xa0\xbd!") == "\ufffd!"


# ---- replay ----


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_a_snapshot_that_was_written_while_serving_becomes_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, 60))
    end = begin + data.draw(st.integers(0, 20))
    leader = Leader(seed)
    # Few come after the snapshot: many would write over what is wrong in it.
    last = max(end + data.draw(st.integers(0, 3)), 1)
    leader.live(last)
    starts = data.draw(st.sets(st.integers(1, last), max_size=3))
    directory = tmp_path_factory.mktemp("fuzzy")
    write_directory_of(leader, directory, begin, end, sorted(starts))
    moved = read_directory(directory)
    assert comparable(moved.state) == comparable(leader.state())
    assert moved.notes == []


def test_each_transaction_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    leader = Leader(1)
    leader.live(30)
    inside = write_directory_of(leader, tmp_path, 0, 0, [11, 21])
    log = inside / "log.15"
    whole = log.read_bytes().rstrip(b"\0")
    assert whole.endswith(b"B")
    ends = [20]
    position = len(LOG_HEADER)
    for data in leader.payloads[20:]:
        position += len(record(data))
        ends.append(position)
    for length in sorted({*range(len(LOG_HEADER) + 1, len(whole), 7), *ends[1:-1]}):
        # Cut, and cut with the zeros of a file that was made long in advance.
        for content in (whole[:length], whole[:length] + bytes(5000)):
            log.write_bytes(content)
            moved = read_directory(tmp_path)
            kept = 20 + sum(1 for end in ends[1:] if end <= length)
            assert comparable(moved.state) == comparable(leader.state(kept))
            if length not in ends and any(content[max(end for end in [16, *ends[1:]] if end <= length) :]):
                assert any("incomplete" in note and str(log) in note for note in moved.notes)


def test_a_transaction_cut_off_in_the_middle_is_missed(tmp_path: Path) -> None:
    leader = Leader(2)
    leader.live(30)
    inside = write_directory_of(leader, tmp_path, 0, 0, [11, 21])
    log = inside / "log.b"
    log.write_bytes(log.read_bytes().rstrip(b"\0")[:-5])
    with pytest.raises(
        Contradiction, match=r"log\.15, byte 16: transactions between 0x13 and 0x15 are missing"
    ):
        read_directory(tmp_path)
    (inside / "log.b").unlink()
    with pytest.raises(Contradiction, match="between 0xa and 0x15 are missing"):
        read_directory(tmp_path)
    moved = read_directory(tmp_path, lenient=True)
    assert moved.state.last_zxid == 30
    assert any("are missing" in note for note in moved.notes)


def test_damaged_transactions_are_told_with_file_and_byte(tmp_path: Path) -> None:
    leader = Leader(3)
    leader.live(6)
    inside = write_directory_of(leader, tmp_path, 0, 0)
    log = inside / "log.1"
    raw = log.read_bytes()
    second = len(LOG_HEADER) + len(record(leader.payloads[0]))
    for position in range(second + 12, second + len(record(leader.payloads[1])) - 1):
        log.write_bytes(raw[:position] + bytes([raw[position] ^ 0x40]) + raw[position + 1 :])
        with pytest.raises(Damaged, match=rf"log\.1, byte {second}: .*checksum"):
            read_directory(tmp_path)
        with pytest.raises(Damaged, match="checksum"):
            read_directory(tmp_path, lenient=True)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (payload(1, 99, b""), "99 is not a type of transaction"),
        (payload(1, Op.CREATE, b"\0\0\0\x05/a"), "cannot be read"),
        (payload(1, Op.CREATE, create_body("a")), "'a' is not a path"),
        (payload(1, Op.DELETE, struct.pack(">i", -1)), "'' is not a path"),
        (payload(1, Op.MULTI, struct.pack(">iii", 1, Op.SET_ACL, 0)), "7 is not a type"),
        (payload(1, Op.MULTI, struct.pack(">i", 0x7FFFFFFF)), "a vector of 2147483647"),
        (payload(1, Op.SET_ACL, Writer().string("/").i32(0x7FFFFFFF).finish()), "a vector of 2147483647"),
        (b"short", "cannot be read"),
    ],
)
def test_whole_transactions_without_sense_are_damage(tmp_path: Path, data: bytes, expected: str) -> None:
    write_log(versioned(tmp_path, no_nodes()), 1, [data])
    with pytest.raises(Damaged, match=f"byte 16: .*{expected}"):
        read_directory(tmp_path)


@pytest.mark.parametrize("length", [-1, -5, 0x7FFFFFFF, 65 << 20])
def test_absurd_lengths_cost_nothing(tmp_path: Path, length: int) -> None:
    inside = versioned(tmp_path, no_nodes())
    (inside / "log.1").write_bytes(LOG_HEADER + struct.pack(">qi", 5, length) + b"x" * 100)
    with pytest.raises(Damaged, match=rf"log\.1, byte 16: {length} is not a length"):
        read_directory(tmp_path)
    (inside / "log.1").unlink()
    head = b"ZKSN" + struct.pack(">iq", 2, -1)
    for body in (
        struct.pack(">i", 0x7FFFFFFF) + bytes(100),  # sessions
        struct.pack(">iiqi", 0, 1, 1, 0x7FFFFFFF) + bytes(100),  # entries of an ACL
        struct.pack(">iii", 0, 0x7FFFFFFF, 0) + bytes(100),  # ACLs
        struct.pack(">iiii", 0, 0, 0, length) + bytes(100),  # a node's data
    ):
        (inside / "snapshot.0000000000000000").write_bytes(head + body)
        with pytest.raises(Damaged, match=r"snapshot\.0+, byte [0-9]+"):
            read_directory(tmp_path)


def test_old_and_odd_transactions_are_understood(tmp_path: Path) -> None:
    inside = versioned(tmp_path, no_nodes())
    write_log(
        inside,
        1,
        [
            payload(1, Op.CREATE_SESSION, struct.pack(">i", 5000), SESSION),
            payload(2, Op.CREATE, create_body("/old", creations=None), SESSION),  # before 3.4
            payload(3, Op.CREATE, create_body("/old/e", ephemeral=True), SESSION),
            payload(4, Op.CHECK, Writer().string("/old").i32(3).finish(), SESSION),
            payload(5, Op.MULTI, Writer().i32(2).i32(Op.ERROR).buffer(b"\0\0\0\0more").i32(Op.CREATE).buffer(create_body("/no")).finish(), SESSION),
            payload(6, Op.ERROR, struct.pack(">i", -101), SESSION),
            payload(7, Op.DELETE, Writer().string("/never").finish(), SESSION),
            payload(8, Op.SET_DATA, Writer().string("/never").buffer(b"").i32(1).finish(), SESSION),
            payload(9, Op.CREATE, create_body("/never/there"), SESSION),
            payload(10, Op.CREATE_SESSION, struct.pack(">i", 7000), SESSION + 1),
            payload(11, Op.CREATE, create_body("/f", ephemeral=True), SESSION + 1),
        ],
    )  # fmt: skip
    state = read_directory(tmp_path).state
    nodes = dict(state.nodes)
    assert sorted(path for path in nodes if not path.startswith("/zookeeper")) == [
        "/",
        "/f",
        "/old",
        "/old/e",
    ]
    assert (nodes["/"].creations, nodes["/"].pzxid) == (2, 11)
    assert nodes["/old/e"].owner == SESSION
    assert state.sessions == [
        Session(SESSION, 5000, session_password(SESSION)),
        Session(SESSION + 1, 7000, session_password(SESSION + 1)),
    ]
    # A session that ends, as servers before 3.6 logged it: the nodes are those the tree knows of.
    (inside / "log.1").unlink()
    write_log(
        inside,
        1,
        [
            payload(1, Op.CREATE_SESSION, struct.pack(">i", 5000), SESSION),
            payload(2, Op.CREATE, create_body("/e", ephemeral=True), SESSION),
            payload(3, Op.CLOSE_SESSION, b"", SESSION),
            payload(4, Op.ERROR, b"\0\0\0\0", SESSION),
        ],
    )
    state, notes = read_directory(tmp_path)
    assert state.sessions == []
    assert notes == []
    assert "/e" not in dict(state.nodes)
    assert dict(state.nodes)["/"].pzxid == 3


def test_a_digest_beside_an_end_of_session_is_no_list_of_paths(tmp_path: Path) -> None:
    inside = versioned(tmp_path, no_nodes())
    empty = dict(no_nodes().nodes)
    write_log(
        inside,
        1,
        [
            payload(1, Op.CREATE_SESSION, struct.pack(">i", 5000), SESSION, digest=tree_digest(empty)),
            payload(2, Op.CLOSE_SESSION, b"", SESSION, digest=tree_digest(empty)),
        ],
    )
    assert read_directory(tmp_path).state.sessions == []


def test_a_tree_that_is_not_the_servers_is_refused(tmp_path: Path) -> None:
    leader = Leader(4)
    leader.live(20)
    inside = write_directory_of(leader, tmp_path, 0, 0)
    shown = [
        number for number, each in enumerate(leader.payloads) if decode_transaction(each).digest is not None
    ]

    def write_with_wrong_digests(numbers: list[int]) -> None:
        payloads = list(leader.payloads)
        for number in numbers:
            payloads[number] = payloads[number][:-1] + bytes([payloads[number][-1] ^ 1])
        write_log(inside, 1, payloads)

    write_with_wrong_digests(shown[-2:])
    with pytest.raises(Contradiction, match=rf"transaction {shown[-2] + 1:#x}: .*digest"):
        read_directory(tmp_path)
    moved = read_directory(tmp_path, lenient=True)
    assert comparable(moved.state) == comparable(leader.state())
    assert len(moved.notes) == 1
    # ZooKeeper itself notes some wrongly; that the last is right tells that all is.
    write_with_wrong_digests(shown[:-1])
    assert read_directory(tmp_path).notes == []


def test_a_snapshots_own_digest_is_compared(tmp_path: Path) -> None:
    leader = Leader(5)
    leader.live(20)
    inside = tmp_path / "version-2"
    inside.mkdir()
    snapshot = write_snapshot(inside, leader.state(), quiet)
    plain = snapshot.read_bytes()
    right = tree_digest(leader.states[20])
    for digest, last in (((20, right), 20), ((20, right), None), (None, 20), ((3, right ^ 1), 20)):
        snapshot.write_bytes(plain)
        add_sections(snapshot, digest, last)
        assert comparable(read_directory(tmp_path).state) == comparable(leader.state())
    snapshot.write_bytes(plain)
    add_sections(snapshot, (20, right ^ 1))
    with pytest.raises(Contradiction, match="digest"):
        read_directory(tmp_path)


@pytest.mark.parametrize("sections", [(True, False), (False, True), (True, True)])
def test_a_snapshot_in_the_making_needs_its_logs(tmp_path: Path, sections: tuple[bool, bool]) -> None:
    leader = Leader(6)
    leader.live(40)
    inside = write_directory_of(leader, tmp_path, 20, 35)
    snapshot = write_snapshot(
        inside, leader.state(20), quiet
    )  # that it is newer in parts is told by its end alone
    digest = (35, tree_digest(leader.states[35])) if sections[0] else None
    add_sections(snapshot, digest, 35 if sections[1] else None)
    write_log(inside, 1, leader.payloads[:34])
    with pytest.raises(Contradiction, match=r"up to 0x23; the logs in .* end at 0x22"):
        read_directory(tmp_path)
    assert read_directory(tmp_path, lenient=True).state.last_zxid == 35


def test_an_acl_that_came_after_the_list_of_acls_is_mended(tmp_path: Path) -> None:
    state = no_nodes(1)
    private = (Acl(31, Id("digest", "a:b")),)
    late = NodeState(b"", private, 2, 2, 2, 2000, 2000, 0, 0, 0, 0)
    inside = versioned(tmp_path, state._replace(nodes=[*state.nodes, ("/late", late)]))
    (snapshot,) = inside.iterdir()
    raw = snapshot.read_bytes()
    count = struct.pack(">ii", 0, 2)  # no sessions, two ACLs
    listed = struct.pack(">qii", 1, 1, 31) + b"\0\0\0\x06digest\0\0\0\x03a:b"
    assert raw[16:24] == count
    assert listed in raw
    body = raw[:-13].replace(listed, b"").replace(count, struct.pack(">ii", 0, 1), 1)
    snapshot.write_bytes(body + struct.pack(">qi", zlib.adler32(body), 1) + b"/")
    with pytest.raises(Contradiction, match="while the server served"):
        read_directory(tmp_path)
    with pytest.raises(Damaged, match="ACLs of 1 nodes are not in the snapshot: /late"):
        read_directory(tmp_path, lenient=True)
    # Of the two operations the older one counts at the parent even if the node is there.
    for op, creations in ((Op.CREATE2, 0), (Op.CREATE, 1)):
        write_log(inside, 2, [payload(2, op, create_body("/late", b"", private, creations=1))])
        nodes = dict(read_directory(tmp_path).state.nodes)
        assert (nodes["/late"].acl, nodes["/"].creations) == (private, creations)


# ---- which files ----


def test_every_flipped_byte_of_a_snapshot_is_found(tmp_path: Path) -> None:
    leader = Leader(7)
    leader.live(12)
    inside = tmp_path / "version-2"
    inside.mkdir()
    path = write_snapshot(inside, leader.state(), quiet)
    add_sections(path, (12, tree_digest(leader.states[12])), 12)
    raw = path.read_bytes()
    zipped = inside / "snapshot.c.gz"
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0x40]) + raw[position + 1 :])
        with pytest.raises(Damaged, match=rf"{path}, byte [0-9]+"):
            read_directory(tmp_path)
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        try:
            assert comparable(read_directory(tmp_path).state) == comparable(leader.state())
        except Damaged:
            continue
        assert raw[:length].endswith(b"\0\0\0\x01/"), "only at the end of a section"
    path.unlink()
    packed = gzip.compress(raw)
    found = 0
    for position in range(10, len(packed)):
        zipped.write_bytes(packed[:position] + bytes([packed[position] ^ 0x40]) + packed[position + 1 :])
        try:  # some bits say nothing
            assert comparable(read_directory(tmp_path).state) == comparable(leader.state())
        except Damaged as error:
            found += bool(re.search(r"snapshot\.c\.gz, byte [0-9]+ of its unzipped content", str(error)))
    assert found > 0.9 * len(packed)


def test_an_older_snapshot_does_if_the_logs_go_far_enough(tmp_path: Path) -> None:
    leader = Leader(8)
    leader.live(40)
    inside = write_directory_of(leader, tmp_path, 10, 10)
    newer = write_snapshot(inside, leader.state(30), quiet)
    newer.write_bytes(newer.read_bytes()[:-1] + b"!")
    moved = read_directory(tmp_path)
    assert comparable(moved.state) == comparable(leader.state())
    assert any(note.startswith(f"skipped a snapshot: {newer}, byte") for note in moved.notes)
    write_log(inside, 1, leader.payloads[:25])
    with pytest.raises(Contradiction, match="end at 0x19: the transactions after that are lost"):
        read_directory(tmp_path)
    for snapshot in inside.glob("snapshot.*"):
        snapshot.write_bytes(b"")
    with pytest.raises(Damaged, match=r"no snapshot in .* can be read"):
        read_directory(tmp_path, lenient=True)


def test_logs_without_a_snapshot_begin_at_the_first_transaction(tmp_path: Path) -> None:
    leader = Leader(9)
    leader.live(20)
    inside = write_directory_of(leader, tmp_path, 0, 0, [11])
    for snapshot in inside.glob("snapshot.*"):
        snapshot.unlink()
    assert comparable(read_directory(tmp_path).state) == comparable(leader.state())
    (inside / "log.1").unlink()
    with pytest.raises(Contradiction, match="no snapshot, and its logs begin at 0xb"):
        read_directory(tmp_path)


def test_logs_may_have_a_directory_of_their_own(tmp_path: Path) -> None:
    leader = Leader(10)
    leader.live(20)
    inside = write_directory_of(leader, tmp_path / "data", 5, 5)
    elsewhere = tmp_path / "logs" / "version-2"
    elsewhere.mkdir(parents=True)
    (inside / "log.1").rename(elsewhere / "log.1")
    assert comparable(read_directory(tmp_path / "data", tmp_path / "logs").state) == comparable(
        leader.state()
    )
    alone = read_directory(tmp_path / "data")
    assert alone.state.last_zxid == 5
    assert any("dataLogDir" in note for note in alone.notes)


def test_a_log_that_was_only_begun_and_names_that_only_begin_alike(tmp_path: Path) -> None:
    leader = Leader(11)
    leader.live(10)
    inside = write_directory_of(leader, tmp_path, 0, 0)
    for name, content in (
        ("log.b", b""),
        ("snapshot.5.tmp", b"x"),
        ("log.1.bak", b"x"),
        ("log.g", b""),
        ("other", b""),
    ):
        (inside / name).write_bytes(content)
    moved = read_directory(tmp_path)
    assert comparable(moved.state) == comparable(leader.state())
    assert any("log.1.bak, log.g" in note for note in moved.notes)
    assert any("snapshot.5.tmp" in note for note in moved.notes)
    assert any("log.b is empty" in note for note in moved.notes)
    (inside / "log.b").rename(inside / "log.5")
    write_log(inside, 11, [payload(11, Op.ERROR, b"\0\0\0\0")])
    with pytest.raises(Damaged, match=r"log\.5, byte 0"):
        read_directory(tmp_path)


def test_transactions_in_disorder_are_refused(tmp_path: Path) -> None:
    inside = versioned(tmp_path, no_nodes())
    creates = [payload(zxid, Op.CREATE, create_body(f"/{zxid}")) for zxid in (1, 2, 3)]
    write_log(inside, 1, [creates[0], creates[2], creates[1]])
    with pytest.raises(Contradiction, match="between 0x1 and 0x3"):
        read_directory(tmp_path)
    write_log(inside, 1, [creates[0], payload(1, Op.ERROR, b"\xff\xff\xff\xfb"), creates[1]])
    assert read_directory(tmp_path).state.last_zxid == 2
    write_log(inside, 1, [creates[0], creates[1], creates[0]])
    with pytest.raises(Contradiction, match="0x1 comes after 0x2"):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    ("epoch", "zxid"),
    [("", 0x3_0000_0002), ("3", 0x3_0000_0002), ("3\n", 0x3_0000_0002), ("5", 0x5_0000_0000)],
)
def test_an_epoch_is_kept_even_without_a_transaction(tmp_path: Path, epoch: str, zxid: int) -> None:
    inside = versioned(tmp_path, no_nodes(0x1_0000_0008))
    for first in (0x2_0000_0001, 0x3_0000_0001):
        write_log(
            inside, first, [payload(first, Op.ERROR, b"\0\0\0\0"), payload(first + 1, Op.ERROR, b"\0\0\0\0")]
        )
    if epoch:
        (inside / "currentEpoch").write_text(epoch)
    (tmp_path / "myid").write_text("1")
    moved = read_directory(tmp_path)
    assert moved.state.last_zxid == zxid
    assert any("the data of one member" in note for note in moved.notes)


def test_an_epoch_that_cannot_be_is_refused(tmp_path: Path) -> None:
    inside = versioned(tmp_path, no_nodes(0x3_0000_0001))
    (inside / "currentEpoch").write_text("2")
    with pytest.raises(Contradiction, match="says 2, and there are transactions of epoch 3"):
        read_directory(tmp_path)
    (inside / "currentEpoch.tmp").write_text("3")
    assert any("use the data of another" in note for note in read_directory(tmp_path).notes)
    (inside / "currentEpoch").write_text("two")
    with pytest.raises(Damaged, match="is not an epoch"):
        read_directory(tmp_path)
    (inside / "currentEpoch").write_text("1")
    (inside / "currentEpoch.tmp").unlink()
    write_log(inside, 0x4_0000_0003, [payload(0x4_0000_0003, Op.ERROR, b"\0\0\0\0")])
    with pytest.raises(Contradiction, match="between 0x300000001 and 0x400000003"):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (lambda path: path.rmdir(), "is not a directory"),
        (lambda path: None, "has no snapshot of Apache ZooKeeper"),
        (lambda path: (path / "snapshot.1.snappy").write_bytes(b"\x82SNAPPY\0"), "snappy"),
        (lambda path: begin_directory(path, no_nodes()), "of this coordinator"),
        (
            lambda path: (path / "snapshot.1").write_bytes(b"ZKLG" + bytes(100)),
            "does not begin like a snapshot",
        ),
        (lambda path: (path / "snapshot.1").write_bytes(b"ZKSN" + bytes(100)), r"snapshot\.1, byte [0-9]+"),
    ],
)
def test_what_is_no_data_directory_is_a_clear_error(
    tmp_path: Path, prepare: Callable[[Path], object], expected: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    prepare(source)
    with pytest.raises(CoordinatorError, match=expected):
        read_directory(source)


# ---- made whole ----


def test_nodes_of_sessions_that_are_over_and_orphans_are_left_out(tmp_path: Path) -> None:
    state = rich_state()
    gone = [("/lost", NodeState(b"", OPEN, 1, 1, 1, 0, 0, 0, 0, 0, SESSION + 9))]
    strange = -5  # looks like a TTL beyond what one may be
    gone.append(("/strange", gone[0][1]._replace(owner=strange)))
    versioned(tmp_path, state._replace(nodes=[*state.nodes, *gone]))
    moved = read_directory(tmp_path)
    expected = dict(state.nodes)
    expected["/"] = expected["/"]._replace(pzxid=state.last_zxid)
    assert dict(moved.state.nodes) == expected
    assert any("/lost, /strange" in note for note in moved.notes)


def test_a_deleted_parent_takes_what_is_below_it(tmp_path: Path) -> None:
    inside = versioned(tmp_path, rich_state())
    zxid = 0x2_0000_0011
    write_log(
        inside,
        zxid,
        [
            payload(zxid, Op.DELETE, Writer().string("/a").finish()),
            payload(zxid + 1, Op.CREATE, create_body("/a", creations=9)),
        ],
    )
    moved = read_directory(tmp_path)
    assert not [path for path, _node in moved.state.nodes if path.startswith("/a/")]
    assert any("3 nodes below deleted ones" in note for note in moved.notes)


def test_quotas_are_counted_anew_and_old_trees_get_a_configuration(tmp_path: Path) -> None:
    state = rich_state()
    nodes = {path: node for path, node in state.nodes if path != CONFIG}
    plain = NodeState(b"count=9,bytes=9", OPEN, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    for path in (
        "/zookeeper/quota/a",
        "/zookeeper/quota/a/zookeeper_limits",
        "/zookeeper/quota/a/zookeeper_stats",
    ):
        nodes[path] = plain
    versioned(tmp_path, state._replace(nodes=list(nodes.items())))
    moved = dict(read_directory(tmp_path).state.nodes)
    assert moved[CONFIG] == dict(no_nodes().nodes)[CONFIG]
    assert moved["/zookeeper/quota/a/zookeeper_stats"] == plain._replace(data=b"count=4,bytes=2")
    Machine(read_directory(tmp_path).state)


# ---- directories of ours ----


def test_no_data_is_written_over(tmp_path: Path, start_coordinator: StartCoordinator) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CoordinatorError, match="is a file"):
        begin_directory(tmp_path / "file", no_nodes())
    for into in (begin_directory, write_directory):
        with pytest.raises(CoordinatorError, match="not empty, it has file in it"):
            into(tmp_path, no_nodes())
    member = tmp_path / "member"
    member.mkdir()
    (member / "myid").write_text("1")
    begin_directory(member, no_nodes())
    with pytest.raises(CoordinatorError, match=r"not empty, it has snapshot\."):
        begin_directory(member, no_nodes())
    start_coordinator(member)
    with pytest.raises(CoordinatorError, match="in use"):
        load_directory(member)
    with pytest.raises(CoordinatorError, match="is not the data directory of a coordinator"):
        load_directory(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_of_two_who_begin_a_directory_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(TransactionLog):
        def __init__(self, directory: Path) -> None:
            begin_elsewhere(directory, no_nodes(7))
            super().__init__(directory)

    def begin_elsewhere(directory: Path, state: State) -> None:
        monkeypatch.setattr(own, "TransactionLog", TransactionLog)
        begin_directory(directory, state)

    monkeypatch.setattr(own, "TransactionLog", Late)
    with pytest.raises(CoordinatorError, match="not empty"):
        begin_directory(tmp_path / "ours", no_nodes(8))
    assert load_directory(tmp_path / "ours").last_zxid == 7


def test_what_zookeeper_would_not_start_on_is_not_written(tmp_path: Path) -> None:
    state = no_nodes()
    limits = ("/zookeeper/quota/zookeeper_limits", state.nodes[0][1])
    with pytest.raises(CoordinatorError, match="delete it first"):
        write_directory(tmp_path / "out", state._replace(nodes=[*state.nodes, limits]))
    assert not (tmp_path / "out").exists()
    stranger = Session(5, 4000, b"p" * 16)
    large = ("/large", state.nodes[0][1]._replace(data=bytes(3 << 20)))
    notes = write_directory(
        tmp_path / "out", state._replace(sessions=[stranger], nodes=[*state.nodes, large])
    )
    assert ["1 sessions began here" in notes[0], "-Djute.maxbuffer=3145728" in notes[1]] == [True, True]


def test_clients_go_on_where_they_were(tmp_path: Path, start_coordinator: StartCoordinator) -> None:
    """A session is resumed with the password ZooKeeper gave, and its node goes with it; ids go on."""
    write_directory(tmp_path / "apache", rich_state())
    begin_directory(tmp_path / "ours", read_directory(tmp_path / "apache").state)
    server = start_coordinator(tmp_path / "ours")
    client = RawClient(server.port)
    timeout, session, _password = client.connect(
        30_000, SESSION, session_password(SESSION), last_zxid=0x2_0000_0010
    )
    assert (timeout, session) == (30_000, SESSION)
    assert (
        client.request(1, Op.CREATE, Writer().string("/new").buffer(b"").acls(OPEN).i32(0).finish())[1]
        == 0x2_0000_0011
    )
    assert client.request(2, Op.CLOSE_SESSION)[1] == 0x2_0000_0012
    client.close()
    server.stop()
    state = load_directory(tmp_path / "ours")
    assert "/e" not in dict(state.nodes)
    assert "/n" in dict(state.nodes)
    assert state.last_zxid == 0x2_0000_0012


# ---- a running ensemble ----


def create(
    client: RawClient, path: str, data: bytes | None = b"", flags: int = 0, acl: tuple[Acl, ...] = OPEN
) -> None:
    body = Writer().string(path).buffer(data).acls(acl).i32(flags).finish()
    assert client.request(1, Op.CREATE, body)[2] == 0


def filled(server_port: int) -> RawClient:
    client = RawClient(server_port)
    client.connect()
    for number in range(40):
        create(client, f"/{number}")
        for below in range(number % 7):
            create(client, f"/{number}/{below}-{'x' * 200}", bytes([below]), flags=2)
    create(client, "/null", None)
    create(client, "/ephemeral", flags=1)
    assert (
        client.request(1, Op.DELETE, Writer().string("/3/0-" + "x" * 200 + "0000000000").i32(-1).finish())[2]
        == 0
    )
    return client


def without_ephemerals(state: State, last_zxid: int) -> dict[str, NodeState]:
    nodes = {path: node for path, node in state.nodes if node.owner == 0}
    nodes["/"] = nodes["/"]._replace(pzxid=last_zxid)
    return nodes


def test_a_running_server_is_read_as_it_is(start_coordinator: StartCoordinator) -> None:
    server = start_coordinator()
    client = filled(server.port)
    shown: list[tuple[str, int, int]] = []
    moved = read_ensemble(
        [Address("127.0.0.1", 1), Address("127.0.0.1", server.port)],
        progress=lambda *step: shown.append(step),
    )
    truth = server.thread.call(server.server.machine.export)
    assert dict(moved.state.nodes) == without_ephemerals(truth, moved.state.last_zxid)
    assert moved.state.last_zxid == truth.last_zxid
    assert moved.state.sessions == []
    assert any("/ephemeral" in note for note in moved.notes)
    assert any("containers" in note for note in moved.notes)
    assert len(server.server.machine.sessions) == 1, "its own session is over"
    client.close()


def test_changes_meanwhile_are_read_again(
    start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_coordinator()
    client = filled(server.port)
    settle = live._Walk._settle

    def disturbed(walk: live._Walk) -> list[str]:
        create(client, "/7/new")
        create(client, "/7/new/below", b"b")
        for path in ("/38/0-" + "x" * 200 + "0000000000", "/14"):
            assert client.request(1, Op.DELETE, Writer().string(path).i32(-1).finish())[2] == 0
        create(client, "/14", b"again")
        read_only = Writer().string("/21").acls([Acl(1, Id("world", "anyone"))]).i32(-1).finish()
        assert client.request(1, Op.SET_ACL, read_only)[2] == 0
        assert client.request(1, Op.SET_DATA, Writer().string("/20").buffer(b"set").i32(-1).finish())[2] == 0
        return settle(walk)

    monkeypatch.setattr(live._Walk, "_settle", disturbed)
    moved = read_ensemble([Address("127.0.0.1", server.port)])
    truth = server.thread.call(server.server.machine.export)
    assert dict(moved.state.nodes) == without_ephemerals(truth, moved.state.last_zxid)
    assert not any("at different times" in note for note in moved.notes)
    client.close()


def test_a_server_that_never_rests_is_told(
    start_coordinator: StartCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_coordinator()
    client = filled(server.port)
    read = live._Walk._read

    def disturbed(walk: live._Walk, paths: list[str]) -> None:
        read(walk, paths)
        assert client.request(1, Op.SET_DATA, Writer().string("/7").buffer(b"set").i32(-1).finish())[2] == 0

    monkeypatch.setattr(live._Walk, "_read", disturbed)
    moved = read_ensemble([Address("127.0.0.1", server.port)])
    assert any("at different times, and 1 of them may have changed since: /7" in note for note in moved.notes)
    client.close()


def test_what_may_not_be_read_is_not_left_out_silently(start_coordinator: StartCoordinator) -> None:
    server = start_coordinator(settings=Settings(super_digest=digest_identity(SUPER).id))
    client = RawClient(server.port)
    client.connect()
    address = [Address("127.0.0.1", server.port)]
    ann = digest_identity(b"ann:secret")
    create(client, "/shown", acl=(Acl(31, ann), Acl(1, Id("world", "anyone"))))
    with pytest.raises(CoordinatorError, match="password hashes in the ACLs of 1 nodes: /shown"):
        read_ensemble(address)
    create(client, "/hidden", acl=(Acl(31, ann),))
    with pytest.raises(CoordinatorError, match="refuses to read 1 nodes: /hidden"):
        read_ensemble(address)
    with pytest.raises(CoordinatorError, match="refuses the credentials of scheme none"):
        read_ensemble(address, [Credentials("none", b"x")])
    for credentials in (Credentials("digest", SUPER), Credentials("digest", b"ann:secret")):
        moved = read_ensemble(address, [credentials])
        assert dict(moved.state.nodes)["/shown"].acl == (Acl(31, ann), Acl(1, Id("world", "anyone")))
        assert dict(moved.state.nodes)["/hidden"].acl == (Acl(31, ann),)
    client.close()


def answering(chunks: list[bytes]) -> tuple[int, threading.Thread]:
    """The port of a server that says this to its first client, whatever it is told, and leaves."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as client:
            for chunk in chunks:
                client.recv(65536)
                client.sendall(chunk)
            with contextlib.suppress(OSError):  # whoever hears nonsense hangs up
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


CONNECTED = frame([struct.pack(">iiqi", 0, 30_000, 5, 16) + bytes(17)])
SYNCED = frame([struct.pack(">iqi", 1, 9, 0) + b"\0\0\0\x01/"])


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], "closed the connection: it does not serve"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "announces an answer of 1213486160 bytes; is it ZooKeeper"),
        ([struct.pack(">i", 100 << 20)], "closed the connection"),
        ([frame([struct.pack(">iiqi", 0, 0, 0, 16) + bytes(17)])], "refuses a session"),
        ([frame([b"\0"])], "no server answers"),
        ([CONNECTED, frame([b"short"])], "5 bytes, which are not an answer"),
        ([CONNECTED, frame([struct.pack(">iqi", 1, 9, -6)])], "answers UNIMPLEMENTED"),
        ([CONNECTED, SYNCED, frame([struct.pack(">iqi", 2, 9, -101)]) * 3], "has no root"),
        ([CONNECTED, SYNCED, frame([struct.pack(">iqi", 2, 9, -9999)]) * 3], "answers an error"),
        ([CONNECTED, SYNCED, frame([struct.pack(">iqi", 2, 9, 0) + b"\0\0\0\x7f"]) * 3], "was being read, then: 127 bytes needed"),
    ],
)  # fmt: skip
def test_what_is_no_server_of_zookeepers_is_a_clear_error(chunks: list[bytes], expected: str) -> None:
    port, thread = answering(chunks)
    with pytest.raises(CoordinatorError, match=expected):
        read_ensemble([Address("127.0.0.1", port)])
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def test_addresses() -> None:
    assert parse_addresses("zk1:2181, [::1]:2182") == [Address("zk1", 2181), Address("::1", 2182)]
    for wrong in ("", "zk1", "zk1:", "zk1:99999", "zk1:2181/chroot", "zk1:2181,", ":1", "a b:c"):
        with pytest.raises(ValueError, match="host:port"):
            parse_addresses(wrong)


# ---- the command ----


def test_the_command_moves_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leader = Leader(12)
    leader.live(50)
    write_directory_of(leader, tmp_path / "apache", 20, 30)
    config = tmp_path / "zoo.cfg"
    config.write_text(f"dataDir={tmp_path}/ours\nclientPort=0\n")
    assert main(["coordinator", "import", str(tmp_path / "apache"), str(config)]) == 0
    nodes, sessions = len(leader.states[50]), len(leader.sessions[50])
    output = capsys.readouterr().out.splitlines()
    assert (
        output[0] == f"imported {nodes} nodes and {sessions} sessions, up to zxid 0x32, into {tmp_path}/ours"
    )
    assert f"with {tmp_path}/ours as the dataDir of one voting server" in output[1]
    assert comparable(load_directory(tmp_path / "ours")) == comparable(leader.state())
    assert main(["coordinator", "export", str(config), str(tmp_path / "back")]) == 0
    assert capsys.readouterr().out.startswith(
        f"exported {nodes} nodes and {sessions} sessions, up to zxid 0x32, into"
    )
    assert comparable(read_directory(tmp_path / "back").state) == comparable(leader.state())


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["import", "{}/none", "{}/new"], 2, "neither a directory nor HOST:PORT"),
        (["import", "{}", "{}/new"], 1, "has no snapshot of Apache ZooKeeper"),
        (["import", "{}", "{}/none.cfg"], 1, "there is no such file"),
        (["import", "{}", "{}"], 1, "not empty, it has there in it"),
        (["import", "{}"], 2, "required: DIR|zoo.cfg"),
        (["import", "127.0.0.1:1", "{}/new"], 1, "no server answers: 127.0.0.1:1: "),
        (["import", "127.0.0.1:1", "{}/new", "--lenient"], 2, "are for a directory"),
        (["import", "{}", "{}/new", "--credentials", "{}/there"], 2, "is for a running ensemble"),
        (
            ["import", "127.0.0.1:1", "{}/new", "--credentials", "{}/there"],
            2,
            "line 1 has a scheme but no credentials",
        ),
        (["export", "{}", "{}/new"], 1, "is not the data directory of a coordinator"),
        (["export", "{}/new", "{}"], 1, "not empty"),
        (["{}/import"], 2, "cannot be read: No such file"),
    ],
)
def test_a_command_that_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, expected: str
) -> None:
    (tmp_path / "there").write_text("digest\n")
    assert main(["coordinator", *(each.format(tmp_path) for each in arguments)]) == status
    errors = capsys.readouterr().err
    assert errors.startswith("logcore coordinator: ")
    assert expected in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_contradiction_tells_the_way_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leader = Leader(13)
    leader.live(20)
    inside = write_directory_of(leader, tmp_path / "apache", 0, 0, [11])
    (inside / "log.1").unlink()
    arguments = ["coordinator", "import", str(tmp_path / "apache"), str(tmp_path / "ours")]
    assert main(arguments) == 1
    assert "--lenient continues nevertheless" in capsys.readouterr().err
    assert main([*arguments, "--lenient"]) == 0
    assert "  note: " in capsys.readouterr().out
