"""`logcore transactions`: the commands and output of kafka-transactions.sh (TransactionsCommand of Apache
Kafka 3.9).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from cluster.cli._admin_tool import add_connection, administer, need, reason
from cluster.cli._common import CommandError, Parser

if TYPE_CHECKING:
    from cluster.client import AdminClient, KafkaException, ProducerState, TopicPartition

Item = TypeVar("Item")

BATCH = 500
"""Partitions or topics of one request."""
DEFAULT_MAX_MINUTES = 15
"""The broker's default of transaction.max.timeout.ms."""

PRODUCERS = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
DESCRIBED = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
LISTED = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
HANGING = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


def parser() -> Parser:
    options = Parser(
        "transactions", "Shows the transactions of producers, and finds and aborts those that hang."
    )
    add_connection(options)
    commands = options.add_subparsers(dest="command", metavar="COMMAND", parser_class=argparse.ArgumentParser)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.error = options.error  # type: ignore[method-assign]
        return added

    def partition(added: argparse.ArgumentParser, required: bool) -> None:
        added.add_argument("--topic", required=required, metavar="NAME", help="a topic")
        added.add_argument("--partition", required=required, type=int, metavar="N", help="its partition")

    listing = command("list", "list transactional ids and their states")
    listing.add_argument(
        "--duration-filter", type=int, default=-1, metavar="MS", help="open for longer than this only"
    )
    describing = command("describe", "describe a transactional id")
    describing.add_argument("--transactional-id", required=True, metavar="ID")
    producers = command("describe-producers", "describe the producers that a partition has state of")
    producers.add_argument("--broker-id", type=int, metavar="ID", help="ask this replica, not the leader")
    partition(producers, required=True)
    hanging = command("find-hanging", "find transactions that their coordinators do not know")
    hanging.add_argument("--broker-id", type=int, metavar="ID", help="search this broker's partitions")
    hanging.add_argument(
        "--max-transaction-timeout",
        type=int,
        default=DEFAULT_MAX_MINUTES,
        metavar="MINUTES",
        help="open for longer than this only (default 15, as transaction.max.timeout.ms)",
    )
    partition(hanging, required=False)
    aborting = command("abort", "abort a hanging transaction")
    partition(aborting, required=True)
    aborting.add_argument("--start-offset", type=int, metavar="OFFSET", help="where the transaction starts")
    for flag in ("producer-id", "producer-epoch", "coordinator-epoch"):
        aborting.add_argument(f"--{flag}", type=int, metavar="N", help="for brokers older than 3.0")
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    need(options.bootstrap_server, "bootstrap-server")
    if options.command is None:
        raise CommandError(
            "name a command: list, describe, describe-producers, find-hanging or abort", status=2
        )
    run_command = {
        "list": list_all,
        "describe": describe,
        "describe-producers": describe_partition,
        "find-hanging": find_hanging,
        "abort": abort,
    }[options.command]
    with administer("transactions", options.bootstrap_server, options.command_config) as admin:
        run_command(admin, options)
    return 0


def print_table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """As Kafka's `prettyPrintTable`: columns as wide as their cells, with a tab after each."""
    table = [list(heading), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("".join(cell.ljust(width) + "\t" for cell, width in zip(row, widths, strict=True)))


def list_all(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import list_transactions

    found = list_transactions(admin, duration_ms=options.duration_filter)
    print_table(
        LISTED,
        [
            (one.transactional_id, broker, one.producer_id, one.state)
            for broker, listings in found.items()
            for one in listings
        ],
    )


def describe(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import KafkaException, describe_transactions

    name = options.transactional_id
    found = describe_transactions(admin, [name])[name]
    if isinstance(found, KafkaException):
        raise CommandError(
            f"Failed to describe transaction state of transactional-id `{name}`: {reason(found.error)}"
        )
    open_ = found.start_time_ms >= 0
    row = (
        found.coordinator,
        name,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        found.start_time_ms if open_ else "None",
        _now_ms() - found.start_time_ms if open_ else "None",
        ",".join(f"{one.topic}-{one.partition}" for one in found.partitions),
    )
    print_table(DESCRIBED, [row])


def describe_partition(admin: AdminClient, options: argparse.Namespace) -> None:
    found = _producers(admin, options.topic, options.partition, options.broker_id)
    print_table(
        PRODUCERS,
        [
            (
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.last_sequence,
                one.last_timestamp,
                "None" if one.current_txn_start_offset < 0 else one.current_txn_start_offset,
            )
            for one in found
        ],
    )


def _producers(admin: AdminClient, topic: str, number: int, broker: int | None) -> list[ProducerState]:
    from cluster.client import KafkaException, TopicPartition, describe_producers

    where = "leader" if broker is None else f"broker {broker}"
    try:
        [found] = describe_producers(admin, [TopicPartition(topic, number)], broker).values()
        if isinstance(found, KafkaException):
            raise found
    except KafkaException as error:
        raise CommandError(
            f"Failed to describe producers for partition {topic}-{number} on {where}: {reason(error.error)}"
        ) from None
    return found


def find_hanging(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import describe_transactions, list_transactions

    if options.topic is None and options.broker_id is None:
        raise CommandError(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of "
            "the search",
            status=2,
        )
    if options.partition is not None and options.topic is None:
        raise CommandError("The --partition argument requires --topic to be provided", status=2)
    longest_ms = options.max_transaction_timeout * 60_000
    candidates = list(_open_transactions(admin, _searched(admin, options), options.broker_id, longest_ms))
    ids = {producer.producer_id for _, producer in candidates}
    names: dict[int, str] = {}
    if ids:
        for listings in list_transactions(admin, producer_ids=sorted(ids)).values():
            names |= {one.producer_id: one.transactional_id for one in listings}
    described = describe_transactions(admin, set(names.values()))
    hanging = []
    for partition, producer in candidates:
        found = described.get(names.get(producer.producer_id, ""))
        if found is None or _is_unknown(found) or partition not in _partitions(found):
            hanging.append((partition, producer))
    now = _now_ms()
    print_table(
        HANGING,
        [
            (
                partition.topic,
                partition.partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.coordinator_epoch,
                producer.current_txn_start_offset,
                producer.last_timestamp,
                (now - producer.last_timestamp) // 60_000,
            )
            for partition, producer in hanging
        ],
    )


def _is_unknown(found: object) -> bool:
    """The coordinator does not know the transactional id. Another failure ends the command."""
    from cluster.client import KafkaError, KafkaException

    if not isinstance(found, KafkaException):
        return False
    if found.error != KafkaError.TRANSACTIONAL_ID_NOT_FOUND:
        raise found
    return True


def _partitions(found: object) -> list[TopicPartition]:
    from cluster.client import TransactionDescription

    assert isinstance(found, TransactionDescription)
    return found.partitions


def _searched(admin: AdminClient, options: argparse.Namespace) -> list[TopicPartition]:
    """The partitions that the flags name: one, a topic's, or those with a replica on a broker."""
    from cluster.client import TopicCollection, TopicPartition

    if options.partition is not None:
        return [TopicPartition(options.topic, options.partition)]
    names = [options.topic] if options.topic is not None else sorted(admin.list_topics(timeout=10).topics)
    found = []
    for some in batched(names):
        for name, future in admin.describe_topics(TopicCollection(some)).items():
            found += [
                TopicPartition(name, one.id)
                for one in future.result().partitions
                if options.broker_id is None or any(node.id == options.broker_id for node in one.replicas)
            ]
    return found


def _open_transactions(
    admin: AdminClient, partitions: list[TopicPartition], broker: int | None, longest_ms: int
) -> Iterable[tuple[TopicPartition, ProducerState]]:
    """The transactions that are open for longer than `longest_ms`."""
    from cluster.client import KafkaException, describe_producers

    for some in batched(partitions):
        for partition, producers in describe_producers(admin, some, broker).items():
            if isinstance(producers, KafkaException):
                raise _failed_to_describe(len(some), broker, producers)
            for producer in producers:
                if (
                    producer.current_txn_start_offset >= 0
                    and _now_ms() - producer.last_timestamp > longest_ms
                ):
                    yield partition, producer


def _failed_to_describe(count: int, broker: int | None, error: KafkaException) -> CommandError:
    where = "their leaders" if broker is None else f"broker {broker}"
    return CommandError(
        f"Failed to describe producers for {count} partitions on {where}: {reason(error.error)}"
    )


def abort(admin: AdminClient, options: argparse.Namespace) -> None:
    from cluster.client import KafkaException, TopicPartition, abort_transaction

    partition = TopicPartition(options.topic, options.partition)
    if options.start_offset is not None:
        found = [
            one
            for one in _producers(admin, options.topic, options.partition, None)
            if one.current_txn_start_offset == options.start_offset
        ]
        if not found:
            raise CommandError(
                f"Could not find any open transactions starting at offset {options.start_offset} on "
                f"partition {options.topic}-{options.partition}"
            )
        epochs = (found[0].producer_id, found[0].producer_epoch, max(found[0].coordinator_epoch, 0))
    elif options.producer_id is None:
        raise CommandError(
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or "
            "above) or with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    else:
        for flag in ("producer-epoch", "coordinator-epoch"):
            if getattr(options, flag.replace("-", "_")) is None:
                raise CommandError(f"Missing required argument --{flag}")
        epochs = (options.producer_id, options.producer_epoch, max(options.coordinator_epoch, 0))
    try:
        abort_transaction(admin, partition, *epochs)
    except KafkaException as error:
        raise CommandError(f"Failed to abort transaction: {reason(error.error)}") from None


def batched(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """The items in pieces for one request each."""
    return (items[at : at + BATCH] for at in range(0, len(items), BATCH))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
