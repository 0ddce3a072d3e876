"""The codec against kafka-python's, which has its own reader of Apache's definitions.

If one of these failed, the two would not understand each other's messages of that API and version.
"""

from __future__ import annotations

import importlib
import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from logcore import _native
from tests.protocol.messages import Field, Message, Schema, default_of, every_version, random_message

api_message = pytest.importorskip("kafka.protocol.api_message", minversion=None)

MODULES = ("admin", "consumer", "metadata", "producer", "sasl")


def peer_classes(base: Any) -> Iterator[Any]:
    """Every message class of kafka-python."""
    for module in MODULES:
        importlib.import_module(f"kafka.protocol.{module}")
    for found in base.__subclasses__():
        yield found
        yield from peer_classes(found)


PEERS = {found.name: found for found in peer_classes(api_message.ApiMessage) if found.__name__ == found.name}

CASES = [
    (name, schema, version)
    for name, schema, version in every_version()
    if (peer := PEERS.get(f"{schema.name}{schema.kind.title()}")) is not None
    # Below its own lowest version it lacks fields that Apache has removed since.
    and peer.valid_versions[0] <= version <= peer.valid_versions[1]
]


def to_peer(fields: list[Field], version: int, message: Message, make: Any) -> Any:
    """The message as an object of kafka-python, without tagged fields at their defaults."""
    values = {}
    for spec in fields:
        value = message[spec.name]
        if version not in spec.versions or (version in spec.tagged and value == default_of(spec)):
            continue
        # kafka-python renames some of these fields, and has them as sets of bits.
        name = spec.name if spec.name in make._struct.fields else "authorized_operations"
        inner = make._struct.fields[name]
        if inner.type_str == "bitfield":
            value = {bit for bit in range(32) if value >> bit & 1}
        if spec.kind == "uuid":
            value = uuid.UUID(bytes=value)
        elif spec.kind == "[]uuid":
            value = [uuid.UUID(bytes=item) for item in value]
        elif spec.kind == "[]struct" and value is not None:
            value = [to_peer(spec.fields, version, item, inner.data_class) for item in value]
        elif spec.kind == "struct" and value is not None:
            value = to_peer(spec.fields, version, value, inner.data_class)
        values[name] = value
    return make(version=version, **values)


@pytest.mark.parametrize(("schema", "version"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_bytes_are_the_same(schema: Schema, version: int) -> None:
    """If this failed, a message would reach kafka-python changed."""
    peer = PEERS[f"{schema.name}{schema.kind.title()}"]
    encode = _native.encode_request if schema.kind == "request" else _native.encode_response
    assert schema.key is not None
    for seed in range(10):
        message = random_message(
            schema.fields, version, random.Random(f"peer {schema.name} {version} {seed}")
        )
        ours = encode(schema.key, version, message)
        theirs = to_peer(schema.fields, version, message, peer).encode(version=version)
        assert ours == theirs, f"seed {seed}: {message}"


def test_most_of_the_protocol_is_compared() -> None:
    """If this failed, kafka-python would have moved its classes, and nothing would be compared."""
    assert len({schema.key for _, schema, _ in CASES}) >= 45
