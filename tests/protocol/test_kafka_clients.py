"""The codec against Apache's own message classes, of every release that the table comes from.

If one of these failed, we and Kafka would not understand each other's messages of that API and version. Both
make random messages. The other must read them to the same values, and write the same bytes again.
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
"""Messages of each version, from either side and with each release."""

MALFORMED = [b"\xff", b"a\xe9z", b"\xf0\x9f\xa6", b"\xf0\x9f\xa6z", b"\xc3", b"\xe6\x97\xff", b"\x80\x80"]
"""Client ids that are not UTF-8."""

SINCE_4_0 = ("ConsumerGroupRegularExpression", "TransactionLogValue")
"""The data that 3.9.1 does not have, or not with all fields."""

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
    if schema.kind == "data" and (peer.peer == PEERS[0]) == schema.name.startswith(SINCE_4_0):
        return []  # Later releases added tagged fields to some records on disk without a new version.
    return [version for version in schema.versions if version in peer.known(subject(schema)).versions]


def has_our_name(peer: Apache, schema: Schema) -> bool:
    """Whether the peer has our name for it. 4.x renamed one API of 3.9.1, and its fields."""
    full = schema.name if schema.kind == "data" else schema.name + schema.kind.title()
    return peer.known(subject(schema)).name == full


def check_ours(peer: Apache, schema: Schema, version: int) -> None:
    """Kafka reads our messages to the same values, and writes the same bytes."""
    seeds = [f"{SEED} {schema.name} {version} {number}" for number in range(MESSAGES)]
    bodies = [
        encode(schema, version, random_message(schema.fields, version, random.Random(seed))) for seed in seeds
    ]
    for seed, body, (echoed, text) in zip(
        seeds, bodies, peer.echo(subject(schema), version, bodies), strict=True
    ):
        what = f"{peer.peer}, version {version}, seed {seed!r}"
        assert echoed == body, what
        assert not has_our_name(peer, schema) or to_json(schema, version, body) == text, what


def check_theirs(peer: Apache, schema: Schema, version: int, number: int, sample: Sample) -> None:
    """We read Kafka's message to the same values, and write the same bytes; unknown tags are skipped."""
    what = f"{peer.peer}, version {version}, seed {SEED} + {number}"
    message = decode(schema, version, sample.body)
    assert encode(schema, version, message) == sample.body, what
    assert to_json(schema, version, sample.tagged) == to_json(schema, version, sample.body), what
    assert not has_our_name(peer, schema) or to_json(schema, version, sample.body) == sample.json, what


@pytest.mark.compat
@pytest.mark.parametrize("schema", schemas(), ids=lambda schema: f"{schema.name}-{schema.kind}")
def test_bytes_and_values_are_the_same(peers: list[Apache], schema: Schema) -> None:
    """If this failed, a message would reach Kafka, or us, changed."""
    compared: set[int] = set()
    for peer in peers:
        for version in common_versions(peer, schema):
            compared.add(version)
            check_ours(peer, schema, version)
            if peer.known(subject(schema)).can_make:
                for number, sample in enumerate(peer.random(subject(schema), version, SEED, MESSAGES)):
                    check_theirs(peer, schema, version, number, sample)
    assert compared == set(schema.versions), "the releases do not have the other versions"


def rewritten(schema: Schema, version: int, other: int, body: bytes) -> bytes | None:
    """The message in the other version; None when that version lacks a field that is not at its default."""
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
def test_fields_that_a_version_lacks_are_treated_alike(peers: list[Apache], schema: Schema) -> None:
    """If this failed, we would drop a value silently that Kafka refuses to drop, or the reverse."""
    source = random.Random(f"{SEED} {schema.name} {schema.kind}")
    for peer in peers:
        versions = common_versions(peer, schema)
        for version in versions:
            other = source.choice(versions)
            seed = source.randrange(1 << 32)
            # Short messages: the fewer values they have, the more of them fit in the other version.
            bodies = [sample.body for sample in peer.random(subject(schema), version, seed, MESSAGES, 1)]
            theirs = peer.rewrite(subject(schema), version, other, bodies)
            ours = [rewritten(schema, version, other, body) for body in bodies]
            assert ours == theirs, f"{peer.peer}, version {version} as {other}, seed {seed}"


@pytest.mark.compat
@pytest.mark.parametrize("schema", REQUESTS, ids=lambda schema: schema.name)
def test_request_headers_are_the_same(peers: list[Apache], schema: Schema) -> None:
    """If this failed, a request would be taken for another, or its client for another."""
    assert schema.key is not None
    about = Subject("request header", schema.key)
    for peer in peers:
        for version in common_versions(peer, schema):
            what = f"{peer.peer}, version {version}, seed {SEED}"
            ours = _native.encode_request_header(schema.key, version, -5, "é🦀")
            assert peer.echo(about, version, [ours])[0][0] == ours, what
            head = _native.encode_request_header(schema.key, version, 1, "")
            if head[8:10] == bytes(2):  # ControlledShutdown 0 has no client id
                for client_id in MALFORMED:
                    named = head[:8] + len(client_id).to_bytes(2) + client_id + head[10:]
                    decoded = _native.decode_request_header(named)[3]
                    again = _native.encode_request_header(schema.key, version, 1, decoded)
                    assert peer.echo(about, version, [named])[0][0] == again, what
            for sample in peer.random(about, version, SEED, MESSAGES):
                key, same, correlation_id, client_id, length = _native.decode_request_header(sample.tagged)
                assert (key, same, length) == (schema.key, version, len(sample.tagged)), what
                again = _native.encode_request_header(key, same, correlation_id, client_id)
                assert again == sample.body, what


@pytest.mark.compat
@pytest.mark.parametrize("schema", REQUESTS, ids=lambda schema: schema.name)
def test_response_headers_are_the_same(peers: list[Apache], schema: Schema) -> None:
    """If this failed, a response would be taken for the response to another request."""
    assert schema.key is not None
    about = Subject("response header", schema.key)
    for peer in peers:
        for version in common_versions(peer, schema):
            what = f"{peer.peer}, version {version}, seed {SEED}"
            for sample in peer.random(about, version, SEED, MESSAGES):
                correlation_id, length = _native.decode_response_header(schema.key, version, sample.tagged)
                assert length == len(sample.tagged), what
                again = _native.encode_response_header(schema.key, version, correlation_id)
                assert again == sample.body, what
                assert peer.echo(about, version, [again])[0] == (sample.body, sample.json), what
