"""Typed values: `value.format` and `key.format`, beside Spark's own from_json and from_csv.

Broken if they failed: a job would have other values than with Spark's functions, or lose malformed records.
"""

from __future__ import annotations

import base64
import json
import logging
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, from_csv, from_json
from pyspark.sql.types import DataType, LongType, StructType

from pyspark_logcore._log import rows_of
from pyspark_logcore._options import parse_options
from pyspark_logcore._plan import OffsetRange
from pyspark_logcore._source import DefaultSource
from tests.columns.segment_files import Record, write_partition
from tests.spark.streams import run_available

pytestmark = pytest.mark.timeout(900)

JSON = (
    "carrier string, flight int, distance bigint, air_time double, cancelled boolean, day date, "
    "at timestamp, price decimal(8,2), tags array<string>, "
    "place struct<origin:string,seats:array<struct<row:int>>>, extra map<string,int>, tiny tinyint, "
    "local timestamp_ntz, bytes binary"
)


def flight(number: int) -> dict[str, object]:
    """A flight with some of the fields of `JSON`, and others."""
    whole: dict[str, object] = {
        "carrier": ["UA", "B6", 'q"\\ü\n😀', ""][number % 4],
        "flight": number - 50,
        "distance": number * 10_000_000_000,
        "air_time": number / 3,
        "cancelled": number % 2 == 0,
        "day": f"2013-01-{number % 28 + 1:02}",
        "at": f"2013-01-01T{number % 24:02}:05:09.123{'Z' if number % 3 else '+02:00'}",
        "price": float(Decimal(number) / 8),
        "tags": ["a", None, str(number)][: number % 4],
        "place": None if number % 7 == 0 else {"origin": "JFK", "seats": [{"row": number}, {}]},
        "extra": {"x": number, "y": None},
        "tiny": number % 100,
        "local": "2013-06-01 12:00:00",
        "bytes": base64.b64encode(bytes(range(number % 9))).decode(),
        "unknown": [{"deep": [1, 2, {}]}],
    }
    return {name: value for at, (name, value) in enumerate(whole.items()) if (number + at) % 5}


def write(path: Path, values: list[bytes | None], keys: list[bytes | None] | None = None) -> Path:
    """Topic t with these records in one partition."""
    given = keys or [None] * len(values)
    records = [
        Record(offset, 1_700_000_000_000 + offset, key, value)
        for offset, (key, value) in enumerate(zip(given, values, strict=True))
    ]
    write_partition(path / "t-0", records, "lz4")
    return path


def read(spark: SparkSession, path: Path, user_schema: str | None = None, **options: str) -> DataFrame:
    names = {name.replace("_", ".", 1): text for name, text in options.items()}
    reader = spark.read.format("logcore").options(**names)
    return (reader if user_schema is None else reader.schema(user_schema)).load(str(path))


def rows(found: DataFrame) -> list[Row]:
    return found.orderBy("offset").collect()


# Broken if it failed: a job that moves from from_json would have other rows.
def test_json_is_as_from_json(spark: SparkSession, tmp_path: Path) -> None:
    written = [json.dumps(flight(number)).encode() for number in range(300)]
    write(tmp_path, [*written, None, b"{}"])
    found = read(spark, tmp_path, value_format="json", value_schema=JSON)
    assert found.columns[-1] == "_corrupt_record"
    schema = DataType.fromDDL(JSON)
    assert found.schema["value"].dataType == schema
    plain = read(spark, tmp_path).select(
        "offset", from_json(col("value").cast("string"), JSON).alias("value")
    )
    assert rows(found.select("offset", "value")) == rows(plain)
    assert found.where("_corrupt_record is not null").count() == 0
    assert found.where("value is null").count() == 1


# Broken if it failed: a job that moves from from_csv would have other rows.
def test_csv_is_as_from_csv(spark: SparkSession, tmp_path: Path) -> None:
    lines = [
        f'{number},"x, ""{number}""",{number / 4},{number % 2 == 0},2013-02-{number % 28 + 1:02},{number}.55'
        for number in range(200)
    ]
    write(tmp_path, [*(line.encode() for line in lines), b",,,,,", None])
    ddl = "a int comment 'its, number', `b c` string, c double, d boolean, e date, f decimal(10, 1)"
    found = read(spark, tmp_path, value_format="csv", value_schema=ddl)
    assert found.schema["value"].dataType == DataType.fromDDL(ddl)
    options = {"escape": '"'}
    plain = read(spark, tmp_path).select(
        "offset", from_csv(col("value").cast("string"), ddl, options).alias("value")
    )
    assert rows(found.select("offset", "value")) == rows(plain)
    part = read(
        spark,
        tmp_path,
        "value struct<f:decimal(10,1),a:int>, offset long",
        value_format="csv",
        value_schema=ddl,
    )
    assert rows(part.select("value.*", "offset"))[3] == Row(f=Decimal("3.6"), a=3, offset=3)


MIXED: list[bytes | None] = [b'{"a":1}', b'{"a":"x"}', None, b"half {", b'{"a":5}']


# Broken if it failed: a malformed record would be lost, or would be a row where the user wants none.
def test_modes(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, MIXED, [b"1", b"k", None, b"3", b"x"])
    options = {"value_format": "json", "value_schema": "a int"}
    found = rows(
        read(spark, tmp_path, **options, columnNameOfCorruptRecord="bad").select("offset", "value", "bad")
    )
    assert [(row.offset, row.value and row.value.a, row.bad and bytes(row.bad)) for row in found] == [
        (0, 1, None),
        (1, None, b'{"a":"x"}'),
        (2, None, None),
        (3, None, b"half {"),
        (4, 5, None),
    ]
    dropped = read(spark, tmp_path, **options, mode="DROPMALFORMED")
    assert "_corrupt_record" not in dropped.columns
    assert [row.offset for row in rows(dropped)] == [0, 2, 4]
    with pytest.raises(Exception, match=r"t-0: the value at offset 1 is malformed \(json\): .*\"a\""):
        read(spark, tmp_path, **options, mode="failfast").collect()

    keys = read(spark, tmp_path, key_format="csv", key_schema="n int", **options)
    found = rows(keys.select("offset", "key", "value", "_corrupt_key", "_corrupt_record"))
    assert [row.key and row.key.n for row in found] == [1, None, None, 3, None]
    assert [row.value and row.value.a for row in found] == [1, None, None, None, 5]
    assert [row.offset for row in found if row._corrupt_key is not None] == [1, 4]
    both = read(spark, tmp_path, key_format="csv", key_schema="n int", **options, mode="dropmalformed")
    assert [row.offset for row in rows(both)] == [0, 2]


# Broken if it failed: nobody would know that records are malformed.
def test_malformed_records_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, MIXED)
    options = {"path": str(tmp_path), "value.format": "json", "mode": "dropmalformed"}
    schema = StructType().add("value", StructType().add("a", LongType()))
    with caplog.at_level(logging.WARNING, "pyspark_logcore"):
        batches = list(rows_of(parse_options(options), schema).read(OffsetRange("t", 0, 0, 5)))
    assert sum(batch.num_rows for batch in batches) == 3
    (line,) = caplog.messages
    assert line.startswith(
        "t-0: 2 malformed among 5 records (mode dropmalformed); the first: the value at offset 1"
    )


# Broken if it failed: a job would pay for fields that it does not use.
def test_the_users_schema_prunes_fields(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [json.dumps(flight(2)).encode(), b"{"])
    found = read(
        spark,
        tmp_path,
        "value struct<place:struct<origin:string>,flight:int>, offset long",
        value_format="json",
    )
    assert found.columns == ["value", "offset"]
    first = rows(found)[0]
    assert first.value.asDict(True) == {"place": {"origin": "JFK"}, "flight": -48}
    kept = read(spark, tmp_path, "_corrupt_record binary, value struct<flight:int>", value_format="json")
    assert kept.where("_corrupt_record is not null").count() == 1
    only = read(spark, tmp_path, "offset long", value_format="json", value_schema="flight int")
    assert only.count() == 2


# Broken if it failed: a stream would have other columns than a batch.
def test_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "logs", MIXED)
    options = {"value.format": "json", "value.schema": "a int", "startingOffsets": "earliest"}
    stream = spark.readStream.format("logcore").options(**options).load(str(tmp_path / "logs"))
    run_available(
        stream.select("value.a", "offset", "_corrupt_record"), tmp_path / "out", tmp_path / "checkpoint"
    )
    found = rows(spark.read.parquet(str(tmp_path / "out")))
    assert [(row.offset, row.a) for row in found] == [(0, 1), (1, None), (2, None), (3, None), (4, 5)]
    assert [row.offset for row in found if row._corrupt_record is not None] == [1, 3]


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Flight",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "carrier", "type": ["null", "string"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        ],
    }
)
# a 1, carrier UA, at 1 ms.
AVRO_RECORD = b"\x02\x02\x04UA\x02"


def test_avro(spark: SparkSession, tmp_path: Path) -> None:
    # Broken if it failed: records in Avro could not be read.
    write(tmp_path, [AVRO_RECORD, AVRO_RECORD[:-1], None])
    found = read(spark, tmp_path, value_format="avro", value_schema=AVRO)
    assert found.schema["value"].dataType == DataType.fromDDL("a int, carrier string, at timestamp")
    values = rows(found.selectExpr("offset", "value.a", "value.carrier", "unix_millis(value.at) at"))
    assert [(row.a, row.carrier, row.at) for row in values] == [
        (1, "UA", 1),
        (None, None, None),
        (None, None, None),
    ]
    part = read(
        spark, tmp_path, "value struct<carrier:string>, offset long", value_format="avro", value_schema=AVRO
    )
    assert [row.value and row.value.carrier for row in rows(part)] == ["UA", None, None]
    with pytest.raises(Exception, match=r"there is no field 'value.b'; the fields are a, carrier, at"):
        read(spark, tmp_path, "value struct<b:int>", value_format="avro", value_schema=AVRO).collect()


@contextmanager
def answering(answers: Mapping[str, object], user: str | None = None) -> Iterator[str]:
    """A registry with these answers, for this user only. Yields its URL."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            may = (
                user is None
                or self.headers["Authorization"] == f"Basic {base64.b64encode(user.encode()).decode()}"
            )
            found = answers.get(self.path) if may else None
            self.send_response(401 if not may else 200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found or {"error_code": 40403}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def registry() -> Iterator[str]:
    """A registry with schema 7, which is also the latest of the subject t-value, and its older version 6."""
    old = '{"type":"record","name":"Flight","fields":[{"name":"a","type":"int"}]}'
    known = {"/schemas/ids/7": AVRO, "/schemas/ids/6": old, "/subjects/t-value/versions/latest": AVRO}
    with answering({path: {"schema": schema} for path, schema in known.items()}) as url:
        yield url


# Broken if it failed: topics whose producers use a registry would be read by a wrong schema, or not at all.
def test_avro_of_a_registry(spark: SparkSession, tmp_path: Path, registry: str) -> None:
    def framed(number: int, body: bytes) -> bytes:
        return struct.pack(">bi", 0, number) + body

    write(tmp_path, [framed(7, AVRO_RECORD), framed(6, b"\x04"), framed(5, b"\x04"), AVRO_RECORD, None])
    options = {"value.format": "avro", "schema.registry.url": registry, "subscribe": "t"}
    found = spark.read.format("logcore").options(**options).load(str(tmp_path))
    values = rows(found.select("offset", "value", "_corrupt_record"))
    assert [row.value and (row.value.a, row.value.carrier) for row in values] == [
        (1, "UA"),
        (2, None),
        None,
        None,
        None,
    ]
    assert [row.offset for row in values if row._corrupt_record is not None] == [2, 3]
    with pytest.raises(Exception, match="the registry has no schema 5"):
        spark.read.format("logcore").options(**options, mode="failfast").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match=r"option 'schema.registry.url': .* has no Avro schema 'absent'"):
        spark.read.format("logcore").options(**{**options, "value.subject": "absent"}).load(str(tmp_path))


# Broken if it failed: topics could not be read whose schemas refer to those of other subjects, or whose
# registry wants a password.
def test_a_registry_with_a_password_and_references(spark: SparkSession, tmp_path: Path) -> None:
    place = '{"type":"record","name":"Place","namespace":"p","fields":[{"name":"city","type":"Name"}]}'
    name = '{"type":"record","name":"p.Name","fields":[{"name":"text","type":"string"}]}'
    trip = (
        '{"type":"record","name":"Trip","namespace":"p","fields":[{"name":"from","type":["null","Place"]},'
        '{"name":"to","type":"p.Place"}]}'
    )
    answers: dict[str, dict[str, Any]] = {
        "/subjects/t-value/versions/latest": {
            "schema": trip,
            "references": [{"name": "p.Place", "subject": "place", "version": 2}],
        },
        "/subjects/place/versions/2": {
            "schema": place,
            "references": [{"name": "p.Name", "subject": "name", "version": 1}],
        },
        "/subjects/name/versions/1": {"schema": name},
    }
    answers["/schemas/ids/9"] = answers["/subjects/t-value/versions/latest"]
    with answering(answers, "user:pass word") as url:
        write(tmp_path, [struct.pack(">bi", 0, 9) + b"\x02\x02A\x04BC"])

        def load(registry: str, **user: str) -> DataFrame:
            options = {"value.format": "avro", "subscribe": "t", "schema.registry.url": registry}
            password = {f"schema.registry.basic.auth.{name}": text for name, text in user.items()}
            return spark.read.format("logcore").options(**options, **password).load(str(tmp_path))

        with pytest.raises(Exception, match=r"401.*set option 'schema.registry.basic.auth.user.info'"):
            load(url)
        with_password = url.replace("http://", "http://user:pass%20word@")
        for found in (load(url, **{"user.info": "user:pass word"}), load(with_password)):
            values = [(row.value["from"].city.text, row.value.to.city.text) for row in found.collect()]
            assert values == [("A", "BC")]
        del answers["/subjects/name/versions/1"]
        with pytest.raises(Exception, match="no version 1 of 'name', to which a schema refers"):
            load(with_password)


def field(number: int, body: bytes) -> bytes:
    """A Protobuf field with a length, below 128."""
    return bytes([number << 3 | 2, len(body)]) + body


def descriptors() -> bytes:
    """Those of `message Flight { int32 a = 1; string carrier = 2; }` in package p, as protoc writes them."""
    a = field(1, b"a") + b"\x18\x01\x20\x01\x28\x05"
    carrier = field(1, b"carrier") + b"\x18\x02\x20\x01\x28\x09"
    message = field(1, b"Flight") + field(2, a) + field(2, carrier)
    return field(1, field(1, b"f.proto") + field(2, b"p") + field(4, message) + field(12, b"proto3"))


def test_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    # Broken if it failed: records in Protobuf could not be read.
    (tmp_path / "set").write_bytes(descriptors())
    record = b"\x08\x05" + field(2, b"UA")
    frame = struct.pack(">bi", 0, 7)
    write(tmp_path / "plain", [record, None, b"\x08", field(2, b"B6")])
    write(tmp_path / "framed", [frame + b"\0" + record, frame + b"\x04\x02\0" + record, record, None])
    options = {
        "value_format": "protobuf",
        "value_descriptor": str(tmp_path / "set"),
        "value_message": "p.Flight",
    }
    found = read(spark, tmp_path / "plain", **options)
    assert found.schema["value"].dataType == DataType.fromDDL("a int, carrier string")
    values = [row.value and tuple(row.value) for row in rows(found)]
    assert values == [(5, "UA"), None, None, (None, "B6")]
    assert found.where("_corrupt_record is not null").count() == 1
    framed = read(spark, tmp_path / "framed", **options, value_framing="confluent")
    assert [row.value and row.value.a for row in rows(framed)] == [5, 5, None, None]
    with pytest.raises(Exception, match=r"'value.descriptor': .*no message .p.Other"):
        read(spark, tmp_path / "plain", **{**options, "value_message": "p.Other"})


# Broken if it failed: a user would search for the option that is wrong.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value.format": "xml"}, "'value.format' must be one of json, csv, avro, protobuf, not 'xml'"),
        ({"value.format": "json"}, "set option 'value.schema'"),
        ({"key.format": "csv"}, "set option 'key.schema'"),
        ({"value.format": "avro"}, "set option 'value.schema' to an Avro schema, or 'schema.registry.url'"),
        ({"value.format": "avro", "value.schema": "{"}, "option 'value.schema'"),
        ({"value.schema": "a int"}, "'value.schema' needs option 'value.format'"),
        ({"mode": "permissive"}, "'mode' needs option 'value.format' or 'key.format'"),
        ({"key.schema": "a int", "value.format": "json"}, "'key.schema' needs option 'key.format'"),
        (
            {"value.format": "json", "mode": "drop"},
            "'mode' must be one of permissive, dropmalformed, failfast",
        ),
        ({"value.format": "csv", "sep": "::"}, "'sep' must be one ASCII character"),
        (
            {"value.format": "json", "columnNameOfCorruptRecord": "key"},
            "'columnNameOfCorruptRecord': 'key' is",
        ),
        ({"value.format": "protobuf", "value.message": "M"}, "set option 'value.descriptor'"),
        ({"key.format": "protobuf", "key.descriptor": "/absent"}, "set option 'key.message'"),
        (
            {"key.format": "protobuf", "key.descriptor": "/absent", "key.message": "M"},
            "option 'key.descriptor': .*/absent",
        ),
        ({"value.format": "avro", "schema.registry.url": "file:///x"}, "'schema.registry.url' must be http"),
        ({"value.format": "avro", "schema.registry.url": "http://h"}, "'value.subject': no single topic"),
        ({"value.format": "avro", "schema.registry.url": "http://u@h"}, "must be user:password"),
        (
            {"value.format": "json", "schema.registry.basic.auth.user.info": "u:p"},
            "needs option 'schema.registry.url'",
        ),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DefaultSource({"path": "/logs", **options}).schema()


# Broken if it failed: a query would fail in its tasks, or read null, for a column that cannot be.
@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("value string", "'value' is a struct"),
        ("value struct<a:int> not null", "none is NOT NULL"),
        ("value struct<a:int not null>", "none is NOT NULL"),
        ("value struct<a:map<date,int>>", "'value': .*a map has strings or integers as keys"),
        ("value struct<a:interval day>", "records have no values of type interval day"),
        ("_corrupt_record binary", "needs column 'value' beside it"),
        ("value struct<a:int>, _corrupt_record string", "'_corrupt_record' is binary"),
        ("value struct<a:int>, other int", "no column 'other'; the columns are .*_corrupt_record"),
    ],
)
def test_a_schema_that_cannot_be(spark: SparkSession, ddl: str, message: str) -> None:
    schema = DataType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    with pytest.raises(ValueError, match=message):
        DefaultSource({"path": "/logs", "value.format": "json"}).reader(schema)


def test_a_schema_that_is_none_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    # Broken if it failed: a typing error in a schema would be hard to find.
    with pytest.raises(Exception, match="carrier strong"):
        read(spark, tmp_path, value_format="json", value_schema="carrier strong, a int")
