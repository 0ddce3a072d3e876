"""Produces a broker's metrics and its log into topics of the same cluster, for watch.toml.

python pipelines/watch/collect.py BOOTSTRAP --metrics URL [--log FILE] [--every SECONDS] [--times N]

The broker needs `metrics.listener`, and for the log `log.format=json`, with its standard error in FILE. Each
scrape becomes records of the topic `broker-metrics`: a sample each, with the scrape's time. Committed offsets
of consumer groups are samples, too, named `group_offset`. Each line of the log becomes a record of
`broker-log`.

A collector that was started again sends the log's lines again. The pipeline drops what it has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cluster import AdminClient, ConsumerGroupTopicPartitions

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "pipelines")]
import topics  # noqa: E402

METRICS, LOG = "broker-metrics", "broker-log"
TIMEOUT = 10.0
# Of the hundreds of metrics, those with these beginnings that belong to a topic or a kind of request.
_WANTED = ("kafka_server_brokertopicmetrics_", "kafka_log_log_", "kafka_network_requestmetrics_")
_LABELS = ("topic", "partition", "request", "group")


@dataclass(frozen=True)
class Record:
    """A record of one of the topics."""

    key: bytes
    value: bytes
    timestamp: int


def sample(name: str, labels: dict[str, str], value: float, at: int) -> Record:
    """A sample at a time in milliseconds since 1970 UTC."""
    found: dict[str, object] = {"name": name, "value": value, "at": at}
    found |= {label: labels.get(label) for label in _LABELS}
    if "partition" in labels:
        found["partition"] = int(labels["partition"])
    return Record((labels.get("topic") or name).encode(), json.dumps(found).encode(), at)


def scrape(url: str, at: int) -> Iterator[Record]:
    """The samples that the broker's endpoint has now. Those of histograms' buckets are left out."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labelled = "topic" in one.labels or "request" in one.labels
            if one.name.startswith(_WANTED) and labelled and "le" not in one.labels:
                yield sample(one.name, one.labels, one.value, at)


def group_offsets(admin: AdminClient, at: int) -> Iterator[Record]:
    """The committed offsets of all groups."""
    for group in admin.list_consumer_groups().result(timeout=TIMEOUT).valid or []:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group.group_id)])
        for one in asked[group.group_id].result(timeout=TIMEOUT).topic_partitions or []:
            labels = {"group": group.group_id, "topic": one.topic, "partition": str(one.partition)}
            yield sample("group_offset", labels, one.offset, at)


def lines(file: Path, position: int) -> tuple[list[Record], int]:
    """The whole lines of the log from a position on, without those that are no JSON, and where they end."""
    with file.open("rb") as log:
        log.seek(position)
        text, newline, _ = log.read().rpartition(b"\n")
    found = []
    for line in text.split(b"\n"):
        try:
            value = json.loads(line)
            at = int(datetime.fromisoformat(value["time"]).timestamp() * 1000)
        except (ValueError, KeyError, TypeError):
            continue
        found.append(Record(str(value.get("logger")).encode(), line, at))
    return found, position + len(text) + len(newline)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("bootstrap")
    arguments.add_argument("--metrics", required=True, metavar="URL")
    arguments.add_argument("--log", type=Path, metavar="FILE")
    arguments.add_argument("--every", type=float, default=5.0, metavar="SECONDS")
    arguments.add_argument("--times", type=int, metavar="N", help="how many scrapes (default: until Ctrl-C)")
    given = arguments.parse_args()
    topics.create(given.bootstrap, {METRICS: 2, LOG: 1})
    admin = AdminClient({"bootstrap.servers": given.bootstrap})
    position = done = 0
    try:
        while given.times is None or done < given.times:
            if done:
                time.sleep(given.every)
            at = int(time.time() * 1000)
            sent = topics.send(
                given.bootstrap, METRICS, [*scrape(given.metrics, at), *group_offsets(admin, at)]
            )
            written: list[Record] = []
            if given.log is not None:
                written, position = lines(given.log, position)
                topics.send(given.bootstrap, LOG, written)
            done += 1
            print(f"{done}: {sent:,} samples, {len(written):,} lines of the log", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        admin.close()


if __name__ == "__main__":
    main()
