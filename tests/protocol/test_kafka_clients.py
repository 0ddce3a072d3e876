"""The codec against Apache's own message classes, of every release the table is made from.

Were one of these to fail, we and Kafka would not understand each other's messages of that API and version. Both make random
messages; what one writes the other must read to the same values, and write to the same bytes again.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import pytest

from logcore import _native
from tests.protocol.apache import PEERS, Apache, Sample, Subject, apache
from tests.protocol.messages import Schema, random_message, schemas
from tests.protocol.test_round_trip import decode, encode

SEED = int(os.environ.get("LOGCORE_SEED", "20260000"))
MESSAGES = 8
"""So many messages of each version, from either side and with every release."""

MALFORMED = [b"\xff", b"a\xe9z", b"\xf0\x9f\xa6", b"\xf0\x9f\xa6z", b"\xc3", b"\xe6\x97\xff", b"\x80\x80"]
"""Client ids that are not UTF-8."""

REQUESTS = [schema for schema in schemas() if schema.kind == "request"]


@pytest.fixture(scope="module")
def peers() -> Iterator[list[Apache]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(apache(peer)) for peer in PEERS]


def subject(schema: Schema) -> Subject:
    return Subject(schema.kind, -1 if schema.key is None else schema.key, schema.name)


def to_json(schema: Schema, version: int, body: bytes) -> str:
    match schema.kind, schema.key:
        case "request", int(key):
            return _native.request_to_json(key, version, body)
        case "response", int(key):
            return _native.response_to_json(key, version, body)
    return _native.data_to_json(schema.name, version, body)


def common_versions(peer: Apache, schema: Schema) -> list[int]:
    if schema.kind == "data" and peer.peer != PEERS[0]:
        return []  # what is on disk is 3.9.1's; later releases gave some of it tagged fields within the same version
    return [version for version in schema.versions if version in peer.known(subject(schema)).versions]


def has_our_name(peer: Apache, schema: Schema) -> bool:
    """3.9.1 calls one API by a name that was changed since, and its fields too."""
    full = schema.name if schema.kind == "data" else schema.name + schema.kind.title()
    return peer.known(subject(schema)).name == full


def check_ours(peer: Apache, schema: Schema, version: int) -> None:
    """What we wrote, Kafka reads to the same values and writes to the same bytes."""
    seeds = [f"{SEED} {schema.name} {version} {number}" for number in range(MESSAGES)]
    bodies = [
        encode(schema, version, random_message(schema.fields, version, random.Random(seed))) for seed in seeds
    ]
    for seed, body, (echoed, text) in zip(
        seeds, bodies, peer.echo(subject(schema), version, bodies), strict=True
    ):
        place = f"{peer.peer}, version {version}, seed {seed!r}"
        assert echoed == body, place
        assert not has_our_name(peer, schema) or to_json(schema, version, body) == text, place


def check_theirs(peer: Apache, schema: Schema, version: int, number: int, sample: Sample) -> None:
    """What Kafka wrote, we read to the same values and write to the same bytes; unknown tagged fields are skipped."""
    place = f"{peer.peer}, version {version}, seed {SEED} + {number}"
    message = decode(schema, version, sample.body)
    assert encode(schema, version, message) == sample.body, place
    assert to_json(schema, version, sample.tagged) == to_json(schema, version, sample.body), place
    assert not has_our_name(peer, schema) or to_json(schema, version, sample.body) == sample.json, place


@pytest.mark.compat
@pytest.mark.parametrize("schema", schemas(), ids=lambda schema: f"{schema.name}-{schema.kind}")
def test_bytes_and_values_are_the_same(peers: list[Apache], schema: Schema) -> None:
    compared: set[int] = set()
    for peer in peers:
        for version in common_versions(peer, schema):
            compared.add(version)
            check_ours(peer, schema, version)
            if peer.known(subject(schema)).can_make:
                for number, sample in enumerate(peer.random(subject(schema), version, SEED, MESSAGES)):
                    check_theirs(peer, schema, version, number, sample)
    assert compared == set(schema.versions), "no release has the other versions"


def rewritten(schema: Schema, version: int, other: int, body: bytes) -> bytes | None:
    """The message in the other version; None when it has a value there that means something and has no place."""
    try:
        return encode(schema, other, decode(schema, version, body))
    except _native.ProtocolError:
        return None


@pytest.mark.compat
@pytest.mark.parametrize(
    "schema",
    [schema for schema in schemas() if schema.kind != "data" and len(schema.versions) > 1],
    ids=lambda schema: f"{schema.name}-{schema.kind}",
)
def test_fields_that_a_version_lacks(peers: list[Apache], schema: Schema) -> None:
    source = random.Random(f"{SEED} {schema.name} {schema.kind}")
    for peer in peers:
        versions = common_versions(peer, schema)
        for version in versions:
            other = source.choice(versions)
            seed = source.randrange(1 << 32)
            # Short messages: the fewer values, the oftener all of them have a place in the other version.
            bodies = [sample.body for sample in peer.random(subject(schema), version, seed, MESSAGES, 1)]
            theirs = peer.rewrite(subject(schema), version, other, bodies)
            ours = [rewritten(schema, version, other, body) for body in bodies]
            assert ours == theirs, f"{peer.peer}, version {version} as {other}, seed {seed}"


@pytest.mark.compat
@pytest.mark.parametrize("schema", REQUESTS, ids=lambda schema: schema.name)
def test_request_headers_are_the_same(peers: list[Apache], schema: Schema) -> None:
    assert schema.key is not None
    about = Subject("request header", schema.key)
    for peer in peers:
        for version in common_versions(peer, schema):
            place = f"{peer.peer}, version {version}, seed {SEED}"
            ours = _native.encode_request_header(schema.key, version, -5, "é🦀")
            assert peer.echo(about, version, [ours])[0][0] == ours, place
            head = _native.encode_request_header(schema.key, version, 1, "")
            if head[8:10] == bytes(2):  # ControlledShutdown 0 has no client id
                for client_id in MALFORMED:
                    named = head[:8] + len(client_id).to_bytes(2) + client_id + head[10:]
                    known_as = _native.decode_request_header(named)[3]
                    again = _native.encode_request_header(schema.key, version, 1, known_as)
                    assert peer.echo(about, version, [named])[0][0] == again, place
            for sample in peer.random(about, version, SEED, MESSAGES):
                key, same, correlation_id, client_id, length = _native.decode_request_header(sample.tagged)
                assert (key, same, length) == (schema.key, version, len(sample.tagged)), place
                again = _native.encode_request_header(key, same, correlation_id, client_id)
                assert again == sample.body, place


@pytest.mark.compat
@pytest.mark.parametrize("schema", REQUESTS, ids=lambda schema: schema.name)
def test_response_headers_are_the_same(peers: list[Apache], schema: Schema) -> None:
    assert schema.key is not None
    about = Subject("response header", schema.key)
    for peer in peers:
        for version in common_versions(peer, schema):
            place = f"{peer.peer}, version {version}, seed {SEED}"
            for sample in peer.random(about, version, SEED, MESSAGES):
                correlation_id, length = _native.decode_response_header(schema.key, version, sample.tagged)
                assert length == len(sample.tagged), place
                again = _native.encode_response_header(schema.key, version, correlation_id)
                assert again == sample.body, place
                assert peer.echo(about, version, [again])[0] == (sample.body, sample.json), place
