"""Typed columns, through the extension: types, rows, errors.

Broken if they failed: Spark would refuse batches, or would get wrong values or values of other records.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest

from logcore.columns import TypedDecoder, avro_schema

Decoded = tuple[pa.RecordBatch, int, tuple[int, str] | None]


def wanted(*fields: tuple[str, pa.DataType]) -> pa.Field:
    return pa.field("value", pa.struct(fields))


def records(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch({"offset": pa.array(range(len(values)), pa.int64()), "value": list(values)})


def decode(decoder: TypedDecoder, batch: pa.RecordBatch) -> Decoded:
    found, malformed, first = decoder.decode(batch)
    return pa.record_batch(found), malformed, first


A = wanted(("a", pa.int32()))


# Broken if it failed: a malformed record would be lost, or would take its neighbours with it.
def test_malformed_records_are_null_and_kept() -> None:
    decoder = TypedDecoder.json(A, corrupt_column="bad")
    found, malformed, first = decode(decoder, records(b'{"a":1}', b"{", None, b'{"a":"x"}', b'{"a":2}'))
    assert found.to_pydict() == {
        "offset": [0, 1, 2, 3, 4],
        "value": [{"a": 1}, None, None, None, {"a": 2}],
        "bad": [None, b"{", None, b'{"a":"x"}', None],
    }
    assert (malformed, first) == (2, (1, "the JSON object is cut off"))


# Broken if it failed: rows would be left out whose records are well-formed.
def test_malformed_records_are_dropped() -> None:
    decoder = TypedDecoder.json(A, drop_malformed=True)
    found, malformed, _ = decode(decoder, records(b'{"a":1}', b"{", None))
    assert found.to_pydict() == {"offset": [0, 2], "value": [{"a": 1}, None]}
    assert malformed == 1


# Broken if it failed: a batch that is a part of another would have that one's first rows.
def test_a_part_of_a_batch() -> None:
    whole = records(*(b'{"a":%d}' % number for number in range(5000)))
    found, malformed, first = decode(TypedDecoder.json(A), whole.slice(4000, 900))
    assert [row["a"] for row in found["value"].to_pylist()] == list(range(4000, 4900))
    assert (malformed, first) == (0, None)
    assert decode(TypedDecoder.json(A), whole.slice(0, 0))[0].num_rows == 0


# Broken if it failed: Spark would refuse every batch.
def test_the_column_has_the_type_that_was_asked_for() -> None:
    nested = pa.struct([("x", pa.int64()), ("y", pa.string())])
    field = wanted(
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("ratio", pa.float32()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("items", pa.list_(pa.field("element", nested))),
        ("map", pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int32()))),
    )
    record = {"tiny": 1, "items": [{"x": 1}], "map": {"k": 1}, "price": "1.50", "at": "2013-01-01T00:00:00Z"}
    found, malformed, first = decode(TypedDecoder.json(field), records(json.dumps(record).encode(), b"x"))
    assert (malformed, first and first[0]) == (1, 1)
    assert found.schema.field("value").equals(field, check_metadata=True)
    found.validate(full=True)
    row = found["value"][0].as_py()
    assert row["items"] == [{"x": 1, "y": None}]
    assert row["map"] == [("k", 1)]


# Broken if it failed: a bad record could be as slow as all others together, or a hostile one end the process.
@pytest.mark.timeout(60)
def test_many_malformed_records_take_little_more_time() -> None:
    values = [b'{"a":%d}' % number if number % 2 else b'{"a":"x"}' for number in range(40_000)]
    found, malformed, _ = decode(
        TypedDecoder.json(A), records(*values, b"[" * 5_000_000, b'{"a":' * 1_000_000)
    )
    assert malformed == 20_002
    assert [row and row["a"] for row in found["value"].to_pylist()[:4]] == [None, 1, None, 3]


# Broken if it failed: CSV would be read into the wrong columns.
def test_lines() -> None:
    field = wanted(("c", pa.float64()), ("a", pa.int32()))
    decoder = TypedDecoder.csv(field, ["a", "b", "c"], ";", corrupt_column="bad")
    found, malformed, first = decode(decoder, records(b'1;"x;y";2.5', b";;", b"1;2", b"1,2,3"))
    assert found["value"].to_pylist() == [{"c": 2.5, "a": 1}, {"c": None, "a": None}, None, None]
    assert (malformed, first and first[0]) == (2, 2)


FLIGHT = """{"type":"record","name":"F","fields":[{"name":"a","type":"int"},
    {"name":"carrier","type":["null","string"],"default":null}]}"""


# Broken if it failed: records of a registry's users would be unreadable, or read by another schema.
def test_frames_of_a_registry() -> None:
    assert pa.schema(avro_schema(FLIGHT)) == pa.schema([("a", pa.int32()), ("carrier", pa.string())])
    decoder = TypedDecoder.avro(wanted(("a", pa.int32()), ("carrier", pa.string())), FLIGHT, framed=True)
    batch = records(
        struct.pack(">bi", 0, 70) + b"\x02\x02\x04UA", struct.pack(">bi", 0, 71) + b"\x02", b"\x02"
    )
    assert decoder.unknown_schemas(batch) == [70, 71]
    decoder.add_schema(70, FLIGHT)
    decoder.add_schema(71, None)
    found, malformed, first = decode(decoder, batch)
    assert found["value"].to_pylist() == [{"a": 1, "carrier": "UA"}, None, None]
    assert (malformed, first) == (2, (1, "the registry has no schema 71"))


# Broken if it failed: a caller's mistake would look like malformed records.
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TypedDecoder.json(pa.field("value", pa.int32())), "not a struct"),
        (lambda: TypedDecoder.json(wanted(("a", pa.duration("us")))), "no values of type Duration"),
        (lambda: TypedDecoder.csv(A, ["b"]), 'the line has no column "a"'),
        (lambda: TypedDecoder.csv(A, ["a"], "::"), "one byte"),
        (lambda: TypedDecoder.avro(A, "{"), "no typed column"),
        (lambda: TypedDecoder.json(A).decode(records(b"").select(["offset"])), 'no column "value"'),
        (lambda: TypedDecoder.json(A).decode(pa.record_batch({"value": ["text"]})), "not binary"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
