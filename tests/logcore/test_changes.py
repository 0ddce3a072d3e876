"""Truncating, deleting and compacting: a single log, a log in a broker's directory, and a log of
`open_dir`.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import logcore

COMPACTED = {"cleanup_policy": "compact", "retention_ms": -1}
KINDS = ["alone", "in a broker's", "in open_dir"]


@contextlib.contextmanager
def opened(kind: str, path: Path, **config: int | str) -> Iterator[logcore.Log]:
    """The log t-0, opened in one of three ways. A second call opens the same log."""
    if kind == "alone":
        with logcore.open(path / "t-0", **config) as log:
            yield log
        return
    if not path.exists():
        with logcore.open_dir(path, **config) as directory:
            directory.create("t")
    if kind == "in open_dir":
        with logcore.open_dir(path, **config) as directory:
            yield directory["t", 0]
    else:
        with logcore.open(path / "t-0", create=False, **config) as log:
            yield log


def checkpoint(kind: str, path: Path, name: str) -> int | None:
    """The log's entry in a checkpoint file."""
    file = (path / "t-0" if kind == "alone" else path) / name
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    return int(lines[0].rsplit(" ", 1)[1]) if lines else None


def values(log: logcore.Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


def fill(log: logcore.Log, count: int) -> None:
    for _ in range(count):
        log.append(b"%d" % log.end_offset)


@pytest.mark.parametrize("kind", KINDS)
def test_truncating(tmp_path: Path, kind: str) -> None:
    # Broken if it failed: records that were cut off would come back, or too many would be cut off.
    path = tmp_path / "logs"
    with opened(kind, path, segment_bytes=500) as log:
        fill(log, 30)
        log.append_records([b"x", b"y", b"z"])
        kept = log.fetch(29)
        assert log.truncate(100) == 33
        # A batch is cut off as a whole.
        assert log.truncate(31) == 30
        assert log.truncate(7) == 7
        assert [r.value for r in logcore.parse_batches(kept)] == [b"29", b"x", b"y", b"z"]
        assert values(log) == [b"%d" % n for n in range(7)]
        assert log.append(b"other") == 7
    with opened(kind, path, segment_bytes=500) as log:
        assert values(log) == [b"%d" % n for n in range(7)] + [b"other"]
        assert log.verify() == []
        log.truncate_fully_and_start_at(1000)
        assert (log.start_offset, log.end_offset, values(log)) == (1000, 1000, [])
        assert log.append(b"anew") == 1000
        with pytest.raises(logcore.OffsetOutOfRangeError):
            log.fetch(7)
    with opened(kind, path) as log:
        assert [(record.offset, record.value) for record in log.records()] == [(1000, b"anew")]
        assert log.verify() == []
        # An offset before the start: the log continues there.
        assert log.truncate(5) == 5
        assert (log.start_offset, log.end_offset) == (5, 5)
        for change in (log.truncate, log.truncate_fully_and_start_at):
            with pytest.raises(logcore.OffsetOutOfRangeError) as caught:
                change(-1)
            assert caught.value.code == 1
        assert log.append(b"x") == 5


@pytest.mark.parametrize("kind", KINDS)
def test_deleting_records(tmp_path: Path, kind: str) -> None:
    # Broken if it failed: deleted records would be readable again after a restart or a crash.
    path = tmp_path / "logs"
    with opened(kind, path, segment_bytes=500, file_delete_delay_ms=0) as log:
        fill(log, 30)
        assert log.delete_records(7) == 7
        assert log.delete_records(3) == 7
        assert checkpoint(kind, path, "log-start-offset-checkpoint") == 7
        assert values(log) == [b"%d" % n for n in range(7, 30)]
        with pytest.raises(logcore.OffsetOutOfRangeError) as caught:
            log.fetch(6)
        assert caught.value.code == 1
        for offset in (31, -2):
            with pytest.raises(logcore.OffsetOutOfRangeError, match=str(offset)):
                log.delete_records(offset)
        # Readers see the new start, and `maintain` removes the files.
        with logcore.open(log.path, readonly=True) as reader:
            assert reader.start_offset == 7
        segments = len(list(log.path.glob("*.log")))
        log.maintain()
        assert len(list(log.path.glob("*.log"))) < segments
    with opened(kind, path, segment_bytes=500) as log:
        assert (log.start_offset, log.end_offset) == (7, 30)
        assert log.delete_records(-1) == 30
        assert (values(log), log.append(b"next")) == ([], 30)
    with opened(kind, path) as log:
        assert [(record.offset, record.value) for record in log.records()] == [(30, b"next")]


@pytest.mark.parametrize("kind", KINDS)
def test_compacting(tmp_path: Path, kind: str) -> None:
    # Broken if it failed: a key's last value would be lost, or each opening would compact the log from its
    # start.
    path = tmp_path / "logs"
    with opened(kind, path, **COMPACTED, delete_retention_ms=0) as log:
        for number in range(30):
            log.append(b"%d" % number, key=b"%d" % (number % 7))
        log.append(None, key=b"0")
        unrolled = log.compact()
        assert (unrolled.records_read, unrolled.clean_until_offset) == (0, 0)
        log.roll()
        log.roll()
        stats = log.compact()
        assert isinstance(stats, logcore.CleanerStats)
        assert (stats.first_dirty_offset, stats.clean_until_offset) == (0, 31)
        assert (stats.records_read, stats.records_written) == (31, 7)
        assert (stats.segments_before, stats.segments_after) == (1, 1)
        assert stats.bytes_read > stats.bytes_written > 0
        assert datetime.timedelta(0) < stats.elapsed < datetime.timedelta(minutes=2)
        assert repr(stats).startswith("CleanerStats(first_dirty_offset=0, clean_until_offset=31, bytes_read=")
        assert checkpoint(kind, path, "cleaner-offset-checkpoint") == 31
        left = [(record.offset, record.value) for record in log.records()]
        kept = [(n, b"%d" % n) for n in (23, 24, 25, 26, 27, 29)]
        assert left == [*kept, (30, None)]
        assert log.verify() == []
    with opened(kind, path, **COMPACTED, delete_retention_ms=0) as log:
        again = log.compact()
        assert (again.first_dirty_offset, again.clean_until_offset, again.records_read) == (31, 31, 0)
        log.append(b"new", key=b"1")
        log.roll()
        # The tombstone's retention has passed.
        stats = log.compact()
        assert (stats.first_dirty_offset, stats.clean_until_offset) == (31, 32)
        left = [(record.offset, record.value) for record in log.records()]
        assert left == [*kept[:-1], (31, b"new")]
        # Records written after a truncation are not compacted yet.
        assert log.truncate(28) == 28
        assert checkpoint(kind, path, "cleaner-offset-checkpoint") == 28
        with pytest.raises(logcore.InvalidRecordError):
            log.append(b"without a key")


def test_a_log_that_is_not_compacted_is_left_alone(tmp_path: Path) -> None:
    # Broken if it failed: compacting by mistake would remove every record without a key.
    with logcore.open(tmp_path) as log:
        log.append(b"without a key")
        log.roll()
        with pytest.raises(logcore.LogConfigError, match=r"cleanup\.policy=delete.*compact"):
            log.compact()
        assert values(log) == [b"without a key"]
    with pytest.raises(logcore.LogClosedError):
        log.compact()


def test_records_of_a_compacted_log_cannot_be_deleted(tmp_path: Path) -> None:
    # Broken if it failed: the last value of a key could be lost. Kafka refuses it too.
    with logcore.open(tmp_path, **COMPACTED) as log:
        fill_with_keys(log)
        with pytest.raises(logcore.LogConfigError, match=r"cleanup\.policy=compact.*compact,delete"):
            log.delete_records(2)
        assert log.start_offset == 0
    with logcore.open(tmp_path, cleanup_policy="compact,delete") as log:
        assert log.delete_records(2) == 2


@pytest.mark.parametrize("kind", [*KINDS, "readonly", "readonly directory"])
def test_readers_and_closed_logs_change_nothing(tmp_path: Path, kind: str) -> None:
    # Broken if it failed: a reader would change the files of another process, or a closed log would be
    # changed.
    path = tmp_path / "logs"
    error: type[logcore.LogError]
    with opened("in open_dir", path) as log:
        fill(log, 3)
    if kind == "readonly":
        log, error = logcore.open(path / "t-0", readonly=True), logcore.ReadOnlyError
    elif kind == "readonly directory":
        directory = logcore.open_dir(path, readonly=True)
        log, error = directory["t", 0], logcore.ReadOnlyError
        with pytest.raises(logcore.ReadOnlyError, match="read-only"):
            directory.compact()
    else:
        with opened(kind, path, **COMPACTED) as log:
            fill_with_keys(log)
            before = values(log)
        error = logcore.LogClosedError
    for change in (
        log.roll,
        log.compact,
        log.maintain,
        lambda: log.truncate(1),
        lambda: log.truncate_fully_and_start_at(1),
        lambda: log.delete_records(1),
        lambda: log.delete_records(-1),
    ):
        with pytest.raises(error) as caught:
            change()
        assert str(path) in str(caught.value)
    if error is logcore.ReadOnlyError:
        before = [b"0", b"1", b"2"]
        log.close()
    with opened("in open_dir", path) as log:
        assert values(log) == before


def fill_with_keys(log: logcore.Log) -> None:
    for _ in range(3):
        log.append(b"v", key=b"k")


def test_a_log_that_was_deleted_changes_nothing(tmp_path: Path) -> None:
    # Broken if it failed: an object for a deleted log would change the new log of the same name.
    with logcore.open_dir(tmp_path, **COMPACTED) as directory:
        old = directory.create("t")
        fill_with_keys(old)
        directory.delete("t")
        new = directory.create("t")
        fill_with_keys(new)
        for change in (
            old.compact,
            old.roll,
            lambda: old.truncate(0),
            lambda: old.truncate_fully_and_start_at(0),
            lambda: old.delete_records(1),
        ):
            with pytest.raises(logcore.LogClosedError):
                change()
        assert (new.start_offset, len(values(new))) == (0, 3)


def test_another_process_has_the_log_open(tmp_path: Path) -> None:
    # Broken if it failed: two processes would change one log.
    holder = (
        "import logcore, sys\n"
        "with logcore.open_dir(sys.argv[1]) as directory:\n"
        "    directory.create('t').append(b'a')\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        for call in (
            lambda: logcore.open_dir(tmp_path),
            lambda: logcore.open(tmp_path / "t-0"),
            lambda: logcore.repair(tmp_path, apply=True),
            lambda: logcore.repair(tmp_path / "t-0", apply=True),
        ):
            with pytest.raises(logcore.LockedError, match="in use by another process"):
                call()
        with logcore.open_dir(tmp_path, readonly=True) as directory:
            assert values(directory["t", 0]) == [b"a"]
            assert directory.verify() == []
        other.stdin.close()
        assert other.wait(60) == 0
    with logcore.open_dir(tmp_path) as directory:
        assert directory.verify() == []


def test_a_truncation_ends_a_follower_with_an_error(tmp_path: Path) -> None:
    # Broken if it failed: a follower would wait at an offset that another record has by now.
    with logcore.open(tmp_path) as log:
        fill(log, 5)
        followed = log.follow(0, timeout=60)
        assert [next(followed).offset for _ in range(5)] == list(range(5))
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                next(followed)
            except logcore.OffsetOutOfRangeError as error:
                raised.append(error)

        follower = threading.Thread(target=wait)
        follower.start()
        log.truncate(2)
        follower.join(60)
        assert [error.code for error in raised] == [1]  # type: ignore[attr-defined]


def test_compacting_a_directory(tmp_path: Path) -> None:
    # Broken if it failed: a log without compaction would be compacted, or a log with it would not.
    with logcore.open_dir(tmp_path, topics={"state": COMPACTED}) as directory:
        for topic in ("flights", "state"):
            for partition in range(2):
                log = directory.create(topic, partition)
                for number in range(10):
                    log.append(b"%d" % number, key=b"same")
                log.roll()
        stats = directory.compact()
        assert {key: stat.records_written for key, stat in stats.items()} == {
            ("state", 0): 1,
            ("state", 1): 1,
        }
        assert [len(values(log)) for log in directory.values()] == [10, 10, 1, 1]
    lines = (tmp_path / "cleaner-offset-checkpoint").read_text().splitlines()
    assert lines == ["0", "2", "state 0 10", "state 1 10"]


def test_contradicting_compaction_lags_are_refused(tmp_path: Path) -> None:
    # Broken if it failed: settings that Kafka refuses would be taken, and the log could never be compacted.
    bad = {"min_compaction_lag_ms": 11, "max_compaction_lag_ms": 10}
    match = r"min\.compaction\.lag\.ms=11.*max\.compaction\.lag\.ms"
    with pytest.raises(logcore.LogConfigError, match=match) as caught:
        logcore.open(tmp_path / "new", **bad)
    assert caught.value.code == 40
    with pytest.raises(logcore.LogConfigError, match=match):
        logcore.open_dir(tmp_path / "new", **bad)
    with pytest.raises(logcore.LogConfigError, match=match):
        logcore.open_dir(
            tmp_path / "new", max_compaction_lag_ms=10, topics={"t": {"min_compaction_lag_ms": 11}}
        )
    assert not (tmp_path / "new").exists()
    with logcore.open_dir(tmp_path / "new", max_compaction_lag_ms=10) as directory:
        with pytest.raises(logcore.LogConfigError, match=match):
            directory.create("t", min_compaction_lag_ms=11)
        directory.create("t", min_compaction_lag_ms=10)


INTERRUPTED = """
import logcore, sys
with logcore.open(sys.argv[1], readonly=True) as log:
    print("follows", flush=True)
    try:
        for record in log.follow(0, isolation_level="read_committed"):
            print(record.value.decode(), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


# Broken if it failed: a program that reads a long open transaction could only be killed.
def test_ctrl_c_interrupts_a_reader_of_committed_records(tmp_path: Path) -> None:
    with logcore.open(tmp_path) as log:
        log.append(b"first")
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "follows\n"
        assert follower.stdout.readline() == "first\n"
        follower.send_signal(signal.SIGINT)
        assert follower.stdout.readline() == "interrupted\n"
        assert follower.wait(60) == 0


def test_a_signal_is_handled_while_a_log_is_compacted(tmp_path: Path) -> None:
    # Broken if it failed: Ctrl-C during a long compaction would do nothing, or leave a part of a segment.
    class StopError(Exception):
        pass

    def handle(_: int, __: object) -> None:
        raise StopError

    with logcore.open(tmp_path, **COMPACTED, segment_bytes=1 << 30) as log:
        batch = logcore.build_batch([(b"%d" % number, b"v" * 90) for number in range(10_000)])
        for _ in range(100):
            log.append_batches(batch)
        log.roll()
        end = log.end_offset
        before = signal.signal(signal.SIGUSR1, handle)
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            # When the compaction writes its first file, it has not replaced a segment yet.
            while not list(tmp_path.glob("*.cleaned")) and compacting.is_set():
                os.sched_yield()
            signal.pthread_kill(main, signal.SIGUSR1)

        def compact() -> None:
            log.compact()
            # The compaction was quicker, so the signal arrives here.
            compacting.clear()
            sender.join()

        compacting = threading.Event()
        compacting.set()
        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            with pytest.raises(StopError):
                compact()
        finally:
            compacting.clear()
            sender.join(60)
            signal.signal(signal.SIGUSR1, before)
        assert list(tmp_path.glob("*.cleaned")) == []
        assert log.compact().clean_until_offset == end
        assert len(values(log)) == 10_000
        assert log.verify() == []
