"""`logcore reassign-partitions`: the flags and output of kafka-reassign-partitions.sh
(ReassignPartitionsCommand of Apache Kafka 3.9).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cluster.cli._admin_tool import (
    REQUEST_TIMEOUT,
    add_connection,
    administer,
    integers,
    json_file,
    need,
    reason,
    repeated,
)
from cluster.cli._common import CommandError, Once, Parser
from cluster.cli._reassignment import (
    Partition,
    Plan,
    follower_throttles,
    leader_throttles,
    moves_of,
    name_of,
    names_of,
    read_plan,
    read_topics,
    reassignment_json,
)

if TYPE_CHECKING:
    from cluster.client import AdminClient, PartitionReassignment, TopicPartitionReplica

ACTIONS = {
    "generate": "propose an even spread of topics over brokers that moves as little as possible",
    "execute": "start the reassignment of --reassignment-json-file",
    "verify": "say how far the reassignment is; when it is done, remove its throttles",
    "cancel": "cancel the reassignment",
    "list": "list the reassignments under way",
}
NEEDED = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
TAKEN = {
    "generate": ("disable-rack-aware",),
    "execute": ("additional", "throttle", "replica-alter-log-dirs-throttle", "timeout"),
    "verify": ("preserve-throttles",),
    "cancel": ("preserve-throttles", "timeout"),
    "list": (),
}

RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
REPLICAS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"

PAUSE = 0.1
"""Seconds between two attempts to move a replica to another directory."""


def parser() -> Parser:
    options = Parser("reassign-partitions", "Moves partitions between brokers and log directories.")
    add_connection(options)
    for action, text in ACTIONS.items():
        options.add_argument(f"--{action}", action="store_true", help=text)
    options.add_argument(
        "--reassignment-json-file",
        action=Once,
        metavar="FILE",
        help='{"version":1,"partitions":[{"topic":"foo","partition":1,"replicas":[1,2],'
        '"log_dirs":["any","/dir"]}]}; log_dirs may be left out',
    )
    options.add_argument(
        "--topics-to-move-json-file",
        action=Once,
        metavar="FILE",
        help='{"version":1,"topics":[{"topic":"foo"}]}',
    )
    options.add_argument("--broker-list", action=Once, metavar="0,1,2", help="the brokers to move topics to")
    options.add_argument("--disable-rack-aware", action="store_true", help="spread without regard to racks")
    options.add_argument(
        "--throttle", action=Once, type=int, metavar="BYTES", help="bytes a second between brokers"
    )
    options.add_argument(
        "--replica-alter-log-dirs-throttle",
        action=Once,
        type=int,
        metavar="BYTES",
        help="bytes a second between directories of a broker",
    )
    options.add_argument(
        "--timeout",
        action=Once,
        type=int,
        metavar="MS",
        help="how long a move to another directory may take to begin (default: 10000)",
    )
    options.add_argument(
        "--additional", action="store_true", help="execute beside reassignments that are under way"
    )
    options.add_argument("--preserve-throttles", action="store_true", help="leave throttles as they are")
    return options


def check(options: argparse.Namespace) -> str:
    """Refuses the combinations that Kafka's tool refuses, and returns the action."""
    actions = [action for action in ACTIONS if getattr(options, action)]
    if len(actions) != 1:
        listed = ", ".join(f"--{action}" for action in ACTIONS)
        raise CommandError(f"Command must include exactly one action: {listed}", status=2)
    [action] = actions
    if options.bootstrap_server is None:
        raise CommandError("Please specify --bootstrap-server", status=2)
    for flag in NEEDED[action]:
        need(getattr(options, flag.replace("-", "_")), flag)
    flags = {flag for others in (NEEDED, TAKEN) for taken in others.values() for flag in taken}
    for flag in sorted(flags - {*NEEDED[action], *TAKEN[action]}):
        if getattr(options, flag.replace("-", "_")) not in (None, False):
            raise CommandError(f'Option "[{flag}]" can\'t be used with action "[{action}]"', status=2)
    return action


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    action = check(options)
    timeout = (10_000 if options.timeout is None else options.timeout) / 1000
    if action == "generate":
        topics = read_topics(json_file(options.topics_to_move_json_file, "topics-to-move-json-file"))
        brokers = integers(options.broker_list, "broker-list")
        if twice := sorted(repeated(brokers)):
            raise CommandError(f"Broker list contains duplicate entries: {twice}", status=2)
    elif action != "list":
        plan = read_plan(json_file(options.reassignment_json_file, "reassignment-json-file"))
        if action == "execute":
            plan.check()
    with administer("reassign-partitions", options.bootstrap_server, options.command_config) as admin:
        if action == "generate":
            generate(admin, topics, brokers, not options.disable_rack_aware)
        elif action == "execute":
            execute(admin, plan, options, timeout)
        elif action == "verify":
            verify(admin, plan, options.preserve_throttles)
        elif action == "cancel":
            cancel(admin, plan, options.preserve_throttles, timeout)
        else:
            print(listed_reassignments(reassignments(admin)))
    return 0


def generate(admin: AdminClient, topics: list[str], brokers: list[int], rack_aware: bool) -> None:
    from cluster.client.placement import spread

    current = placement_of(admin, topics)
    nodes = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT).result().nodes
    racks = {node.id: node.rack if rack_aware else None for node in nodes if node.id in brokers}
    if None in racks.values() and any(rack is not None for rack in racks.values()):
        raise CommandError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    largest = max(map(len, current.values()), default=0)
    if largest > len(racks):
        raise CommandError(f"Replication factor: {largest} larger than available brokers: {len(racks)}.")
    proposed = spread(current, racks, sizes_of(admin, [node.id for node in nodes]))
    print(f"Current partition replica assignment\n{reassignment_json(current)}\n")
    print(f"Proposed partition reassignment configuration\n{reassignment_json(proposed)}")


def sizes_of(admin: AdminClient, brokers: list[int]) -> dict[Partition, int]:
    """The size of each partition's largest replica. A broker that does not say counts as empty."""
    from cluster.client import KafkaException, describe_log_dirs

    sizes: dict[Partition, int] = {}
    for broker in brokers:
        try:
            directories = describe_log_dirs(admin, [broker], timeout=REQUEST_TIMEOUT)[broker].values()
        except KafkaException:
            continue
        for directory in directories:
            for partition, replica in directory.replicas.items():
                key = (partition.topic, partition.partition)
                sizes[key] = max(sizes.get(key, 0), replica.size)
    return sizes


def execute(admin: AdminClient, plan: Plan, options: argparse.Namespace, timeout: float) -> None:
    current = reassignments(admin)
    if current and not options.additional:
        raise CommandError(
            "Cannot execute because there is an existing partition assignment.  Use --additional to override "
            "this and create a new partition assignment in addition to the existing one. The --additional "
            "flag can also be used to change the throttle by resubmitting the current reassignment."
        )
    known = brokers_of(admin)
    for broker in sorted({broker for replicas in plan.replicas.values() for broker in replicas}):
        if broker not in known:
            raise CommandError(f"Unknown broker id {broker}")
    now = placement_of(admin, sorted({topic for topic, _ in plan.replicas}))
    if missing := sorted(plan.replicas.keys() - now.keys()):
        raise CommandError(f"Unable to find partition: {', '.join(map(name_of, missing))}")
    print(
        "Current partition replica assignment\n\n"
        f"{reassignment_json({partition: now[partition] for partition in plan.replicas})}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    between = -1 if options.throttle is None else options.throttle
    inside = options.replica_alter_log_dirs_throttle
    inside = -1 if inside is None else inside
    if between >= 0 or inside >= 0:
        print(
            "Warning: You must run --verify periodically, until the reassignment completes, to ensure the "
            "throttle is removed."
        )
    if between >= 0:
        throttle_between_brokers(admin, current, plan, now, between)
    if inside >= 0:
        alter_configs(
            admin,
            {("BROKER", str(one.broker)): {LOG_DIR_RATE: str(inside)} for one in plan.log_dirs},
        )
        print(f"The replica-alter-dir throttle limit was set to {inside} B/s")
    start(admin, dict(plan.replicas), "Error reassigning partition(s):")
    plural = "" if len(plan.replicas) == 1 else "s"
    print(f"Successfully started partition reassignment{plural} for {names_of(plan.replicas)}")
    move_log_dirs(admin, plan.log_dirs, timeout)


def throttle_between_brokers(
    admin: AdminClient,
    current: dict[Partition, PartitionReassignment],
    plan: Plan,
    now: dict[Partition, list[int]],
    rate: int,
) -> None:
    moves = moves_of(current, plan.replicas, now)
    leaders, followers = leader_throttles(moves), follower_throttles(moves)
    alter_configs(
        admin,
        {
            ("TOPIC", topic): dict(zip(REPLICAS, (leaders[topic], followers[topic]), strict=True))
            for topic in leaders
        },
    )
    brokers = sorted({broker for move in moves.values() for broker in move.sources | move.destinations})
    alter_configs(admin, {("BROKER", str(broker)): dict.fromkeys(RATE, str(rate)) for broker in brokers})
    print(f"The inter-broker throttle limit was set to {rate} B/s")


def start(admin: AdminClient, targets: dict[Partition, list[int] | None], title: str) -> None:
    """Starts or cancels reassignments. Raises CommandError if the controller refuses any."""
    from cluster.client import TopicPartition, alter_partition_reassignments

    asked = {TopicPartition(*partition): replicas for partition, replicas in targets.items()}
    results = alter_partition_reassignments(admin, asked, timeout=REQUEST_TIMEOUT)
    refused = {(one.topic, one.partition): error for one, error in results.items() if error is not None}
    if refused:
        lines = [f"{name_of(one)}: {reason(error)}" for one, error in sorted(refused.items())]
        raise CommandError("\n".join([title, *lines]))


def move_log_dirs(admin: AdminClient, moves: dict[TopicPartitionReplica, str], timeout: float) -> None:
    """Starts moves to other directories. A replica that is yet to come to its broker is tried again."""
    from cluster.client import KafkaError, alter_replica_log_dirs

    deadline = time.monotonic() + timeout
    pending = dict(moves)
    while pending:
        results = alter_replica_log_dirs(admin, pending, timeout=REQUEST_TIMEOUT)
        for replica in sorted(pending, key=lambda one: (one.broker, one.topic, one.partition)):
            error = results.get(replica)
            if error is None:
                print(
                    f"Successfully started moving log directory to {pending.pop(replica)} for replica "
                    f"{replica.topic}-{replica.partition} with broker {replica.broker} "
                )
            elif error != KafkaError.REPLICA_NOT_AVAILABLE:
                raise CommandError(f"Failed to alter dir for {replica}: {reason(error)}")
        if pending and time.monotonic() >= deadline:
            plural = "" if len(pending) == 1 else "s"
            raise CommandError(
                f"Timed out before log directory move{plural} could be started for: "
                f"{','.join(map(str, sorted(pending, key=lambda one: (one.broker, *one))))}"
            )
        if pending:
            time.sleep(PAUSE)


def verify(admin: AdminClient, plan: Plan, preserve_throttles: bool) -> None:
    current = reassignments(admin)
    print("Status of partition reassignment:")
    ended = [partition for partition in plan.replicas if partition not in current]
    now = placement_of(admin, sorted({topic for topic, _ in ended}), missing_is_empty=True)
    for partition, target in sorted(plan.replicas.items()):
        name, replicas = name_of(partition), now.get(partition, [])
        if partition in current:
            print(f"Reassignment of partition {name} is still in progress.")
        elif replicas == target:
            print(f"Reassignment of partition {name} is completed.")
        else:
            print(
                f"There is no active reassignment of partition {name}, but replica set is "
                f"{','.join(map(str, replicas))} rather than {','.join(map(str, target))}."
            )
    moving = print_log_dir_moves(admin, plan.log_dirs)
    if not current and not moving and not preserve_throttles:
        clear_throttles(admin, plan)


def print_log_dir_moves(admin: AdminClient, targets: dict[TopicPartitionReplica, str]) -> bool:
    """Prints the state of each move between directories; an empty line if there is none. True while any goes
    on.
    """
    moving = False
    places = log_dirs_of(admin, targets)
    for replica, target in sorted(targets.items(), key=lambda one: (one[0].broker, *one[0])):
        now, future = places[replica]
        where = f"Partition {replica.topic}-{replica.partition}"
        if now is None:
            moving = True
            print(
                f"{where} is not found in any live log dir on broker {replica.broker}. There is likely an "
                "offline log directory on the broker."
            )
        elif future is not None:
            moving = True
            if future == target:
                print(f"Reassignment of replica {replica} is still in progress.")
            else:
                print(
                    f"{where} on broker {replica.broker} is being moved to log dir {future} instead of "
                    f"{target}."
                )
        elif now == target:
            print(f"Reassignment of replica {replica} completed successfully.")
        else:
            print(f"{where} on broker {replica.broker} is not being moved from log dir {now} to {target}.")
    if not targets:
        print()
    return moving


def log_dirs_of(
    admin: AdminClient, replicas: Iterable[TopicPartitionReplica]
) -> dict[TopicPartitionReplica, tuple[str | None, str | None]]:
    """The directory in which each replica is, and the one to which it moves."""
    from cluster.client import TopicPartition, describe_log_dirs

    wanted = list(replicas)
    described = describe_log_dirs(admin, sorted({one.broker for one in wanted}), timeout=REQUEST_TIMEOUT)
    found: dict[TopicPartitionReplica, tuple[str | None, str | None]] = {}
    for replica in wanted:
        places: dict[bool, str] = {}
        for path, directory in described[replica.broker].items():
            info = directory.replicas.get(TopicPartition(replica.topic, replica.partition))
            if info is not None:
                places[info.is_future] = path
        found[replica] = (places.get(False), places.get(True))
    return found


def clear_throttles(admin: AdminClient, plan: Plan) -> None:
    brokers = sorted({*brokers_of(admin), *(one for replicas in plan.replicas.values() for one in replicas)})
    plural = "" if len(brokers) == 1 else "s"
    print(f"Clearing broker-level throttles on broker{plural} {','.join(map(str, brokers))}")
    rates = dict.fromkeys((*RATE, LOG_DIR_RATE))
    alter_configs(admin, {("BROKER", str(broker)): dict(rates) for broker in brokers})
    topics = sorted({topic for topic, _ in plan.replicas})
    print(f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {','.join(topics)}")
    alter_configs(admin, {("TOPIC", topic): dict.fromkeys(REPLICAS) for topic in topics})


def cancel(admin: AdminClient, plan: Plan, preserve_throttles: bool, timeout: float) -> None:
    active = sorted(reassignments(admin, plan.replicas))
    if active:
        plural = "" if len(active) == 1 else "s"
        start(admin, dict.fromkeys(active), f"Error cancelling partition reassignment{plural} for:")
        print(f"Successfully cancelled partition reassignment{plural} for: {names_of(active)}")
    else:
        print("None of the specified partition reassignments are active.")
    places = log_dirs_of(admin, plan.log_dirs)
    back = {one: now for one, (now, future) in places.items() if now is not None and future is not None}
    if back:
        # A move to the directory in which the replica is ends the move that goes on.
        move_log_dirs(admin, back, timeout)
    else:
        print("None of the specified partition moves are active.")
    if not preserve_throttles:
        clear_throttles(admin, plan)


def listed_reassignments(current: dict[Partition, PartitionReassignment]) -> str:
    if not current:
        return "No partition reassignments found."
    lines = ["Current partition reassignments:"]
    for partition, one in sorted(current.items()):
        line = f"{name_of(partition)}: replicas: {','.join(map(str, one.replicas))}."
        for word, brokers in (("adding", one.adding_replicas), ("removing", one.removing_replicas)):
            if brokers:
                line += f" {word}: {','.join(map(str, brokers))}."
        lines.append(line)
    return "\n".join(lines)


def reassignments(
    admin: AdminClient, partitions: Iterable[Partition] | None = None
) -> dict[Partition, PartitionReassignment]:
    from cluster.client import TopicPartition, list_partition_reassignments

    asked = None if partitions is None else [TopicPartition(*partition) for partition in partitions]
    found = list_partition_reassignments(admin, asked, timeout=REQUEST_TIMEOUT)
    return {(one.topic, one.partition): reassignment for one, reassignment in found.items()}


def brokers_of(admin: AdminClient) -> set[int]:
    return set(admin.list_topics(timeout=REQUEST_TIMEOUT).brokers)


def placement_of(
    admin: AdminClient, topics: list[str], missing_is_empty: bool = False
) -> dict[Partition, list[int]]:
    """The replicas of each partition of the topics. A topic that is missing is an error, unless told."""
    from cluster.client import KafkaError, KafkaException, TopicCollection

    if not topics:
        return {}
    found: dict[Partition, list[int]] = {}
    described = admin.describe_topics(TopicCollection(topics), request_timeout=REQUEST_TIMEOUT)
    for topic, future in described.items():
        try:
            description = future.result()
        except KafkaException as failure:
            if failure.error != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            if missing_is_empty:
                continue
            raise CommandError(f"Topic {topic} not found.") from None
        for partition in description.partitions:
            found[topic, partition.id] = [node.id for node in partition.replicas]
    return found


def alter_configs(admin: AdminClient, changes: dict[tuple[str, str], dict[str, str | None]]) -> None:
    """Sets settings of topics and brokers by type and name; None removes one."""
    from cluster.client import AlterConfigOpType, ConfigEntry, ConfigResource

    resources = []
    for (kind, name), settings in changes.items():
        entries = []
        for key, value in settings.items():
            operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            entries.append(ConfigEntry(key, value, incremental_operation=operation))
        resources.append(ConfigResource(kind, name, incremental_configs=entries))
    altered = admin.incremental_alter_configs(resources, request_timeout=REQUEST_TIMEOUT)
    for future in altered.values():
        future.result()
