"""`logcore broker-api-versions`: the flags and output of kafka-broker-api-versions.sh
(BrokerApiVersionsCommand of Apache Kafka 3.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.cli._admin_tool import REQUEST_TIMEOUT, add_connection, administer, need, reason
from cluster.cli._common import Parser

if TYPE_CHECKING:
    from cluster.client import AdminClient

LAST_API = 87
"""The last API of Kafka 3.9. Of the APIs up to it, those that a broker does not serve are UNSUPPORTED."""
# APIs of KRaft, of which the package has no messages.
KRAFT = {55: "DescribeQuorum", 64: "UnregisterBroker", 80: "AddRaftVoter", 81: "RemoveRaftVoter"}
# Kafka 4.1 renamed it.
RENAMED = {74: "ListClientMetricsResources"}


def parser() -> Parser:
    options = Parser("broker-api-versions", "Prints the versions of each API that brokers serve.")
    add_connection(options)
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    need(options.bootstrap_server, "bootstrap-server")
    with administer("broker-api-versions", options.bootstrap_server, options.command_config) as admin:
        print_versions(admin)
    return 0


def print_versions(admin: AdminClient) -> None:
    from cluster.client import KafkaException, api_versions

    nodes = admin.describe_cluster(request_timeout=REQUEST_TIMEOUT).result().nodes
    for node in sorted(nodes, key=lambda one: one.id):
        name = f"{node.host}:{node.port} (id: {node.id} rack: {'null' if node.rack is None else node.rack})"
        try:
            served = api_versions(admin, node.id, timeout=REQUEST_TIMEOUT)
        except KafkaException as error:
            print(f"{name} -> ERROR: {reason(error.error)}")
            continue
        print(f"{name} -> (\n\t" + ",\n\t".join(lines(served)) + "\n)")


def lines(served: dict[int, tuple[int, int]]) -> list[str]:
    """A line for each API: the versions that the broker serves, and the newest that both sides know."""
    from cluster.client import known_api_versions

    known = known_api_versions()
    names = {key: name for key, (name, _, _) in known.items()} | KRAFT | RENAMED
    wanted = {key for key in names if key <= LAST_API}
    return [_line(key, names, served.get(key), known.get(key)) for key in sorted(wanted | served.keys())]


def _line(
    key: int, names: dict[int, str], served: tuple[int, int] | None, known: tuple[str, int, int] | None
) -> str:
    name = f"{names.get(key, 'UNKNOWN')}({key})"
    if served is None:
        return f"{name}: UNSUPPORTED"
    first, last = served
    versions = str(first) if first == last else f"{first} to {last}"
    if known is None:
        return f"{name}: {versions}"
    if known[2] < first:
        usable = "unusable: node too new"
    elif last < known[1]:
        usable = "unusable: node too old"
    else:
        usable = f"usable: {min(last, known[2])}"
    return f"{name}: {versions} [{usable}]"
