"""Failing and full disks.

If these fail, a write is answered that is not on disk, or a full disk ends the coordinator.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import logcore
from cluster.coordinator import CoordinatorError, Settings
from cluster.coordinator.durability import local
from cluster.coordinator.durability.engine import EngineLog
from cluster.coordinator.durability.snapshot import encode, write_snapshot
from cluster.coordinator.errors import DiskFullError
from cluster.coordinator.protocol.jute import Reader, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN
from cluster.coordinator.state.machine import Machine, decode_command

from .conftest import Connect, StartCoordinator
from .support import WAIT_SECONDS, RawClient
from .test_recovery import CREATED, fingerprint, recover


class FailingLog(EngineLog):
    """A log whose disk fails after a few writes."""

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
    """A log whose disk is full while ``full`` is set. Part of a refused append reaches the disk."""

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


def zxids_logged(directory: Path) -> list[int]:
    [path] = directory.glob("log.*")
    with logcore.open(path) as log:
        return [decode_command(record.value or b"").zxid for record in log.records()]


# If this failed, a full disk would end the coordinator, with the reads and the deletes that free space. Or a
# write would be visible before it is on disk, be lost after its answer, or share its transaction id.
def test_writes_wait_for_space_on_a_full_disk_and_reads_do_not(
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
        # A session can move to another connection.
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
def test_a_coordinator_that_waits_for_space_can_be_stopped(
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
    # The write was not answered, so it may be on disk or not, as after a crash.
    assert recover(tmp_path / "full").last_zxid in (1, 2)


# If this failed, clients that retry while the disk is full would fill the memory.
def test_the_writes_that_wait_for_space_are_limited(
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
    # The session, the refused write, five waiting writes, and the new session.
    assert server.server.machine.last_zxid == 1 + 1 + 5 + 1


# If this failed, each failed snapshot would take more of a full disk.
def test_a_snapshot_on_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_snapshot(tmp_path, Machine().export())
    assert list(tmp_path.iterdir()) == []


# If this failed, a disk that is full when the next log begins would end the service.
def test_the_next_log_waits_for_space(
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
