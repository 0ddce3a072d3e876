"""If one of these failed, a message of that API and version would change on its way through the codec."""

from __future__ import annotations

import random

import pytest

from logcore import _native
from tests.protocol.messages import Message, Schema, default_of, every_version, random_message, schemas

CASES = every_version()


def encode(schema: Schema, version: int, message: Message) -> bytes:
    """Encodes a message of any kind."""
    match schema.kind, schema.key:
        case "request", int(key):
            return _native.encode_request(key, version, message)
        case "response", int(key):
            return _native.encode_response(key, version, message)
    return _native.encode_data(schema.name, version, message)


def decode(schema: Schema, version: int, body: bytes | bytearray) -> Message:
    """Decodes a message of any kind."""
    match schema.kind, schema.key:
        case "request", int(key):
            return _native.decode_request(key, version, body)
        case "response", int(key):
            return _native.decode_response(key, version, body)
    return _native.decode_data(schema.name, version, body)


@pytest.mark.parametrize(("schema", "version"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_message_round_trips(schema: Schema, version: int) -> None:
    for seed in range(10):
        message = random_message(schema.fields, version, random.Random(f"{schema.name} {version} {seed}"))
        body = encode(schema, version, message)
        assert decode(schema, version, body) == message, f"seed {seed}"
        assert decode(schema, version, bytearray(body)) == message, f"seed {seed}"


@pytest.mark.parametrize(("schema", "version"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_missing_keys_take_the_defaults(schema: Schema, version: int) -> None:
    defaults = {spec.name: default_of(spec) for spec in schema.fields}
    unsendable = [
        spec.name
        for spec in schema.fields
        if version in spec.versions and version not in spec.nullable and defaults[spec.name] is None
    ]
    if unsendable:
        with pytest.raises(
            _native.ProtocolError, match=f"cannot encode {unsendable[0]}: null is not allowed"
        ):
            encode(schema, version, {})
    else:
        assert decode(schema, version, encode(schema, version, {})) == defaults


def test_keys_and_versions_are_the_tables() -> None:
    requests = [schema for schema in schemas() if schema.kind == "request"]
    assert _native.api_keys() == {schema.name: schema.key for schema in requests}
    for schema in requests:
        assert schema.key is not None
        assert _native.valid_versions(schema.key) == (schema.versions[0], schema.versions[-1])
