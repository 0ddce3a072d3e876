"""The codec's errors.

If one of these failed, a mistake would reach the wire, or its error would not name the field.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from logcore import _native
from logcore._native import ProtocolError, decode_request, encode_request

PRODUCE = 0
FETCH = 1


def produce(**partition: Any) -> dict[str, Any]:
    """A Produce request with one partition."""
    return {"acks": 1, "topic_data": [{"name": "t", "partition_data": [{"index": 1, **partition}]}]}


def test_a_protocol_error_is_a_value_error() -> None:
    assert issubclass(ProtocolError, ValueError)
    assert ProtocolError.__module__ == "logcore"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"ack": 1}, r"^ProduceRequest version 9: cannot encode the message: there is no field 'ack'$"),
        (
            produce(offset=1),
            r"cannot encode topic_data\[0\]\.partition_data\[0\]: there is no field 'offset'",
        ),
        ({3: 1}, r"there is no field 3"),
        ({"acks": "1"}, r"cannot encode acks: expected int16, found str"),
        ({"acks": 1 << 15}, r"cannot encode acks: 32768 does not fit in int16"),
        ({"acks": 1 << 80}, r"cannot encode acks: \d+ does not fit in int16"),
        ({"acks": None}, r"cannot encode acks: null is not allowed"),
        ({"acks": 1.5}, r"cannot encode acks: expected int16, found float"),
        (produce(records="text"), r"partition_data\[0\]\.records: expected bytes, found str"),
        ({"transactional_id": b"t"}, r"transactional_id: expected str, found bytes"),
        ({"transactional_id": "é" * 16384}, r"transactional_id: a string of 32768 bytes is longer"),
        ({"topic_data": None}, r"topic_data: null is not allowed"),
        ({"topic_data": "abc"}, r"topic_data: expected list, found str"),
        ({"topic_data": {}}, r"topic_data: expected list, found dict"),
        ({"topic_data": 7}, r"topic_data: expected list, found int"),
        ({"topic_data": [None]}, r"topic_data\[0\]: null is not allowed"),
        ({"topic_data": [7]}, r"topic_data\[0\]: expected dict, found int"),
    ],
)
def test_a_wrong_message_is_refused(message: dict[Any, Any], error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        encode_request(PRODUCE, 9, message)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode_request(PRODUCE, 9, {"transactional_id": "\ud800"})


def test_an_exception_of_the_callers_iterator_is_passed_on() -> None:
    def failing() -> Any:
        yield {"name": "t"}
        raise LookupError("of my own")

    with pytest.raises(LookupError, match="of my own"):
        encode_request(PRODUCE, 9, {"topic_data": failing()})


def test_a_field_of_another_version_is_refused_or_ignored() -> None:
    with pytest.raises(ProtocolError, match="version 2: cannot encode transactional_id: the version lacks"):
        encode_request(PRODUCE, 2, {"transactional_id": "t"})
    assert encode_request(PRODUCE, 2, {"transactional_id": None}) == bytes(10)
    # These fields are ignorable in Kafka's definitions.
    assert encode_request(FETCH, 0, {"session_id": 5, "rack_id": "r"}) == b"\xff\xff\xff\xff" + bytes(12)


def test_equal_values_of_other_types_are_accepted() -> None:
    class Acks(IntEnum):
        ALL = -1

    expected = encode_request(PRODUCE, 9, {**produce(records=b"abc"), "acks": -1})
    for records in (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"xabc")[1:]):
        assert encode_request(PRODUCE, 9, {**produce(records=records), "acks": Acks.ALL}) == expected
    message = produce(records=b"abc")
    topics = tuple(message["topic_data"])
    assert encode_request(PRODUCE, 9, {"acks": -1, "topic_data": topics}) == expected
    assert encode_request(PRODUCE, 9, {"acks": -1, "topic_data": iter(topics)}) == expected
    with pytest.raises(ProtocolError, match="uuid is 16 bytes, found 3 bytes"):
        encode_request(FETCH, 13, {"topics": [{"topic_id": b"abc"}]})


@pytest.mark.parametrize(
    ("version", "body", "error"),
    [
        (14, b"", r"^ProduceRequest has no version 14: versions 0-13 exist$"),
        (-1, b"", r"ProduceRequest has no version -1"),
        (3, b"", r"^ProduceRequest version 3: cannot decode transactional_id at byte 0: 2 more bytes"),
        (3, b"\xff\xff" + bytes(11), r"cannot decode the message at byte 12: 1 bytes follow the end"),
        (0, bytes(6) + b"\x7f\xff\xff\xff" + bytes(9), r"topic_data at byte 10: 2147483647 elements"),
        (0, bytes(6) + b"\xff\xff\xff\xff", r"topic_data at byte 10: null is not allowed"),
    ],
)
def test_malformed_bytes_are_refused(version: int, body: bytes, error: str) -> None:
    with pytest.raises(ProtocolError, match=error):
        decode_request(PRODUCE, version, body)


def test_unknown_keys_names_and_versions_are_refused() -> None:
    for decode in (_native.decode_request, _native.decode_response):
        with pytest.raises(ProtocolError, match="API key 999 is not in the table"):
            decode(999, 0, b"")
    for encode in (_native.encode_request, _native.encode_response):
        with pytest.raises(ProtocolError, match="API key -1 is not in the table"):
            encode(-1, 0, {})
    with pytest.raises(ProtocolError, match="API key 52 is not in the table"):
        _native.valid_versions(52)
    with pytest.raises(ProtocolError, match='no data schema named "Produce"'):
        _native.decode_data("Produce", 0, b"")
    with pytest.raises(ProtocolError, match="GroupMetadataKey has no version 0: versions 2 exist"):
        _native.encode_data("GroupMetadataKey", 0, {"group": "g"})
