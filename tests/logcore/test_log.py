"""`logcore.open`, `Log`, and the package's names."""

from __future__ import annotations

import copy
import doctest
import gc
import multiprocessing
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logcore
import logcore._appender
import logcore._directory
import logcore._log
import logcore._paths
import logcore._records
import logcore._tools
import logcore.columns

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logcore.Log]:
    with logcore.open(tmp_path / "log") as log:
        yield log


@pytest.mark.parametrize(
    "module",
    [
        logcore,
        logcore._appender,
        logcore._directory,
        logcore._log,
        logcore._paths,
        logcore._records,
        logcore._tools,
        logcore.columns,
    ],
)
def test_examples_in_docstrings_are_true(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Broken if it failed: the documentation would show code that does not work.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = doctest.testmod(
        module,  # type: ignore[arg-type]
        optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL,
    )
    assert found.attempted > 0
    assert found.failed == 0


def test_exported_names() -> None:
    # Broken if it failed: a script's import would fail, or `except LogError` would miss an error.
    errors = {name for name in logcore.__all__ if name.endswith("Error")}
    assert len(errors) == 14
    assert all(issubclass(getattr(logcore, name), logcore.LogError) for name in errors)
    assert set(logcore.__all__) - errors == {
        "AbortedTransaction",
        "Appender",
        "ArrowTable",
        "CleanerStats",
        "Finding",
        "IsolationLevel",
        "Log",
        "LogDirectory",
        "Record",
        "RecordLike",
        "RepairAction",
        "Repaired",
        "__version__",
        "build_batch",
        "find_logs",
        "log_directory",
        "open",
        "open_dir",
        "parse_batches",
        "repair",
        "verify",
    }


# Broken if it failed: some record would be changed by a codec, or between Python and the disk.
@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_went_in(tmp_path: Path, codec: str) -> None:
    given: list[logcore.RecordLike] = [
        (None, None, None, 5),
        (b"", b"", {}, 6),
        (b"key", None, [("a", b"1"), ("a", None), ("é", b"")], 7),
        (bytearray(b"k"), memoryview(b"value" * 1000), (), 8),
        logcore.Record(value=b"v", key=b"k", headers=[("h", b"x")], timestamp=9),
    ]
    with logcore.open(tmp_path, compression=codec) as log:
        assert log.append_records(given) == (0, 4)
        found = list(log.records())
    assert found == [
        logcore.Record(None, None, (), 5, 0),
        logcore.Record(b"", b"", (), 6, 1),
        logcore.Record(None, b"key", (("a", b"1"), ("a", None), ("é", b"")), 7, 2),
        logcore.Record(b"value" * 1000, b"k", (), 8, 3),
        logcore.Record(b"v", b"k", (("h", b"x"),), 9, 4),
    ]
    with logcore.open(tmp_path, create=False) as log:
        assert list(log.records()) == found


record = st.tuples(
    st.none() | st.binary(max_size=50),
    st.none() | st.binary(max_size=300),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    st.integers(0, 2**50),
)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    appends=st.lists(st.lists(record, min_size=1, max_size=20), min_size=1, max_size=5),
    codec=st.sampled_from(CODECS),
)
def test_any_records(
    tmp_path_factory: pytest.TempPathFactory,
    appends: list[list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]],
    codec: str,
) -> None:
    # Broken if it failed: some record would be lost or changed between Python and the disk.
    expected: list[logcore.Record] = []
    path = tmp_path_factory.mktemp("any")
    with logcore.open(path, compression=codec, segment_bytes=4000, max_message_bytes=1500) as log:
        for records in appends:
            first, last = log.append_records(records)
            assert (first, last) == (len(expected), len(expected) + len(records) - 1)
            for key, value, headers, timestamp in records:
                expected.append(logcore.Record(value, key, headers, timestamp, len(expected)))
        assert list(log.records()) == expected
        middle = len(expected) // 2
        assert list(log.records(middle, len(expected) - 1)) == expected[middle:-1]
    with logcore.open(path, readonly=True) as log:
        assert list(log.records()) == expected
        for record in expected:
            at = log.offset_for_time(record.timestamp)
            assert at == next(r.offset for r in expected if r.timestamp >= record.timestamp)


def test_fetch_is_a_view_that_outlives_the_log(tmp_path: Path) -> None:
    # Broken if it failed: a view would be copied, writable, or dangle.
    with logcore.open(tmp_path) as log:
        log.append_records([b"x" * 1000] * 100)
        view = log.fetch(0)
        expected = bytes(view)
        assert view.readonly
        assert view.contiguous
        assert (view.format, view.itemsize) == ("B", 1)
    part = view[17:]
    del view, log
    gc.collect()
    assert bytes(part) == expected[17:]
    with pytest.raises(TypeError):
        part[0] = 1


# Broken if it failed: a fetch would end inside a batch, or return nothing for a large one.
def test_fetch_returns_whole_batches(log: logcore.Log) -> None:
    for number in range(10):
        log.append(b"%03d" % number)
    size = len(log.fetch(0, 1))
    assert size > 61
    assert len(log.fetch(0, 1)) == size
    assert len(log.fetch(0, size * 3 + 5)) == size * 3
    assert len(log.fetch(4)) == size * 6
    assert len(log.fetch(10)) == 0
    assert log.size_bytes == size * 10
    for offset in (-1, 11):
        with pytest.raises(logcore.OffsetOutOfRangeError, match=r"outside the log's range 0\.\.10") as caught:
            log.fetch(offset)
        assert caught.value.code == 1


@pytest.mark.parametrize("readonly", [False, True])
def test_an_index_position_leads_to_its_offset(tmp_path: Path, readonly: bool) -> None:
    # Broken if it failed: a program that reads the files would start behind its record, or far before it.
    with logcore.open(tmp_path, segment_bytes=20_000) as log:
        for number in range(500):
            log.append(bytes(number % 200))
        opened = logcore.open(tmp_path, readonly=True) if readonly else log
        for offset in range(501):
            base, position = opened.index_position(offset)
            data = (tmp_path / f"{base:020}.log").read_bytes()
            walked = position
            while walked < len(data) and int.from_bytes(data[walked : walked + 8], "big") < offset:
                walked += 12 + int.from_bytes(data[walked + 8 : walked + 12], "big")
            assert walked - position < 4096 + 2 * 300
            if offset < 500:
                assert int.from_bytes(data[walked : walked + 8], "big") == offset
        for offset in (-1, 501):
            with pytest.raises(logcore.OffsetOutOfRangeError):
                opened.index_position(offset)
        opened.close()
    with pytest.raises(logcore.LogClosedError):
        log.index_position(0)


def test_batches_of_a_producer(log: logcore.Log) -> None:
    # Broken if it failed: a retry would be written twice, or a gap accepted.
    first = logcore.build_batch([b"a", b"b"], producer=(7, 0, 0))
    second = logcore.build_batch([b"c"], producer=(7, 0, 2))
    assert log.append_batches(first) == (0, 1)
    assert log.append_batches(bytearray(second)) == (2, 2)
    assert log.append_batches(memoryview(first)) == (0, 1)
    assert log.end_offset == 3
    with pytest.raises(logcore.ProducerStateError) as caught:
        log.append_batches(logcore.build_batch([b"e"], producer=(7, 0, 4)))
    assert caught.value.code == 45


def test_wrong_arguments_are_refused(log: logcore.Log) -> None:
    # Broken if it failed: a mistake would be written to the log.
    batch = logcore.build_batch([b"value"])
    damaged = bytearray(batch)
    damaged[-1] ^= 1
    refused: list[tuple[bytes | bytearray, type[logcore.LogError]]] = [
        (b"", logcore.InvalidRecordError),
        (b"rubbish", logcore.InvalidRecordError),
        (batch[:-1], logcore.InvalidRecordError),
        (damaged, logcore.InvalidRecordError),
        (logcore.build_batch([bytes(2_000_000)]), logcore.RecordTooLargeError),
    ]
    for bad, error in refused:
        with pytest.raises(error):
            log.append_batches(bad)
    with pytest.raises(logcore.RecordTooLargeError):
        log.append(bytes(2_000_000))
    with pytest.raises(logcore.CorruptLogError, match="checksum"):
        logcore.parse_batches(damaged)
    for records, kind in [
        ([], ValueError),
        (["text"], TypeError),
        ([(b"k", b"v", None, -5)], ValueError),
        ([logcore.Record(b"v", timestamp=-2)], ValueError),
        ([(b"k",)], TypeError),
        ([None], TypeError),
    ]:
        with pytest.raises(kind):
            log.append_records(records)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timestamp -5 is before 1970"):
        log.append(b"v", timestamp=-5)
    with pytest.raises(TypeError, match=r"append_records\(\[record\]\)"):
        log.append(logcore.Record(b"v"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one record"):
        logcore.build_batch([])
    with pytest.raises(ValueError, match="none, gzip, snappy, lz4, zstd"):
        logcore.build_batch([b"x"], compression="rar")
    assert log.end_offset == 0


def test_reading_out_of_range(log: logcore.Log) -> None:
    # Broken if it failed: a wrong offset would look like the end of the log.
    log.append_records([b"a", b"b"])
    for offset in (-1, 3, 100):
        with pytest.raises(logcore.OffsetOutOfRangeError):
            log.records(offset)
        with pytest.raises(logcore.OffsetOutOfRangeError):
            log.records(offset, end=0)
    assert list(log.records(2)) == []


def test_no_record_is_deleted_for_its_age_by_default(tmp_path: Path) -> None:
    # Broken if it failed: an embedded log would lose records older than Kafka's default of a week.
    for number, config in enumerate([{}, {"retention_ms": 604_800_000}]):
        with logcore.open(tmp_path / str(number), **config) as log:
            log.append(b"departed", timestamp=1357034400000)
            log.maintain()
            assert len(list(log.records())) == 1 - number
    with logcore.open_dir(tmp_path / "directory") as directory:
        directory.create("flights").append(b"departed", timestamp=1357034400000)
        directory.maintain()
        assert len(list(directory["flights", 0].records())) == 1


# Broken if it failed: a setting would be ignored, or a wrong one accepted.
def test_settings(tmp_path: Path) -> None:
    with pytest.raises(logcore.LogConfigError, match="segmnt_bytes"):
        logcore.open(tmp_path / "new", segmnt_bytes=1)
    with pytest.raises(logcore.LogConfigError, match=r"segment\.bytes=abc"):
        logcore.open(tmp_path / "new", segment_bytes="abc")
    with pytest.raises(ValueError, match="rar"):
        logcore.open(tmp_path / "new", compression="rar")
    assert not (tmp_path / "new").exists()
    with logcore.open(tmp_path, segment_bytes=2000, segment_index_bytes=4096, flush_messages=1) as log:
        for _ in range(50):
            log.append(bytes(100))
        assert len(list(tmp_path.glob("*.log"))) > 4
    # Records larger than a segment are spread over several.
    with logcore.open(tmp_path, max_message_bytes=1000, segment_bytes=2000) as log:
        first, last = log.append_records([bytes(400)] * 20)
        assert last - first == 19
        assert len(list(log.records(first))) == 20


def test_one_writer_many_readers(tmp_path: Path) -> None:
    # Broken if it failed: two writers would mix their records, or a reader would not see appends.
    path = tmp_path / "log"
    with pytest.raises(logcore.LogNotFoundError):
        logcore.open(path, create=False)
    with pytest.raises(logcore.LogNotFoundError):
        logcore.open(path, readonly=True)
    with logcore.open(path) as writer:
        with pytest.raises(logcore.LockedError):
            logcore.open(path)
        code = f"import logcore; logcore.open({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "logcore.LockedError" in other.stderr
        readers = [logcore.open(path, readonly=True) for _ in range(2)]
        for number in range(5):
            writer.append(b"%d" % number)
            for reader in readers:
                assert reader.end_offset == number + 1
                assert [record.value for record in reader.records(number)] == [b"%d" % number]
        with pytest.raises(logcore.ReadOnlyError):
            readers[0].append(b"x")
        for reader in readers:
            assert reader.readonly
            reader.close()
        assert not writer.readonly
    with pytest.raises(logcore.LogClosedError):
        writer.append(b"x")
    with pytest.raises(logcore.LogClosedError):
        writer.fetch(0)
    writer.close()


CRASH = """
import logcore, os, sys
log = logcore.open(sys.argv[1], segment_bytes=100_000)
batch = 0
while True:
    first, last = log.append_batches(logcore.build_batch([b"%d" % batch] * 10, producer=(1, 0, batch * 10)))
    print(batch, first, flush=True)
    batch += 1
"""


def test_killed_while_writing(tmp_path: Path) -> None:
    # Broken if it failed: an append that returned would be lost after a kill, or a retry would be there
    # twice.
    child = subprocess.Popen([sys.executable, "-c", CRASH, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if len(lines) == 2000:
            child.kill()
            break
    rest = child.communicate()[0].splitlines()
    lines += [line for line in rest if len(line.split()) == 2]
    acknowledged = [tuple(map(int, line.split())) for line in lines]
    with logcore.open(tmp_path) as log:
        values = [record.value for record in log.records()]
        assert len(values) % 10 == 0
        for batch, first in acknowledged[:-1]:
            assert values[first : first + 10] == [b"%d" % batch] * 10
        last = len(values) // 10 - 1
        assert last >= acknowledged[-2][0]
        again = logcore.build_batch([b"%d" % last] * 10, producer=(1, 0, last * 10))
        assert log.append_batches(again) == (last * 10, last * 10 + 9)
        assert log.end_offset == len(values)


# Broken if it failed: a torn batch would be read after a crash, or later appends would fail.
def test_torn_tail(tmp_path: Path) -> None:
    log = logcore.open(tmp_path)
    log.append_records([b"a", b"b"])
    log.append(b"c")
    del log
    gc.collect()
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-3])
    with logcore.open(tmp_path) as log:
        assert log.truncated_bytes > 0
        assert [record.value for record in log.records()] == [b"a", b"b"]
        assert log.append(b"d") == 2


def refusals(calls: Sequence[Callable[[], object]]) -> list[str]:
    """The messages of the errors that these calls raise."""
    messages = []
    for call in calls:
        try:
            call()
        except logcore.LogClosedError as error:
            messages.append(str(error))
    return messages


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    # Broken if it failed: a worker that inherited the log would overwrite its parent's records, or would read
    # that the log is closed, which it is not.
    with logcore.open(tmp_path / "log", cleanup_policy="compact,delete") as log:
        log.append(b"parent", key=b"k")
        batch = bytes(log.fetch(0))
        watch = logcore._native.Watch(log._native)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        calls: list[Callable[[], object]] = [
            lambda: log.append(b"child", key=b"k"),
            lambda: log.append_records([(b"child", b"k")]),
            lambda: log.append_batches(batch),
            log.roll,
            lambda: log.truncate(0),
            lambda: log.truncate_fully_and_start_at(9),
            lambda: log.delete_records(1),
            log.compact,
            log.maintain,
            log.flush,
            lambda: next(log.follow(1, timeout=0)),
            lambda: watch.wait(1, timeout=0),
            lambda: logcore.Appender(log),
        ]

        def child() -> None:
            queue.put((refusals(calls), [record.value for record in log.records()]))

        process = context.Process(target=child)
        process.start()
        process.join()
        messages, values = queue.get()
        assert values == [b"parent"]
        assert len(messages) == len(calls), messages
        assert all("before this process was forked" in message for message in messages), messages
        assert log.append(b"parent again", key=b"k") == 1


def test_a_forked_child_does_not_write_to_a_log_that_it_looks_up(tmp_path: Path) -> None:
    # Broken if it failed: a worker that looks up a log in a directory that it inherited could write to it.
    with logcore.open_dir(tmp_path) as directory:
        directory.create("flights").append(b"parent")
    with logcore.open_dir(tmp_path) as directory:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()

        def child() -> None:
            log = directory["flights", 0]
            queue.put((refusals([lambda: log.append(b"child")]), [record.value for record in log.records()]))

        process = context.Process(target=child)
        process.start()
        process.join()
        messages, values = queue.get()
        assert values == [b"parent"]
        assert len(messages) == 1, messages
        assert "forked" in messages[0]


def test_a_forked_child_closes_nothing(tmp_path: Path) -> None:
    # Broken if it failed: a worker's exception would be lost when it leaves the block that its parent opened,
    # or the worker would close its parent's log.
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    directory = logcore.open_dir(tmp_path / "logs")
    for owner, log in ((None, logcore.open(tmp_path / "log")), (directory, directory.create("flights"))):
        log.append(b"parent")

        def child(outer: logcore.Log | logcore.LogDirectory, log: logcore.Log = log) -> None:
            try:
                with outer, log:
                    raise ArithmeticError("the child's own")
            except Exception as error:
                queue.put((repr(error), [record.value for record in log.records()]))

        process = context.Process(target=child, args=(owner or log,))
        process.start()
        process.join(60)
        assert queue.get() == ('ArithmeticError("the child\'s own")', [b"parent"])
        assert log.append(b"parent again") == 1
        with pytest.raises(logcore.LockedError):
            logcore.open(log.path)
        (owner or log).close()
        assert logcore.verify(log.path) == []


def test_threads(log: logcore.Log) -> None:
    # Broken if it failed: appends of two threads would interleave within a batch.
    def work(name: int) -> None:
        for _ in range(50):
            log.append_records([b"%d" % name] * 7)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [record.value for record in log.records()]
    assert len(values) == 4 * 50 * 7
    for at in range(0, len(values), 7):
        assert len(set(values[at : at + 7])) == 1


# Broken if it failed: records could not be compared, matched or pickled.
def test_record() -> None:
    record = logcore.Record(b"v", key=b"k", headers={"h": None}, timestamp=3, offset=4)
    assert record == logcore.Record(b"v", b"k", [("h", None)], 3, 4)
    assert hash(record) == hash(logcore.Record(b"v", b"k", [("h", None)], 3, 4))
    assert record != logcore.Record(b"w", b"k", [("h", None)], 3, 4)
    assert record.as_tuple() == (4, 3, b"k", b"v", (("h", None),))
    match record:
        case logcore.Record(offset, timestamp, key, value, headers):
            assert (offset, timestamp, key, value, headers) == record.as_tuple()
    assert repr(record) == "Record(offset=4, timestamp=3, key=b'k', value=b'v', headers=(('h', None),))"
    for other in (pickle.loads(pickle.dumps(record)), copy.copy(record), copy.deepcopy(record)):
        assert other == record
    assert copy.deepcopy(logcore.Record(None)) == logcore.Record(None)
    with pytest.raises(AttributeError):
        record.offset = 1  # type: ignore[misc]
