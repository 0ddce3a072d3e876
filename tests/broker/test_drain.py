"""A broker between SIGTERM and its end, and the bytes of logs that its next start reads.

If one failed, a restart would leave clients without responses to requests that were carried out, lose
acknowledged records, or read all logs again at every start.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import _broker
from cluster.broker.context import Body, Context, Request
from cluster.broker.handlers import HANDLERS, Handler
from cluster.errors import CoordinatorNotAvailable
from logcore._native import (
    build_batch,
    decode_response,
    decode_response_header,
    encode_request,
    encode_request_header,
    parse_batches,
)

from ..conftest import BrokerProcess, StartBroker
from ..controller.requests import until
from ..server.wire import FETCH, LIST_OFFSETS, PRODUCE, Client, fetch, produce
from .test_embedded import create as create_topic
from .test_embedded import embedded, topics
from .test_metrics import scrape
from .test_stop import create
from .wire import KEYS, Wire

METRICS = ("--override", "metrics.listener=http://127.0.0.1:0")
PRODUCERS = FETCHERS = 24
IN_FLIGHT = 5
"""On each connection, as in Kafka's producers (`max.in.flight.requests.per.connection`)."""
ANSWERS_BEFORE_THE_SIGNAL = 20
COORDINATOR_NOT_AVAILABLE = CoordinatorNotAvailable.code
PATIENCE = 60.0
RECORD_BYTES = 1_000_000
BATCHES = 320
READ_AT_START_MAX = 1 << 20
"""Bytes that a start may read in addition to an empty one: indexes, checkpoints, and the coordinator's log.
"""


def sent(key: int, version: int, correlation: int, body: dict[str, Any]) -> bytes:
    frame = encode_request_header(key, version, correlation, "drain") + encode_request(key, version, body)
    return struct.pack(">i", len(frame)) + frame


class Answers:
    """The responses on a connection, up to its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")

    def next(self, key: int, version: int) -> tuple[int, dict[str, Any]] | None:
        """Correlation id and body of the next response; None at the end of the connection."""
        size = self._exactly(4)
        if size is None:
            return None
        answer = self._exactly(struct.unpack(">i", size)[0])
        assert answer is not None, "the connection ended within a response"
        correlation, position = decode_response_header(key, version, answer)
        return correlation, decode_response(key, version, answer[position:])

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        # A broker that closes a connection with unread requests resets it after the last response.
        with contextlib.suppress(ConnectionResetError):
            data = self._stream.read(size)
        assert len(data) in (0, size), "the connection ended within a response"
        return data or None


class Load:
    """Connections that keep a broker busy, and the responses they got."""

    def __init__(self, port: int) -> None:
        self.acknowledged: list[bytes] = []
        self.flowing = threading.Semaphore(0)
        """Returns when each producer has some responses."""
        self._port = port

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE)

    def produce(self, name: int) -> None:
        """Keeps some requests in flight until the connection ends."""
        values: list[bytes] = []
        with self._connect() as connection:
            answers, count = Answers(connection), 0
            for _ in range(IN_FLIGHT):
                self._send(connection, name, values)
            while (answer := answers.next(PRODUCE, 9)) is not None:
                correlation, body = answer
                assert correlation == count, "the responses are not in the order of their requests"
                [part] = body["responses"][0]["partition_responses"]
                assert part["error_code"] == 0
                self.acknowledged.append(values[correlation])
                count += 1
                self._send(connection, name, values)
                if count == ANSWERS_BEFORE_THE_SIGNAL:
                    self.flowing.release()

    @staticmethod
    def _send(connection: socket.socket, name: int, values: list[bytes]) -> None:
        value = f"{name} {len(values)}".encode()
        values.append(value)
        body = produce("small", name % 4, build_batch([(None, value)]), acks=-1)
        # The responses to earlier requests are read to their end, whether the broker still listens or not.
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent(PRODUCE, 9, len(values) - 1, body))

    def poll(self) -> None:
        """Waits for records that do not come."""
        with self._connect() as connection:
            connection.sendall(sent(FETCH, 12, 7, fetch("silent", 0, 0, wait_ms=600_000)))
            answers = Answers(connection)
            answer = answers.next(FETCH, 12)
            assert answer is not None, "a waiting fetch was not answered"
            assert answer[0] == 7
            [part] = answer[1]["responses"][0]["partitions"]
            assert (part["error_code"], part["records"] or b"") == (0, b"")
            assert answers.next(FETCH, 12) is None


def stopped_under_load(broker: BrokerProcess) -> tuple[Load, int]:
    """The responses of a load during whose run the broker was stopped, and the broker's exit status."""
    load, metrics = Load(broker.port), broker.wait_output(r"^\s+metrics\s").split()[1]
    waiting = (
        "kafka_server_delayedoperationpurgatory_numdelayedoperations",
        (("delayedOperation", "Fetch"),),
    )
    with ThreadPoolExecutor(PRODUCERS + FETCHERS) as threads:
        polls = [threads.submit(load.poll) for _ in range(FETCHERS)]
        while scrape(metrics)[waiting] < FETCHERS:
            pass
        producers = [threads.submit(load.produce, name) for name in range(PRODUCERS)]
        for _ in producers:
            assert load.flowing.acquire(timeout=PATIENCE)
        status = broker.stop()
        for ended in [*polls, *producers]:
            ended.result(PATIENCE)
    return load, status


def fill(broker: BrokerProcess) -> None:
    with Client(broker.port) as client:
        batch = build_batch([(None, bytes(RECORD_BYTES))])
        for number in range(BATCHES):
            assert client.produce("large", number % 4, batch)["error_code"] == 0


def stored(broker: BrokerProcess, topic: str, partition: int) -> list[bytes]:
    """The values of all records."""
    values: list[bytes] = []
    with Client(broker.port) as client:
        while batches := client.fetch(topic, partition, len(values))["records"]:
            values += [record.value or b"" for record in parse_batches(batches, len(values))]
    return values


def ends(broker: BrokerProcess, topic: str) -> list[int]:
    """The ends of a topic's four logs."""
    wanted = [{"partition_index": index, "timestamp": -1} for index in range(4)]
    with Client(broker.port) as client:
        body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": wanted}]}
        [found] = client.call(LIST_OFFSETS, 6, body)["topics"]
        return [part["offset"] for part in found["partitions"]]


def bytes_read(broker: BrokerProcess) -> int:
    """How many bytes the process has read, also from the page cache."""
    fields = dict(
        line.split(": ") for line in Path(f"/proc/{broker.process.pid}/io").read_text().splitlines()
    )
    return int(fields["rchar"])


def test_requests_in_flight_are_answered_and_their_records_are_stored(start_broker: StartBroker) -> None:
    broker = start_broker(None, 0, *METRICS)
    create(broker, "small", partitions=4)
    create(broker, "silent")
    load, status = stopped_under_load(broker)
    assert status == 0, broker.output()
    assert "unanswered" not in broker.output()
    assert (broker.data_dir / "kafka-logs" / ".kafka_cleanshutdown").exists()
    again = start_broker()
    found = [value for partition in range(4) for value in stored(again, "small", partition)]
    # Every request that was carried out was answered.
    assert sorted(found) == sorted(load.acknowledged)
    assert again.stop() == 0


def test_the_start_after_a_clean_stop_reads_no_data(start_broker: StartBroker, tmp_path: Path) -> None:
    empty = start_broker(tmp_path / "empty")
    create(empty, "large", partitions=4)
    assert empty.stop() == 0
    empty = start_broker(tmp_path / "empty")
    assert ends(empty, "large") == [0] * 4
    without_data = bytes_read(empty)
    assert empty.stop() == 0
    full = start_broker()
    create(full, "large", partitions=4)
    fill(full)
    assert full.stop() == 0
    again = start_broker()
    assert ends(again, "large") == [BATCHES // 4] * 4
    assert bytes_read(again) - without_data < READ_AT_START_MAX
    assert again.stop() == 0
    # A start after a crash reads the logs, so the measurement would notice.
    (again.data_dir / "kafka-logs" / ".kafka_cleanshutdown").unlink()
    for checkpoint in (again.data_dir / "kafka-logs").glob("recovery-point-offset-checkpoint"):
        checkpoint.unlink()
    recovered = start_broker()
    assert ends(recovered, "large") == [BATCHES // 4] * 4
    assert bytes_read(recovered) - without_data > RECORD_BYTES * BATCHES
    assert recovered.stop() == 0


class Held:
    """A handler whose request waits, before or after it is carried out, until the test lets it continue."""

    def __init__(self, handler: Handler, carried_out: bool) -> None:
        self.API, self.failure = handler.API, handler.failure
        self._handler = handler
        self._carried_out = carried_out
        self.under_way, self.let_go = asyncio.Event(), asyncio.Event()

    async def handle(self, context: Context, request: Request) -> Body:
        done = await self._handler.handle(context, request) if self._carried_out else None
        self.under_way.set()
        await self.let_go.wait()
        return done or await self._handler.handle(context, request)


COMMITTED = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
UNDER_WAY: list[tuple[str, int, dict[str, Any]]] = [
    (
        "CreateTopics",
        4,
        {"topics": [{"name": "u", "num_partitions": 1, "replication_factor": 1}], "timeout_ms": 30_000},
    ),
    ("OffsetCommit", 2, {"group_id": "g", "topics": [{"name": "t", "partitions": [COMMITTED]}]}),
    ("Metadata", 8, {"topics": [{"name": "t"}]}),
]


async def answered_by_a_stopping_broker(
    monkeypatch: pytest.MonkeyPatch, data: Path, held: Held, name: str, version: int, body: Body
) -> Body:
    """The response to a request that was running when the broker was stopped, after which its connection
    ends.
    """
    async with embedded(data) as broker, Wire(broker.bootstrap) as wire, Wire(broker.bootstrap) as idle:
        assert await create_topic(wire, "t") == "ok"
        await wire.ask("FindCoordinator", 1, key="g", key_type=0)
        monkeypatch.setitem(HANDLERS, KEYS[held.API], held)
        asked = asyncio.create_task(wire.ask(name, version, **body))
        await held.under_way.wait()
        stopping = asyncio.create_task(broker.stop())
        # A connection without requests is closed at once: the stop has begun.
        assert await idle._reader.read() == b""
        held.let_go.set()
        answer = await asked
        assert await wire._reader.read() == b""
        await stopping
    return answer


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize(("name", "version", "body"), UNDER_WAY, ids=[name for name, _, _ in UNDER_WAY])
def test_requests_to_handlers_are_answered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: int, body: Body, carried_out: bool
) -> None:

    async def run() -> None:
        held = Held(HANDLERS[KEYS[name]], carried_out)
        answer = await answered_by_a_stopping_broker(monkeypatch, tmp_path, held, name, version, body)
        [topic] = answer["topics"]
        [code] = [part["error_code"] for part in topic.get("partitions", [topic])]
        # The groups stop first: a client that commits then must look for their coordinator again.
        refused = name == "OffsetCommit" and not carried_out
        assert code == (COORDINATOR_NOT_AVAILABLE if refused else 0)
        # The commit is stored.
        async with embedded(tmp_path) as again, Wire(again.bootstrap) as wire:
            assert ("u" in await topics(wire)) == (name == "CreateTopics")
            asked = [{"name": "t", "partition_indexes": [0]}]
            found = await wire.ask("OffsetFetch", 3, group_id="g", topics=asked)
            [part] = found["topics"][0]["partitions"]
            assert part["committed_offset"] == (7 if name == "OffsetCommit" and not refused else -1)

    asyncio.run(run())


def test_a_stopping_broker_does_not_register_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this failed, a session that is lost during a stop would end its log in a traceback."""
    held = Held(HANDLERS[KEYS["DeleteGroups"]], carried_out=False)
    monkeypatch.setitem(HANDLERS, KEYS[held.API], held)

    async def run() -> None:
        async with (
            embedded(tmp_path) as broker,
            Wire(broker.bootstrap) as wire,
            Wire(broker.bootstrap) as idle,
        ):
            zk = broker._zk
            assert zk is not None
            asked = asyncio.create_task(wire.ask("DeleteGroups", 0, groups_names=[]))
            await held.under_way.wait()
            stopping = asyncio.create_task(broker.stop())
            assert await idle._reader.read() == b""
            for state in ("LOST", "CONNECTED"):
                zk._state_changed(state)
            assert broker._renewal is None
            held.let_go.set()
            await asked
            await stopping

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_stop_does_not_wait_for_slow_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither for running handlers nor for waiting requests."""
    monkeypatch.setattr(_broker, "_HANDLERS_AT_STOP_SECONDS", 0.1)
    held = Held(HANDLERS[KEYS["DeleteGroups"]], carried_out=False)
    monkeypatch.setitem(HANDLERS, KEYS[held.API], held)

    async def run() -> None:
        async with (
            embedded(tmp_path, queued_max_requests="1") as broker,
            Wire(broker.bootstrap) as first,
            Wire(broker.bootstrap) as second,
        ):
            asked = [asyncio.create_task(first.ask("DeleteGroups", 0, groups_names=[]))]
            await held.under_way.wait()
            asked.append(asyncio.create_task(second.ask("DeleteGroups", 0, groups_names=[])))
            server = broker._server
            assert server is not None
            await until(lambda: server.measurements().gauges["request_queue_size"] > 0)
            await broker.stop()
            for answer in asked:
                with pytest.raises(EOFError):
                    await answer

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert "unanswered" not in caplog.text


STEPS, SLOW_SECONDS = 40, 6
"""Longer than a client may read nothing."""


def test_responses_are_sent_as_long_as_their_clients_read(start_broker: StartBroker) -> None:
    """One client of a stopping broker reads its large response slowly, another reads nothing."""
    broker = start_broker()
    create(broker, "large", partitions=4)
    fill(broker)
    wanted = fetch("large", 0, 0)
    wanted["topics"][0]["partitions"][0]["partition_max_bytes"] = wanted["max_bytes"]
    with asked(broker.port, wanted) as slow, asked(broker.port, wanted) as silent:
        [length] = struct.unpack(">i", received(slow, 4))
        assert length > wanted["max_bytes"] - 2 * RECORD_BYTES
        received(silent, 4)
        with ThreadPoolExecutor(1) as stopper:
            stopping = stopper.submit(broker.stop, timeout=PATIENCE)
            for _ in range(STEPS):
                received(slow, length // STEPS)
                time.sleep(SLOW_SECONDS / STEPS)
            received(slow, length % STEPS)
            assert slow.recv(1) == b""
            assert stopping.result(PATIENCE) == 0
    assert "unanswered" not in broker.output()


@contextlib.contextmanager
def asked(port: int, wanted: dict[str, Any]) -> Iterator[socket.socket]:
    """A client that has sent a request and has a small receive buffer for the response."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        client.settimeout(PATIENCE)
        client.connect(("127.0.0.1", port))
        client.sendall(sent(FETCH, 12, 1, wanted))
        yield client


def received(client: socket.socket, count: int) -> bytes:
    """Reads `size` bytes. Raises ConnectionError if there are fewer."""
    data = bytearray()
    while len(data) < count:
        if not (part := client.recv(count - len(data))):
            raise ConnectionError(f"{len(data)} bytes of {count}")
        data += part
    return bytes(data)
