"""Requests of unknown versions, and bad headers.

`ODD` has Kafka's outcome of each. tests/compat/test_unknown_versions.py runs them against Apache Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from cluster.errors import UnknownTopicOrPartition, UnsupportedVersion
from logcore import _native

from . import wire
from .conftest import Running

UNSUPPORTED_VERSION = UnsupportedVersion.code
UNKNOWN_TOPIC_OR_PARTITION = UnknownTopicOrPartition.code


Outcome = Callable[[wire.Client], None]


def request(key: int, version: int, rest: bytes = b"", *, client_id: bytes = b"\0\4test") -> bytes:
    """A frame with correlation id 7. `rest` follows the client id."""
    frame = struct.pack(">hhi", key, version, 7) + client_id + rest
    return struct.pack(">i", len(frame)) + frame


def answered_as_version_0(client: wire.Client) -> None:
    """Only ApiVersions is answered, in version 0, with an error and the versions of ApiVersions (KIP-511)."""
    correlation_id, response = client.receive(wire.API_VERSIONS, 0)
    assert correlation_id == 7
    assert response["error_code"] == UNSUPPORTED_VERSION
    ranges = [
        (entry["api_key"], entry["min_version"], entry["max_version"]) for entry in response["api_keys"]
    ]
    assert ranges == [(wire.API_VERSIONS, 0, 4)]
    # The connection stays open, and a served version is answered.
    assert client.call(wire.API_VERSIONS, 0, {})["error_code"] == 0


def served(client: wire.Client) -> None:
    assert client.receive(wire.API_VERSIONS, 0)[0] == 7


def refuses(key: int, version: int, topics: str, partitions: str, name: str) -> Outcome:
    """The whole request is decoded, and the response says that the topic is unknown."""

    def outcome(client: wire.Client) -> None:
        correlation_id, response = client.receive(key, version)
        assert correlation_id == 7
        (topic,) = response[topics]
        assert topic["name"] == name
        assert [part["error_code"] for part in topic[partitions]] == [UNKNOWN_TOPIC_OR_PARTITION]

    return outcome


no_such_listing = refuses(wire.LIST_OFFSETS, 1, "topics", "partitions", "t\ufffd")
no_such_log = refuses(wire.PRODUCE, 3, "responses", "partition_responses", "n")


def closed(client: wire.Client) -> None:
    assert client.is_closed()


ODD: dict[str, tuple[bytes, Outcome]] = {
    "ApiVersions of the next version": (request(18, 5, b"\0\1\1\0"), answered_as_version_0),
    "ApiVersions of the largest version": (request(18, 32767, b"\0future"), answered_as_version_0),
    "ApiVersions of the version before the first": (request(18, -1), answered_as_version_0),
    "ApiVersions of an unknown version without its header's tags": (request(18, 77), closed),
    "a client id that is not UTF-8": (request(18, 0, client_id=b"\0\2a\xe9"), served),
    "no client id": (request(18, 0, client_id=b"\xff\xff"), served),
    "bytes after the body": (request(18, 0, bytes(5)), served),
    "ApiVersions with half a body": (request(18, 3, b"\0\5kc"), closed),
    "Produce of a later release's version": (request(0, 13, b"\0\0\0\1\0\0\0\0\1\0"), closed),
    "Produce of the version before the first": (request(0, -1), closed),
    "Fetch of a later release's version": (request(1, 18, b"\0" + bytes(17) + b"\1\1\1\0"), closed),
    "Metadata of a later release's version": (request(3, 13, b"\0\0\0\0\0"), closed),
    "Metadata of an unknown version": (request(3, 99, b"\0\0\0\0\0"), closed),
    "Metadata with half a body": (request(3, 1, b"\0\0\0\1"), closed),
    "Metadata with a wrong number of topics": (request(3, 1, b"\x7f\xff\xff\xff\0\1t"), closed),
    "an API of a later release": (request(78, 1, bytes(40)), closed),
    "an unknown API": (request(999, 0), closed),
    "a negative API key": (request(-1, 0), closed),
    "no header": (struct.pack(">i", 0), closed),
    "half an API key": (struct.pack(">i", 1) + b"\0", closed),
    "a header without a correlation id": (struct.pack(">ihh", 4, 3, 1), closed),
    "a client id longer than the frame": (request(3, 1, client_id=b"\x7f\xff"), closed),
    "a client id with a negative length": (request(18, 0, client_id=b"\xff\xfe"), served),
    "a name that is not UTF-8": (
        request(2, 1, b"\xff\xff\xff\xff\0\0\0\1\0\2t\xe9\0\0\0\1" + bytes(12)),
        no_such_listing,
    ),
    "a name with a negative length": (
        request(2, 1, b"\xff\xff\xff\xff\0\0\0\1\xff\xfe\0\0\0\0"),
        closed,
    ),
    "null as a length of -2": (
        request(0, 3, b"\xff\xfe\0\1" + bytes(4) + b"\0\0\0\1\0\1n\0\0\0\1" + bytes(4) + b"\xff\xff\xff\xfe"),
        no_such_log,
    ),
    "a header with a wrong number of tags": (request(3, 9, b"\1\0\x7f"), closed),
    "a header with tags without end": (request(3, 9, b"\xff\xff\xff\xff\x0f"), closed),
}


def check(port: int, name: str) -> None:
    """Sends the frame after a good request, and checks both outcomes."""
    frame, outcome = ODD[name]
    with wire.Client(port) as client:
        first = _native.encode_request_header(wire.API_VERSIONS, 0, 3, "test")
        client.socket.sendall(struct.pack(">i", len(first)) + first + frame)
        assert client.receive(wire.API_VERSIONS, 0)[0] == 3
        outcome(client)


@pytest.mark.parametrize("name", ODD)
def test_unknown_requests_have_kafkas_outcome(running: Running, name: str) -> None:
    """If this failed, a newer client could not learn this broker's versions, or would misread a response."""
    check(running.port, name)
    with running.client() as other:
        assert other.call(wire.API_VERSIONS, 0, {})["error_code"] == 0


def test_versions_that_only_the_codec_knows_are_not_advertised(running: Running) -> None:
    """If this failed, clients would choose versions of later releases, because the codec can decode them."""
    with running.client() as client:
        response = client.call(wire.API_VERSIONS, 0, {})
    advertised = {
        entry["api_key"]: (entry["min_version"], entry["max_version"]) for entry in response["api_keys"]
    }
    assert advertised == {key: (first, last) for key, _, first, last, _, _ in _native.apis()}
    assert _native.valid_versions(wire.PRODUCE)[1] > advertised[wire.PRODUCE][1]
