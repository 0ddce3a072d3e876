"""`logcore get-offsets`: the flags and output of kafka-get-offsets.sh (Kafka 3.9's GetOffsetShell)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from cluster.cli._admin_tool import add_connection, administer, need, reason
from cluster.cli._common import CommandError, Once, Parser, either

if TYPE_CHECKING:
    from cluster.client import AdminClient, OffsetSpec, TopicPartition

NAMED_TIMES = {"latest": -1, "earliest": -2, "max-timestamp": -3, "earliest-local": -4, "latest-tiered": -5}
TIMES = " / ".join(f"{number} or {name}" for name, number in NAMED_TIMES.items())

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

Filter = Callable[[str, int], bool]
"""Whether a partition of a topic is asked for."""


def parser() -> Parser:
    options = Parser("get-offsets", "Prints an offset of each partition of topics.")
    add_connection(options)
    options.add_argument(
        "--broker-list", action=Once, metavar="HOST:PORT[,...]", help="the old name of --bootstrap-server"
    )
    options.add_argument("--topic", action=Once, metavar="REGEX", help="topics whose whole name matches")
    options.add_argument("--partitions", action=Once, metavar="0,1,...", help="these partitions only")
    options.add_argument(
        "--topic-partitions",
        action=Once,
        metavar="REGEX[:PARTITIONS],...",
        help="topics and their partitions: a number, FROM-TO (without TO), FROM- or -TO; in place of "
        "--topic and --partitions",
    )
    options.add_argument(
        "--time",
        action=Once,
        default="latest",
        metavar="TIME",
        help=f"which offset: {TIMES}, or the first one at or after a time in milliseconds (default latest)",
    )
    options.add_argument(
        "--exclude-internal-topics",
        action="store_true",
        help="leave out __consumer_offsets and __transaction_state",
    )
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    bootstrap = either(options, "--bootstrap-server", "--broker-list")
    need(bootstrap, "bootstrap-server")
    if options.topic_partitions is not None and (options.topic is not None or options.partitions is not None):
        raise CommandError("--topic-partitions cannot be used with --topic or --partitions")
    wanted = partition_filter(options.topic_partitions, options.topic, options.partitions)

    from cluster.client import OffsetSpec

    spec = OffsetSpec(timestamp_of(options.time))
    with administer("get-offsets", bootstrap, options.command_config) as admin:
        return print_offsets(admin, wanted, spec, options.exclude_internal_topics)


def timestamp_of(text: str) -> int:
    """The timestamp that a ListOffsets request has for `--time`. Raises CommandError."""
    try:
        return NAMED_TIMES[text] if text in NAMED_TIMES else int(text)
    except ValueError:
        raise CommandError(
            f"Malformed time argument {text}. Please use {TIMES}, or a specified long format timestamp"
        ) from None


def partition_filter(rules: str | None, topic: str | None, partitions: str | None) -> Filter:
    """The partitions that the flags name. Raises CommandError."""
    if rules is not None:
        parts = [_rule(rule) for rule in rules.split(",")]
        return lambda name, number: any(part(name, number) for part in parts)
    topics = _regex(topic or ".*")
    try:
        numbers = {int(number) for number in partitions.split(",")} if partitions else None
    except ValueError:
        raise CommandError(
            "--partitions expects a comma separated list of numeric partition ids, but received: "
            f"{partitions}"
        ) from None
    return lambda name, number: topics(name) and (numbers is None or number in numbers)


def _rule(text: str) -> Filter:
    found = _RULE.fullmatch(text)
    if found is None:
        raise CommandError(f"Invalid rule specification: {text}")
    name, number, low, high = found.groups()
    topics = _regex(name or ".*")
    start, end = (
        (int(number), int(number) + 1) if number else (int(low or 0), int(high) if high else sys.maxsize)
    )
    return lambda topic, partition: topics(topic) and start <= partition < end


def _regex(text: str) -> Callable[[str], bool]:
    """A regular expression for whole names; a comma is an alternative, as in Kafka's IncludeList."""
    try:
        pattern = re.compile(text.strip().replace(",", "|").replace(" ", ""))
    except re.error as error:
        raise CommandError(f"{text} is an invalid regex: {error}") from None
    return lambda name: pattern.fullmatch(name) is not None


def print_offsets(admin: AdminClient, wanted: Filter, spec: OffsetSpec, exclude_internal: bool) -> int:
    from cluster.client import KafkaException, TopicCollection, TopicPartition

    names = list(admin.list_topics(timeout=10).topics)
    described = admin.describe_topics(TopicCollection(names)) if names else {}
    partitions: list[TopicPartition] = []
    for name, future in described.items():
        topic = future.result()
        if not (exclude_internal and topic.is_internal):
            partitions += [TopicPartition(name, one.id) for one in topic.partitions if wanted(name, one.id)]
    if not partitions:
        raise CommandError("Could not match any topic-partitions with the specified filters")
    asked = admin.list_offsets(dict.fromkeys(partitions, spec))
    for partition, answer in sorted(asked.items(), key=lambda item: f"{item[0].topic}-{item[0].partition}"):
        try:
            offset = answer.result().offset
        except KafkaException as error:
            print(
                f"Skip getting offsets for topic-partition {partition.topic}-{partition.partition} due to "
                f"error: {reason(error.error)}",
                file=sys.stderr,
            )
            continue
        if offset >= 0:
            print(f"{partition.topic}:{partition.partition}:{offset}")
    return 0
