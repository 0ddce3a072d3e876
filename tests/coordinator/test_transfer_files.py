"""Reading the logs and snapshots of Apache ZooKeeper.

If these fail, an import has another state than the server had, or accepts damaged or incomplete files.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.coordinator import CoordinatorError
from cluster.coordinator.protocol.jute import Acl, Id, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.sessions import Session
from cluster.coordinator.state.tree import NodeState
from cluster.coordinator.transfer import (
    Contradiction,
    Damaged,
    begin_directory,
    read_directory,
)
from cluster.coordinator.transfer.common import session_password
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
from .test_transfer import SESSION, comparable, no_nodes, quiet, versioned

# ---- replay of the logs ----


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_the_logs_complete_a_fuzzy_snapshot(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, 60))
    end = begin + data.draw(st.integers(0, 20))
    leader = Leader(seed)
    # Few transactions follow the snapshot, because later writes would hide its errors.
    last = max(end + data.draw(st.integers(0, 3)), 1)
    leader.live(last)
    starts = data.draw(st.sets(st.integers(1, last), max_size=3))
    directory = tmp_path_factory.mktemp("fuzzy")
    write_directory_of(leader, directory, begin, end, sorted(starts))
    moved = read_directory(directory)
    assert comparable(moved.state) == comparable(leader.state())
    assert moved.notes == []


def test_an_incomplete_last_transaction_is_ignored(tmp_path: Path) -> None:
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
        # Without and with the zeros of a preallocated file.
        for content in (whole[:length], whole[:length] + bytes(5000)):
            log.write_bytes(content)
            moved = read_directory(tmp_path)
            kept = 20 + sum(1 for end in ends[1:] if end <= length)
            assert comparable(moved.state) == comparable(leader.state(kept))
            if length not in ends and any(content[max(end for end in [16, *ends[1:]] if end <= length) :]):
                assert any("incomplete" in note and str(log) in note for note in moved.notes)


def test_an_incomplete_transaction_before_the_last_log_is_refused(tmp_path: Path) -> None:
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


def test_damaged_transactions_are_refused_with_file_and_byte(tmp_path: Path) -> None:
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
def test_complete_transactions_with_invalid_content_are_refused(
    tmp_path: Path, data: bytes, expected: str
) -> None:
    write_log(versioned(tmp_path, no_nodes()), 1, [data])
    with pytest.raises(Damaged, match=f"byte 16: .*{expected}"):
        read_directory(tmp_path)


@pytest.mark.parametrize("length", [-1, -5, 0x7FFFFFFF, 65 << 20])
def test_absurd_lengths_are_refused(tmp_path: Path, length: int) -> None:
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


def test_old_and_unusual_transactions_are_read(tmp_path: Path) -> None:
    part = Writer().i32(Op.ERROR).buffer(b"\0\0\0\0more").i32(Op.CREATE).buffer(create_body("/no"))
    inside = versioned(tmp_path, no_nodes())
    write_log(
        inside,
        1,
        [
            payload(1, Op.CREATE_SESSION, struct.pack(">i", 5000), SESSION),
            payload(2, Op.CREATE, create_body("/old", creations=None), SESSION),  # before 3.4
            payload(3, Op.CREATE, create_body("/old/e", ephemeral=True), SESSION),
            payload(4, Op.CHECK, Writer().string("/old").i32(3).finish(), SESSION),
            payload(5, Op.MULTI, struct.pack(">i", 2) + part.finish(), SESSION),
            payload(6, Op.ERROR, struct.pack(">i", -101), SESSION),
            payload(7, Op.DELETE, Writer().string("/never").finish(), SESSION),
            payload(8, Op.SET_DATA, Writer().string("/never").buffer(b"").i32(1).finish(), SESSION),
            payload(9, Op.CREATE, create_body("/never/there"), SESSION),
            payload(10, Op.CREATE_SESSION, struct.pack(">i", 7000), SESSION + 1),
            payload(11, Op.CREATE, create_body("/f", ephemeral=True), SESSION + 1),
        ],
    )
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
    # Servers before 3.6 logged the end of a session without its nodes.
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


def test_a_digest_after_a_close_session_is_not_read_as_paths(tmp_path: Path) -> None:
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


def test_a_tree_with_another_digest_is_refused(tmp_path: Path) -> None:
    leader = Leader(4)
    leader.live(20)
    inside = write_directory_of(leader, tmp_path, 0, 0)
    with_digest = [
        number for number, each in enumerate(leader.payloads) if decode_transaction(each).digest is not None
    ]

    def write_with_wrong_digests(numbers: list[int]) -> None:
        payloads = list(leader.payloads)
        for number in numbers:
            payloads[number] = payloads[number][:-1] + bytes([payloads[number][-1] ^ 1])
        write_log(inside, 1, payloads)

    write_with_wrong_digests(with_digest[-2:])
    with pytest.raises(Contradiction, match=rf"transaction {with_digest[-2] + 1:#x}: .*digest"):
        read_directory(tmp_path)
    moved = read_directory(tmp_path, lenient=True)
    assert comparable(moved.state) == comparable(leader.state())
    assert len(moved.notes) == 1
    # ZooKeeper itself logs some wrong digests. If the last one is right, the tree is right.
    write_with_wrong_digests(with_digest[:-1])
    assert read_directory(tmp_path).notes == []


def test_a_snapshots_own_digest_is_checked(tmp_path: Path) -> None:
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
def test_a_fuzzy_snapshot_needs_the_logs_up_to_its_end(tmp_path: Path, sections: tuple[bool, bool]) -> None:
    leader = Leader(6)
    leader.live(40)
    inside = write_directory_of(leader, tmp_path, 20, 35)
    # Only the sections at the end of the snapshot show that it has newer parts.
    snapshot = write_snapshot(inside, leader.state(20), quiet)
    digest = (35, tree_digest(leader.states[35])) if sections[0] else None
    add_sections(snapshot, digest, 35 if sections[1] else None)
    write_log(inside, 1, leader.payloads[:34])
    with pytest.raises(Contradiction, match=r"up to 0x23; the logs in .* end at 0x22"):
        read_directory(tmp_path)
    assert read_directory(tmp_path, lenient=True).state.last_zxid == 35


def test_an_acl_missing_in_a_fuzzy_snapshot_is_read_from_the_logs(tmp_path: Path) -> None:
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
    # The older operation, create, changes the parent's counter even if the node exists.
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
        assert raw[:length].endswith(b"\0\0\0\x01/"), "a snapshot cut inside a section was accepted"
    path.unlink()
    packed = gzip.compress(raw)
    found = 0
    for position in range(10, len(packed)):
        zipped.write_bytes(packed[:position] + bytes([packed[position] ^ 0x40]) + packed[position + 1 :])
        try:  # gzip ignores some bits
            assert comparable(read_directory(tmp_path).state) == comparable(leader.state())
        except Damaged as error:
            found += bool(re.search(r"snapshot\.c\.gz, byte [0-9]+ of its unzipped content", str(error)))
    assert found > 0.9 * len(packed)


def test_an_older_snapshot_is_used_if_the_logs_are_long_enough(tmp_path: Path) -> None:
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


def test_logs_may_be_in_another_directory(tmp_path: Path) -> None:
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


def test_empty_logs_and_other_files_are_skipped_with_a_note(tmp_path: Path) -> None:
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


def test_an_impossible_epoch_is_refused(tmp_path: Path) -> None:
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
def test_a_directory_without_apaches_data_is_a_clear_error(
    tmp_path: Path, prepare: Callable[[Path], object], expected: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    prepare(source)
    with pytest.raises(CoordinatorError, match=expected):
        read_directory(source)
