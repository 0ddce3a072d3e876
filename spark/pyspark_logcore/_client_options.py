"""The `kafka.*` options, translated to settings of this source's clients.

A job for Spark's Kafka source has the setting names of Apache Kafka's `ConsumerConfig` and `ProducerConfig`
(3.9). Each name is one of

- a setting of the source's client, under the same or another name: it is taken over;
- a setting of something that the source does not have (a consumer group, metrics, serializers and so on): it
  is ignored, with one line in the log;
- unknown to both: an error.

Called when Spark makes the data source's reader or writer. The tasks get the result.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from cluster import KafkaException
from cluster.client.batches import check_settings

logger = logging.getLogger("pyspark_logcore")


@dataclass(frozen=True)
class Names:
    """The setting names of one of Kafka's clients."""

    client: str
    """Its name in messages."""
    kind: str
    """For `check_settings`."""
    renamed: Mapping[str, str]
    """Settings that have another name in the source's client."""
    ignored: frozenset[str]
    """Settings without effect here. Those of TLS and SASL have no effect in Kafka's clients either while
    security.protocol is PLAINTEXT, and the source's client refuses other protocols.
    """


_ANY = [
    "auto.include.jmx.reporter",
    "client.dns.lookup",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "metadata.max.age.ms",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "retry.backoff.max.ms",
    "security.providers",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
]

# The source joins no group, commits nothing, and always checks CRCs.
CONSUMER = Names(
    client="Kafka's consumer",
    kind="c",
    renamed={"request.timeout.ms": "socket.timeout.ms"},
    ignored=frozenset(
        [
            *_ANY,
            "allow.auto.create.topics",
            "auto.commit.interval.ms",
            "check.crcs",
            "client.rack",
            "default.api.timeout.ms",
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
            "partition.assignment.strategy",
            "session.timeout.ms",
        ]
    ),
)

PRODUCER = Names(
    client="Kafka's producer",
    kind="p",
    renamed={"max.request.size": "message.max.bytes", "buffer.memory": "queue.buffering.max.kbytes"},
    ignored=frozenset(
        [
            *_ANY,
            "compression.gzip.level",
            "compression.lz4.level",
            "compression.zstd.level",
            "max.block.ms",
            "metadata.max.idle.ms",
            "partitioner.adaptive.partitioning.enable",
            "partitioner.availability.timeout.ms",
            "partitioner.ignore.keys",
        ]
    ),
)

# The client's upper limit; Kafka's clients have none.
_REQUEST_TIMEOUT_MAX = 300_000
_IGNORED_PREFIXES = ("sasl.", "ssl.")


def client_settings(given: Mapping[str, str], names: Names) -> dict[str, str]:
    """Translates settings of Kafka's client or of the source's to the latter's. Names have no prefix
    `kafka.`.

    Raises ValueError that names the option when one is unknown or has a bad value.
    """
    settings: dict[str, str] = {}
    ignored = []
    for name, value in given.items():
        if name in names.ignored or name.startswith(_IGNORED_PREFIXES):
            ignored.append(f"kafka.{name}")
            continue
        ours = names.renamed.get(name, name)
        if ours == "socket.timeout.ms" and value.strip().isdecimal():
            value = str(min(int(value), _REQUEST_TIMEOUT_MAX))
        if ours == "queue.buffering.max.kbytes" and ours != name and value.strip().isdecimal():
            value = str(max(int(value) // 1024, 1))
        _check(f"kafka.{name}", ours, value, names)
        settings[ours] = value
    if ignored:
        logger.warning("options that have no effect in this source: %s", ", ".join(sorted(ignored)))
    return settings


def _check(option: str, name: str, value: str, names: Names) -> None:
    try:
        check_settings({name: value}, names.kind)
    except KafkaException as error:
        problem = error.error.str()
        if problem.startswith("No such configuration property"):
            problem = f"neither {names.client} nor this source has such a setting"
        raise ValueError(f"option {option!r}: {problem}") from None
