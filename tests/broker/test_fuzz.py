"""Requests of every API of the broker, drawn at random, whole and damaged, from misbehaving peers beside a
correct one.

The broker is a process of its own, with Python's handlers; the Rust server has its own fuzzer. If this
failed, a client could stop a handler, affect other clients, or take the broker's memory. `LOGCORE_SEED=n`
runs one seed again, `LOGCORE_FUZZ_MINUTES=n` new seeds for so long (`make fuzz`).
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import CoordinatorLoadInProgress, NotCoordinator, UnknownServerError
from logcore import _native
from tests.conftest import BrokerProcess
from tests.protocol.messages import Field, Message, Schema, random_message, schemas
from tests.server import wire

FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, SYNC_GROUP, CREATE_TOPICS = 10, 11, 12, 14, 19
SEEDS = 4000
"""Seeds of a normal run."""
UNKNOWN_SERVER_ERROR = UnknownServerError.code
COORDINATOR_LOAD_IN_PROGRESS = CoordinatorLoadInProgress.code
NOT_COORDINATOR = NotCoordinator.code
RESIDENT_MAX = 400 << 20
"""Bytes. An idle broker has 40 MB; what the requests take and leave behind is bounded."""
WIDE = 600
"""Partitions: more than a Fetch may name without time slices."""
WORDS = {
    "topic": ("t", "u", "v", "no such topic", "", "..", "x" * 250),
    "group": ("g", "h", ""),
    "key": ("client-id", "user", "ip"),
    "type": ("client-id", "user", "ip", "consumer"),
    "config": ("retention.ms", "cleanup.policy", "compression.type", "min.insync.replicas", "nonsense"),
    "quota": ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "nonsense"),
    "other": (
        "",
        "0",
        "1",
        "-1",
        "1000",
        "compact",
        "delete",
        "zstd",
        "consumer",
        "range",
        "127.0.0.1",
        "\0",
        "é" * 300,
    ),
}
"""Valid names, without those of the correct peer."""
NUMBERS = {
    "num_partitions": (-1, 0, 1, 3),
    "count": (-1, 0, 1, 5),
    "timeout_ms": (-1, 0, 1000),
    "max_wait_ms": (-1, 0, 10),
    # Kafka does not expect a negative error code.
    "max_num_offsets": (0, 1, 5),
    "session_timeout_ms": (0, 6000, 1 << 30),
    "rebalance_timeout_ms": (-1, 0, 100),
}
RATES = (-1.0, 1e12, 1e300, float("nan"), float("inf"))
"""Values that delay no other client."""


COMMANDS = frozenset(
    {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition"}
)
"""A controller's commands change a broker for all its clients, as in Kafka. Only ACLs would keep clients from
sending them (ClusterAction).
"""


def served(port: int) -> list[tuple[Schema, range]]:
    """The APIs of clients with their versions."""
    with wire.Client(port) as client:
        answer = client.call(wire.API_VERSIONS, 0, {})
    versions = {
        api["api_key"]: range(api["min_version"], api["max_version"] + 1) for api in answer["api_keys"]
    }
    requests = [schema for schema in schemas() if schema.kind == "request" and schema.key in versions]
    return [
        (schema, versions[schema.key])
        for schema in requests
        if schema.key is not None and schema.name not in COMMANDS
    ]


def words_for(name: str, path: tuple[str, ...]) -> tuple[str, ...]:
    if "topic" in name or (name == "name" and "topics" in path):
        return WORDS["topic"]
    if "group" in name or "groups" in path:
        return WORDS["group"]
    if "ops" in path:
        return WORDS["quota"]
    if "config" in name or "configs" in path:
        return WORDS["config"]
    return WORDS.get("type" if name.endswith("type") else name, WORDS["other"])


class Sense:
    """Replaces many random values of a message with valid ones."""

    def __init__(self, version: int, source: random.Random) -> None:
        self._version, self._source = version, source

    def message(self, fields: list[Field], message: Message, path: tuple[str, ...] = ()) -> Message:
        return {
            spec.name: self._value(spec, spec.kind, message[spec.name], path)
            if self._version in spec.versions
            else message[spec.name]
            for spec in fields
        }

    def _value(self, spec: Field, kind: str, value: Any, path: tuple[str, ...]) -> Any:
        source = self._source
        if value is None:
            return None
        if kind.startswith("[]"):
            return [self._value(spec, kind[2:], each, (*path, spec.name)) for each in value]
        if kind == "struct":
            return self.message(spec.fields, value, (*path, spec.name))
        if spec.name in NUMBERS:
            return source.choice(NUMBERS[spec.name])
        if kind == "float64":
            return source.choice(RATES)
        if source.random() < 0.2:
            return value
        if kind == "string":
            return source.choice(words_for(spec.name, path))
        return source.choice((-1, 0, 0, 1, 2)) if kind == "int32" else value


def codes(value: Any) -> Iterator[int]:
    """Every error code of a response."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.endswith("error_code"):
                yield inner
            else:
                yield from codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from codes(inner)


class Peer:
    """A connection that sends any request and may leave at any time."""

    def __init__(self, port: int, source: random.Random) -> None:
        self.client = wire.Client(port)
        self._source = source
        self._asked: list[tuple[Schema, int, int, Message]] = []
        self._is_sound = source.random() < 0.5
        """Every request must be answered soon."""

    def ask(self, schema: Schema, version: int) -> None:
        assert schema.key is not None
        if self._is_sound and schema.key in (JOIN_GROUP, SYNC_GROUP):
            # Members wait for each other.
            return
        drawn = random_message(schema.fields, version, self._source)
        message = Sense(version, self._source).message(schema.fields, drawn)
        if message.get("acks") == 0:
            message["acks"] = 1
        number = len(self._asked)
        frame = _native.encode_request_header(schema.key, version, number, "fuzz")
        frame += _native.encode_request(schema.key, version, message)
        if not self._is_sound and self._source.random() < 0.2:
            frame = self._damaged(frame)
        self._asked.append((schema, version, number, message))
        try:
            self.client.socket.sendall(struct.pack(">i", len(frame)) + frame)
        except OSError:
            assert not self._is_sound, "a connection was closed that had sent only valid requests"

    def _damaged(self, frame: bytes) -> bytes:
        source, damaged = self._source, bytearray(frame)
        match source.randrange(3):
            case 0:
                del damaged[source.randrange(len(damaged)) :]
            case 1:
                damaged[source.randrange(8, len(damaged))] = source.randrange(256)
            case _:
                at = source.randrange(8, len(damaged) + 1)
                damaged[at:at] = source.randbytes(source.randrange(1, 40))
        return bytes(damaged)

    def finish(self) -> None:
        """Reads all responses if every request must be answered, and leaves; or just leaves."""
        try:
            if self._is_sound:
                for schema, version, number, message in self._asked:
                    assert schema.key is not None
                    received, answer = self.client.receive(schema.key, version)
                    what = f"{schema.name} version {version} of {message!r:.2000}: {answer!r:.2000}"
                    assert received == number, what
                    assert UNKNOWN_SERVER_ERROR not in codes(answer), what
            elif self._source.random() < 0.5:
                self.client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            assert not self._is_sound, "a connection was closed that had sent only valid requests"
        finally:
            self.client.socket.close()


class Neighbour:
    """Produces, fetches, looks up times and is a group member. Each response must be right."""

    def __init__(self, client: wire.Client) -> None:
        self.client = client
        topics = [
            {"name": name, "num_partitions": partitions, "replication_factor": 1}
            for name, partitions in (("neighbour", 1), ("wide", WIDE))
        ]
        created = self.client.call(CREATE_TOPICS, 5, {"topics": topics, "timeout_ms": 10_000})
        assert [topic["error_code"] for topic in created["topics"]] == [0, 0]
        protocols = [{"name": "range", "metadata": b""}]
        me = {"group_id": "neighbours", "protocol_type": "consumer"}
        join = me | {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000, "protocols": protocols}
        joined = self._joined(join)
        self._member = {
            "group_id": "neighbours",
            "generation_id": joined["generation_id"],
            "member_id": joined["member_id"],
        }
        synced = self.client.call(SYNC_GROUP, 2, self._member | {"assignments": []})
        assert synced["error_code"] == 0
        self._offset = 0
        # Retention deletes old records.
        self._began = int(time.time() * 1000)

    def _joined(self, join: Message) -> Message:
        """Repeats a request until the coordinator exists; the first request creates it."""
        while True:
            self.client.call(FIND_COORDINATOR, 1, {"key": "neighbours", "key_type": 0})
            joined = self.client.call(JOIN_GROUP, 3, join)
            if joined["error_code"] not in (COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR):
                assert joined["error_code"] == 0
                return joined

    def check(self) -> None:
        client, now = self.client, self._began + self._offset
        sent = wire.batch([b"%d" % self._offset], now)
        produced = client.produce("neighbour", 0, sent)
        assert (produced["error_code"], produced["base_offset"]) == (0, self._offset)
        fetched = client.fetch("neighbour", 0, self._offset)
        # The checksum covers the producer's part: everything after it.
        assert fetched["records"][17:] == sent[17:]
        by_time = {"partition_index": 0, "timestamp": now}
        listing = {"replica_id": -1, "topics": [{"name": "neighbour", "partitions": [by_time]}]}
        listed = client.call(wire.LIST_OFFSETS, 1, listing)["topics"][0]["partitions"][0]
        assert (listed["error_code"], listed["offset"]) == (0, self._offset)
        wide = wire.fetch("wide", 0, 0)
        (one,) = wide["topics"][0]["partitions"]
        wide["topics"][0]["partitions"] = [one | {"partition": index} for index in range(WIDE)]
        answer = client.call(wire.FETCH, 12, wide)
        assert [part["error_code"] for part in answer["responses"][0]["partitions"]] == [0] * WIDE
        assert client.call(HEARTBEAT, 2, self._member)["error_code"] == 0
        self._offset += 1


def attack(seed: int, port: int, apis: list[tuple[Schema, range]], neighbour: Neighbour) -> None:
    source = random.Random(seed)
    peers = [Peer(port, source) for _ in range(source.randrange(1, 5))]
    for _ in range(source.randrange(5, 40)):
        schema, versions = source.choice(apis)
        source.choice(peers).ask(schema, source.choice(versions))
        if source.random() < 0.05:
            peers.append(Peer(port, source))
    neighbour.check()
    for peer in peers:
        peer.finish()
    neighbour.check()


def seeds() -> Iterator[int]:
    if only := os.environ.get("LOGCORE_SEED"):
        yield int(only)
        return
    minutes = os.environ.get("LOGCORE_FUZZ_MINUTES")
    if minutes is None:
        yield from range(SEEDS)
        return
    end = time.monotonic() + 60 * float(minutes)
    seed = time.time_ns() // 1000
    while time.monotonic() < end:
        yield seed
        seed += 1


@pytest.mark.timeout(0 if "LOGCORE_FUZZ_MINUTES" in os.environ else 1500)
def test_no_request_harms_another_client(broker: BrokerProcess) -> None:
    apis = served(broker.port)
    count = 0
    with wire.Client(broker.port) as client:
        neighbour = Neighbour(client)
        for seed in seeds():
            try:
                attack(seed, broker.port, apis, neighbour)
            except BaseException:
                print(f"run this again with LOGCORE_SEED={seed}; the broker said:\n{broker.output()[-5000:]}")
                raise
            count += 1
    print(f"{count} seeds")
    assert "Traceback" not in broker.output()
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak * 1024 < RESIDENT_MAX, f"{peak} KiB"
