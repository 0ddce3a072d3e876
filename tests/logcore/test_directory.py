"""`LogDirectory`: a log directory as a mapping."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logcore


def values(log: logcore.Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


def test_logs_come_back_under_their_names(tmp_path: Path) -> None:
    # Broken if it failed: a log would be lost, or exchanged with another, when its directory is opened again.
    with logcore.open_dir(tmp_path / "logs", compression="lz4") as directory:
        assert len(directory) == 0
        for topic, partition in [("flights", 1), ("a.b-c_d-9", 0), ("flights", 0)]:
            log = directory.create(topic, partition)
            log.append_records([f"{topic}{partition}".encode(), b"second"])
        assert list(directory) == [("a.b-c_d-9", 0), ("flights", 0), ("flights", 1)]
        assert directory["flights", 1].end_offset == 2
        assert ("flights", 1) in directory
        assert ("flights", 2) not in directory
        with pytest.raises(KeyError):
            directory["flights", 2]
        assert directory.get(("none", 0)) is None
    for readonly in (True, False):
        with logcore.open_dir(tmp_path / "logs", readonly=readonly) as directory:
            assert directory.readonly == readonly
            assert directory.failures == []
            found = {key: values(log) for key, log in directory.items()}
            assert found == {
                ("a.b-c_d-9", 0): [b"a.b-c_d-90", b"second"],
                ("flights", 0): [b"flights0", b"second"],
                ("flights", 1): [b"flights1", b"second"],
            }


def test_a_partition_number_with_leading_zeros(tmp_path: Path) -> None:
    # Broken if it failed: a reader would list a log that it cannot open.
    with logcore.open_dir(tmp_path) as directory:
        directory.create("flights", 3).append(b"departed")
    (tmp_path / "flights-3").rename(tmp_path / "flights-03")
    for readonly in (False, True):
        with logcore.open_dir(tmp_path, readonly=readonly) as directory:
            assert {key: values(log) for key, log in directory.items()} == {("flights", 3): [b"departed"]}
            assert directory["flights", 3].path.name == "flights-03"


def test_the_files_are_a_brokers(tmp_path: Path) -> None:
    # Broken if it failed: a broker would refuse the directory, or recover logs that were closed cleanly.
    with logcore.open_dir(tmp_path, broker_id=5) as directory:
        directory.create("flights", 0).append(b"x")
        directory.create("flights", 1)
        directory.checkpoint()
        ids = {(tmp_path / f"flights-{n}" / "partition.metadata").read_text() for n in (0, 1)}
        assert len(ids) == 1
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        assert "flights 1 0" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert "flights 0 1" in (tmp_path / "replication-offset-checkpoint").read_text()
    assert "broker.id=5" in (tmp_path / "meta.properties").read_text()
    logcore.open_dir(tmp_path).close()
    with pytest.raises(logcore.CorruptLogError, match=r"broker\.id"):
        logcore.open_dir(tmp_path, broker_id=6)


def test_a_directory_opened_as_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    # Broken if it failed: a wrong path would mark a crashed broker's directory as closed, or delete unrelated
    # files.
    root = str(tmp_path / "root")
    code = f"import logcore, os; logcore.open_dir({root!r}).create('t').append(b'x'); os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    with pytest.raises(logcore.LogNotFoundError, match="open it with open_dir"):
        logcore.open(tmp_path / "root")
    assert not (tmp_path / "root" / ".kafka_cleanshutdown").exists()
    logcore.open(tmp_path / "single").close()
    with pytest.raises(logcore.LogNotFoundError, match="it is a log, not a directory of logs"):
        logcore.open_dir(tmp_path / "single")
    (tmp_path / "theirs" / "backup-2024").mkdir(parents=True)
    for foreign in (tmp_path / "theirs", tmp_path / "theirs" / "backup-2024"):
        (foreign / "notes.tmp").write_text("mine")
    with pytest.raises(logcore.LogNotFoundError, match="is not empty and is no log"):
        logcore.open(tmp_path / "theirs")
    with logcore.open_dir(tmp_path / "theirs") as directory:
        assert list(directory) == []
        with pytest.raises(logcore.LogExistsError):
            directory.create("backup", 2024)
        with pytest.raises(logcore.LogConfigError, match="numbered from 0"):
            directory.create("x", -1)
        with pytest.raises(logcore.LockedError):
            logcore.open(tmp_path / "theirs" / "typo-0")
    left = {path.name for path in (tmp_path / "theirs").rglob("*") if path.is_dir() or path.suffix == ".tmp"}
    assert left == {"backup-2024", "notes.tmp"}


def test_one_writer_and_readers_beside_it(tmp_path: Path) -> None:
    # Broken if it failed: two processes would write the same logs, or a reader would disturb the writer.
    with pytest.raises(logcore.LogNotFoundError):
        logcore.open_dir(tmp_path / "none", readonly=True)
    with logcore.open_dir(tmp_path) as owner:
        log = owner.create("flights")
        log.append(b"a")
        with pytest.raises(logcore.LockedError):
            logcore.open_dir(tmp_path)
        with pytest.raises(logcore.LockedError):
            logcore.open(log.path)
        code = f"import logcore; logcore.open_dir({str(tmp_path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "logcore.LockedError" in other.stderr
        reader = logcore.open_dir(tmp_path, readonly=True)
        seen = reader["flights", 0]
        log.append(b"b")
        assert values(seen) == [b"a", b"b"]
        owner.create("later").append(b"c")
        assert list(reader) == [("flights", 0), ("later", 0)]
        for refused in (
            lambda: seen.append(b"x"),
            lambda: reader.create("x"),
            lambda: reader.delete("flights"),
            reader.maintain,
            reader.checkpoint,
        ):
            with pytest.raises(logcore.ReadOnlyError) as caught:
                refused()
            assert caught.value.code == 44
        owner.delete("later")
        assert reader.get(("later", 0)) is None
        reader.close()
        for closed in (lambda: seen.fetch(0), lambda: reader["flights", 0]):
            with pytest.raises(logcore.LogClosedError) as caught_closed:
                closed()
            assert caught_closed.value.code == 6
    with pytest.raises(logcore.LogClosedError):
        log.append(b"x")
    with pytest.raises(logcore.LogClosedError):
        owner.create("late")
    owner.close()


def test_create_and_delete(tmp_path: Path) -> None:
    # Broken if it failed: a deleted log would come back, or a new log of its name would have its records.
    with logcore.open_dir(tmp_path) as directory:
        old = directory.create("flights")
        old.append(b"old")
        with pytest.raises(logcore.LogExistsError):
            directory.create("flights")
        for name in ("", "..", "a/b", "x" * 250):
            with pytest.raises(logcore.LogConfigError, match="letters, digits"):
                directory.create(name)
        with pytest.raises(logcore.LogNotFoundError):
            directory.delete("flights", 1)
        ended: list[BaseException] = []

        def follow() -> None:
            try:
                list(old.follow(1))
            except logcore.LogClosedError as error:
                ended.append(error)

        follower = threading.Thread(target=follow)
        follower.start()
        directory.delete("flights")
        follower.join(60)
        assert len(ended) == 1
        with pytest.raises(logcore.LogClosedError):
            old.append(b"x")
        assert not (tmp_path / "flights-0").exists()
        new = directory.create("flights")
        assert new.append(b"new") == 0
        assert values(directory["flights", 0]) == [b"new"]
        for key in ("flights", "f0", ("flights",), ("flights", 1), 5):
            with pytest.raises(KeyError):
                directory[key]  # type: ignore[index]
    with logcore.open_dir(tmp_path) as directory:
        assert values(directory["flights", 0]) == [b"new"]


def test_settings_for_all_topics_for_one_topic_and_for_one_log(tmp_path: Path) -> None:
    # Broken if it failed: records would be kept longer or shorter than the settings say.
    topics = {"short": {"retention_bytes": 1000}, "long": {"retention_bytes": -1}}
    with logcore.open_dir(tmp_path, topics=topics, segment_bytes=1000, retention_bytes=5000) as directory:
        logs = {
            name: directory.create(name, **config)
            for name, config in [
                ("short", {}),
                ("long", {}),
                ("other", {}),
                ("own", {"retention_bytes": 2000}),
            ]
        }
        for log in logs.values():
            for _ in range(20):
                log.append(bytes(800))
        directory.maintain()
        kept = {name: log.end_offset - log.start_offset for name, log in logs.items()}
        assert kept["long"] == 20
        assert 1 <= kept["short"] < kept["own"] < kept["other"] < 20
    with pytest.raises(logcore.LogConfigError, match="retention"):
        logcore.open_dir(tmp_path, topics={"short": {"retention": 5}})
    with pytest.raises(ValueError, match="rar"):
        logcore.open_dir(tmp_path, compression="rar")


# Broken if it failed: closing one log would break its directory, or a closed directory would leave logs open.
def test_a_log_stays_open_until_its_directory_is_closed(tmp_path: Path) -> None:
    with logcore.open_dir(tmp_path) as directory:
        with directory.create("flights") as log:
            log.append(b"a")
        assert directory["flights", 0].append(b"b") == 1
        followers = [directory["flights", 0].follow(0, timeout=60) for _ in range(2)]
        assert [next(follower).value for follower in followers] == [b"a", b"a"]
    log.close()


def test_after_a_crash_every_log_is_recovered(tmp_path: Path) -> None:
    # Broken if it failed: a torn batch would be read, or one damaged log would make all others unusable.
    directory = logcore.open_dir(tmp_path)
    for partition in range(3):
        directory.create("flights", partition).append_records([b"a", b"b"])
        directory["flights", partition].append(b"c")
    directory.create("broken").append(b"a")
    del directory
    gc.collect()
    torn = tmp_path / "flights-1" / f"{0:020}.log"
    torn.write_bytes(torn.read_bytes()[:-3])
    (tmp_path / "broken-0" / "partition.metadata").write_text("version: 7\ntopic_id: x")
    with logcore.open_dir(tmp_path) as again:
        assert values(again["flights", 0]) == [b"a", b"b", b"c"]
        assert values(again["flights", 1]) == [b"a", b"b"]
        assert again["flights", 1].truncated_bytes > 0
        assert [path.name for path, _ in again.failures] == ["broken-0"]
        assert ("broken", 0) not in again


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    # Broken if it failed: a worker that inherited the directory would write over its parent's logs or
    # checkpoints.
    with logcore.open_dir(tmp_path) as directory:
        log = directory.create("flights")
        log.append(b"parent")
        queue = multiprocessing.get_context("fork").SimpleQueue()

        def child() -> None:
            refused = 0
            for act in (
                lambda: log.append(b"child"),
                lambda: directory.create("other"),
                lambda: log.follow(0),
                directory.checkpoint,
            ):
                try:
                    act()
                except logcore.LogClosedError:
                    refused += 1
            queue.put((refused, values(log)))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert queue.get() == (4, [b"parent"])
        assert log.append(b"parent again") == 1
