"""The metrics for Prometheus: the data plane's measurements and the cluster's state, under names that
operators know.

Most Kafka dashboards use the names of two rule files: `example_configs/kafka-2_0_0.yml` of
prometheus/jmx_exporter and `packaging/examples/metrics/kafka-metrics.yaml` of strimzi/strimzi-kafka-operator.
Both turn an MBean into `kafka_DOMAIN_TYPE_NAME` in lower case, with its other keys as labels. `PerSec` meters
are counters that end in `_total`; `Percent` is a share from 0 to 1. Times are histograms here, where those
files have gauges with a `quantile`. Names with `logcore_` are this broker's own.

The threads of the metrics listener call this. It only reads. Parts that have not started are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from cluster.broker.parts import Parts
from cluster.errors import for_code
from cluster.model import NO_LEADER, TopicInfo

if TYPE_CHECKING:
    from cluster.controller import Controller
    from cluster.groups import GroupCoordinator
    from cluster.replication import Replication
    from logcore._native import LoadProgress, Measurements

_Partition = tuple[str, int, int, int, int, int, bool, bool]
"""An element of `Measurements.partitions`."""

_YIELD_EVERY = 200
"""Samples written before other threads may run: about a millisecond."""

_TOPIC = "kafka_server_brokertopicmetrics"
_REQUEST = "kafka_network_requestmetrics"
_REPLICAS = "kafka_server_replicamanager"
_CONTROLLER = "kafka_controller_kafkacontroller"
_ELECTIONS = "kafka_controller_controllerstats"
_PURGATORY = "kafka_server_delayedoperationpurgatory"

_GAUGES = {
    "network_idle": (
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "Share of time, 0 to 1, that the network threads slept; busy polling (socket.busy.poll.us) counts as "
        "work.",
    ),
    "request_queue_size": ("kafka_network_requestchannel_requestqueuesize", "Requests waiting for Python."),
    "fetch_sessions": (
        "kafka_server_fetchsessioncache_numincrementalfetchsessions",
        "Incremental fetch sessions (KIP-227).",
    ),
    "offline_log_dirs": (
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories whose disk failed.",
    ),
    "under_min_isr_partitions": (
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Led partitions with fewer in-sync replicas than min.insync.replicas.",
    ),
    "at_min_isr_partitions": (
        "kafka_server_replicamanager_atminisrpartitioncount",
        "Led partitions with as many in-sync replicas as min.insync.replicas.",
    ),
    "replica_max_lag": (
        "kafka_server_replicafetchermanager_maxlag",
        "Records by which the slowest followed partition is behind its leader.",
    ),
    "replica_failed_partitions": (
        "kafka_server_replicafetchermanager_failedpartitionscount",
        "Followed partitions that are not fetched any more after a failure.",
    ),
    "replica_dead_threads": (
        "kafka_server_replicafetchermanager_deadthreadcount",
        "Threads that fetch from leaders and ended unexpectedly.",
    ),
    "network_threads": ("logcore_network_threads", "Threads that serve connections."),
    "recovered_bytes": ("logcore_recovered_bytes", "Bytes this start checked in logs that were not closed."),
}
_COUNTERS = {
    "replication_bytes_in": (
        "kafka_server_brokertopicmetrics_replicationbytesin",
        "Bytes of record batches copied from leaders.",
    ),
    "replication_bytes_out": (
        "kafka_server_brokertopicmetrics_replicationbytesout",
        "Bytes of record batches sent to followers.",
    ),
    "connections_accepted": ("logcore_connections_accepted", "Connections accepted."),
    "connections_refused": ("logcore_connections_refused", "Connections closed because of invalid requests."),
    "network_bytes_in": ("logcore_network_bytes_in", "Bytes of requests."),
    "network_bytes_out": ("logcore_network_bytes_out", "Bytes of responses."),
    "network_busy_seconds": ("logcore_network_busy_seconds", "Seconds the network threads worked."),
}
_AUTHENTICATIONS = (
    ("successful_authentication", "Connections whose TLS handshake succeeded."),
    ("failed_authentication", "Connections whose TLS handshake failed."),
)
_TOPIC_HELP = {
    "BytesIn": "Bytes of record batches received from clients.",
    "BytesOut": "Bytes of record batches sent to consumers.",
    "BytesRejected": "Bytes refused as larger than max.message.bytes.",
    "MessagesIn": "Records received from clients.",
    "FailedProduceRequests": "Partitions of Produce requests refused for an unexpected reason.",
    "FailedFetchRequests": "Partitions of Fetch requests refused for an unexpected reason.",
    "TotalProduceRequests": "Partitions of Produce requests.",
    "TotalFetchRequests": "Partitions of Fetch requests.",
    "ProduceMessageConversions": "Records converted from an older format.",
    "FetchMessageConversions": "Records converted to an older format.",
}
_STAGE_HELP = {
    "RequestQueueTimeMs": "Milliseconds in the queue to Python; 0 for requests that Rust answers.",
    "LocalTimeMs": "Milliseconds of the broker's own work.",
    "RemoteTimeMs": "Milliseconds of waiting for data, replicas or group members.",
    "ThrottleTimeMs": "Milliseconds of delay by a quota.",
    "ResponseQueueTimeMs": "Milliseconds from Python's response to the connection.",
    "ResponseSendTimeMs": "Milliseconds of sending, which includes the client's time to read.",
    "TotalTimeMs": "Milliseconds from the whole request to the whole response.",
}


class BrokerCollector(Collector):
    """Makes the metric families of one scrape."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        """Every family. While samples of long ones are written, other threads run."""
        for metric in self._families():
            # Callers only iterate over the samples.
            metric.samples = cast(list[Sample], _YieldingSamples(metric.samples))
            yield metric

    def _families(self) -> Iterator[Metric]:
        parts = self._parts
        yield _gauge(
            "kafka_server_kafkaserver_brokerstate", "Kafka's BrokerState; 3 is running.", parts.state
        )
        uptime = time.monotonic() - parts.began
        yield _gauge("logcore_uptime_seconds", "Seconds since the broker's start began.", uptime)
        if parts.loading is not None:
            yield from _loading(parts.loading)
        if parts.server is not None:
            measured = parts.server.measurements()
            yield from _requests(measured)
            yield from _topics(measured)
            yield from _server(measured)
            yield from _purgatories(measured.gauges, parts.groups)
            yield from _logs(measured)
            yield from _replicas(measured, self._topics())
        if parts.replication is not None:
            yield from _isr_changes(parts.replication)
        if parts.controller is not None:
            yield from _cluster(self._topics(), parts.controller)
            yield from parts.election_times.collect()
            yield CounterMetricFamily(
                f"{_ELECTIONS}_uncleanleaderelections",
                "Partitions whose leader was elected outside the in-sync replicas.",
                value=parts.controller.state.elections.unclean,
            )

    def _topics(self) -> list[TopicInfo]:
        return self._parts.metadata.snapshot() if self._parts.metadata is not None else []


class _YieldingSamples:
    """Samples whose iteration regularly releases the interpreter.

    Otherwise each step of the event loop during a scrape would wait for the interpreter's switch interval.
    """

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Sample]:
        for number, sample in enumerate(self._samples, 1):
            yield sample
            if number % _YIELD_EVERY == 0:
                time.sleep(0)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _loading(loading: LoadProgress) -> Iterator[Metric]:
    left = loading.logs_total - loading.logs_done
    yield _gauge("kafka_log_logmanager_remaininglogstorecover", "Logs that are not loaded yet.", left)
    yield _gauge("logcore_recovery_bytes", "Bytes that recovery has to read.", loading.bytes_total)
    yield _gauge("logcore_recovery_checked_bytes", "Bytes that recovery has read.", loading.bytes_checked)


def _requests(measured: Measurements) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        f"{_REQUEST}_requests", "Requests answered.", labels=["request", "version"]
    )
    errors = CounterMetricFamily(f"{_REQUEST}_errors", "Error codes answered.", labels=["request", "error"])
    sizes = HistogramMetricFamily(f"{_REQUEST}_requestbytes", "Bytes of requests.", labels=["request"])
    stages = [
        HistogramMetricFamily(f"{_REQUEST}_{stage.lower()}", _STAGE_HELP[stage], labels=["request"])
        for stage in measured.stages
    ]
    time_bounds = [*map(floatToGoString, measured.time_bounds), "+Inf"]
    size_bounds = [*map(floatToGoString, measured.size_bounds), "+Inf"]
    for name, versions, codes, times, (counts, total) in measured.apis:
        for version, count in versions:
            requests.add_metric([name, str(version)], count)
        for code, count in codes:
            errors.add_metric([name, _error_name(code)], count)
        for family, (cumulative, milliseconds) in zip(stages, times, strict=True):
            family.add_metric([name], list(zip(time_bounds, cumulative, strict=True)), milliseconds)
        sizes.add_metric([name], list(zip(size_bounds, counts, strict=True)), total)
    yield from (requests, errors, sizes, *stages)


def _error_name(code: int) -> str:
    return for_code(code).name if code else "NONE"


def _topics(measured: Measurements) -> Iterator[Metric]:
    for index, name in enumerate(measured.topic_counters):
        family = CounterMetricFamily(f"{_TOPIC}_{name.lower()}", _TOPIC_HELP[name], labels=["topic"])
        family.add_metric([], measured.all_topics[index])
        for topic, counts in measured.topics:
            family.add_metric([topic], counts[index])
        yield family


def _server(measured: Measurements) -> Iterator[Metric]:
    connections = GaugeMetricFamily(
        "kafka_server_socket_server_metrics_connection_count", "Connections open.", labels=["listener"]
    )
    for listener, open_now in measured.connections:
        connections.add_metric([listener], open_now)
    yield connections
    for column, (name, text) in enumerate(_AUTHENTICATIONS, 1):
        family = CounterMetricFamily(f"kafka_server_socket_server_metrics_{name}", text, labels=["listener"])
        for counts in measured.authentications:
            family.add_metric([counts[0]], _number(counts[column]))
        yield family
    gauges = measured.gauges
    for name, value in gauges.items():
        if name in _GAUGES:
            yield _gauge(*_GAUGES[name], value)
        elif name in _COUNTERS:
            metric, text = _COUNTERS[name]
            yield CounterMetricFamily(metric, text, value=value)


def _purgatories(gauges: Mapping[str, float], groups: GroupCoordinator | None) -> Iterator[Metric]:
    waiting = {"Fetch": gauges["delayed_fetches"], "Produce": gauges["delayed_produces"]}
    if groups is not None:
        waiting |= groups.delayed_operations()
    for metric, text in (
        ("purgatorysize", "Operations watched"),
        ("numdelayedoperations", "Operations waiting"),
    ):
        family = GaugeMetricFamily(
            f"{_PURGATORY}_{metric}", f"{text} in the purgatory.", labels=["delayedOperation"]
        )
        for operation, count in waiting.items():
            family.add_metric([operation], count)
        yield family


def _logs(measured: Measurements) -> Iterator[Metric]:
    columns = (
        ("size", "Bytes of a partition's segments."),
        ("numlogsegments", "Segments of a partition."),
        ("logstartoffset", "First offset of a partition that is still there."),
        ("logendoffset", "Offset the next record of a partition gets."),
    )
    partitions = measured.partitions
    for column, (name, text) in enumerate(columns, 2):
        family = GaugeMetricFamily(f"kafka_log_log_{name}", text)
        family.samples = cast(list[Sample], _of_partitions(family.name, partitions, column))
        yield family


def _of_partitions(name: str, partitions: Sequence[_Partition], column: int) -> Iterator[Sample]:
    """There may be thousands of samples. Each is made when it is written, so the garbage collector does not
    see them.
    """
    for values in partitions:
        labels = {"topic": values[0], "partition": str(values[1])}
        yield Sample(name, labels, _number(values[column]))


def _number(value: object) -> float:
    assert isinstance(value, int)
    return value


def _replicas(measured: Measurements, topics: Sequence[TopicInfo]) -> Iterator[Metric]:
    led = {(topic, index) for topic, index, *_, leads, _ in measured.partitions if leads}
    assignments = [
        topic.assignment[index]
        for topic in topics
        for index in topic.partitions
        if (topic.name, index) in led
    ]
    reassigning = sum(replicas.is_reassigned for replicas in assignments)
    under_replicated = int(measured.gauges["under_replicated_partitions"])
    offline = sum(failed for *_, failed in measured.partitions) + measured.gauges["offline_logs"]
    for name, text, value in (
        ("partitioncount", "Partitions with a replica here.", len(measured.partitions)),
        ("leadercount", "Partitions this broker leads.", len(led)),
        ("underreplicatedpartitions", "Led partitions that lack in-sync replicas.", under_replicated),
        ("reassigningpartitions", "Led partitions that are reassigned.", reassigning),
        ("offlinereplicacount", "Replicas whose log failed.", offline),
    ):
        yield _gauge(f"{_REPLICAS}_{name}", text, value)


def _isr_changes(replication: Replication) -> Iterator[Metric]:
    for name, text, count in (
        ("isrshrinks", "Partitions whose in-sync replicas became fewer.", replication.shrinks),
        ("isrexpands", "Partitions whose in-sync replicas became more.", replication.expands),
        ("failedisrupdates", "Changes of in-sync replicas that were refused.", replication.failures),
    ):
        yield CounterMetricFamily(f"{_REPLICAS}_{name}", text, value=count)


def _cluster(topics: Sequence[TopicInfo], controller: Controller) -> Iterator[Metric]:
    """The cluster's metrics. As in Kafka, a broker that is not the active controller reports 0."""
    partitions = [state for topic in topics for state in topic.partitions.values()]
    offline = sum(state.leader == NO_LEADER for state in partitions)
    imbalanced = sum(
        bool(topic.assignment[index].replicas) and state.leader != topic.assignment[index].replicas[0]
        for topic in topics
        for index, state in topic.partitions.items()
    )
    active = controller.active
    deleted = list(controller.state.deletions.values())
    to_delete = sum(len(numbers) for one in deleted for numbers in list(one.replicas.values()))
    values: Iterable[tuple[str, str, int]] = (
        ("activecontrollercount", "1 on the active controller.", 1),
        ("offlinepartitionscount", "Partitions without a leader.", offline),
        ("globaltopiccount", "Topics of the cluster.", len(topics)),
        ("globalpartitioncount", "Partitions of the cluster.", len(partitions)),
        ("preferredreplicaimbalancecount", "Partitions not led by their preferred replica.", imbalanced),
        ("topicstodeletecount", "Topics that are being deleted.", len(deleted)),
        ("replicastodeletecount", "Replicas that are being deleted.", to_delete),
    )
    for name, text, value in values:
        yield _gauge(f"{_CONTROLLER}_{name}", text, value if active else 0)
