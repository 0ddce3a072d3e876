"""Metrics, the slow-request log, and logs as JSON.

If one failed, dashboards and alerts would show wrong numbers or none, a scrape would delay clients, or a slow
broker would log nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cluster.broker import Broker, BrokerConfig, BrokerStartError, ConfigError, metrics_listener
from cluster.broker.config import BrokerConfig as Config
from cluster.broker.metrics import BrokerCollector
from cluster.broker.metrics_listener import MetricsListener
from cluster.broker.parts import BrokerState, Parts
from cluster.log_format import JsonFormatter
from logcore._native import LoadProgress
from tests.ports import free_port

from ..conftest import StartBroker
from ..server.wire import batch
from .test_embedded import create, embedded
from .wire import Wire

PATIENCE = 20.0
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(address: str) -> Samples:
    """One scrape without an event loop: values by name and labels."""
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        return parse(answer.read().decode())


def parse(text: str) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"{key} is there twice"
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


async def produce(wire: Wire, topic: str, partition: int, records: bytes) -> int:
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    answer = await wire.ask("Produce", 7, transactional_id=None, acks=1, timeout_ms=30_000, topic_data=data)
    code: int = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


async def traffic(wire: Wire) -> int:
    """Known traffic. Returns the bytes of each of the two batches produced."""
    assert await create(wire, "t", 2) == "ok"
    records = batch([b"one", b"two", b"three"])
    assert await produce(wire, "t", 0, records) == 0
    assert await produce(wire, "t", 1, records) == 0
    assert await produce(wire, "nowhere", 0, records) == 3
    partition = {
        "partition": 1,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    answer = await wire.ask(
        "Fetch",
        11,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": "t", "partitions": [partition]}],
        forgotten_topics_data=[],
        rack_id="",
    )
    assert len(answer["responses"][0]["partitions"][0]["records"]) == len(records)
    await wire.ask("Metadata", 8, topics=[{"name": "t"}])
    # A request is counted before the next one of its connection is read.
    await wire.ask("ApiVersions", 0)
    return len(records)


def test_a_scrape_gives_exact_numbers(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded(tmp_path, metrics_listener="http://127.0.0.1:0") as broker:
            async with Wire(broker.bootstrap) as wire:
                size = await traffic(wire)
                assert broker.metrics_address is not None
                # On the loop's own thread, which it blocks: a scrape that needs the loop would never end.
                samples = scrape(broker.metrics_address)
            check_traffic(samples, size)
            check_cluster(samples)
        assert broker.metrics_address is None

    asyncio.run(run())


def check_traffic(samples: Samples, size: int) -> None:
    topics = "kafka_server_brokertopicmetrics"
    for labels in ({}, {"topic": "t"}):
        assert value(samples, f"{topics}_bytesin_total", **labels) == 2 * size
        assert value(samples, f"{topics}_messagesin_total", **labels) == 6
        assert value(samples, f"{topics}_bytesout_total", **labels) == size
        assert value(samples, f"{topics}_totalproducerequests_total", **labels) == 2
        assert value(samples, f"{topics}_totalfetchrequests_total", **labels) == 1
        assert value(samples, f"{topics}_failedproducerequests_total", **labels) == 0
    requests = "kafka_network_requestmetrics"
    assert value(samples, f"{requests}_requests_total", request="Produce", version="7") == 3
    assert value(samples, f"{requests}_requests_total", request="FetchConsumer", version="11") == 1
    assert value(samples, f"{requests}_requests_total", request="Fetch", version="11") == 1
    assert value(samples, f"{requests}_requests_total", request="CreateTopics", version="4") == 1
    assert value(samples, f"{requests}_errors_total", request="Produce", error="NONE") == 2
    refused = value(
        samples, f"{requests}_errors_total", request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION"
    )
    assert refused == 1
    assert value(samples, f"{requests}_errors_total", request="CreateTopics", error="NONE") == 1
    # The topic and its partitions; version 13 also counts the whole.
    assert value(samples, f"{requests}_errors_total", request="Metadata", error="NONE") == 3
    for stage in ("requestqueue", "local", "remote", "throttle", "responsequeue", "responsesend", "total"):
        name = f"{requests}_{stage}timems"
        assert value(samples, f"{name}_count", request="Produce") == 3
        assert value(samples, f"{name}_bucket", request="Produce", le="+Inf") == 3
        assert value(samples, f"{name}_count", request="CreateTopics") == 1
    assert value(samples, f"{requests}_requestqueuetimems_bucket", request="Produce", le="0.05") == 3
    assert value(samples, f"{requests}_localtimems_sum", request="CreateTopics") > 0
    assert value(samples, f"{requests}_requestbytes_count", request="Produce") == 3
    for partition in ("0", "1"):
        labels = {"topic": "t", "partition": partition}
        assert value(samples, "kafka_log_log_size", **labels) == size
        assert value(samples, "kafka_log_log_logendoffset", **labels) == 3
        assert value(samples, "kafka_log_log_logstartoffset", **labels) == 0
        assert value(samples, "kafka_log_log_numlogsegments", **labels) == 1


def check_cluster(samples: Samples) -> None:
    for name, expected in (
        ("kafka_server_replicamanager_partitioncount", 2),
        ("kafka_server_replicamanager_leadercount", 2),
        ("kafka_server_replicamanager_underreplicatedpartitions", 0),
        ("kafka_server_replicamanager_offlinereplicacount", 0),
        ("kafka_server_replicamanager_underminisrpartitioncount", 0),
        ("kafka_server_replicamanager_atminisrpartitioncount", 2),
        ("kafka_server_replicamanager_reassigningpartitions", 0),
        ("kafka_server_replicamanager_isrshrinks_total", 0),
        ("kafka_server_replicamanager_isrexpands_total", 0),
        ("kafka_server_replicamanager_failedisrupdates_total", 0),
        ("kafka_server_replicafetchermanager_maxlag", 0),
        ("kafka_server_replicafetchermanager_failedpartitionscount", 0),
        ("kafka_server_replicafetchermanager_deadthreadcount", 0),
        ("kafka_server_brokertopicmetrics_replicationbytesin_total", 0),
        ("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", 0),
        ("kafka_controller_kafkacontroller_topicstodeletecount", 0),
        ("kafka_controller_kafkacontroller_replicastodeletecount", 0),
        ("kafka_controller_kafkacontroller_activecontrollercount", 1),
        ("kafka_controller_kafkacontroller_offlinepartitionscount", 0),
        ("kafka_controller_kafkacontroller_globaltopiccount", 1),
        ("kafka_controller_controllerstats_uncleanleaderelections_total", 0),
        ("kafka_controller_kafkacontroller_globalpartitioncount", 2),
        ("kafka_log_logmanager_offlinelogdirectorycount", 0),
        ("kafka_log_logmanager_remaininglogstorecover", 0),
        ("kafka_network_requestchannel_requestqueuesize", 0),
        ("kafka_server_kafkaserver_brokerstate", BrokerState.RUNNING),
    ):
        assert value(samples, name) == expected, name
    connections = "kafka_server_socket_server_metrics_connection_count"
    assert value(samples, connections, listener="PLAINTEXT") == 1
    for operation in ("Fetch", "Produce"):
        name = "kafka_server_delayedoperationpurgatory_purgatorysize"
        assert value(samples, name, delayedOperation=operation) == 0
    assert 0 <= value(samples, "kafka_network_socketserver_networkprocessoravgidle_percent") <= 1
    # The controller has read the brokers once.
    times = "kafka_controller_controllerstats_leaderelectionrateandtimems"
    assert value(samples, f"{times}_count") >= 1
    assert value(samples, f"{times}_bucket", le="+Inf") == value(samples, f"{times}_count")
    assert value(samples, "logcore_uptime_seconds") > 0
    assert value(samples, "process_resident_memory_bytes") > 0


def test_waiting_group_operations_are_counted(tmp_path: Path) -> None:
    """As in Kafka: one for a group whose members must join or sync, one for each member's next heartbeat."""

    async def run() -> None:
        async with (
            embedded(tmp_path, metrics_listener="127.0.0.1:0") as broker,
            Wire(broker.bootstrap) as wire,
        ):

            async def waiting() -> tuple[float, ...]:
                assert broker.metrics_address is not None
                samples = await asyncio.to_thread(scrape, broker.metrics_address)
                name = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
                return tuple(
                    value(samples, name, delayedOperation=kind) for kind in ("Rebalance", "Heartbeat")
                )

            async def join(member: str) -> dict[str, Any]:
                return await wire.ask(
                    "JoinGroup",
                    4,
                    group_id="g",
                    session_timeout_ms=30_000,
                    rebalance_timeout_ms=30_000,
                    member_id=member,
                    protocol_type="consumer",
                    protocols=[{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
                )

            await wire.ask("FindCoordinator", 2, key="g", key_type=0)
            assert await waiting() == (0, 0)
            member = {"group_id": "g", "member_id": (await join(""))["member_id"]}
            assert await waiting() == (0, 1)
            assert (await join(member["member_id"]))["generation_id"] == 1
            assert await waiting() == (1, 1)
            answer = await wire.ask("SyncGroup", 2, generation_id=1, assignments=[], **member)
            assert answer["error_code"] == 0
            assert await waiting() == (0, 1)
            await wire.ask("LeaveGroup", 2, **member)
            assert await waiting() == (0, 0)

    asyncio.run(run())


def test_a_starting_broker_reports_its_progress() -> None:
    loading = LoadProgress()
    registry = CollectorRegistry()
    registry.register(BrokerCollector(Parts(state=BrokerState.RECOVERY, loading=loading)))
    samples = parse(generate_latest(registry).decode())
    assert value(samples, "kafka_server_kafkaserver_brokerstate") == 2
    assert value(samples, "kafka_log_logmanager_remaininglogstorecover") == 0
    assert not any(name.startswith("kafka_controller") for name, _ in samples)


def test_idle_scrapers_are_closed_and_their_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it failed, a client that reaches the port could take all threads of the process."""
    listener = MetricsListener(Parts(), "127.0.0.1", free_port())
    try:
        host, _, port = listener.address.removeprefix("http://").removesuffix("/metrics").rpartition(":")

        def connect() -> socket.socket:
            return socket.create_connection((host, int(port)), PATIENCE)

        silent = [connect() for _ in range(metrics_listener._SCRAPES_MAX)]
        with connect() as one_more:
            assert one_more.recv(1) == b""
        for each in silent:
            each.close()
        until(lambda: answers(listener.address))
        monkeypatch.setattr(metrics_listener, "_SCRAPE_TIMEOUT_SECONDS", 0.05)
        with connect() as mute:
            mute.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert mute.recv(1) == b""
    finally:
        listener.stop()
    with pytest.raises(OSError, match="refused"):
        connect()


def answers(address: str) -> bool:
    """A scrape gets a thread: closed connections are noticed after a while."""
    try:
        return bool(scrape(address))
    except OSError:
        return False


def until(holds: Callable[[], bool]) -> None:
    """Repeats a call; the test's timeout ends it."""
    while not holds():
        pass


def test_a_scrape_may_be_compressed() -> None:
    listener = MetricsListener(Parts(), "127.0.0.1", 0)
    try:
        request = urllib.request.Request(listener.address, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            samples = parse(gzip.decompress(answer.read()).decode())
        assert value(samples, "kafka_server_kafkaserver_brokerstate") == 0
    finally:
        listener.stop()


@pytest.mark.parametrize("address", ["https://localhost:1", "localhost", "localhost:x", "h:99999", "://h:1"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listener=.*HOST:PORT is needed"):
        Config.parse({"zookeeper.connect": "localhost:1", "metrics.listener": address})


def test_addresses() -> None:
    for text, expected in (
        ("localhost:9404", ("localhost", 9404)),
        ("http://0.0.0.0:9404/metrics", ("0.0.0.0", 9404)),
        ("[::1]:0", ("::1", 0)),
    ):
        config = Config.parse({"zookeeper.connect": "localhost:1", "metrics.listener": text})
        assert config.metrics_listener == expected
    assert Config.parse({"zookeeper.connect": "localhost:1"}).metrics_listener is None


def test_a_taken_address_stops_the_start() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            config = BrokerConfig.parse(
                {"zookeeper.connect": "127.0.0.1:1", "metrics.listener": f"127.0.0.1:{port}"}
            )
            with pytest.raises(BrokerStartError, match=rf"metrics\.listener=127\.0\.0\.1:{port}"):
                await Broker(config).start()

    asyncio.run(run())


class Collected(logging.Handler):
    """Log records, as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def told_slow(directory: Path, limit_ms: int) -> list[logging.LogRecord]:
    """The log lines of a broker with `limit_ms` for slow requests after one ListGroups, at its end."""

    async def run() -> None:
        async with (
            embedded(directory, **{"slow.request.log.ms": str(limit_ms)}) as broker,
            Wire(broker.bootstrap) as wire,
        ):
            await wire.ask("ListGroups", 2)

    collected = Collected()
    logger = logging.getLogger("cluster.broker.bridge")
    logger.addHandler(collected)
    try:
        asyncio.run(run())
    finally:
        logger.removeHandler(collected)
    return [record for record in collected.records if "slow request: ListGroups" in record.getMessage()]


def test_slow_requests_are_logged(tmp_path: Path) -> None:
    # No request takes an hour, and none takes negative time.
    assert told_slow(tmp_path / "an hour", 3_600_000) == []
    [record] = told_slow(tmp_path / "no time", 0)
    text = record.getMessage()
    assert record.levelno == logging.WARNING
    for part in ("ListGroups v2", 'client "test"', "listener PLAINTEXT", "local ", "waiting 0.0 ms"):
        assert part in text, text
    line = json.loads(JsonFormatter().format(record))
    assert (line["api"], line["client_id"], line["listener"]) == ("ListGroups", "test", "PLAINTEXT")
    assert line["connection"] in text
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "cluster.broker.bridge", text)


def test_json_lines_have_the_fields_of_a_record() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        information = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x.y", logging.ERROR, __file__, 1, "%s – %d", ("ü", 1), information)
    record.created = 1_700_000_000.125
    record.topic, record.partition = "t", 3
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert "ValueError: a\nb" in line.pop("exception")
    assert line == {
        "time": "2023-11-14T22:13:20.125Z",
        "level": "ERROR",
        "logger": "x.y",
        "message": "ü – 1",
        "topic": "t",
        "partition": 3,
    }


def test_a_program_logs_json_and_prints_the_address_of_its_metrics(start_broker: StartBroker) -> None:
    settings = ["metrics.listener=127.0.0.1:0", "log.format=json", "no.such.setting=1"]
    broker = start_broker(None, 0, *(word for text in settings for word in ("--override", text)))
    warning = json.loads(broker.wait_output("no.such.setting"))
    assert (warning["level"], warning["logger"]) == ("WARNING", "cluster.broker._broker")
    assert warning["message"] == "unknown settings, ignored: no.such.setting"
    address = broker.wait_output(r"^\s+metrics ").split()[1]
    assert value(scrape(address), "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert broker.stop() == 0
    logged = [line for line in broker.output().splitlines() if line.startswith("{")]
    assert logged
    assert all(json.loads(line) for line in logged)
