"""What a server measures, under ZooKeeper's names (``ServerMetrics``, ``ServerStats``).

Owns counters and summaries. Gauges are read from the server when they are asked for (:mod:`.admin.view`).
Changed on the event loop only. There is no metric for what this server does not have (ZooKeeper's queues
between its threads, its request processors, Netty's buffers), or what the quorum does not report (messages
and sockets). Metrics of what this server does not do (caching answers, throttling clients) are there and stay
0.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import repeat

RECENT = 1024
"""A summary's quantiles are those of so many latest numbers."""
NAMESPACES_MAX = 100
"""The most namespaces with metrics of their own. Any client that may create nodes can make namespaces."""

COUNTERS = (
    "bytes_received_count",
    "connection_drop_count",
    "connection_rejected",
    "connection_request_count",
    "connection_revalidate_count",
    "prep_processor_request_queued",
    "response_bytes",
    "restore_error_count",
    "restore_rate_limited_count",
    "sessionless_connections_expired",
    "snapshot_error_count",
    "snapshot_rate_limited_count",
    "stale_sessions_expired",
    "sync_processor_request_queued",
    "tls_handshake_exceeded",
    "unrecoverable_error_count",
    "unsuccessful_handshake",
    "watch_bytes",
    # Of ensembles, and of what this server does not do.
    "add_dead_watcher_stall_time",
    "cnxn_closed_without_zk_server_running",
    "commit_count",
    "dead_watchers_cleared",
    "dead_watchers_queued",
    "diff_count",
    "digest_mismatches_count",
    "ensemble_auth_fail",
    "ensemble_auth_skip",
    "ensemble_auth_success",
    "insecure_admin_count",
    "large_requests_rejected",
    "learner_commit_received_count",
    "learner_proposal_received_count",
    "looking_count",
    "proposal_count",
    "quit_leading_due_to_disloyal_voter",
    "request_throttle_wait_count",
    "requests_not_forwarded_to_commit_processor",
    "response_packet_cache_hits",
    "response_packet_cache_misses",
    "response_packet_get_children_cache_hits",
    "response_packet_get_children_cache_misses",
    "revalidate_count",
    "skip_learner_request_to_next_processor_count",
    "snap_count",
    "stale_replies",
    "stale_requests",
    "stale_requests_dropped",
    "throttled_ops",
)
"""Numbers that only grow."""

BASIC = (
    "dbinittime",
    "fsynctime",
    "node_changed_watch_count",
    "node_children_watch_count",
    "node_created_watch_count",
    "node_deleted_watch_count",
    "restore_time",
    "snapshottime",
    "startup_snap_load_time",
    "startup_txns_load_time",
    "startup_txns_loaded",
    "sync_processor_batch_size",
    # Of ensembles, and of what this server does not do.
    "connection_token_deficit",
    "election_time",
    "follower_sync_time",
    "inflight_diff_count",
    "inflight_snap_count",
    "leader_unavailable_time",
    "learner_request_processor_queue_size",
    "observer_sync_time",
    "unavailable_time",
)
"""Summaries; times are in milliseconds. Prometheus gets their median."""

ADVANCED = (
    "readlatency",
    "updatelatency",
    # Of ensembles, and of what this server does not do.
    "commit_propagation_latency",
    "dead_watchers_cleaner_latency",
    "jvm_pause_time_ms",
    "om_commit_process_time_ms",
    "om_proposal_process_time_ms",
    "propagation_latency",
    "proposal_ack_creation_latency",
    "proposal_latency",
    "quorum_ack_latency",
)
"""Summaries with more quantiles."""

READS, WRITES = "read_per_namespace", "write_per_namespace"
"""Basic summaries by namespace: bytes of paths and of the data that was read or written."""
QUOTA_EXCEEDED = "quota_exceeded_error_per_namespace"
"""A counter by namespace."""


class Summary:
    """The count of numbers, their sum, least and most, and the latest :data:`RECENT`."""

    __slots__ = ("count", "least", "most", "recent", "total")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = self.total = self.most = self.least = 0
        self.recent: deque[int] = deque(maxlen=RECENT)

    def add(self, value: int, times: int = 1) -> None:
        if not self.count or value < self.least:
            self.least = value
        if value > self.most:
            self.most = value
        self.count += times
        self.total += value * times
        if times == 1:
            self.recent.append(value)
        else:
            self.recent.extend(repeat(value, min(times, RECENT)))

    @property
    def mean(self) -> float:
        """To four decimals, 0 before there is any."""
        return round(self.total / self.count, 4) if self.count else 0.0

    def quantiles(self, *shares: float) -> list[float]:
        """Returns the quantiles of the latest numbers; NaN before there are any."""
        if not self.recent:
            return [math.nan] * len(shares)
        ordered = sorted(self.recent)
        return [float(ordered[min(int(share * len(ordered)), len(ordered) - 1)]) for share in shares]


class Sizes:
    """The last, the least and the greatest size in bytes; -1 before there is any."""

    __slots__ = ("last", "least", "most")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.last = self.least = self.most = -1

    def add(self, size: int) -> None:
        self.last = size
        if size > self.most:
            self.most = size
        if size < self.least or self.least < 0:
            self.least = size


class ServerMetrics:
    """Counters and summaries by name."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.basic = {name: Summary() for name in BASIC}
        self.advanced = {name: Summary() for name in ADVANCED}
        self.by_namespace: dict[str, dict[str, Summary]] = {READS: {}, WRITES: {}}
        self.quota_exceeded: dict[str, int] = {}
        self.read_latency = self.advanced["readlatency"]
        self.update_latency = self.advanced["updatelatency"]

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] += by

    def add(self, name: str, value: int) -> None:
        """Adds to a basic summary."""
        self.basic[name].add(value)

    def add_in_namespace(self, name: str, path: str, size: int) -> None:
        """Adds to the summary :data:`READS` or :data:`WRITES`: ``size`` bytes, and those of the path."""
        namespace = namespace_of(path)
        summaries = self.by_namespace[name]
        summary = summaries.get(namespace)
        if summary is None:
            if not namespace or len(summaries) >= NAMESPACES_MAX:
                return
            summary = summaries[namespace] = Summary()
        summary.add(len(path) + size)

    def count_quota_exceeded(self, path: str) -> None:
        namespace = namespace_of(path)
        if namespace in self.quota_exceeded or (namespace and len(self.quota_exceeded) < NAMESPACES_MAX):
            self.quota_exceeded[namespace] = self.quota_exceeded.get(namespace, 0) + 1

    def reset(self) -> None:
        """Sets everything to 0. Namespaces stay."""
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.quota_exceeded = dict.fromkeys(self.quota_exceeded, 0)
        for summaries in (self.basic, self.advanced, *self.by_namespace.values()):
            for summary in summaries.values():
                summary.reset()

    def values(self) -> dict[str, int | float]:
        """Returns the metrics as ``mntr`` has them (``DefaultMetricsProvider``)."""
        found: dict[str, int | float] = dict(self.counters)
        by_namespace = (
            (f"{namespace}_{name}", summary)
            for name, summaries in self.by_namespace.items()
            for namespace, summary in summaries.items()
        )
        found |= {f"{namespace}_{QUOTA_EXCEEDED}": count for namespace, count in self.quota_exceeded.items()}
        for name, summary in (*self.basic.items(), *self.advanced.items(), *by_namespace):
            found[f"avg_{name}"] = summary.mean
            found[f"min_{name}"] = summary.least
            found[f"max_{name}"] = summary.most
            found[f"cnt_{name}"] = summary.count
            found[f"sum_{name}"] = summary.total
        for name, summary in self.advanced.items():
            values = summary.quantiles(0.5, 0.95, 0.99, 0.999)
            for label, value in zip(("p50", "p95", "p99", "p999"), values, strict=True):
                found[f"{label}_{name}"] = 0 if math.isnan(value) else int(value)
        return found


def namespace_of(path: str) -> str:
    """Returns the first name of a path; an empty one for the root."""
    return path.split("/", 2)[1] if path.startswith("/") else ""


_NONE_YET = -1


class Latency:
    """The least, the most and the mean of latencies: from a request's last byte to its answer, in whole
    milliseconds."""

    __slots__ = ("count", "last", "least", "most", "total")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = self.total = self.most = self.last = 0
        self.least = _NONE_YET

    def add(self, milliseconds: int) -> None:
        self.last = milliseconds
        self.count += 1
        self.total += milliseconds
        if milliseconds > self.most:
            self.most = milliseconds
        if milliseconds < self.least or self.least == _NONE_YET:
            self.least = milliseconds

    @property
    def shortest(self) -> int:
        """The least, 0 before there is any."""
        return max(self.least, 0)

    @property
    def mean(self) -> float:
        """To four decimals, 0 before there is any."""
        return round(self.total / self.count, 4) if self.count else 0.0


class Traffic:
    """The packets of a connection, or of all connections."""

    __slots__ = ("latency", "received", "sent")

    def __init__(self) -> None:
        self.latency = Latency()
        self.received = 0
        self.sent = 0

    def reset(self) -> None:
        self.latency.reset()
        self.received = self.sent = 0


class ClientTraffic(Traffic):
    """The packets of one connection, and its last request.

    ``last_operation`` is ``NA`` before there is one.
    """

    __slots__ = ("last_cxid", "last_operation", "last_response_ms", "last_zxid")

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def reset(self) -> None:
        super().reset()
        self._forget()

    def _forget(self) -> None:
        self.last_operation = "NA"
        self.last_cxid = self.last_zxid = _NONE_YET
        self.last_response_ms = 0
