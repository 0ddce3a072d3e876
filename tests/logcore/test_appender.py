"""`Appender`: finished records are on disk, errors are raised, and no thread or descriptor is left."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import logcore

PATIENCE = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logcore.Log]:
    with logcore.open(tmp_path / "log", segment_bytes=4000) as log:
        yield log


def wait(appender: logcore.Appender) -> None:
    readable, _, _ = select.select([appender], [], [], PATIENCE)
    assert readable, "the descriptor did not become readable"


def append(appender: logcore.Appender, records: list[bytes]) -> None:
    appender.begin(records)
    wait(appender)
    assert appender.finish()


def values(log: logcore.Log) -> list[bytes | None]:
    return [record.value for record in log]


def test_finished_records_are_in_the_log_in_order(log: logcore.Log) -> None:
    # Broken if it failed: a coordinator would confirm writes that a crash loses, or reorder writes.
    with logcore.Appender(log) as appender:
        expected = []
        for number in range(200):  # several segments
            records = [f"{number}-{each}".encode() for each in range(number % 3 + 1)]
            append(appender, records)
            expected += records
            assert log.end_offset == len(expected)
    assert values(log) == expected


def refuse_to_sync() -> None:
    """Makes fsync and fdatasync fail with EIO in this thread and in threads that it starts, by a filter of
    seccomp(2).
    """
    numbers = {"x86_64": (74, 75), "aarch64": (82, 83)}[os.uname().machine]
    load, jump_if_equal, give_back = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | errno.EIO
    program = [
        (load, 0, 0, 0),  # the system call's number
        (jump_if_equal, 2, 0, numbers[0]),
        (jump_if_equal, 1, 0, numbers[1]),
        (give_back, 0, 0, allow),
        (give_back, 0, 0, fail),
    ]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    described = struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_filter = (38, 1, 0, 0, 0), (22, 2, described, 0, 0)
    for arguments in (no_new_privileges, set_filter):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def test_records_are_flushed_and_a_failed_flush_is_an_error(tmp_path: Path) -> None:
    # Broken if it failed: a power cut would lose finished records.
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            log = logcore.open(tmp_path / "log")
            with logcore.Appender(log) as appender:
                append(appender, [b"what it notes of flushes is on disk"])
            # The filter holds for this thread and for threads that it starts.
            refuse_to_sync()
            appender = logcore.Appender(log)
            appender.begin([b"written"])
            wait(appender)
            try:
                appender.finish()
            except logcore.LogIOError as error:
                status = 0 if error.errno == errno.EIO else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_at_a_time(log: logcore.Log) -> None:
    # Broken if it failed: the second append could be lost, or be taken for the first.
    with logcore.Appender(log) as appender:
        assert appender.finish() is False
        appender.begin([b"first"])
        with pytest.raises(RuntimeError, match="call finish"):
            appender.begin([b"second"])
        wait(appender)
        assert appender.finish() is True
        assert appender.finish() is False
        append(appender, [b"third"])
    assert values(log) == [b"first", b"third"]


def test_an_error_is_raised_and_the_next_append_works(log: logcore.Log) -> None:
    # Broken if it failed: a failed write would be confirmed, or its caller would wait for ever.
    with logcore.Appender(log) as appender:
        with pytest.raises(ValueError, match="no records"):
            appender.begin([])
        appender.begin([bytes(5000)])  # no segment takes it
        wait(appender)
        with pytest.raises(logcore.RecordTooLargeError):
            appender.finish()
        append(appender, [b"small"])
        log.close()
        appender.begin([b"too late"])
        wait(appender)
        with pytest.raises(logcore.LogClosedError):
            appender.finish()


def test_the_flushed_offset_is_noted_as_soon_as_possible(tmp_path: Path) -> None:
    # Broken if it failed: after one failure to write the note, none would be written while the process runs,
    # or an event loop would wait for the disk.
    with logcore.open(tmp_path) as log:
        (tmp_path / "flushed").mkdir()
        with logcore.Appender(log) as appender:
            appender.begin([b"first"])
            wait(appender)
            with pytest.raises(logcore.LogIOError, match="flushed"):
                appender.finish()
            (tmp_path / "flushed").rmdir()
            append(appender, [b"second"])
            noted = (tmp_path / "flushed").read_bytes()
            assert int.from_bytes(noted[8:]) == 1
        assert values(log) == [b"second"]


def test_closing_waits_for_the_append_that_was_begun(log: logcore.Log) -> None:
    # Broken if it failed: a stop would lose an append, or close the log during it.
    for number in range(50):
        appender = logcore.Appender(log)
        appender.begin([str(number).encode()])
        appender.close()
        appender.close()
        assert log.end_offset == number + 1
        with pytest.raises(logcore.LogClosedError):
            appender.begin([b"more"])
        with pytest.raises(logcore.LogClosedError):
            appender.finish()


def test_an_appender_that_is_dropped_ends_its_thread(log: logcore.Log) -> None:
    # Broken if it failed: each dropped appender would leave a thread and a descriptor.
    names = Path("/proc/self/task")

    def threads() -> set[str]:
        found = set()
        for task in names.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if (task / "comm").read_text() == "log-appender\n":
                    found.add(task.name)
        return found

    before = threads()
    appenders = [logcore.Appender(log) for _ in range(5)]
    for appender in appenders:  # a thread has its name once it runs
        append(appender, [b"it runs"])
    del appender
    ours = threads() - before
    assert len(ours) == 5
    kept = appenders[0]
    del appenders
    gc.collect()
    kept.close()
    poll = select.poll()  # there is no event for the end of a dropped appender's thread
    for _ in range(6000):
        if not ours & threads():
            break
        poll.poll(10)
    assert not ours & threads()


def test_a_forked_child_is_refused(log: logcore.Log) -> None:
    # Broken if it failed: the child would wait for a thread that it does not have.
    with logcore.Appender(log) as appender:
        append(appender, [b"the parent's"])
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                for call in (lambda: appender.begin([b"the child's"]), appender.finish):
                    with pytest.raises(logcore.LogClosedError, match="forked"):
                        call()
                appender.close()
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(log) == [b"the parent's"]
