"""Requests of every API the broker serves, drawn at random, whole and damaged, from peers that do not behave, beside one that does.

The broker is a process of its own, Python's handlers and all; the server alone has a fuzzer of its own in Rust. Were this to
fail, somebody who can connect could stop a handler, hurt those beside him, or have the broker's memory. `LOGCORE_SEED=n` runs
one seed again, `LOGCORE_FUZZ_MINUTES=n` new ones for so long (`make fuzz`).
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
"""Of a normal run."""
UNKNOWN_SERVER_ERROR = UnknownServerError.code
COORDINATOR_LOAD_IN_PROGRESS = CoordinatorLoadInProgress.code
NOT_COORDINATOR = NotCoordinator.code
RESIDENT_MAX = 400 << 20
"""Bytes, of a broker that was idle at 40 MB: what a fuzzed request asks for is bounded, as is what it leaves."""
WIDE = 600
"""Partitions: more than a Fetch may name without taking turns."""
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
"""Names that mean something; the neighbour's are not among them."""
NUMBERS = {
    "num_partitions": (-1, 0, 1, 3),
    "count": (-1, 0, 1, 5),
    "timeout_ms": (-1, 0, 1000),
    "max_wait_ms": (-1, 0, 10),
    # Fewer than none is an error that Kafka does not expect.
    "max_num_offsets": (0, 1, 5),
    "session_timeout_ms": (0, 6000, 1 << 30),
    "rebalance_timeout_ms": (-1, 0, 100),
}
RATES = (-1.0, 1e12, 1e300, float("nan"), float("inf"))
"""None that would slow anybody down."""


def served(port: int) -> list[tuple[Schema, range]]:
    """What there is to ask, and in which versions."""
    with wire.Client(port) as client:
        answer = client.call(wire.API_VERSIONS, 0, {})
    versions = {
        api["api_key"]: range(api["min_version"], api["max_version"] + 1) for api in answer["api_keys"]
    }
    requests = [schema for schema in schemas() if schema.kind == "request" and schema.key in versions]
    return [(schema, versions[schema.key]) for schema in requests if schema.key is not None]


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
    """Puts what means something in the place of much that is random, in messages of one version."""

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
    """Every error code of an answer."""
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
    """A connection that asks for anything, and may leave at any time."""

    def __init__(self, port: int, source: random.Random) -> None:
        self.client = wire.Client(port)
        self._source = source
        self._asked: list[tuple[Schema, int, int, Message]] = []
        self._is_sound = source.random() < 0.5
        """Whether everything it asks must be answered, and soon."""

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
            assert not self._is_sound, "a connection was closed that had asked for nothing wrong"

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
        """Has all answers, if all must be answered, and leaves; or just leaves."""
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
            assert not self._is_sound, "a connection was closed that had asked for nothing wrong"
        finally:
            self.client.socket.close()


class Neighbour:
    """Produces, fetches, looks up by time and is a group's member: each time it must have the right answer."""

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
        # Retention takes what is old.
        self._began = int(time.time() * 1000)

    def _joined(self, join: Message) -> Message:
        """Asks until the coordinator is there, which is made when somebody asks for it."""
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
        # The checksum is of what the producer decides: all after it.
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
def test_whatever_is_asked_harms_nobody(broker: BrokerProcess) -> None:
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
