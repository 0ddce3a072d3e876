"""Requests that Python answers, and the start and stop of the server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.replicas import PartitionSpec
from logcore._native import ListenerError, LogDirError, ProtocolError, ServerConfigError, ServerError

from . import wire
from .conftest import NODE, Running, StartServer, open_server

METADATA_REQUEST: dict[str, Any] = {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}
METADATA_RESPONSE: dict[str, Any] = {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": []}


def test_a_request_crosses_and_is_answered(running: Running) -> None:
    """If this failed, clients would get no responses from Python's handlers."""
    with running.client() as client:
        sent = client.send(wire.METADATA, 9, METADATA_REQUEST)
        (request,) = running.take(1)
        assert (request.api_key, request.api_version, request.correlation_id) == (3, 9, sent)
        assert (request.client_id, request.client_host) == ("test", "127.0.0.1")
        assert request.listener == "PLAINTEXT"
        assert request.connection_id.startswith(f"127.0.0.1:{running.port}-127.0.0.1:")
        assert request.body["topics"] == [{"topic_id": bytes(16), "name": "t"}]
        assert request.body is request.body
        assert not request.answered
        with pytest.raises(ProtocolError, match="no_such_field"):
            request.respond({"no_such_field": 1})
        request.respond(METADATA_RESPONSE)
        assert request.answered
        request.respond(METADATA_RESPONSE)
        received, response = client.receive(wire.METADATA, 9)
    assert received == sent
    assert response["cluster_id"] == "c"


def test_responses_keep_the_order_of_the_requests(running: Running) -> None:
    """If this failed, a client would take the response to one request for that to another."""
    with running.client() as client:
        sent = [
            client.send(wire.METADATA, 9, METADATA_REQUEST),
            client.send(wire.API_VERSIONS, 0, {}),
            client.send(wire.PRODUCE, 9, wire.produce("t", 0, wire.batch([b"x" * 20_000]))),
            client.send(wire.METADATA, 9, METADATA_REQUEST),
        ]
        answers = []
        for key, version in [(3, 9), (18, 0), (0, 9), (3, 9)]:
            if key == wire.METADATA:
                (request,) = running.take(1)
                request.respond(METADATA_RESPONSE)
            answers.append(client.receive(key, version)[0])
    assert answers == sent


def test_an_unanswered_request_closes_its_connection(running: Running) -> None:
    """If this failed, a defect of a handler would make a client wait for ever."""
    with running.client() as client:
        client.send(wire.METADATA, 9, METADATA_REQUEST)
        running.take(1).clear()
        assert client.is_closed()
        assert "Metadata version 9 gave no answer" in running.wait_for_line("closed")
    with running.client() as client:
        client.send(wire.METADATA, 9, METADATA_REQUEST)
        running.take(1)[0].close()
        assert client.is_closed()


def test_a_full_queue_delays_and_drops_nothing(start_server: StartServer) -> None:
    """If this failed, a burst of requests would lose some, or use unbounded memory."""
    running = start_server(queued_max_requests=1)
    clients = [running.client() for _ in range(8)]
    sent = [client.send(wire.METADATA, 9, METADATA_REQUEST) for client in clients]
    for request in running.take(8):
        request.respond(METADATA_RESPONSE)
    assert [client.receive(wire.METADATA, 9)[0] for client in clients] == sent
    for client in clients:
        client.socket.close()


def test_asyncio_is_woken(running: Running) -> None:
    """If this failed, the broker's event loop would sleep while requests wait."""

    async def serve_one() -> None:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        loop.add_reader(running.server.wake_fd, woken.set)
        with running.client() as client:
            client.send(wire.METADATA, 9, METADATA_REQUEST)
            await asyncio.wait_for(woken.wait(), wire.TIMEOUT)
            (request,) = running.server.take_requests(1)
            request.respond(METADATA_RESPONSE)
            await loop.run_in_executor(None, client.receive, wire.METADATA, 9)
        loop.remove_reader(running.server.wake_fd)

    asyncio.run(serve_one())


def test_a_stop_waits_for_requests_in_python(running: Running) -> None:
    """If this failed, clients would get no response to requests executed before a restart."""
    with running.client() as client, running.client() as idle:
        idle.call(wire.API_VERSIONS, 0, {})
        client.send(wire.METADATA, 9, METADATA_REQUEST)
        (request,) = running.take(1)

        async def stop() -> None:
            stopping = asyncio.to_thread(running.server.stop, wire.TIMEOUT)
            task = asyncio.create_task(stopping)
            await asyncio.to_thread(idle.is_closed)
            request.respond(METADATA_RESPONSE)
            await task

        asyncio.run(stop())
        assert client.receive(wire.METADATA, 9)[1]["cluster_id"] == "c"
        assert client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        running.client()
    with pytest.raises(ServerError, match="started or stopped before"):
        running.server.start([("PLAINTEXT", "127.0.0.1", 0)])


def test_a_stop_does_not_wait_for_ever(running: Running) -> None:
    """If this failed, one stuck handler would keep the broker from stopping."""
    with running.client() as client:
        client.send(wire.METADATA, 9, METADATA_REQUEST)
        (request,) = running.take(1)
        running.server.stop(0.05)
        assert client.is_closed()
        request.respond(METADATA_RESPONSE)
    assert any("unanswered" in line for _, line, _ in running.server.take_log_lines())


def test_a_failed_start_names_its_cause(tmp_path: Path, running: Running) -> None:
    """If this failed, an operator would not know what to change."""
    with pytest.raises(ServerConfigError, match=r"message\.max\.bytes=lots"):
        open_server(tmp_path / "a", {"message.max.bytes": "lots"})
    with pytest.raises(TypeError, match=r"message\.max\.bytes"):
        open_server(tmp_path / "a", {"message.max.bytes": 1.5})  # type: ignore[dict-item]
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(LogDirError, match=str(tmp_path / "file")):
        open_server(tmp_path / "file")
    with pytest.raises(LogDirError, match=r"log\.dirs"):
        type(running.server)(node_id=1, cluster_id="c", log_dirs=[], config={})
    server = open_server(tmp_path / "b")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenerError, match=f"127.0.0.1:{port}"):
            server.start([("PLAINTEXT", "127.0.0.1", port)])
    with pytest.raises(ValueError, match="16 bytes"):
        server.create_partition(PartitionSpec("t", b"short", 0, 0, NODE, {}))
    with pytest.raises(ServerConfigError, match=r"segment\.bytes"):
        server.create_partition(PartitionSpec("t", bytes(range(16)), 0, 0, NODE, {"segment.bytes": "-5"}))
    assert server.partitions() == []
    (port,) = server.start([("PLAINTEXT", "", 0)])
    with wire.Client(port) as client:
        assert client.call(wire.API_VERSIONS, 0, {})["error_code"] == 0
    server.stop()


def test_metrics_count(running: Running) -> None:
    """If this failed, an operator would see wrong metrics."""
    records = wire.batch([b"1", b"2"])
    with running.client() as client:
        client.produce("t", 0, records)
        client.fetch("t", 0, 0)
        client.produce("unknown", 0, records)
        # A request is counted when its response is sent, before the next one of its connection is read.
        client.call(wire.API_VERSIONS, 0, {})
        measured = running.server.measurements()
    counts = dict(zip(measured.topic_counters, measured.all_topics, strict=True))
    assert (counts["MessagesIn"], counts["TotalProduceRequests"]) == (2, 1)
    assert counts["BytesIn"] == counts["BytesOut"] == len(records)
    assert (measured.connections, len(measured.partitions)) == ([("PLAINTEXT", 1)], 1)
    requests = {name: sum(count for _, count in versions) for name, versions, *_ in measured.apis}
    assert (requests["Produce"], requests["Fetch"]) == (2, 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_refused_and_does_no_harm(running: Running) -> None:
    """If this failed, a forked worker would hang, or close the logs of its parent."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is killed, and the test fails
        refusals = 0
        try:
            for act in (lambda: running.server.offsets("t", 0), running.server.stop):
                try:
                    act()
                except ServerError as error:
                    refusals += "fork" in str(error)
            del running.server
        finally:
            os._exit(refusals)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    assert not (running.path / ".kafka_cleanshutdown").exists()
    with running.client() as client:
        assert client.produce("t", 0, wire.batch([b"still here"]))["error_code"] == 0


def test_log_lines_have_fields(running: Running) -> None:
    """If this failed, a search of the log by connection or topic would miss lines about it."""
    records = bytearray(wire.batch([b"precious"]))
    records[-3] ^= 0x10
    with running.client() as client:
        client.produce("t", 0, bytes(records))
        client.socket.sendall(b"\0\0\0\4\1\2\3\4")
        assert client.is_closed()
    fields_of: dict[str, dict[str, str]] = {}
    while len(fields_of) < 2:
        running.wait()
        running.server.take_requests(100)
        for _, line, fields in running.server.take_log_lines():
            fields_of["produce" if line.startswith("Produce") else "connection"] = fields
            assert fields.get("connection", "") in line
    assert fields_of["produce"] == {"topic": "t", "partition": "0"}
    assert fields_of["connection"].keys() == {"connection", "listener"}
    assert fields_of["connection"]["listener"] == "PLAINTEXT"
