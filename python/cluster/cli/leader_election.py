"""`logcore leader-election`: the flags and output of kafka-leader-election.sh (LeaderElectionCommand of
Apache Kafka 3.9).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cluster.cli._admin_tool import add_connection, administer, java_exception, json_file, reason, repeated
from cluster.cli._common import CommandError, Once, Parser

if TYPE_CHECKING:
    from cluster.client import AdminClient, ElectionType, TopicPartition

TIMEOUT = 30.0
"""Kafka's `default.api.timeout.ms` of this tool."""


def parser() -> Parser:
    options = Parser("leader-election", "Elects leaders of partitions: the preferred ones, or unclean ones.")
    add_connection(options, "--admin.config")
    options.add_argument(
        "--election-type",
        action=Once,
        metavar="TYPE",
        help="preferred: the first replica of a partition, if it is in sync; unclean: any replica that "
        "lives, if no other is in sync (required)",
    )
    options.add_argument("--topic", action=Once, metavar="NAME", help="elect a leader for one partition")
    options.add_argument("--partition", action=Once, type=int, metavar="N", help="with --topic")
    options.add_argument("--all-topic-partitions", action="store_true", help="elect where it is needed")
    options.add_argument(
        "--path-to-json-file",
        action=Once,
        metavar="FILE",
        help='the partitions, as {"partitions": [{"topic": "foo", "partition": 1}]}',
    )
    return options


def check(options: argparse.Namespace) -> None:
    """Refuses the combinations that Kafka's tool refuses."""
    needed = ("bootstrap_server", "election_type")
    missing = [name.replace("_", "-") for name in needed if getattr(options, name) is None]
    if missing:
        raise CommandError(f"Missing required option(s): {', '.join(missing)}", status=2)
    ways = ("topic", "all_topic_partitions", "path_to_json_file")
    if sum(getattr(options, way) not in (None, False) for way in ways) != 1:
        raise CommandError(
            "One and only one of the following options is required: "
            + ", ".join(way.replace("_", "-") for way in ways),
            status=2,
        )
    if options.topic is not None and options.partition is None:
        raise CommandError("Missing required option(s): partition", status=2)
    if options.topic is None and options.partition is not None:
        raise CommandError("Option partition is only allowed if topic is used", status=2)
    if options.election_type.upper() not in ("PREFERRED", "UNCLEAN"):
        raise CommandError(
            f"Cannot parse argument '{options.election_type}' of option election-type: it is preferred or "
            "unclean",
            status=2,
        )


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    check(options)

    from cluster.client import ElectionType, TopicPartition

    election_type = ElectionType[options.election_type.upper()]
    partitions = None
    if options.path_to_json_file is not None:
        partitions = read_partitions(json_file(options.path_to_json_file, "path-to-json-file"))
    elif options.topic is not None:
        partitions = [TopicPartition(options.topic, options.partition)]
    properties = getattr(options, "admin.config")
    with administer("leader-election", options.bootstrap_server, properties, "--admin.config") as admin:
        elect(admin, election_type, partitions)
    return 0


def elect(admin: AdminClient, election_type: ElectionType, partitions: list[TopicPartition] | None) -> None:
    from cluster.client import KafkaError

    results = admin.elect_leaders(
        election_type, partitions, operation_timeout=TIMEOUT, request_timeout=TIMEOUT
    ).result()
    succeeded, unneeded, failed = [], [], {}
    for partition, failure in sorted(results.items()):
        if failure is None:
            succeeded.append(partition)
        elif failure.error == KafkaError.ELECTION_NOT_NEEDED:
            unneeded.append(partition)
        else:
            failed[partition] = failure.error
    kind = election_type.name
    if succeeded:
        print(f"Successfully completed leader election ({kind}) for partitions {_names(succeeded)}")
    if unneeded:
        print(f"Valid replica already elected for partitions {_names(unneeded)}")
    for partition, error in failed.items():
        print(
            f"Error completing leader election ({kind}) for partition: {_names([partition])}: "
            f"{java_exception(error)}: {reason(error)}"
        )
    if failed:
        raise CommandError(f"{len(failed)} replica(s) could not be elected")


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{one.topic}-{one.partition}" for one in partitions)


def read_partitions(contents: Any) -> list[TopicPartition]:
    """The partitions of the JSON file. Raises CommandError."""
    from cluster.client import TopicPartition

    if not isinstance(contents, dict) or "partitions" not in contents:
        raise CommandError('Replica election data is missing "partitions" field')
    try:
        found = [TopicPartition(one["topic"], int(one["partition"])) for one in contents["partitions"]]
    except (KeyError, TypeError, ValueError):
        raise CommandError(
            'Replica election data must have a "topic" and a "partition" for each of its "partitions"'
        ) from None
    if twice := sorted(repeated(found)):
        raise CommandError(f"Replica election data contains duplicate partitions: [{_names(twice)}]")
    return found
