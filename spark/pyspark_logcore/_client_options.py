"""The `kafka.*` options: Spark hands them to Kafka's Java consumer, this source to a client of its own.

A job written for Spark's Kafka source carries the names of Apache Kafka's `ConsumerConfig` (3.9). What the source's client has
under that or another name is taken over; what tunes a part that the source does not have (a consumer group, metrics,
deserializers …) is passed over with one line in the log; a name that neither Kafka's consumer nor the client knows is
an error. Called once for each data frame, where Spark makes the data source; the tasks get the result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cluster import KafkaException
from cluster.client import _config

logger = logging.getLogger("pyspark_logcore")

# Names of Kafka's consumer that the client has under another.
_RENAMED = {"request.timeout.ms": "socket.timeout.ms"}
# The client's upper limit; Kafka's consumer has none.
_REQUEST_TIMEOUT_MAX = 300_000

# Names of Kafka's consumer that change nothing here: the source joins no group, commits nothing, picks its own times to
# wait, checks every CRC, and so on. Those of TLS and SASL do nothing in Kafka's consumer either while security.protocol is
# PLAINTEXT, and another protocol is refused.
_PASSED_OVER = frozenset(
    [
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.leave.group.on.close",
        "internal.throw.on.fetch.stable.offset.unsupported",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "retry.backoff.max.ms",
        "security.providers",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    ]
)
_PASSED_OVER_PREFIXES = ("sasl.", "ssl.")


def client_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of Kafka's consumer or of the client -> the client's. Names without the prefix `kafka.`.

    Raises ValueError that names the option when one is unknown or has a bad value.
    """
    settings: dict[str, str] = {}
    passed_over = []
    for name, value in given.items():
        if name in _PASSED_OVER or name.startswith(_PASSED_OVER_PREFIXES):
            passed_over.append(f"kafka.{name}")
            continue
        ours = _RENAMED.get(name, name)
        if ours != name and value.strip().isdecimal():
            value = str(min(int(value), _REQUEST_TIMEOUT_MAX))
        _check(f"kafka.{name}", ours, value)
        settings[ours] = value
    if passed_over:
        logger.warning("options without effect in this source: %s", ", ".join(sorted(passed_over)))
    return settings


def _check(option: str, name: str, value: str) -> None:
    try:
        _config.parse([{name: value}], "c", {})
    except KafkaException as error:
        problem = error.error.str()
        if problem.startswith("No such configuration property"):
            problem = "neither Kafka's consumer nor this source has such a setting"
        raise ValueError(f"option {option!r}: {problem}") from None
