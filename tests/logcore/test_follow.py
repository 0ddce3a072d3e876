"""Following a log: in threads, in asyncio, and beside another process that writes."""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import logcore
from logcore import _native

WRITER = """
import logcore, sys
with logcore.open(sys.argv[1], segment_bytes=2000) as log:
    print("open", flush=True)
    for line in sys.stdin:
        log.append(line.strip().encode())
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logcore.Log]:
    with logcore.open(tmp_path / "log") as log:
        yield log


@contextlib.contextmanager
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the log open and appends the lines of its standard input."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    try:
        yield writer
    finally:
        with contextlib.suppress(BrokenPipeError):
            writer.stdin.close()
        assert writer.wait(60) == 0
        writer.stdout.close()


def send(writer: subprocess.Popen[str], value: str) -> None:
    assert writer.stdin is not None
    writer.stdin.write(value + "\n")
    writer.stdin.flush()


def test_each_append_is_seen_before_the_next(log: logcore.Log) -> None:
    # Broken if it failed: a follower would miss an append, or yield a record twice.
    seen = threading.Semaphore(0)
    found: list[logcore.Record] = []

    def follow() -> None:
        for record in log.follow(0):
            found.append(record)
            seen.release()
            if record.value == b"last":
                return

    follower = threading.Thread(target=follow)
    follower.start()
    for number in range(50):
        log.append(b"%d" % number)
        assert seen.acquire(timeout=60)
    log.append_records([b"a", b"b", b"last"])
    follower.join(60)
    assert [record.value for record in found] == [b"%d" % n for n in range(50)] + [b"a", b"b", b"last"]
    assert [record.offset for record in found] == list(range(53))


def test_a_follower_is_woken_by_an_append(tmp_path: Path) -> None:
    # Broken if it failed: followers would see appends only when they poll, twice a second.
    with logcore.open(tmp_path) as log, logcore.open(tmp_path, readonly=True) as reader:
        watches = [_native.Watch(log._native), _native.Watch(reader._native)]
        appends = [
            lambda: log.append(b"a"),
            lambda: log.append_records([b"a", b"b"]),
            lambda: log.append_batches(logcore.build_batch([b"c"])),
            log.close,
        ]
        for append in appends:
            for watch in watches:
                assert select.select([watch.fileno()], [], [], 0) == ([], [], [])
            append()
            for watch in watches:
                assert select.select([watch.fileno()], [], [], 60)[0]
                watch.clear()


# Broken if it failed: a follower would begin at the wrong record, or not end at its timeout.
def test_where_it_begins_and_ends(log: logcore.Log) -> None:
    log.append_records([b"a", b"b", b"c"])
    assert [record.value for record in log.follow(1, timeout=0)] == [b"b", b"c"]
    from_now_on = log.follow(timeout=0)
    log.append(b"d")
    assert [record.value for record in from_now_on] == [b"d"]
    assert list(log.follow(4, timeout=0.01)) == []
    for offset in (-1, 5):
        with pytest.raises(logcore.OffsetOutOfRangeError):
            next(log.follow(offset, timeout=0))
    with pytest.raises(ValueError, match="nan"):
        next(log.follow(0, timeout=float("nan")))
    assert next(log.follow(0, timeout=1e300)).value == b"a"


def test_batches_are_followed_unchanged(log: logcore.Log) -> None:
    # Broken if it failed: a program that sends batches on would send one twice, or miss one.
    batches = [logcore.build_batch([b"%d" % number] * 7, "zstd") for number in range(20)]
    for batch in batches:
        log.append_batches(batch)
    views = list(log.follow_batches(0, timeout=0, max_bytes=len(batches[0]) * 3))
    assert len(views) > 6
    assert b"".join(views) == bytes(log.fetch(0))


def test_closing_ends_the_wait(log: logcore.Log) -> None:
    # Broken if it failed: a thread would wait for ever for a closed log.
    log.append(b"a")
    began = threading.Event()
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            for _ in log.follow(0):
                began.set()
        except logcore.LogClosedError as error:
            ended.append(error)

    follower = threading.Thread(target=follow)
    follower.start()
    assert began.wait(60)
    log.close()
    follower.join(60)
    assert len(ended) == 1


def test_beside_another_process(tmp_path: Path) -> None:
    # Broken if it failed: a reader would not see another process's appends, also in its next segments.
    with (
        other_process(tmp_path / "log") as writer,
        logcore.open(tmp_path / "log", readonly=True) as log,
    ):
        records = log.follow(0, timeout=60)
        for number in range(60):
            value = f"{number:03}" * 20
            send(writer, value)
            record = next(records)
            assert (record.offset, record.value) == (number, value.encode())
        assert len(list((tmp_path / "log").glob("*.log"))) > 2


INTERRUPTED = """
import logcore, sys
with logcore.open(sys.argv[1], readonly=sys.argv[2] == "readonly") as log:
    print("follows", flush=True)
    try:
        for record in log.follow(0):
            print(record.value.decode(), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("mode", ["readonly", "writable"])
def test_ctrl_c_interrupts(tmp_path: Path, mode: str) -> None:
    # Broken if it failed: a program that follows a log could only be killed.
    with logcore.open(tmp_path) as log:
        log.append(b"first")
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), mode], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "follows\n"
        assert follower.stdout.readline() == "first\n"
        follower.send_signal(signal.SIGINT)
        assert follower.stdout.readline() == "interrupted\n"
        assert follower.wait(60) == 0


async def take(records: AsyncIterator[logcore.Record], count: int) -> list[bytes | None]:
    return [(await anext(records)).value for _ in range(count)]


async def waiting_for_one(records: AsyncIterator[logcore.Record]) -> asyncio.Task[list[bytes | None]]:
    """A task that waits for a record; returned once the task has begun to wait."""
    begins = asyncio.Event()

    async def wait() -> list[bytes | None]:
        begins.set()
        return await take(records, 1)

    task = asyncio.ensure_future(wait())
    await begins.wait()
    return task


def test_many_followers_in_one_loop(log: logcore.Log) -> None:
    # Broken if it failed: one waiting follower would block the event loop, or an append would not wake it.
    async def run() -> None:
        followers = [log.follow_async(0) for _ in range(20)]
        for number in range(30):
            waiting = [asyncio.ensure_future(take(follower, 1)) for follower in followers]
            log.append(b"%d" % number)
            assert await asyncio.wait_for(asyncio.gather(*waiting), 60) == [[b"%d" % number]] * 20
        # All of them wait for the next record, and are cancelled meanwhile.
        again = [await waiting_for_one(follower) for follower in followers]
        for waiter in again:
            waiter.cancel()
        assert all(
            isinstance(ended, asyncio.CancelledError)
            for ended in await asyncio.gather(*again, return_exceptions=True)
        )

    asyncio.run(run())


# Broken if it failed: an asyncio program would not see another process's appends.
def test_async_beside_another_process(tmp_path: Path) -> None:
    with (
        other_process(tmp_path / "log") as writer,
        logcore.open(tmp_path / "log", readonly=True) as log,
    ):

        async def run() -> None:
            records = log.follow_async(0, timeout=60)
            for number in range(20):
                send(writer, str(number))
                assert (await anext(records)).value == b"%d" % number

        asyncio.run(run())


# Broken if it failed: an asyncio program would wait for ever.
def test_async_ends_at_its_timeout(log: logcore.Log) -> None:
    async def run() -> None:
        log.append(b"a")
        assert [record.value async for record in log.follow_async(0, timeout=0)] == [b"a"]
        assert [record.value async for record in log.follow_async(timeout=0.01)] == []
        waiting = await waiting_for_one(log.follow_async())
        log.close()
        with pytest.raises(logcore.LogClosedError):
            await asyncio.wait_for(waiting, 60)

    asyncio.run(run())


@pytest.mark.parametrize("follow", ["follow", "follow_batches", "follow_async"])
def test_a_timeout_of_nan_is_refused(log: logcore.Log, follow: str) -> None:
    # Broken if it failed: a follower with a wrongly computed timeout would never end.
    with pytest.raises(ValueError, match="not nan"):
        getattr(log, follow)(0, timeout=float("nan"))
    with pytest.raises(TypeError):
        getattr(log, follow)(0, timeout="1")
