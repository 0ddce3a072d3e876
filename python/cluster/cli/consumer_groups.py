"""`logcore consumer-groups`: the flags and output of kafka-consumer-groups.sh (ConsumerGroupCommand of Apache
Kafka 3.9).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cluster.cli._admin_tool import add_connection, administer, java_exception, need, reason
from cluster.cli._common import CommandError, Once, Parser
from cluster.cli._offset_reset import (
    TARGETS,
    Offsets,
    Partition,
    Resets,
    commit,
    committed_offsets,
    csv_of,
    log_offsets,
    named_partitions,
)

if TYPE_CHECKING:
    from cluster.client import AdminClient, ConsumerGroupDescription, KafkaError, MemberDescription

ACTIONS = {
    "list": "list all consumer groups",
    "describe": "describe groups: their offsets and lag, or --members, or --state",
    "delete": "delete groups that have no members, with their offsets",
    "reset-offsets": "show (--dry-run, the default) or commit (--execute) other offsets for groups that have "
    "no members: one of " + ", ".join(f"--{target}" for target in TARGETS),
    "delete-offsets": "delete a group's offsets in topics that it does not read",
}
ONLY_WITH = {
    "members": ("describe",),
    "offsets": ("describe",),
    "verbose": ("describe",),
    "state": ("describe", "list"),
    "type": ("list",),
}
STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
TYPES = ("Classic", "Consumer")
MISSING = "-"


def parser() -> Parser:
    options = Parser("consumer-groups", "Lists, describes, deletes and resets consumer groups.")
    add_connection(options)
    for action, text in ACTIONS.items():
        options.add_argument(f"--{action}", action="store_true", help=text)
    options.add_argument("--group", action="append", metavar="NAME", help="a group; may be given again")
    options.add_argument("--all-groups", action="store_true", help="every group")
    options.add_argument(
        "--topic",
        action="append",
        metavar="TOPIC[:0,1,...]",
        help="a topic, or some of its partitions; may be given again",
    )
    options.add_argument("--all-topics", action="store_true", help="every topic with a committed offset")
    options.add_argument("--members", action="store_true", help="with --describe: the members")
    options.add_argument(
        "--offsets", action="store_true", help="with --describe: offsets and lag (the default)"
    )
    options.add_argument(
        "--verbose", action="store_true", help="with --describe: the members' partitions too"
    )
    options.add_argument(
        "--state",
        action=Once,
        nargs="?",
        const="",
        metavar="STATES",
        help="with --describe: the group's state; with --list: the groups' states, of these states only "
        "(stable,empty)",
    )
    options.add_argument(
        "--type",
        action=Once,
        nargs="?",
        const="",
        metavar="TYPES",
        help="with --list: the groups' types, of these types only (classic,consumer)",
    )
    options.add_argument("--dry-run", action="store_true", help="show the offsets, change nothing")
    options.add_argument("--execute", action="store_true", help="commit the offsets")
    options.add_argument("--export", action="store_true", help="print the offsets as CSV")
    options.add_argument("--to-offset", action=Once, type=int, metavar="N", help="this offset")
    options.add_argument(
        "--shift-by", action=Once, type=int, metavar="N", help="N after the committed offset"
    )
    options.add_argument(
        "--to-datetime", action=Once, metavar="TIME", help="the first offset since YYYY-MM-DDTHH:mm:SS.sss"
    )
    options.add_argument("--by-duration", action=Once, metavar="DURATION", help="the same, PnDTnHnMnS ago")
    options.add_argument("--to-earliest", action="store_true", help="the first offset")
    options.add_argument("--to-latest", action="store_true", help="the end")
    options.add_argument("--to-current", action="store_true", help="the committed offset, or the end")
    options.add_argument("--from-file", action=Once, metavar="CSV", help="offsets as --export prints them")
    options.add_argument(
        "--timeout", action=Once, type=int, default=5000, metavar="MS", help="for each request (default 5000)"
    )
    return options


def check(options: argparse.Namespace) -> str:
    """The action. Refuses the combinations that Kafka's tool refuses."""
    need(options.bootstrap_server, "bootstrap-server")
    given = [action for action in ACTIONS if getattr(options, action.replace("-", "_"))]
    if len(given) != 1:
        names = ", ".join(f"--{action}" for action in ACTIONS)
        raise CommandError(f"Command must include exactly one action: {names}", status=2)
    [action] = given
    for flag, actions in ONLY_WITH.items():
        if getattr(options, flag) not in (None, False) and action not in actions:
            names = " or ".join(f"--{name}" for name in actions)
            raise CommandError(f"--{flag} is only allowed with {names}", status=2)
    if options.group and options.all_groups:
        raise CommandError("--group and --all-groups cannot be used together", status=2)
    if action == "list" and options.group:
        raise CommandError("--group cannot be used with --list", status=2)
    if action == "delete-offsets" and not (options.group and len(options.group) == 1 and options.topic):
        raise CommandError("--delete-offsets takes one --group, and --topic", status=2)
    if action in ("describe", "delete", "reset-offsets") and not (options.group or options.all_groups):
        raise CommandError(f"--{action} takes one of these options: --group, --all-groups", status=2)
    if action == "delete" and options.topic:
        raise CommandError("--delete deletes whole groups; --delete-offsets takes --topic", status=2)
    if action in ("list", "describe") and options.topic:
        raise CommandError(f"--topic cannot be used with --{action}", status=2)
    if action == "describe":
        if sum([options.members, options.offsets, options.state is not None]) > 1:
            raise CommandError("--describe takes at most one of --members, --offsets, --state", status=2)
        if options.state:
            raise CommandError("--describe does not take a value for --state", status=2)
    if action == "reset-offsets":
        _check_reset(options)
    return action


def _check_reset(options: argparse.Namespace) -> None:
    if options.dry_run and options.execute:
        raise CommandError("--reset-offsets only accepts one of --execute and --dry-run", status=2)
    targets = [name for name in TARGETS if getattr(options, name.replace("-", "_")) not in (None, False)]
    if len(targets) != 1:
        names = ", ".join(f"--{name}" for name in TARGETS)
        raise CommandError(f"--reset-offsets requires one of: {names}", status=2)
    if not (options.from_file or options.all_topics or options.topic):
        raise CommandError("One of the reset scopes should be defined: --all-topics, --topic.", status=2)
    if options.all_topics and options.topic:
        raise CommandError("--all-topics and --topic cannot be used together", status=2)


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    action = check(options)
    timeout = options.timeout / 1000
    run_action = {
        "list": list_groups,
        "describe": describe,
        "delete": delete,
        "reset-offsets": reset,
        "delete-offsets": delete_offsets,
    }[action]
    with administer("consumer-groups", options.bootstrap_server, options.command_config) as admin:
        return run_action(admin, options, timeout)


# ---- list ----


def list_groups(admin: AdminClient, options: argparse.Namespace, timeout: float) -> int:
    states = _chosen(options.state, STATES, "state")
    types = _chosen(options.type, TYPES, "type")
    groups = [
        group
        for group in _groups(admin, timeout)
        if (not states or group[2] in states) and (not types or group[1] in types)
    ]
    if options.state is None and options.type is None:
        for name, _, _ in groups:
            print(name)
        return 0
    columns = [True, options.type is not None, options.state is not None]
    width = max([15, *(len(group[0]) for group in groups)]) + 10
    for row in [("GROUP", "TYPE", "STATE"), *groups]:
        cells = [cell for cell, shown in zip(row, columns, strict=True) if shown]
        print(" ".join([cells[0].ljust(width), *(cell.ljust(20) for cell in cells[1:])]))
    return 0


def _chosen(given: str | None, known: Sequence[str], what: str) -> set[str]:
    """The names in a list with commas, in any case. Raises CommandError."""
    by_lower = {name.lower(): name for name in known}
    try:
        return {by_lower[name.strip().lower()] for name in given.split(",")} if given else set()
    except KeyError:
        raise CommandError(
            f"Invalid {what} list '{given}'. Valid {what}s are: {', '.join(known)}", status=2
        ) from None


def _groups(admin: AdminClient, timeout: float) -> list[tuple[str, str, str]]:
    """Name, type and state of every group."""
    result = admin.list_consumer_groups(request_timeout=timeout).result()
    for error in result.errors:
        raise error
    return [(group.group_id, _title(group.type.name), _state(group.state.name)) for group in result.valid]


def _title(name: str) -> str:
    return name.capitalize()


def _state(name: str) -> str:
    """The broker's name of a state, from that of confluent-kafka."""
    return "".join(word.capitalize() for word in name.split("_")).replace("Rebalancing", "Rebalance")


def _named(admin: AdminClient, options: argparse.Namespace, timeout: float) -> list[str]:
    if options.all_groups:
        return [group[0] for group in _groups(admin, timeout)]
    return list(dict.fromkeys(options.group))


# ---- describe ----


def describe(admin: AdminClient, options: argparse.Namespace, timeout: float) -> int:
    names = _named(admin, options, timeout)
    futures = admin.describe_consumer_groups(names, request_timeout=timeout) if names else {}
    groups = {name: future.result() for name, future in sorted(futures.items())}
    status = 0
    for name, group in groups.items():
        if options.members:
            table = _members_table(group, options.verbose)
        elif options.state is not None:
            table = _state_table(group)
        else:
            table = _offsets_table(admin, group, timeout)
        if _say_state(name, _state(group.state.name)):
            if len(table) > 1:
                _print_table(table)
        else:
            status = 1
    return status


def _say_state(group: str, state: str) -> bool:
    """Says what is special about a group's state. Returns false if there is no such group."""
    if state == "Dead":
        print(f"\nError: Consumer group '{group}' does not exist.")
        return False
    if state == "Empty":
        print(f"\nConsumer group '{group}' has no active members.", file=sys.stderr)
    elif state != "Stable":
        print(f"\nWarning: Consumer group '{group}' is rebalancing.", file=sys.stderr)
    sys.stderr.flush()
    return True


Row = list[Any]


def _print_table(rows: list[Row]) -> None:
    """Prints a heading and rows under it, each column as wide as its cells."""
    *widths, _ = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    widths = [max(width, 15) for width in widths]
    print()
    for row in rows:
        print(
            " ".join(
                [*(str(cell).ljust(width) for cell, width in zip(row, widths, strict=False)), str(row[-1])]
            )
        )


def _offsets_table(admin: AdminClient, group: ConsumerGroupDescription, timeout: float) -> list[Row]:
    committed = committed_offsets(admin, group.group_id, timeout)
    rows: list[tuple[Partition, Row]] = []
    members = sorted(group.members, key=lambda member: -len(member.assignment.topic_partitions))
    for member in members:
        assigned = _assigned(member)
        rows += [(one, [member.member_id, member.host, member.client_id]) for one in assigned]
    taken = {partition for partition, _ in rows}
    rows += [(one, [MISSING] * 3) for one in committed if one not in taken]

    from cluster.client import OffsetSpec

    ends = log_offsets(admin, [partition for partition, _ in rows], OffsetSpec.latest(), timeout)
    table: list[Row] = [
        [
            "GROUP",
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
            "CONSUMER-ID",
            "HOST",
            "CLIENT-ID",
        ]
    ]
    for partition, who in rows:
        offset, end = committed.get(partition), ends.get(partition)
        lag = MISSING if offset is None or end is None else end - offset
        numbers = [MISSING if number is None else number for number in (offset, end)]
        table.append([group.group_id, *partition, *numbers, lag, *who])
    return table


def _assigned(member: MemberDescription) -> list[Partition]:
    return sorted(Partition(one.topic, one.partition) for one in member.assignment.topic_partitions)


def _members_table(group: ConsumerGroupDescription, verbose: bool) -> list[Row]:
    static = any(member.group_instance_id for member in group.members)
    heading = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    rows: list[Row] = [heading]
    for member in group.members:
        assigned = _assigned(member)
        row: Row = [group.group_id, member.member_id, member.host, member.client_id, len(assigned)]
        if static:
            row.insert(2, member.group_instance_id or "")
        rows.append([*row, _by_topic(assigned)] if verbose else row)
    if static:
        heading.insert(2, "GROUP-INSTANCE-ID")
    if verbose:
        heading.append("ASSIGNMENT")
    return rows


def _by_topic(partitions: Iterable[Partition]) -> str:
    """As topic(0,1), other(2): the partitions of each topic."""
    topics: dict[str, list[str]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(str(number))
    return ", ".join(f"{topic}({','.join(numbers)})" for topic, numbers in topics.items()) or MISSING


def _state_table(group: ConsumerGroupDescription) -> list[Row]:
    node = group.coordinator
    coordinator = f"{node.host}:{node.port} ({node.id})"
    return [
        ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"],
        [group.group_id, coordinator, group.partition_assignor, _state(group.state.name), len(group.members)],
    ]


# ---- delete ----


def delete(admin: AdminClient, options: argparse.Namespace, timeout: float) -> int:
    from cluster.client import KafkaException

    deleted, failed = [], {}
    names = _named(admin, options, timeout)
    for name, future in admin.delete_consumer_groups(names, request_timeout=timeout).items() if names else ():
        try:
            future.result()
            deleted.append(name)
        except KafkaException as error:
            failed[name] = error.error
    if not failed:
        print(f"Deletion of requested consumer groups ('{', '.join(deleted)}') was successful.")
        return 0
    print("\nError: Deletion of some consumer groups failed:")
    for name, why in failed.items():
        print(f"* Group '{name}' could not be deleted due to: {java_exception(why)}: {reason(why)}")
    if deleted:
        print(f"\nThese consumer groups were deleted successfully: '{', '.join(deleted)}'")
    return 1


def delete_offsets(admin: AdminClient, options: argparse.Namespace, timeout: float) -> int:
    [group] = options.group
    partitions = sorted(named_partitions(admin, options.topic, timeout))

    from cluster.client import KafkaException, TopicPartition, delete_group_offsets

    failure: KafkaError | None = None
    codes: dict[Partition, KafkaError | None] = {}
    try:
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        for one, code in delete_group_offsets(admin, group, asked, timeout=timeout).items():
            codes[Partition(one.topic, one.partition)] = code
    except KafkaException as refused:
        failure = refused.error
    topics = ", ".join(options.topic)
    if failure is not None:
        print(f"\nError: {_refusal(group, failure)}")
    elif any(codes.values()):
        print("\nError: Encounter some partition level error, see the follow-up details:")
    else:
        print(f"Request succeed for deleting offsets with topic {topics} group {group}")
    print(f"\n{'TOPIC':30} {'PARTITION':15} {'STATUS':15}")
    for partition in partitions:
        why = failure or codes.get(partition)
        status = "Successful" if why is None else f"Error: {reason(why)}"
        print(f"{partition.topic:30} {partition.number:<15} {status:15}")
    return 1 if failure is not None or any(codes.values()) else 0


def _refusal(group: str, error: KafkaError) -> str:
    from cluster.client import KafkaError

    known = {
        KafkaError.INVALID_GROUP_ID: f"'{group}' is not valid.",
        KafkaError.GROUP_ID_NOT_FOUND: f"'{group}' does not exist.",
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"Access to '{group}' is not authorized.",
        KafkaError.NON_EMPTY_GROUP: f"Deleting offsets of a consumer group '{group}' is forbidden if "
        "the group is not empty.",
    }
    return known.get(error.code(), f"Encounter some unknown error: {reason(error)}")


# ---- reset ----


def reset(admin: AdminClient, options: argparse.Namespace, timeout: float) -> int:
    if not options.dry_run and not options.execute:
        print("WARN: No action will be performed as the --execute option is missing.", file=sys.stderr)
    names = _named(admin, options, timeout)
    described = admin.describe_consumer_groups(names, request_timeout=timeout) if names else {}
    resets = Resets(admin, options, timeout, time.time_ns() // 1_000_000)
    plans: dict[str, Offsets] = {}
    status = 0
    for name, future in described.items():
        state = _state(future.result().state.name)
        if state not in ("Empty", "Dead"):
            print(
                f"\nError: Assignments can only be reset if the group '{name}' is inactive, but the "
                f"current state is {state}."
            )
            status = 1
            continue
        plan = resets.of(name)
        if plan is None:
            print(f"\nError: No reset plan for group {name} found")
            status = 1
            continue
        if options.execute:
            commit(admin, name, plan, timeout)
        plans[name] = plan
    if options.export:
        sys.stdout.write(csv_of(plans, single=len(options.group or ()) == 1))
    elif plans:
        print(f"\n{'GROUP':30} {'TOPIC':30} {'PARTITION':10} {'NEW-OFFSET':15}")
        for name, plan in plans.items():
            for (topic, number), offset in plan.items():
                print(f"{name:30} {topic:30} {number:<10} {offset:<15}")
    return status
