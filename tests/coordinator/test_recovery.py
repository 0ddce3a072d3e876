"""Recovery after crashes.

If these fail, a restart loses an answered write, brings back a refused one, or serves a damaged directory.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient

from cluster.coordinator import CoordinatorError, Settings
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
from cluster.coordinator.errors import JuteError
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.requests import CreateSession, Op, decode_write, encode_create_session
from cluster.coordinator.state.acl import OPEN, Rules
from cluster.coordinator.state.machine import Command, Machine, State, decode_command
from cluster.coordinator.state.sessions import Session
from cluster.coordinator.state.tree import NodeState

from .conftest import Connect, StartCoordinator
from .support import WAIT_SECONDS, Coordinator, FakeClock, RawClient

CREATED = Writer().buffer(b"").acls(OPEN).i32(0).finish()
"""The end of a create's body, after the path."""


def command(zxid: int, op: Op, body: bytes, session: int = 1) -> Command:
    return Command(zxid, zxid * 1000, session, op, Rules.NONE, (), decode_write(op, Reader(body)), body)


def history(count: int, seed: int = 1) -> list[Command]:
    """A session's random creates, changes and deletes, some of which are refused."""
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
    """Appends the records and waits until they are on disk."""

    async def appended() -> None:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        log.append(records, done.set_result)
        assert await done is None

    asyncio.run(appended())


def write_history(directory: Path, commands: Sequence[Command], snapshot_every: int) -> None:
    """Appends and applies the commands as a server does, with a snapshot every ``snapshot_every``."""
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
    """The segment of the newest log, without the marker of a clean close, as after a crash."""
    newest = max(directory.glob("log.*"))
    (newest / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return newest / "00000000000000000000.log"


def test_logged_commands_are_read_back_unchanged() -> None:
    for each in history(50):
        whole = each._replace(
            identities=(Id("digest", "me:hash"), Id("ip", "::1")),
            rules=Rules.EXTENDED_TYPES | Rules.ENFORCE_QUOTA,
        )
        assert decode_command(whole.encode()) == whole


def test_commands_in_the_format_without_rules_are_read() -> None:
    """In the old format the operation had four bytes."""
    for each in history(50):
        old = Writer().i64(each.zxid).i64(each.time_ms).i64(each.session_id).i32(each.op).ids([]).finish()
        assert decode_command(old + each.body) == each


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 10_000))
def test_replaying_the_log_gives_the_same_state(seed: int) -> None:
    commands = history(60, seed)
    first, second = states_after(commands), states_after([decode_command(each.encode()) for each in commands])
    assert first == second


def test_a_log_cut_anywhere_gives_an_earlier_state(tmp_path: Path) -> None:
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
        # The server can append to the cut log.
        following = command(
            machine.last_zxid + 1, Op.CREATE, Writer().string("/new").buffer(b"").acls(OPEN).i32(0).finish()
        )
        write_history(cut, [following], snapshot_every=100)
        assert recover(cut).tree.find("/new") is not None
        shutil.rmtree(cut)


def test_a_log_that_ends_before_its_snapshot_is_continued_after_it(tmp_path: Path) -> None:
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
    # A crash before the snapshot is finished.
    (tmp_path / "snapshot.00000000000000ff.tmp").write_bytes(b"half")
    assert fingerprint(recover(tmp_path)) == expected
    assert not list(tmp_path.glob("*.tmp"))
    # A crash after the snapshot, before its new log.
    shutil.rmtree(newest_log(tmp_path).parent)
    assert fingerprint(recover(tmp_path)) == expected
    # A crash after the new log, before its snapshot.
    snapshot_path(tmp_path, 40).unlink()
    assert fingerprint(recover(tmp_path)) == expected


def test_old_files_are_purged_and_one_bad_snapshot_loses_nothing(tmp_path: Path) -> None:
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


def test_damage_to_answered_writes_stops_the_start(
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
    # A flipped bit, and a missing part.
    for damaged in (whole[:700] + bytes([whole[700] ^ 1]) + whole[701:], whole[:700]):
        shutil.copytree(coordinator.directory, killed)
        newest_log(killed).write_bytes(damaged)
        with pytest.raises(CoordinatorError, match="may be missing"):
            recover(killed)
        shutil.rmtree(killed)


def test_two_servers_cannot_share_a_directory(tmp_path: Path) -> None:
    log = TransactionLog(tmp_path)
    with pytest.raises(CoordinatorError, match="in use"):
        TransactionLog(tmp_path)
    log.close()
    TransactionLog(tmp_path).close()


def test_an_impossible_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CoordinatorError, match="file/below"):
        TransactionLog(tmp_path / "file" / "below")


# If this failed, a damaged imported directory would be served as an empty one.
def test_a_damaged_snapshot_without_earlier_logs_stops_the_start(tmp_path: Path) -> None:
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


def test_a_damaged_snapshot_with_a_valid_checksum_is_decoded_or_refused() -> None:
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


def test_characters_outside_the_basic_plane_survive_a_snapshot() -> None:
    state = machine_of(history(20)).export()
    path, node = state.nodes[-1]
    key = node._replace(acl=(Acl(31, Id("digest", "\U0001f511:x")),))
    named = state._replace(nodes=[*state.nodes, (f"{path}\U0001f333", key)])
    assert decode(encode(named)) == named


@pytest.mark.parametrize("version", [1, 4])
def test_snapshots_of_every_format_are_read(version: int) -> None:
    """Old formats must stay readable; the newest is written."""
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
    """The directory is copied during writes: the copy has every write answered before it."""
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


# If this failed, a server with many nodes would not answer while it writes a snapshot.
def test_requests_are_answered_while_a_snapshot_is_written(
    start_coordinator: StartCoordinator, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    write = SnapshotFile.write

    def stalled(file: SnapshotFile, piece: bytes) -> None:
        began.set()
        go_on.wait()
        write(file, piece)

    monkeypatch.setattr(SnapshotFile, "write", stalled)
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
    # The oldest snapshot: another may have begun meanwhile.
    path = min(directory.glob("snapshot.*"), key=lambda path: int(path.name.split(".")[1], 16))
    state = read_snapshot(path)
    nodes = dict(state.nodes)
    last = max(zxid for zxid in written if zxid <= state.last_zxid)
    assert last > state.last_zxid - 3
    assert (nodes["/n"].mzxid, nodes["/n"].data) == (last, written[last])
    assert max(node.pzxid for node in nodes.values()) <= state.last_zxid
    assert connect(start_coordinator(directory)).get("/n")[0] == b"%d" % (len(written) - 1)


# If this failed, an administrator could not see whether the snapshot or the log makes a start slow.
@pytest.mark.parametrize(("transactions", "applied"), [(8, (1, 2, 70)), (6, (0, 0, 0)), (0, (0, 0, 0))])
def test_the_metrics_show_the_times_of_a_start(
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
    values = server.server.metrics.values()
    snapshot_ms = 5 if transactions else 0
    assert (values["cnt_startup_snap_load_time"], values["sum_startup_snap_load_time"]) == (1, snapshot_ms)
    # ZooKeeper also counts nothing when no transaction was applied.
    for count in ("cnt_startup_txns_loaded", "cnt_startup_txns_load_time"):
        assert values[count] == applied[0]
    assert (values["sum_startup_txns_loaded"], values["sum_startup_txns_load_time"]) == applied[1:]


# If this failed, each garbage collection would stop a server with many nodes for a while.
@pytest.mark.parametrize(("nodes", "frozen"), [(99, False), (100, True)])
def test_a_large_state_is_kept_from_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, frozen: bool
) -> None:
    monkeypatch.setattr("cluster.coordinator.durability.collector.NODES_WORTH_FREEZING", 100)
    before = gc.get_freeze_count()
    commands = [command(1, Op.CREATE_SESSION, encode_create_session(CreateSession(4000, b"p" * 16)))]
    for number in range(nodes - len(Machine().tree)):
        commands.append(command(2 + number, Op.CREATE, Writer().string(f"/{number}").finish() + CREATED))
    write_history(tmp_path, commands, snapshot_every=1000)
    try:
        assert len(recover(tmp_path).tree) == nodes
        assert (gc.get_freeze_count() > before) == frozen
        assert gc.isenabled()
    finally:
        if not before:
            gc.unfreeze()


def test_a_port_in_use_is_a_clear_error(
    start_coordinator: StartCoordinator, coordinator: Coordinator, tmp_path: Path
) -> None:
    with pytest.raises(CoordinatorError, match=f":{coordinator.port}: Address already in use"):
        start_coordinator(tmp_path / "other", port=coordinator.port)
    # The failed start has released its directory.
    start_coordinator(tmp_path / "other")
