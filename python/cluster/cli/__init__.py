"""The `logcore` command. Its modules parse arguments and print results; the work is done by the packages
beside this one.

Each command is a module with `run(arguments: list[str]) -> int`. It is imported when it is called, so that
`logcore topics --list` need not load the broker, nor `logcore start` the clients.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from cluster.cli._common import CommandError
from logcore._native import ProtocolError

COMMANDS = {
    "start": ("cluster.cli.start", "run one broker and all it needs in this process"),
    "broker": ("cluster.cli.broker", "run a broker from a server.properties file"),
    "coordinator": (
        "cluster.cli.coordinator",
        "run a ZooKeeper-compatible server from a zoo.cfg file, import and export its data",
    ),
    "zookeeper-shell": (
        "cluster.cli.zookeeper_shell",
        "read and change ZooKeeper's nodes (zkCli.sh, zookeeper-shell.sh)",
    ),
    "topics": ("cluster.cli.topics", "create, list, describe, alter and delete topics (kafka-topics.sh)"),
    "configs": ("cluster.cli.configs", "describe and alter dynamic settings and quotas (kafka-configs.sh)"),
    "reassign-partitions": (
        "cluster.cli.reassign_partitions",
        "move partitions between brokers and directories (kafka-reassign-partitions.sh)",
    ),
    "leader-election": ("cluster.cli.leader_election", "elect leaders (kafka-leader-election.sh)"),
    "log-dirs": ("cluster.cli.log_dirs", "describe brokers' log directories (kafka-log-dirs.sh)"),
    "broker-api-versions": (
        "cluster.cli.broker_api_versions",
        "print the API versions that brokers serve (kafka-broker-api-versions.sh)",
    ),
    "replica-verification": (
        "cluster.cli.replica_verification",
        "compare the replicas of topics (kafka-replica-verification.sh)",
    ),
    "consumer-groups": (
        "cluster.cli.consumer_groups",
        "list, describe, delete and reset consumer groups (kafka-consumer-groups.sh)",
    ),
    "transactions": (
        "cluster.cli.transactions",
        "show transactions, find and abort hanging ones (kafka-transactions.sh)",
    ),
    "get-offsets": ("cluster.cli.get_offsets", "print offsets of topics' partitions (kafka-get-offsets.sh)"),
    "delete-records": (
        "cluster.cli.delete_records",
        "delete partitions' records before an offset (kafka-delete-records.sh)",
    ),
    "console-producer": (
        "cluster.cli.console_producer",
        "send lines of standard input (kafka-console-producer.sh)",
    ),
    "console-consumer": (
        "cluster.cli.console_consumer",
        "print a topic's records (kafka-console-consumer.sh)",
    ),
    "pipeline": ("cluster.cli.pipeline", "run a pipeline on Spark: topics, windows, joins, tables, a report"),
    "dump-log": ("cluster.cli.dump_log", "print what is in a segment's files (kafka-dump-log.sh)"),
    "verify": ("cluster.cli.verify", "check every batch and file of a log directory"),
    "repair": ("cluster.cli.repair", "cut damaged logs and rebuild files of a log directory, keeping copies"),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return (
        "usage: logcore COMMAND [OPTION ...]\n\n"
        + "\n".join(lines)
        + "\n\nlogcore COMMAND --help lists a command's options."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0 done, 1 refused or failed, 2 wrong arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from logcore import __version__

        print(f"logcore {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"logcore: no command {name!r}; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[name][0])
    try:
        return int(module.run(rest))
    except CommandError as error:
        print(f"logcore {name}: {error}", file=sys.stderr)
        return error.status
    except ProtocolError as error:
        print(f"logcore {name}: a value does not fit into Kafka's request: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output ended (`logcore … | head`), so there is nothing more to print.
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130
