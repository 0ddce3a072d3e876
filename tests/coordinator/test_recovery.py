"""Crashes. If these fail, an answered write is gone after a restart, a refused one is back, or a damaged
directory is served as if it were whole."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient

import logcore
from cluster.coordinator import CoordinatorError, Settings
from cluster.coordinator.durability import local
from cluster.coordinator.durability.engine import EngineLog
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.durability.snapshot import (
    SnapshotFile,
    decode,
    encode,
    read_snapshot,
    snapshot_path,
    write_snapshot,
)
from cluster.coordinator.errors import DiskFullError, JuteError
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.requests import CreateSession, Op, decode_write, encode_create_session
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.machine import Command, Machine, State, decode_command
from cluster.coordinator.state.sessions import Session
from cluster.coordinator.state.tree import NodeState

from .conftest import Connect, StartCoordinator
from .support import WAIT_SECONDS, Coordinator, FakeClock, RawClient


def command(zxid: int, op: Op, body: bytes, session: int = 1) -> Command:
    return Command(zxid, zxid * 1000, session, op, Rules.NONE, (), decode_write(op, Reader(body)), body)


def history(count: int, seed: int = 1) -> list[Command]:
    """A session's life: creations, changes, deletions, refusals."""
    birth = encode_create_session(CreateSession(4000, b"p" * 16))
    commands = [command(1, Op.CREATE_SESSION, birth)]
    chance = random.Random(seed)
    for zxid in range(2, count + 1):
        path = f"/{chance.choice('abc')}"
        kind = chance.choice([Op.CREATE, Op.CREATE, Op.SET_DATA, Op.SET_DATA, Op.DELETE])
        writer = Writer().string(path)
        if kind is Op.CREATE:
            writer.buffer(bytes([zxid % 256])).acls(OPEN).i32(chance.choice([0, 1, 2, 3]))
        elif kind is Op.SET_DATA:
            writer.buffer(bytes([zxid % 256])).i32(-1)
        else:
            writer.i32(-1)
        commands.append(command(zxid, kind, writer.finish()))
    return commands


def fingerprint(machine: Machine) -> bytes:
    """The machine's whole state, comparable."""
    state = machine.export()
    return encode(state._replace(nodes=sorted(state.nodes), sessions=sorted(state.sessions)))


def states_after(commands: Sequence[Command]) -> list[bytes]:
    machine = Machine()
    states = [fingerprint(machine)]
    for each in commands:
        machine.apply(each)
        states.append(fingerprint(machine))
    return states


def recover(directory: Path) -> Machine:
    log = TransactionLog(directory)
    try:
        return log.recover()[0]
    finally:
        log.close()


def append(log: TransactionLog | EngineLog, records: Sequence[bytes]) -> None:
    """Returns when they are on disk."""

    async def appended() -> None:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        log.append(records, done.set_result)
        assert await done is None

    asyncio.run(appended())


def write_history(directory: Path, commands: Sequence[Command], snapshot_every: int) -> None:
    """What a server does: append, apply, and now and then roll and save."""
    log = TransactionLog(directory)
    machine, _behind = log.recover()
    for each in commands:
        append(log, [each.encode()])
        machine.apply(each)
        if machine.last_zxid % snapshot_every == 0:
            log.roll(machine.last_zxid + 1)
            log.save(machine.export())
    log.close()


def newest_log(directory: Path) -> Path:
    """The segment of the newest log, as a crash leaves it: nobody wrote that it was closed."""
    newest = max(directory.glob("log.*"))
    (newest / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return newest / "00000000000000000000.log"


def test_commands_read_back_as_they_were_logged() -> None:
    for each in history(50):
        whole = each._replace(
            identities=(Id("digest", "me:hash"), Id("ip", "::1")),
            rules=Rules.EXTENDED_TYPES | Rules.ENFORCE_QUOTA,
        )
        assert decode_command(whole.encode()) == whole


def test_commands_logged_before_there_were_rules_are_read() -> None:
    """Their operation had four bytes."""
    for each in history(50):
        old = Writer().i64(each.zxid).i64(each.time_ms).i64(each.session_id).i32(each.op).ids([]).finish()
        assert decode_command(old + each.body) == each


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 10_000))
def test_replaying_the_log_gives_the_same_state(seed: int) -> None:
    commands = history(60, seed)
    first, second = states_after(commands), states_after([decode_command(each.encode()) for each in commands])
    assert first == second


def test_a_log_cut_anywhere_gives_a_state_that_once_was(tmp_path: Path) -> None:
    commands = history(40)
    expected = states_after(commands)
    whole = tmp_path / "whole"
    write_history(whole, commands, snapshot_every=15)
    assert fingerprint(recover(whole)) == expected[-1]
    tail = newest_log(whole).read_bytes()
    for length in range(0, len(tail), 7):
        cut = tmp_path / "cut"
        shutil.copytree(whole, cut)
        newest_log(cut).write_bytes(tail[:length])
        machine = recover(cut)
        assert 30 <= machine.last_zxid < 40
        assert fingerprint(machine) == expected[machine.last_zxid]
        # And life goes on from there.
        following = command(
            machine.last_zxid + 1, Op.CREATE, Writer().string("/new").buffer(b"").acls(OPEN).i32(0).finish()
        )
        write_history(cut, [following], snapshot_every=100)
        assert recover(cut).tree.find("/new") is not None
        shutil.rmtree(cut)


def test_a_log_behind_its_snapshot_is_continued_beyond_it(tmp_path: Path) -> None:
    commands = history(20)
    expected = states_after(commands)
    write_history(tmp_path, commands, snapshot_every=100)
    write_snapshot(tmp_path, machine_of(commands).export())
    newest_log(tmp_path).write_bytes(newest_log(tmp_path).read_bytes()[:-40])
    assert fingerprint(recover(tmp_path)) == expected[20]
    more = history(30)[20:]
    write_history(tmp_path, more, snapshot_every=100)
    assert recover(tmp_path).last_zxid == 30


def machine_of(commands: Sequence[Command]) -> Machine:
    machine = Machine()
    for each in commands:
        machine.apply(each)
    return machine


def test_a_crash_between_any_two_steps_of_a_snapshot_loses_nothing(tmp_path: Path) -> None:
    commands = history(40)
    expected = states_after(commands)[-1]
    write_history(tmp_path, commands, snapshot_every=10)
    # The snapshot was not finished.
    (tmp_path / "snapshot.00000000000000ff.tmp").write_bytes(b"half")
    assert fingerprint(recover(tmp_path)) == expected
    assert not list(tmp_path.glob("*.tmp"))
    # The snapshot is there, its new log is not.
    shutil.rmtree(newest_log(tmp_path).parent)
    assert fingerprint(recover(tmp_path)) == expected
    # The new log is there, its snapshot is not.
    snapshot_path(tmp_path, 40).unlink()
    assert fingerprint(recover(tmp_path)) == expected


def test_old_files_are_purged_and_one_bad_snapshot_is_survived(tmp_path: Path) -> None:
    commands = history(100)
    expected = states_after(commands)[-1]
    write_history(tmp_path, commands, snapshot_every=10)
    snapshots = sorted(path.name for path in tmp_path.glob("snapshot.*"))
    assert snapshots == [f"snapshot.{zxid:016x}" for zxid in (80, 90, 100)]
    assert sorted(path.name for path in tmp_path.glob("log.*")) == [
        f"log.{zxid:016x}" for zxid in (81, 91, 101)
    ]
    newest = snapshot_path(tmp_path, 100)
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    assert fingerprint(recover(tmp_path)) == expected


def test_missing_transactions_stop_the_start(tmp_path: Path) -> None:
    write_history(tmp_path, history(50), snapshot_every=10)
    for snapshot in tmp_path.glob("snapshot.*"):
        snapshot.write_bytes(b"")
    with pytest.raises(CoordinatorError, match="missing"):
        recover(tmp_path)


def test_a_foreign_record_stops_the_start(tmp_path: Path) -> None:
    write_history(tmp_path, history(5), snapshot_every=100)
    log = EngineLog(newest_log(tmp_path).parent)
    append(log, [b"not ours"])
    log.close()
    with pytest.raises(CoordinatorError, match="not a transaction"):
        recover(tmp_path)


def test_damage_to_what_was_answered_stops_the_start_after_a_crash(
    coordinator: Coordinator, connect: Connect, tmp_path: Path
) -> None:
    client = connect()
    for number in range(20):
        client.create(f"/{number}")
    killed = tmp_path / "killed"
    shutil.copytree(coordinator.directory, killed)
    assert recover(killed).tree.find("/19") is not None
    shutil.rmtree(killed)
    whole = newest_log(coordinator.directory).read_bytes()
    # One bit, and a part that is gone.
    for damaged in (whole[:700] + bytes([whole[700] ^ 1]) + whole[701:], whole[:700]):
        shutil.copytree(coordinator.directory, killed)
        newest_log(killed).write_bytes(damaged)
        with pytest.raises(CoordinatorError, match="are missing"):
            recover(killed)
        shutil.rmtree(killed)


def test_two_servers_cannot_share_a_directory(tmp_path: Path) -> None:
    log = TransactionLog(tmp_path)
    with pytest.raises(CoordinatorError, match="in use"):
        TransactionLog(tmp_path)
    log.close()
    TransactionLog(tmp_path).close()


def test_a_directory_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CoordinatorError, match="file/below"):
        TransactionLog(tmp_path / "file" / "below")


# If this failed, a directory that was imported and damaged would be served as an empty one.
def test_a_snapshot_without_the_logs_before_it_is_not_passed_over(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, machine_of(history(20)).export())
    for _ in range(2):
        log = TransactionLog(tmp_path)
        log.recover()
        log.close()
        path.write_bytes(path.read_bytes()[:-1])
        log = TransactionLog(tmp_path)
        with pytest.raises(CoordinatorError, match="cannot be read, and the logs end at 0x0"):
            log.recover()
        log.close()
        write_snapshot(tmp_path, machine_of(history(20)).export())


def test_snapshots_refuse_every_flipped_byte(tmp_path: Path) -> None:
    raw = encode(machine_of(history(20)).export())
    path = tmp_path / "snapshot.0000000000000014"
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 0x40]) + raw[position + 1 :])
        with pytest.raises(CoordinatorError):
            read_snapshot(path)


def test_snapshots_whose_checksum_is_right_are_states_or_refused() -> None:
    raw = encode(machine_of(history(20)).export())[:-4]
    refused = 0
    for position in range(len(raw)):
        for bit in (0x01, 0x80):
            other = raw[:position] + bytes([raw[position] ^ bit]) + raw[position + 1 :]
            try:
                decode(other + struct.pack(">I", zlib.crc32(other)))
            except JuteError:
                refused += 1
    assert 0 < refused < 2 * len(raw)


def test_characters_beyond_the_basic_plane_survive_a_snapshot() -> None:
    state = machine_of(history(20)).export()
    path, node = state.nodes[-1]
    key = node._replace(acl=(Acl(31, Id("digest", "\U0001f511:x")),))
    named = state._replace(nodes=[*state.nodes, (f"{path}\U0001f333", key)])
    assert decode(encode(named)) == named


@pytest.mark.parametrize("version", [1, 4])
def test_the_snapshot_format(version: int) -> None:
    """They have to be readable forever; the newest is written."""
    root = NodeState(b"", OPEN, 0, 0, 3, 0, 0, 0, 1, 0, 0)
    own = NodeState(None, (Acl(1, Id("ip", "::1")),), 3, 4, 3, 5000, 6000, 2, 0, -2, 7)
    nodes = [("/", root), ("/ä", own), ("/b", root)]
    golden = bytes.fromhex("".join(GOLDEN[version]))
    if version == 1:
        nodes.pop()
    state = State(9, 8, [Session(7, 4000, b"p" * 16)], nodes)
    assert decode(golden) == state
    assert version == 1 or encode(state) == golden


GOLDEN_1 = (
    "4c435a4e4f444553000000010000000000000009000000000000000800000001000000000000000700000fa000000010",
    "7070707070707070707070707070707000000002000000010000001f00000005776f726c6400000006616e796f6e6500",
    "00000100000001000000026970000000033a3a3100000002000000012f00000000000000000000000000000000000000",
    "000000000000000000000000030000000000000000000000000000000000000000000000010000000000000000000000",
    "00000000032fc3a4ffffffff000000010000000000000003000000000000000400000000000000030000000000001388",
    "00000000000017700000000200000000fffffffe0000000000000007587b38a9",
)
GOLDEN_4 = (
    "4c435a4e4f444553000000040000000000000009000000000000000800000001000000000000000700000fa000000010",
    "7070707070707070707070707070707000000003000000012f0000000000000000000000010000001f00000005776f72",
    "6c6400000006616e796f6e65000000000000000000000000000000000000000000000003000000000000000000000000",
    "000000000000000000000001000000000000000000000000000000032fc3a4ffffffff00000001000000010000000100",
    "0000026970000000033a3a31000000000000000300000000000000040000000000000003000000000000138800000000",
    "000017700000000200000000fffffffe0000000000000007000000022f62000000000000000000000000000000000000",
    "000000000000000000000000000300000000000000000000000000000000000000000000000100000000000000000000",
    "0000b22679b5",
)
GOLDEN = {1: GOLDEN_1, 4: GOLDEN_4}


def test_a_killed_server_keeps_what_it_answered(
    start_coordinator: StartCoordinator, coordinator: Coordinator, client: KazooClient, tmp_path: Path
) -> None:
    """The directory is copied while writes run: what was answered before the copy began is in the copy."""
    client.create("/k", b"")
    answered: list[int] = []
    enough = threading.Event()

    def note(result: object) -> None:
        answered.append(1)
        if len(answered) == 300:
            enough.set()

    pending = [client.create_async(f"/k/{number:05}") for number in range(3000)]
    for each in pending:
        each.rawlink(note)
    assert enough.wait(WAIT_SECONDS)
    before = len(answered)
    copy = tmp_path / "copy"
    shutil.copytree(coordinator.directory, copy)
    for each in pending:
        each.get(timeout=WAIT_SECONDS)
    second = start_coordinator(copy)
    raw = RawClient(second.port)
    raw.connect()
    error, body = raw.request(1, Op.GET_CHILDREN, Writer().string("/k").boolean(False).finish())[2:]
    raw.close()
    assert error == 0
    children = Reader(body).strings() or []
    assert len(children) >= before
    assert children == [f"{number:05}" for number in range(len(children))]


def test_snapshots_are_taken_while_serving(
    start_coordinator: StartCoordinator, connect: Connect, tmp_path: Path
) -> None:
    directory = tmp_path / "snapshots"
    busy = start_coordinator(directory, settings=Settings(snapshot_transactions=50))
    client = connect(busy)
    client.create("/n", b"")
    for result in [client.set_async("/n", str(number).encode()) for number in range(1000)]:
        result.get(timeout=WAIT_SECONDS)
    client.stop()
    busy.stop()
    assert 1 <= len(list(directory.glob("snapshot.*"))) <= 3
    data, stat = connect(start_coordinator(directory)).get("/n")
    assert (data, stat.version) == (b"999", 1000)


# If this failed, a server with many nodes would answer nobody while it writes them all.
def test_writes_and_reads_go_on_while_a_snapshot_is_written(
    start_coordinator: StartCoordinator, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    write = SnapshotFile.write

    def held(file: SnapshotFile, piece: bytes) -> None:
        began.set()
        go_on.wait()
        write(file, piece)

    monkeypatch.setattr(SnapshotFile, "write", held)
    monkeypatch.setattr("cluster.coordinator.durability.snapshot.SLICE_NODES", 1)
    directory = tmp_path / "slow"
    busy = start_coordinator(directory, settings=Settings(snapshot_transactions=20))
    client = connect(busy)
    client.create("/n", b"")
    written = {}

    def set_data() -> None:
        data = b"%d" % len(written)
        written[client.set("/n", data).last_modified_transaction_id] = data

    while not began.is_set():
        set_data()
        client.create("/n/", b"", sequence=True)
    for _ in range(50):
        set_data()
        client.delete(f"/n/{client.get_children('/n')[0]}")
        client.create("/n/", b"", sequence=True)
    go_on.set()
    client.stop()
    busy.stop()
    # Another may have begun meanwhile.
    path = min(directory.glob("snapshot.*"), key=lambda path: int(path.name.split(".")[1], 16))
    state = read_snapshot(path)
    nodes = dict(state.nodes)
    last = max(zxid for zxid in written if zxid <= state.last_zxid)
    assert last > state.last_zxid - 3
    assert (nodes["/n"].mzxid, nodes["/n"].data) == (last, written[last])
    assert max(node.pzxid for node in nodes.values()) <= state.last_zxid
    assert connect(start_coordinator(directory)).get("/n")[0] == b"%d" % (len(written) - 1)


class FailingLog(EngineLog):
    """A disk that fails after a few writes."""

    left = 5

    def append(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        self.left -= 1
        if self.left >= 0:
            super().append(records, done)
        else:
            done(OSError(5, "Input/output error"))


def test_a_failed_disk_ends_the_service_and_answers_nothing(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    server = start_coordinator(tmp_path / "failing", open_log=FailingLog)
    raw = RawClient(server.port)
    raw.connect()
    create = Writer().buffer(b"").acls(OPEN).i32(0).finish()
    answered = 0
    while answered < 10:
        raw.send(Writer().i32(1).i32(Op.CREATE).string(f"/{answered}").finish() + create)
        if not raw.receive():
            break
        answered += 1
    raw.close()
    assert answered == 4
    failed = server.server.failed
    assert failed is not None
    with pytest.raises(CoordinatorError, match="Input/output error"):
        server.thread.call(failed.result)
    with pytest.raises(OSError, match=r"refused|reset"):
        RawClient(server.port)
    server.stop()
    assert len(recover(tmp_path / "failing").tree) == 4 + answered


class FullLog(EngineLog):
    """A disk that is full while a test says so, and takes a part of what it refuses."""

    full = threading.Event()
    refused = threading.Semaphore(0)

    def append(self, records: Sequence[bytes], done: Callable[[Exception | None], None]) -> None:
        if not self.full.is_set():
            super().append(records, done)
            return

        def refuse(_error: Exception | None) -> None:
            done(DiskFullError("No space left on device"))
            self.refused.release()

        super().append(records[:1], refuse)


@pytest.fixture
def full_log(monkeypatch: pytest.MonkeyPatch) -> type[FullLog]:
    class Full(FullLog):
        full = threading.Event()
        refused = threading.Semaphore(0)

    monkeypatch.setattr(local, "_FULL_DISK_PAUSE_SECONDS", 0.01)
    return Full


CREATED = Writer().buffer(b"").acls(OPEN).i32(0).finish()


def zxids_logged(directory: Path) -> list[int]:
    [path] = directory.glob("log.*")
    with logcore.open(path) as log:
        return [decode_command(record.value or b"").zxid for record in log.records()]


# If this failed, a disk that others filled up would end the coordinator and every broker beside it, reads and
# the deletions that would make room too; or a write would be seen that is not on disk, be lost after its
# answer, or share its transaction id.
def test_writes_wait_for_room_on_a_full_disk_and_reads_do_not(
    start_coordinator: StartCoordinator, tmp_path: Path, full_log: type[FullLog]
) -> None:
    server = start_coordinator(tmp_path / "full", open_log=full_log)
    writer, reader = RawClient(server.port), RawClient(server.port)
    writer.connect()
    _, session, password = reader.connect()
    assert writer.request(1, Op.CREATE, Writer().string("/before").finish() + CREATED)[1:3] == (3, 0)
    full_log.full.set()
    for number in range(3):
        writer.send(Writer().i32(number).i32(Op.CREATE).string(f"/{number}").finish() + CREATED)
    for _ in range(3):
        assert full_log.refused.acquire(timeout=WAIT_SECONDS)
    asked = Writer().string("/").boolean(False).finish()
    for _ in range(2):
        _, zxid, error, body = reader.request(1, Op.GET_CHILDREN, asked)
        assert (zxid, error, Reader(body).strings()) == (3, 0, ["before", "zookeeper"])
        reader.close()
        reader = RawClient(server.port)
        # A session that there is goes on, on another connection too.
        assert reader.connect(session_id=session, password=password)[1] == session
    assert not server.server.failed.done()  # type: ignore[union-attr]
    full_log.full.clear()
    assert [writer.reply()[:3] for _ in range(3)] == [(number, 4 + number, 0) for number in range(3)]
    children = reader.request(1, Op.GET_CHILDREN, asked)[3]
    assert sorted(Reader(children).strings() or []) == ["0", "1", "2", "before", "zookeeper"]
    writer.close()
    reader.close()
    state = fingerprint(server.server.machine)
    server.stop()
    logged = zxids_logged(tmp_path / "full")
    assert sorted(set(logged)) == list(range(1, 7))
    assert len(logged) > 6
    assert fingerprint(recover(tmp_path / "full")) == state


# If this failed, a coordinator on a full disk could only be killed.
def test_a_coordinator_that_waits_for_room_can_be_stopped(
    start_coordinator: StartCoordinator, tmp_path: Path, full_log: type[FullLog]
) -> None:
    server = start_coordinator(tmp_path / "full", open_log=full_log)
    raw = RawClient(server.port)
    raw.connect()
    full_log.full.set()
    raw.send(Writer().i32(1).i32(Op.CREATE).string("/n").finish() + CREATED)
    assert full_log.refused.acquire(timeout=WAIT_SECONDS)
    with pytest.raises(CoordinatorError, match="is full: make space"):
        server.thread.run(server.server.restore(encode(Machine().export())))
    server.stop()
    assert raw.receive() == b""
    raw.close()
    # Nobody was answered: what reached the disk may be there, as after a crash.
    assert recover(tmp_path / "full").last_zxid in (1, 2)


# If this failed, clients that come again and again while the disk is full would fill up the memory.
def test_what_waits_for_room_is_bounded(
    start_coordinator: StartCoordinator,
    tmp_path: Path,
    full_log: type[FullLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_WAITING_MAX", 5)
    server = start_coordinator(tmp_path / "full", open_log=full_log)
    raw = RawClient(server.port)
    raw.connect()
    full_log.full.set()
    creation = Writer().i32(1).i32(Op.CREATE).string("/n").finish() + CREATED
    raw.send(creation)
    assert full_log.refused.acquire(timeout=WAIT_SECONDS)
    for _ in range(6):
        raw.send(creation)
    assert raw.receive() == b""
    raw.close()
    full_log.full.clear()
    while True:
        again = RawClient(server.port)
        try:
            assert again.connect()[1] != 0
            break
        except ConnectionError:
            continue
        finally:
            again.close()
    # The session, one that was refused, five that waited, and the new session.
    assert server.server.machine.last_zxid == 1 + 1 + 5 + 1


# If this failed, each attempt at a snapshot would make a full disk fuller.
def test_a_snapshot_without_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_snapshot(tmp_path, Machine().export())
    assert list(tmp_path.iterdir()) == []


# If this failed, a disk that is full when the next log begins would end the service.
def test_the_next_log_waits_for_room(
    start_coordinator: StartCoordinator, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def open_log(path: Path) -> EngineLog:
        opened.append(path)
        if 1 < len(opened) < 4:
            raise DiskFullError("No space left on device")
        return EngineLog(path)

    monkeypatch.setattr(local, "_FULL_DISK_PAUSE_SECONDS", 0.01)
    directory = tmp_path / "rolling"
    server = start_coordinator(directory, open_log=open_log, settings=Settings(snapshot_transactions=50))
    client = connect(server)
    client.create("/n", b"")
    for result in [client.set_async("/n", str(number).encode()) for number in range(200)]:
        result.get(timeout=WAIT_SECONDS)
    client.stop()
    server.stop()
    assert opened[1] == opened[2] == opened[3]
    data, stat = connect(start_coordinator(directory)).get("/n")
    assert (data, stat.version) == (b"199", 200)


# If this failed, nobody could tell whether a start is slow for its snapshot or for its log.
@pytest.mark.parametrize(("transactions", "applied"), [(8, (1, 2, 70)), (6, (0, 0, 0)), (0, (0, 0, 0))])
def test_a_start_tells_how_long_its_snapshot_and_its_log_took(
    start_coordinator: StartCoordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transactions: int,
    applied: tuple[int, int, int],
) -> None:
    clock = FakeClock()

    class SlowLog(EngineLog):
        def records(self) -> Iterator[bytes]:
            clock.now_ms += 70
            return super().records()

    def slow(path: Path) -> State:
        clock.now_ms += 5
        return read_snapshot(path)

    monkeypatch.setattr("cluster.coordinator.durability.log.read_snapshot", slow)
    directory = tmp_path / "slow"
    write_history(directory, history(8)[:transactions], snapshot_every=6)
    server = start_coordinator(directory, clock=clock, open_log=SlowLog)
    shown = server.server.metrics.values()
    snapshot_ms = 5 if transactions else 0
    assert (shown["cnt_startup_snap_load_time"], shown["sum_startup_snap_load_time"]) == (1, snapshot_ms)
    # As in ZooKeeper there is nothing where nothing was applied.
    for count in ("cnt_startup_txns_loaded", "cnt_startup_txns_load_time"):
        assert shown[count] == applied[0]
    assert (shown["sum_startup_txns_loaded"], shown["sum_startup_txns_load_time"]) == applied[1:]


# If this failed, a server with many nodes would stand still each time Python looks for cycles among them.
@pytest.mark.parametrize(("nodes", "kept"), [(99, False), (100, True)])
def test_a_large_state_is_not_looked_through_for_cycles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, kept: bool
) -> None:
    monkeypatch.setattr("cluster.coordinator.durability.collector.NODES_WORTH_FREEZING", 100)
    before = gc.get_freeze_count()
    commands = [command(1, Op.CREATE_SESSION, encode_create_session(CreateSession(4000, b"p" * 16)))]
    there = len(Machine().tree)
    for number in range(nodes - there):
        commands.append(command(2 + number, Op.CREATE, Writer().string(f"/{number}").finish() + CREATED))
    write_history(tmp_path, commands, snapshot_every=1000)
    try:
        assert len(recover(tmp_path).tree) == nodes
        assert (gc.get_freeze_count() > before) == kept
        assert gc.isenabled()
    finally:
        if not before:
            gc.unfreeze()


def test_a_port_in_use_is_a_clear_error(
    start_coordinator: StartCoordinator, coordinator: Coordinator, tmp_path: Path
) -> None:
    with pytest.raises(CoordinatorError, match=f":{coordinator.port}: Address already in use"):
        start_coordinator(tmp_path / "other", port=coordinator.port)
    # The failed start gave its directory back.
    start_coordinator(tmp_path / "other")
