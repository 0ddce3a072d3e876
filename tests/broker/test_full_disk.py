"""A broker and its coordinator on a full disk.

If this failed, a full disk would refuse reads, and the requests that free space, along with appends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import KafkaStorageError, OffsetOutOfRange, OutOfOrderSequenceNumber
from logcore._native import api_keys, build_batch

from ..conftest import StartBroker
from ..server.wire import Client
from .test_stop import create

KEYS = api_keys()
FIND_COORDINATOR, DELETE_RECORDS = KEYS["FindCoordinator"], KEYS["DeleteRecords"]
DISK = "24m"
SEGMENT_BYTES = 1 << 20
OFFSET_OUT_OF_RANGE = OffsetOutOfRange.code
STORAGE_ERROR = KafkaStorageError.code
OUT_OF_ORDER = OutOfOrderSequenceNumber.code
RECORD = bytes(200_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of some megabytes."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", where], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield where
    subprocess.run(["umount", "--lazy", where], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            os.fsync(filler.fileno())


def test_a_full_disk_refuses_only_appends(start_broker: StartBroker, small_disk: Path) -> None:
    settings = (
        f"log.segment.bytes={SEGMENT_BYTES}",
        "log.segment.delete.delay.ms=0",
        "log.retention.check.interval.ms=100",
    )
    overrides = (part for setting in settings for part in ("--override", setting))
    broker = start_broker(small_disk / "data", 0, *overrides)
    create(broker, "t")
    batch = build_batch([(None, RECORD)])
    with Client(broker.port) as client, Client(broker.port) as group:
        for _ in range(20):
            assert client.produce("t", 0, batch)["error_code"] == 0
        fill(small_disk / "filler")
        assert client.produce("t", 0, batch)["error_code"] == STORAGE_ERROR
        # A first group needs __consumer_offsets, which the coordinator cannot create without space.
        group.send(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
        broker.wait_output("the disk of .*coordinator is full.*No space left on device")
        assert client.fetch("t", 0, 3)["records"]
        partitions = [{"partition_index": 0, "offset": 15}]
        asked = {"topics": [{"name": "t", "partitions": partitions}], "timeout_ms": 20_000}
        # It is done. A crash would undo it unless there is space for a checkpoint.
        [deleted] = client.call(DELETE_RECORDS, 2, asked)["topics"][0]["partitions"]
        assert (deleted["error_code"], deleted["low_watermark"]) in ((0, 15), (STORAGE_ERROR, -1))
        assert client.fetch("t", 0, 14)["error_code"] == OFFSET_OUT_OF_RANGE
        # The segments that this deletes free space.
        broker.wait_output("the disk of .*coordinator has space again")
        _, found = group.receive(FIND_COORDINATOR, 1)
        assert found["error_code"] == 0
        assert client.produce("t", 0, batch)["error_code"] == 0
    create(broker, "u")
    assert broker.stop() == 0, broker.output()


# If this failed, a producer would take the batches behind a refused one for a loss of state. librdkafka then
# begins with new sequence numbers, and repeats what it does not know to be written elsewhere.
def test_the_batches_behind_a_refused_one_are_refused_for_the_same_reason(
    start_broker: StartBroker, small_disk: Path
) -> None:
    broker = start_broker(small_disk / "data")
    create(broker, "t")

    def batch(sequence: int) -> bytes:
        return build_batch([(None, RECORD)], producer=(7, 0, sequence))

    with Client(broker.port) as client:
        assert client.produce("t", 0, batch(0))["error_code"] == 0
        fill(small_disk / "filler")
        assert [client.produce("t", 0, batch(n))["error_code"] for n in (1, 2)] == [STORAGE_ERROR] * 2
        (small_disk / "filler").unlink()
        assert client.produce("t", 0, batch(2))["error_code"] == STORAGE_ERROR
        assert [client.produce("t", 0, batch(n))["error_code"] for n in (1, 2)] == [0, 0]
        assert client.produce("t", 0, batch(4))["error_code"] == OUT_OF_ORDER
    assert broker.stop() == 0, broker.output()


def test_a_broker_on_a_full_disk_can_be_stopped(start_broker: StartBroker, small_disk: Path) -> None:
    broker = start_broker(small_disk / "data")
    create(broker, "t")
    with Client(broker.port) as client:
        fill(small_disk / "filler")
        client.send(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0})
        broker.wait_output("the disk of .*coordinator is full")
        broker.stop()
    (small_disk / "filler").unlink()
    again = start_broker(small_disk / "data")
    create(again, "u")
    assert again.stop() == 0


def test_a_broker_that_was_killed_waits_for_space_to_start(
    start_broker: StartBroker, small_disk: Path
) -> None:
    broker = start_broker(small_disk / "data")
    create(broker, "t")
    broker.kill()
    fill(small_disk / "filler")
    # The end of its old session must be written to the coordinator's log.
    waiting = start_broker(small_disk / "data", ready=False)
    waiting.wait_output("the disk of .*coordinator is full")
    assert waiting.stop() == 0, waiting.output()
    again = start_broker(small_disk / "data", ready=False)
    again.wait_output("the disk of .*coordinator is full")
    (small_disk / "filler").unlink()
    create(again.wait_ready(), "u")
    assert again.stop() == 0
