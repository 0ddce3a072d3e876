"""Produce and Fetch through the extension, restarts and crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.broker.replicas import PartitionSpec
from logcore._native import LogDirError, ServerError

from . import wire
from .conftest import NODE, TOPIC_ID, Running, open_server


def test_produce_and_fetch_round_trip(running: Running) -> None:
    """If this failed, a consumer would not get acknowledged records."""
    first, second = wire.batch([b"a", b"b"]), wire.batch([b"c" * 100_000])
    with running.client() as client:
        assert client.produce("t", 0, first)["base_offset"] == 0
        assert client.produce("t", 0, second)["base_offset"] == 2
        part = client.fetch("t", 0, 0)
    assert (part["error_code"], part["high_watermark"], part["log_start_offset"]) == (0, 3, 0)
    stored = part["records"]
    assert len(stored) == len(first) + len(second)
    assert stored[16 : len(first)] == first[16:]
    assert stored[len(first) + 16 :] == second[16:]
    assert stored[len(first) : len(first) + 8] == (2).to_bytes(8, "big")
    assert running.server.offsets("t", 0) == (0, 3, 3)
    assert running.server.read("t", 0, 1, 1) == stored[: len(first)]


def test_a_long_poll_is_woken_by_an_append(running: Running) -> None:
    """If this failed, a consumer would get a record only after its whole wait."""
    records = wire.batch([b"wake up"])
    with running.client() as client:
        sent = client.send(wire.FETCH, 12, wire.fetch("t", 0, 0, wait_ms=600_000))
        assert running.server.append("t", 0, records) == 0
        received, response = client.receive(wire.FETCH, 12)
    assert received == sent
    assert response["responses"][0]["partitions"][0]["records"][16:] == records[16:]


def test_a_wrong_crc_is_refused_and_not_stored(running: Running) -> None:
    """If this failed, a batch that was damaged in transit would be stored."""
    records = bytearray(wire.batch([b"precious"]))
    records[-3] ^= 0x10
    with running.client() as client:
        part = client.produce("t", 0, bytes(records))
        assert part["error_code"] == 2
        # As in Kafka, the producer gets the code alone. The log has the reason.
        assert part["error_message"] is None
        assert any("checksum" in text for _, text, _ in running.server.take_log_lines())
        assert running.server.offsets("t", 0) == (0, 0, 0)
        assert client.produce("t", 0, wire.batch([b"fine"]))["error_code"] == 0
    with pytest.raises(ServerError) as refused:
        running.server.append("t", 0, bytes(records))
    assert refused.value.code == 2
    measured = running.server.measurements()
    assert measured.all_topics[measured.topic_counters.index("MessagesIn")] == 1


def test_a_bad_frame_closes_its_own_connection_only(running: Running) -> None:
    """If this failed, a bad frame would disturb other clients."""
    with running.client() as good, running.client() as bad:
        good.produce("t", 0, wire.batch([b"before"]))
        bad.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert bad.is_closed()
        assert "socket.request.max.bytes" in running.wait_for_line("closed")
        assert good.produce("t", 0, wire.batch([b"after"]))["base_offset"] == 1


def test_a_restart_keeps_topics_and_records(tmp_path: Path) -> None:
    """If this failed, a clean stop would lose records, topics or their ids."""
    before = Running(tmp_path, {})
    with before.client() as client:
        client.produce("t", 0, wire.batch([b"kept"]))
    before.server.stop()
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    after = open_server(tmp_path)
    assert after.partitions() == [("t", TOPIC_ID, 0)]
    assert after.offsets("t", 0) == (0, 1, 1)
    (port,) = after.start([("PLAINTEXT", "127.0.0.1", 0)])
    with wire.Client(port) as client:
        assert client.fetch("t", 0, 0)["error_code"] == 6, "the leader is not known"
        after.create_partition(PartitionSpec("t", TOPIC_ID, 0, 1, NODE, {}))
        assert len(client.fetch("t", 0, 0)["records"]) > 0
    with pytest.raises(ServerError) as refused:
        after.create_partition(PartitionSpec("t", bytes(16 * [9]), 1, 1, NODE, {}))
    assert refused.value.code == 103
    after.stop()


REPOSITORY = Path(__file__).parents[2]
CHILD = """
import sys, threading
from pathlib import Path
from tests.server.conftest import Running
running = Running(Path(sys.argv[1]), {})
print(running.port, flush=True)
threading.Event().wait()
"""


def test_acknowledged_records_survive_sigkill(tmp_path: Path) -> None:
    """If this failed, a crash of the broker would lose acknowledged records, or store them twice."""
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    child = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        with child.stdout, wire.Client(int(child.stdout.readline())) as client:
            values = [b"%d" % number * 50 for number in range(200)]
            for offset, value in enumerate(values):
                assert client.produce("t", 0, wire.batch([value]))["base_offset"] == offset
            client.send(wire.PRODUCE, 9, wire.produce("t", 0, wire.batch([b"in flight"])))
            child.kill()
            child.wait(wire.TIMEOUT)
    finally:
        child.kill()
        child.wait(wire.TIMEOUT)
    server = open_server(tmp_path)
    # Until it is known that there are no other replicas, nothing above the checkpoint is readable.
    server.create_partition(PartitionSpec("t", TOPIC_ID, 0, 1, NODE, {}))
    log_start, _, log_end = server.offsets("t", 0)
    assert log_start == 0
    assert log_end in (200, 201), "the batch in flight may be stored or lost"
    for position, value in enumerate(values):
        stored = server.read("t", 0, position, 1)
        assert stored[61:] == wire.batch([value])[61:]
        assert int.from_bytes(stored[:8], "big") == position
    server.stop()


def test_a_directory_has_one_server(running: Running) -> None:
    """If this failed, two servers could write to one log."""
    with pytest.raises(LogDirError, match="in use"):
        open_server(running.path)


def test_a_topic_is_deleted_and_created_again(running: Running) -> None:
    """If this failed, a deleted topic would still be served, or its name could not be used again."""
    other = bytes(16 * [1])
    with running.client() as client:
        client.produce("t", 0, wire.batch([b"old"]))
        running.server.delete_topic("t")
        assert client.produce("t", 0, wire.batch([b"late"]))["error_code"] == 3
        assert client.fetch("t", 0, 0)["error_code"] == 3
        running.server.create_partition(PartitionSpec("t", other, 0, 0, NODE, {"max.message.bytes": "100"}))
        assert running.server.partitions() == [("t", other, 0)]
        assert client.produce("t", 0, wire.batch([b"x" * 200]))["error_code"] == 10
        running.server.update_topic_config("t", {})
        assert client.produce("t", 0, wire.batch([b"x" * 200]))["base_offset"] == 0
    with pytest.raises(ServerError) as unknown:
        running.server.delete_topic("never was")
    assert unknown.value.code == 3
