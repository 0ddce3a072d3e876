"""`logcore topics`: the flags and output of kafka-topics.sh (TopicCommand of Apache Kafka 3.9)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from cluster.cli._common import (
    CONNECT_TIMEOUT,
    CommandError,
    Parser,
    client_config,
    connect,
    pairs,
    properties_file,
)
from cluster.cli._java_properties import translate

if TYPE_CHECKING:
    from cluster.client import AdminClient, ConfigEntry, TopicDescription

Result = TypeVar("Result")

ACTIONS = {
    "create": "create a topic",
    "list": "list topics",
    "describe": "describe topics",
    "alter": "change the number of partitions or their replicas",
    "delete": "delete topics",
}
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
REQUEST_TIMEOUT = 30.0
"""Seconds after which the client gives a request up."""
MAX_REPLICATION_FACTOR = 32767

# The actions that take a flag, for flags that not all actions take.
TAKEN_BY = {
    "partitions": ("create", "alter"),
    "replication_factor": ("create",),
    "replica_assignment": ("create", "alter"),
    "config": ("create",),
    "if_exists": ("alter", "delete", "describe"),
    "if_not_exists": ("create",),
    "exclude_internal": ("list", "describe"),
    "under_replicated_partitions": ("describe",),
    "unavailable_partitions": ("describe",),
    "under_min_isr_partitions": ("describe",),
    "at_min_isr_partitions": ("describe",),
    "topics_with_overrides": ("describe",),
    "topic_id": ("describe",),
    "partition_size_limit_per_response": ("describe",),
}


def parser() -> Parser:
    options = Parser("topics", "Creates, lists, describes, alters and deletes topics.")
    options.add_argument(
        "--bootstrap-server", metavar="HOST:PORT[,...]", help="the broker to connect to (required)"
    )
    options.add_argument("--command-config", metavar="FILE", help="a file with client properties")
    for action, text in ACTIONS.items():
        options.add_argument(f"--{action}", action="store_true", help=text)
    options.add_argument(
        "--topic", metavar="NAME", help="the topic; except with --create, a regular expression or a list"
    )
    options.add_argument("--topic-id", metavar="ID", help="with --describe: the topic with this id")
    options.add_argument(
        "--partitions", type=int, metavar="N", help="the number of partitions (default: the cluster's)"
    )
    options.add_argument(
        "--replication-factor",
        type=int,
        metavar="N",
        help="the number of replicas of each partition (default: the cluster's)",
    )
    options.add_argument("--replica-assignment", metavar="B1:B2,B3:B4", help="the brokers of each partition")
    options.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="with --create: a setting of the topic; may be repeated",
    )
    options.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="NAME",
        help="always refused, as Kafka's tool refuses it together with --bootstrap-server",
    )
    options.add_argument(
        "--partition-size-limit-per-response",
        type=int,
        metavar="N",
        help="with --describe: accepted without effect, because one response always suffices here",
    )
    for flag, text in (
        ("if-exists", "succeed without such a topic"),
        ("if-not-exists", "with --create: succeed if the topic exists"),
        ("exclude-internal", "leave out the cluster's own topics"),
        ("under-replicated-partitions", "describe only partitions with replicas that are not in sync"),
        ("unavailable-partitions", "describe only partitions without an available leader"),
        ("under-min-isr-partitions", "describe only partitions with fewer replicas in sync than the minimum"),
        ("at-min-isr-partitions", "describe only partitions with the minimum of replicas in sync"),
        ("topics-with-overrides", "describe only topics with settings of their own"),
    ):
        options.add_argument(f"--{flag}", action="store_true", help=text)
    return options


def check(options: argparse.Namespace) -> str:
    """Refuses the combinations that Kafka's tool refuses, and returns the action."""
    actions = [action for action in ACTIONS if getattr(options, action)]
    if len(actions) != 1:
        raise CommandError(
            "exactly one action is needed: --list, --describe, --create, --alter or --delete", status=2
        )
    action = actions[0]
    if options.bootstrap_server is None:
        raise CommandError("--bootstrap-server must be given", status=2)
    if options.delete_config:
        raise CommandError(
            "--delete-config cannot be used with --bootstrap-server (kafka-configs alters a topic's "
            "settings)",
            status=2,
        )
    if action not in ("list", "describe") and options.topic is None:
        raise CommandError(f"--{action} needs --topic", status=2)
    for name, allowed in TAKEN_BY.items():
        if getattr(options, name) not in (None, False, []) and action not in allowed:
            flag = name.replace("_", "-")
            raise CommandError(f"--{flag} needs --{' or --'.join(allowed)}, not --{action}", status=2)
    if action == "alter" and options.partitions is None:
        raise CommandError("--alter needs --partitions (kafka-configs alters a topic's settings)", status=2)
    if action == "create":
        if options.replica_assignment and (
            options.partitions is not None or options.replication_factor is not None
        ):
            raise CommandError(
                "--replica-assignment cannot be used with --partitions or --replication-factor", status=2
            )
        if options.partitions is not None and options.partitions < 1:
            raise CommandError("--partitions must be greater than 0", status=2)
        factor = options.replication_factor
        if factor is not None and not 1 <= factor <= MAX_REPLICATION_FACTOR:
            raise CommandError(
                f"--replication-factor must be between 1 and {MAX_REPLICATION_FACTOR}", status=2
            )
    return action


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    action = check(options)
    settings = translate(properties_file(options.command_config, "--command-config"), "admin", "topics")
    # Java has one limit for a whole operation. Without it, a cluster that does not answer is given up sooner.
    options.connect_timeout = settings.seconds("default.api.timeout.ms", CONNECT_TIMEOUT)
    options.request_timeout = settings.seconds("default.api.timeout.ms", REQUEST_TIMEOUT)
    config = client_config(options.bootstrap_server, settings.client)

    from cluster.client import AdminClient, KafkaException

    with_admin = {
        "create": create,
        "list": list_topics,
        "describe": describe,
        "alter": alter,
        "delete": delete,
    }
    try:
        with AdminClient(config) as admin:
            with_admin[action](admin, options)
    except KafkaException as error:
        raise CommandError(f"{options.bootstrap_server}: {error.error.str()}") from None
    return 0


def create(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import KafkaException, NewTopic

    name = options.topic
    if "." in name or "_" in name:
        print(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') "
            "could collide. To avoid issues it is best to use either, but not both."
        )
    assignment = replica_assignment(options.replica_assignment) if options.replica_assignment else None
    configs = pairs(options.config, "--config")
    if assignment is not None:
        topic = NewTopic(name, num_partitions=len(assignment), replica_assignment=assignment, config=configs)
    else:
        # -1 asks for the broker's own default (KIP-464).
        topic = NewTopic(
            name,
            num_partitions=-1 if options.partitions is None else options.partitions,
            replication_factor=-1 if options.replication_factor is None else options.replication_factor,
            config=configs,
        )
    connect(admin, timeout=options.connect_timeout)
    try:
        wait(
            admin.create_topics(
                [topic], operation_timeout=options.request_timeout, request_timeout=options.request_timeout
            )
        )
    except KafkaException as error:
        if options.if_not_exists and error.args[0].name() == "TOPIC_ALREADY_EXISTS":
            return
        raise
    print(f"Created topic {name}.")


def list_topics(admin: AdminClient, options: argparse.Namespace) -> None:
    print("\n".join(matching(admin, options)))


def alter(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import NewPartitions

    names = existing(admin, options)
    assignment = replica_assignment(options.replica_assignment) if options.replica_assignment else None
    requests = []
    for name in names:
        added = None
        if assignment is not None:
            added = assignment[
                len(describe_topics(admin, [name], options.request_timeout)[name].partitions) :
            ]
        requests.append(NewPartitions(name, options.partitions, replica_assignment=added))
    if requests:
        wait(
            admin.create_partitions(
                requests, operation_timeout=options.request_timeout, request_timeout=options.request_timeout
            )
        )


def delete(admin: AdminClient, options: argparse.Namespace) -> None:
    names = existing(admin, options)
    if names:
        wait(
            admin.delete_topics(
                names, operation_timeout=options.request_timeout, request_timeout=options.request_timeout
            )
        )


def describe(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import ConfigResource, ResourceType

    names = matching(admin, options)
    if options.topic_id is None:
        require(names, options)
    if not names:
        return
    topics = describe_topics(admin, names, options.request_timeout)
    if options.topic_id is not None:
        topics = {name: topic for name, topic in topics.items() if str(topic.topic_id) == options.topic_id}
        if not topics and not options.if_exists:
            raise CommandError(f"TopicId '{options.topic_id}' does not exist as expected")
    live = set(admin.list_topics(timeout=options.request_timeout).brokers)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    configs = {
        resource.name: future.result()
        for resource, future in admin.describe_configs(
            resources, request_timeout=options.request_timeout
        ).items()
    }
    for name, topic in topics.items():
        print_topic(topic, configs[name], options, live)


def print_topic(
    topic: TopicDescription, configs: dict[str, ConfigEntry], options: argparse.Namespace, live: set[int]
) -> None:
    """Prints the lines of a topic and its partitions as TopicCommand does, except those that the flags
    leave out.
    """
    overrides = {name: entry.value for name, entry in configs.items() if not entry.is_default}
    reports = (
        options.under_replicated_partitions,
        options.unavailable_partitions,
        options.under_min_isr_partitions,
        options.at_min_isr_partitions,
    )
    if not any(reports) and (overrides or not options.topics_with_overrides):
        shown = ",".join(f"{name}={value}" for name, value in overrides.items())
        print(
            f"Topic: {topic.name}\tTopicId: {topic.topic_id}\tPartitionCount: {len(topic.partitions)}"
            f"\tReplicationFactor: {len(topic.partitions[0].replicas)}\tConfigs: {shown}"
        )
    if options.topics_with_overrides:
        return
    min_isr = int(configs["min.insync.replicas"].value or "1") if "min.insync.replicas" in configs else 1
    for partition in sorted(topic.partitions, key=lambda partition: partition.id):
        leader = partition.leader
        has_leader = leader is not None and leader.id >= 0
        isr = len(partition.isr)
        wanted = (
            isr < len(partition.replicas),
            not has_leader or (leader is not None and leader.id not in live),
            not has_leader or isr < min_isr,
            isr == min_isr,
        )
        if any(reports) and not any(flag and holds for flag, holds in zip(reports, wanted, strict=True)):
            continue
        print(
            f"\tTopic: {topic.name}\tPartition: {partition.id}\tLeader: "
            f"{leader.id if leader and has_leader else 'none'}\tReplicas: "
            f"{','.join(str(node.id) for node in partition.replicas)}\tIsr: "
            f"{','.join(str(node.id) for node in partition.isr)}\tElr: N/A\tLastKnownElr: N/A"
        )


def describe_topics(admin: AdminClient, names: list[str], timeout: float) -> dict[str, TopicDescription]:
    from cluster.client import TopicCollection

    described = admin.describe_topics(TopicCollection(names), request_timeout=timeout)
    return {name: future.result() for name, future in described.items()}


def matching(admin: AdminClient, options: argparse.Namespace) -> list[str]:
    """The topics that match --topic (a list of names, with commas, or a regular expression), sorted."""
    names = sorted(connect(admin, timeout=options.connect_timeout).topics)
    if options.exclude_internal:
        names = [name for name in names if name not in INTERNAL_TOPICS]
    if options.topic is None:
        return names
    try:
        pattern = re.compile(options.topic.strip().replace(",", "|").replace(" ", "").strip("\"'"))
    except re.error as error:
        raise CommandError(
            f"--topic {options.topic!r} is not a regular expression: {error}", status=2
        ) from None
    return [name for name in names if pattern.fullmatch(name)]


def existing(admin: AdminClient, options: argparse.Namespace) -> list[str]:
    names = matching(admin, options)
    require(names, options)
    return names


def require(names: list[str], options: argparse.Namespace) -> None:
    if options.topic and not names and not options.if_exists:
        raise CommandError(f"Topic '{options.topic}' does not exist as expected")


def replica_assignment(text: str) -> list[list[int]]:
    """Parses `1:2,2:3` into a list of brokers for each partition."""
    try:
        found = [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise CommandError(f"--replica-assignment takes brokers as 1:2,2:3, not {text!r}", status=2) from None
    for number, brokers in enumerate(found):
        if len(set(brokers)) != len(brokers):
            raise CommandError(
                f"--replica-assignment names a broker twice for partition {number}: {brokers}", status=2
            )
        if len(brokers) != len(found[0]):
            raise CommandError(
                f"--replica-assignment gives partition {number} another number of replicas: {brokers}",
                status=2,
            )
    return found


def wait(futures: dict[str, Future[Result]] | Iterable[Future[Result]]) -> None:
    """Waits for every future and raises the first failure. The requests' timeout bounds the wait."""
    for future in list(futures.values()) if isinstance(futures, dict) else list(futures):
        future.result()
