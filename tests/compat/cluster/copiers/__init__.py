"""The same program for several clients: it copies a topic exactly once, until it is killed.

Each consumes, transforms, produces, and commits the offsets with the transaction. A transaction that can only
be aborted is aborted, and its records are read again. Any other failure ends the program.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.compat.conftest import peer_jars

EPOCH_A_TRANSACTION = "java-4.1"
"""The client that has an epoch a transaction where the cluster has it (KIP-890)."""
CLIENTS = ("librdkafka", "java", EPOCH_A_TRANSACTION, "aiokafka", "ours")
_SOURCES = Path(__file__).parent


def command(
    client: str, bootstrap: str, source: str, target: str, group: str, transactional_id: str, batch: int = 20
) -> list[str]:
    """The command of a client's program. A transaction has at most ``batch`` records."""
    arguments = [bootstrap, source, target, group, transactional_id, str(batch)]
    peers = {"java": "kafka-3.9.1", EPOCH_A_TRANSACTION: "kafka-4.1.0"}
    if client in peers:
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        libraries = f"{peer_jars(peers[client], 'javac')}/*"
        return [*java, "-cp", libraries, str(_SOURCES / "Copier.java"), *arguments]
    programs = {
        "librdkafka": ["confluent", "confluent_kafka"],
        "ours": ["confluent", "cluster.client"],
        "aiokafka": ["aio"],
    }
    program, *first = programs[client]
    return [sys.executable, "-m", f"{__name__}.{program}", *first, *arguments]


def transformed(value: bytes | None) -> bytes:
    """The copy of a record's value."""
    assert value is not None
    return value + b"!"
