"""`logcore log-dirs`: the flags and output of kafka-log-dirs.sh (LogDirsCommand of Apache Kafka 3.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.cli._admin_tool import (
    REQUEST_TIMEOUT,
    add_connection,
    administer,
    compact_json,
    integers,
    java_exception,
    need,
)
from cluster.cli._common import CommandError, Once, Parser

if TYPE_CHECKING:
    from cluster.client import AdminClient, LogDirDescription


def parser() -> Parser:
    options = Parser("log-dirs", "Describes the log directories of brokers, with their replicas, as JSON.")
    add_connection(options)
    options.add_argument("--describe", action="store_true", help="describe log directories (required)")
    options.add_argument(
        "--topic-list", action=Once, default="", metavar="A,B", help="only these topics (default: all)"
    )
    options.add_argument(
        "--broker-list", action=Once, default="", metavar="0,1", help="only these brokers (default: all)"
    )
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    need(options.bootstrap_server, "bootstrap-server")
    need(options.describe, "describe")
    topics = {topic for topic in options.topic_list.split(",") if topic}
    brokers = set(integers(options.broker_list, "broker-list"))
    with administer("log-dirs", options.bootstrap_server, options.command_config) as admin:
        describe(admin, topics, brokers)
    return 0


def describe(admin: AdminClient, topics: set[str], brokers: set[int]) -> None:
    from cluster.client import describe_log_dirs

    known = set(admin.list_topics(timeout=REQUEST_TIMEOUT).brokers)
    if unknown := brokers - known:
        raise CommandError(
            f"ERROR: The given brokers do not exist from --broker-list: {_listed(unknown)}. "
            f"Current existent brokers: {_listed(known)}"
        )
    asked = brokers or known
    print("Querying brokers for log directories information")
    found = describe_log_dirs(admin, sorted(asked), timeout=REQUEST_TIMEOUT)
    print(f"Received log directory information from brokers {_listed(asked)}")
    # The order of the names is that of Kafka's tool.
    shown = [
        {"broker": broker, "logDirs": [_directory(path, one, topics) for path, one in directories.items()]}
        for broker, directories in found.items()
    ]
    print(compact_json({"brokers": shown, "version": 1}))


def _directory(path: str, directory: LogDirDescription, topics: set[str]) -> dict[str, Any]:
    partitions = [
        {
            "partition": f"{partition.topic}-{partition.partition}",
            "size": replica.size,
            "offsetLag": replica.offset_lag,
            "isFuture": replica.is_future,
        }
        for partition, replica in sorted(directory.replicas.items())
        if not topics or partition.topic in topics
    ]
    error = java_exception(directory.error) if directory.error else None
    return {"partitions": partitions, "error": error, "logDir": path}


def _listed(brokers: set[int]) -> str:
    return ",".join(map(str, sorted(brokers)))
