"""Metrics for Prometheus. If these fail, a dashboard made for ZooKeeper shows nothing or wrong numbers."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

from cluster.coordinator import (
    CoordinatorError,
    PrometheusProvider,
    Settings,
    all_gauges,
    parse_configuration,
    view,
)
from cluster.coordinator.admin.exposition import exposition, java_double
from cluster.coordinator.admin.prometheus import CLASS_NAME, PROMETHEUS, PrometheusSettings
from cluster.coordinator.errors import Code
from cluster.coordinator.metrics import NAMESPACES_MAX, READS, ServerMetrics
from cluster.coordinator.protocol.jute import Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import OPEN, Rules

from .conftest import Connect, StartCoordinator
from .support import WAIT_SECONDS, Coordinator, RawClient


@pytest.fixture
def measured(start_coordinator: StartCoordinator, tmp_path: Path) -> Coordinator:
    settings = Settings(max_client_connections=0, prometheus=True, words_whitelist=frozenset({"*"}))
    return start_coordinator(tmp_path / "measured", settings=settings)


@pytest.fixture
def port(measured: Coordinator) -> Iterator[int]:
    """The port of the metrics of ``measured``."""
    server = measured.server
    provider = measured.thread.call(
        lambda: PrometheusProvider(
            PrometheusSettings("127.0.0.1", 0), server.metrics, lambda: all_gauges(view(server))
        )
    )
    yield measured.thread.run(provider.start())
    measured.thread.run(provider.stop())


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return response.read().decode()


def test_clients_requests_are_measured(measured: Coordinator, port: int, connect: Connect) -> None:
    client: KazooClient = connect(measured)
    client.create("/a", b"data")
    client.get("/a", watch=print)
    client.set("/a", b"more")
    text = scrape(port)
    for line in (
        "# HELP znode_count znode_count",
        "# TYPE znode_count gauge",
        "znode_count 6.0",
        "num_alive_connections 1.0",
        "# TYPE connection_request_count counter",
        "connection_request_count 1.0",
        "# TYPE readlatency summary",
        'readlatency{quantile="0.5",} 0.0',
        "readlatency_count 1.0",
        "updatelatency_count 3.0",
        'election_time{quantile="0.5",} NaN',
        "node_changed_watch_count_sum 1.0",
        "looking_count 0.0",
        "startup_snap_load_time_count 1.0",
        "startup_txns_loaded_count 0.0",
    ):
        assert f"\n{line}\n" in "\n" + text, line
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert families["bytes_received_count"] == "counter"
    assert families["process_cpu_seconds"] == "counter"
    assert families["fsynctime"] == "summary"


def test_namespaces_and_their_quotas_are_measured(measured: Coordinator, port: int, connect: Connect) -> None:
    client: KazooClient = connect(measured)
    client.create("/app", b"data")
    client.get("/app")
    client.create("/zookeeper/quota/app")
    client.create("/zookeeper/quota/app/zookeeper_limits", b"count=5,bytes=-1=;byteHardLimit=20")
    client.create("/zookeeper/quota/app/zookeeper_stats", b"")
    client.create('/"')
    text = scrape(port)
    for line in (
        'write_per_namespace_count{key="app",} 1.0',
        'write_per_namespace_sum{key="app",} 8.0',
        'read_per_namespace{key="app",quantile="0.5",} 76.0',
        'quota_count_limit_per_namespace{key="app",} 5.0',
        'quota_bytes_limit_per_namespace{key="app",} 20.0',
        'quota_count_usage_per_namespace{key="app",} 1.0',
        'quota_bytes_usage_per_namespace{key="app",} 4.0',
        'write_per_namespace_count{key="\\"",} 1.0',
    ):
        assert f"\n{line}\n" in text, line
    assert list(text_string_to_metric_families(text))


def test_requests_refused_by_a_quota_are_counted(start_coordinator: StartCoordinator, tmp_path: Path) -> None:
    server = start_coordinator(tmp_path / "quota", settings=Settings(rules=Rules.ENFORCE_QUOTA))
    client = RawClient(server.port)
    client.connect()

    def create(path: str, data: bytes = b"") -> bytes:
        return Writer().string(path).buffer(data).acls(OPEN).i32(0).finish()

    for path, data in (
        ("/app", b""),
        ("/zookeeper/quota/app", b""),
        ("/zookeeper/quota/app/zookeeper_limits", b"count=-1,bytes=-1=;countHardLimit=1"),
        ("/zookeeper/quota/app/zookeeper_stats", b""),
    ):
        assert client.request(1, Op.CREATE, create(path, data))[2] == 0
    assert client.request(2, Op.CREATE, create("/app/one"))[2] == Code.QUOTA_EXCEEDED
    header, end = (Writer().i32(op).boolean(op < 0).i32(-1).finish() for op in (Op.CREATE, Op.ERROR))
    multi = header + create("/other") + header + create("/app/two") + end
    assert client.request(3, Op.MULTI, multi)[2] == 0
    client.close()
    assert server.thread.call(lambda: dict(server.server.metrics.quota_exceeded)) == {"app": 2}


def test_the_number_of_namespaces_is_limited() -> None:
    metrics = ServerMetrics()
    for number in range(NAMESPACES_MAX * 2):
        metrics.add_in_namespace(READS, f"/{number}/a", 1)
        metrics.count_quota_exceeded(f"/{number}")
    metrics.add_in_namespace(READS, "/", 1)
    metrics.add_in_namespace(READS, "/0", 1)
    assert len(metrics.by_namespace[READS]) == len(metrics.quota_exceeded) == NAMESPACES_MAX
    assert metrics.values()["cnt_0_read_per_namespace"] == 2


def test_other_paths_and_methods_are_refused(port: int) -> None:
    for path, method, status in (("/", "GET", 404), ("/metrics", "POST", 405)):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=WAIT_SECONDS)
        assert caught.value.code == status
        caught.value.close()


def test_mntr_has_the_names_of_the_metrics(measured: Coordinator, port: int) -> None:
    raw = RawClient(measured.port)
    raw.socket.sendall(b"mntr")
    values = dict(line.split("\t") for line in raw.read_all().decode().splitlines())
    raw.close()
    assert values["zk_znode_count"] == "5.0"
    assert values['zk_readlatency{quantile="0.99"}'] == "NaN"
    assert values["zk_server_state"] == "standalone"
    assert "zk_avg_readlatency" not in values


def test_srst_does_not_reset_the_counters(measured: Coordinator, port: int) -> None:
    raw = RawClient(measured.port)
    raw.connect()
    raw.close()
    word = RawClient(measured.port)
    word.socket.sendall(b"srst")
    assert word.read_all() == b"Server stats reset.\n"
    word.close()
    assert "\nconnection_request_count 1.0\n" in scrape(port)


def test_numbers_are_written_as_java_writes_them() -> None:
    for value, text in (
        (0.0, "0.0"),
        (12.5, "12.5"),
        (1e7, "1.0E7"),
        (12345678.0, "1.2345678E7"),
        (0.0001, "1.0E-4"),
        (math.nan, "NaN"),
        (-3.0, "-3.0"),
    ):
        assert java_double(value) == text


def test_quantiles_are_those_of_the_latest_values() -> None:
    metrics = ServerMetrics()
    for value in range(2000):
        metrics.read_latency.add(value)
    assert metrics.read_latency.quantiles(0.0, 0.5, 1.0) == [976.0, 1488.0, 1999.0]
    values = metrics.values()
    assert (values["min_readlatency"], values["max_readlatency"], values["cnt_readlatency"]) == (
        0,
        1999,
        2000,
    )
    assert (values["avg_readlatency"], values["p50_readlatency"]) == (999.5, 1488)
    assert "\nreadlatency_sum 1999000.0\n" in exposition(metrics, {})


def test_settings_of_the_metrics_are_parsed() -> None:
    least = {"dataDir": "/data", "clientPort": "1", "admin.enableServer": "false"}
    assert parse_configuration(least).metrics is None
    chosen = least | {CLASS_NAME: PROMETHEUS}
    assert parse_configuration(chosen).metrics == PrometheusSettings("0.0.0.0", 7000, True)
    assert parse_configuration(chosen).settings.prometheus
    changed = parse_configuration(
        chosen
        | {
            "metricsProvider.httpHost": "127.0.0.1",
            "metricsProvider.httpPort": "7001",
            "metricsProvider.exportJvmInfo": "false",
            "metricsProvider.numWorkerThreads": "3",
        }
    )
    assert changed.metrics == PrometheusSettings("127.0.0.1", 7001, False)
    assert changed.warnings == ()
    with pytest.raises(CoordinatorError, match="a Java class, which cannot be used here"):
        parse_configuration(least | {CLASS_NAME: "com.example.Metrics"})


@pytest.mark.parametrize(
    ("name", "text"), [("numWorkerThreads", "x"), ("maxQueueSize", "0"), ("workerShutdownTimeoutMs", "1s")]
)
def test_bad_numbers_of_the_provider_are_refused(name: str, text: str) -> None:
    least = {"dataDir": "/data", "clientPort": "1", f"metricsProvider.{name}": text}
    assert parse_configuration(least).warnings == ()
    with pytest.raises(CoordinatorError, match=f"metricsProvider.{name} is '{text}', and has to be"):
        parse_configuration(least | {CLASS_NAME: PROMETHEUS})


def test_the_command_serves_metrics_and_commands(tmp_path: Path) -> None:
    config = tmp_path / "zoo.cfg"
    config.write_text(
        f"dataDir={tmp_path}/data\nclientPort=0\nclientPortAddress=127.0.0.1\n"
        f"admin.serverAddress=127.0.0.1\nadmin.serverPort=0\n{CLASS_NAME}={PROMETHEUS}\n"
        "metricsProvider.httpHost=127.0.0.1\nmetricsProvider.httpPort=0\n"
    )
    command = [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split() for _ in range(4)]
        assert [line[0] for line in lines[1:]] == ["clients", "admin", "metrics"]
        for line, part in ((lines[2], b'"commands/'), (lines[3], b"znode_count 5.0\n")):
            with urllib.request.urlopen(line[1], timeout=WAIT_SECONDS) as response:
                assert part.strip(b'"') in response.read()
        process.send_signal(signal.SIGTERM)
        _output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0
    assert errors == ""
