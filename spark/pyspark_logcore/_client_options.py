"""The `kafka.*` options, translated to settings of this source's client.

A job for Spark's Kafka source has the setting names of Apache Kafka's `ConsumerConfig` (3.9). Each name is
one of

- a setting of the source's client, under the same or another name: it is taken over;
- a setting of something that the source does not have (a consumer group, metrics, deserializers and so on):
  it is ignored, with one line in the log;
- unknown to both: an error.

Called once for each data frame, when Spark makes the data source. The tasks get the result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cluster import KafkaException
from cluster.client.batches import check_settings

logger = logging.getLogger("pyspark_logcore")

# Settings of Kafka's consumer that have another name in the client.
_RENAMED = {"request.timeout.ms": "socket.timeout.ms"}
# The client's upper limit; Kafka's consumer has no limit.
_REQUEST_TIMEOUT_MAX = 300_000

# Settings of Kafka's consumer without effect here: the source joins no group, commits nothing, and always
# checks CRCs. The settings of TLS and SASL have no effect in Kafka's consumer either while security.protocol
# is PLAINTEXT, and the client refuses other protocols.
_IGNORED = frozenset(
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
_IGNORED_PREFIXES = ("sasl.", "ssl.")


def client_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Translates settings of Kafka's consumer or of the client to the client's. Names have no prefix
    `kafka.`.

    Raises ValueError that names the option when one is unknown or has a bad value.
    """
    settings: dict[str, str] = {}
    ignored = []
    for name, value in given.items():
        if name in _IGNORED or name.startswith(_IGNORED_PREFIXES):
            ignored.append(f"kafka.{name}")
            continue
        ours = _RENAMED.get(name, name)
        if ours != name and value.strip().isdecimal():
            value = str(min(int(value), _REQUEST_TIMEOUT_MAX))
        _check(f"kafka.{name}", ours, value)
        settings[ours] = value
    if ignored:
        logger.warning("options that have no effect in this source: %s", ", ".join(sorted(ignored)))
    return settings


def _check(option: str, name: str, value: str) -> None:
    try:
        check_settings({name: value})
    except KafkaException as error:
        problem = error.error.str()
        if problem.startswith("No such configuration property"):
            problem = "neither Kafka's consumer nor this source has such a setting"
        raise ValueError(f"option {option!r}: {problem}") from None
