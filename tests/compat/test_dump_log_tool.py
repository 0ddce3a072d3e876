"""`logcore dump-log` beside Apache Kafka's DumpLogSegments on the same files: both print the same lines.

Broken if they failed: a script that parses the output of kafka-dump-log would read wrong data from ours.
"""

from __future__ import annotations

import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.util import calc_crc32c

import logcore
from cluster.cli._dump_metadata import CLUSTER_RECORDS, CONTROL_RECORDS, REMOTE_RECORDS
from logcore._native import encode_data
from tests.compat.conftest import ROOT, KafkaTools
from tests.compat.golden_directories import GOLDEN
from tests.protocol.messages import Schema, random_message, schemas

pytestmark = pytest.mark.compat

CRATES = ROOT / "rust" / "crates"
GOLDEN_LOG = CRATES / "storage" / "tests" / "fixtures" / "kafka-3.9.1" / "golden-0"
GOLDEN_BATCHES = CRATES / "records" / "tests" / "golden"
FIRST = "00000000000000000000"

Compare = Callable[..., tuple[str, str]]


@pytest.fixture
def compare(kafka_tools: KafkaTools) -> Compare:
    """Runs both tools, asserts that they print the same, and returns what they print."""

    def run(*arguments: str) -> tuple[str, str]:
        ours = [sys.executable, "-m", "cluster.cli", "dump-log", *arguments]
        theirs = kafka_tools.command("kafka.tools.DumpLogSegments", *arguments)
        done = [
            subprocess.run(command, capture_output=True, text=True, timeout=90) for command in (theirs, ours)
        ]
        assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
        assert done[1].stdout.splitlines() == done[0].stdout.splitlines()
        assert faults(done[1].stderr) == faults(done[0].stderr)
        return done[1].stdout, done[1].stderr

    return run


def faults(stderr: str) -> list[str]:
    """The faults of each file, sorted: Kafka prints the files in the order of a hash table."""
    return sorted(re.split(r"\n(?! )", stderr.rstrip("\n")))


def names(*paths: Path) -> str:
    return ",".join(map(str, paths))


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A directory of Kafka's: five codecs, headers, idempotent producers, a committed and an aborted
    transaction.
    """
    return Path(shutil.copytree(GOLDEN_LOG, tmp_path / "golden-0"))


def segment_files(directory: Path) -> list[Path]:
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    return sorted(file for file in directory.iterdir() if file.suffix in suffixes)


# Broken if it failed: a script would read wrong data from a directory that Kafka wrote.
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--deep-iteration"],
        ["--print-data-log"],
        ["--print-data-log", "--skip-record-metadata"],
        ["--deep-iteration", "--max-bytes", "3000"],
        ["--verify-index-only"],
        ["--index-sanity-check"],
        ["--key-decoder-class", "kafka.serializer.StringDecoder", "--max-bytes", "1000"],
    ],
    ids=" ".join,
)
def test_kafkas_own_directory(compare: Compare, golden: Path, flags: list[str]) -> None:
    out, err = compare("--files", names(*segment_files(golden)), *flags)
    assert "producerId: 5 producerEpoch: 0" in out
    assert err == ""


# Broken if it failed: old message formats or a codec would be printed in another form.
def test_every_format_and_codec(compare: Compare, tmp_path: Path) -> None:
    batches = sorted(GOLDEN_BATCHES.glob("*.bin"))
    assert len(batches) > 15
    logs = []
    for batch in batches:
        directory = tmp_path / batch.stem
        directory.mkdir()
        logs.append(Path(shutil.copy(batch, directory / f"{FIRST}.log")))
    out, _ = compare("--files", names(*logs), "--print-data-log")
    for word in (
        "magic: 0",
        "magic: 1",
        "LogAppendTime",
        "NoTimestampType",
        "isControl: true",
        "zstd",
        "lz4",
    ):
        assert word in out


# Broken if it failed: a script would read wrong data from a directory that our broker wrote.
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_log_that_we_wrote(compare: Compare, tmp_path: Path, codec: str) -> None:
    directory = tmp_path / "ours-0"
    with logcore.open(directory, compression=codec, segment_bytes=16384, index_interval_bytes=512) as log:
        for number in range(60):
            value = " ".join(f"{number * k % 1009:x}" for k in range(1, 100))
            log.append_records(
                [
                    (f"k{number}".encode(), value.encode(), [("h", b"1"), ("", None)], 1000 + number),
                    (None, b"", None, 900 + number),
                    (b"tombstone", None, None, 5),
                ]
            )
    files = segment_files(directory)
    assert sum(file.suffix == ".log" for file in files) > 1
    out, err = compare("--files", names(*files), "--print-data-log")
    assert f"compresscodec: {codec}" in out
    assert "headerKeys: [h,]" in out
    assert err == ""


# Broken if it failed: a script would not notice damage.
def test_damage_is_reported_as_by_kafka(compare: Compare, golden: Path) -> None:
    log = golden / f"{FIRST}.log"
    data = bytearray(log.read_bytes())
    length = struct.unpack_from(">i", data, 8)[0] + 12
    # A wrong checksum, a gap in the offsets, and garbage at the end.
    data[17] ^= 1
    struct.pack_into(">q", data, length, 6)
    log.write_bytes(data + b"\1" * 12)
    index = log.with_suffix(".index")
    entries = bytearray(index.read_bytes())
    struct.pack_into(">i", entries, 8, struct.unpack_from(">i", entries, 8)[0] + 1)
    struct.pack_into(">i", entries, 16, struct.unpack_from(">i", entries, 16)[0] + 1)
    index.write_bytes(entries)
    time_index = log.with_suffix(".timeindex")
    times = bytearray(time_index.read_bytes())
    struct.pack_into(">q", times, 0, struct.unpack_from(">q", times, 0)[0] + 5_000_000)
    struct.pack_into(">i", times, 32, struct.unpack_from(">i", times, 32)[0] + 1)
    time_index.write_bytes(times)
    unknown = golden / "notes.txt"
    unknown.write_text("")
    out, err = compare("--files", names(log, index, time_index, unknown), "--deep-iteration")
    assert "isvalid: false" in out
    assert "Found 12 invalid bytes at the end" in out
    for title in (
        "Mismatches in :",
        "Found timestamp mismatch in :",
        "Found out of order timestamp in :",
        "not found in the log",
        "Non-consecutive offsets in",
        "Ignoring unknown file",
    ):
        assert title in err


# Broken if it failed: numbers would be printed as text.
def test_number_decoders(compare: Compare, tmp_path: Path) -> None:
    records = [(struct.pack(">q", n * -(10**12)), struct.pack(">i", n)) for n in range(3)]
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(logcore.build_batch(records))
    package = "org.apache.kafka.tools.api."
    out, _ = compare(
        "--files",
        str(log),
        "--key-decoder-class",
        f"{package}LongDecoder",
        "--value-decoder-class",
        f"{package}IntegerDecoder",
    )
    assert "key: -2000000000000 payload: 2" in out


def data(name: str, version: int, **fields: Any) -> bytes:
    return struct.pack(">h", version) + encode_data(name, version, fields)


def member(version: int, **embedded: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "member_id": "m-1",
        "client_id": 'c "quoted"\n',
        "client_host": "/127.0.0.1",
        "session_timeout": 45000,
        "subscription": b"",
        "assignment": b"",
        **embedded,
    }
    if version >= 1:
        fields["rebalance_timeout"] = 300000
    if version >= 3:
        fields["group_instance_id"] = "static" if version == 3 else None
    return fields


# Broken if it failed: committed offsets and groups would be missing or wrong.
def test_consumer_offsets(compare: Compare, tmp_path: Path) -> None:
    records: list[tuple[bytes, bytes | None]] = []
    key = data("OffsetCommitKey", 1, group="g", topic="flights", partition=3)
    for version in range(5):
        fields: dict[str, Any] = {
            "offset": 10 + version,
            "metadata": "m",
            "commit_timestamp": 1_700_000_000_000,
        }
        if version == 1:
            fields["expire_timestamp"] = 1_800_000_000_000
        if version >= 3:
            fields["leader_epoch"] = 7
        records.append((key, data("OffsetCommitValue", version, **fields)))
    records.append((data("OffsetCommitKey", 0, group="g", topic="flights", partition=0), None))
    group = data("GroupMetadataKey", 2, group="g")
    owned = [{"topic": "flights", "partitions": [0, 2]}]
    for version in range(5):
        subscribed = data(
            "ConsumerProtocolSubscription",
            min(version, 3),
            topics=["flights", "airports"],
            user_data=b"\0\1" if version else None,
            **({"owned_partitions": owned} if version >= 1 else {}),
            **({"generation_id": 4} if version >= 2 else {}),
            **({"rack_id": "r"} if version >= 3 else {}),
        )
        assigned = data(
            "ConsumerProtocolAssignment", min(version, 3), assigned_partitions=owned, user_data=None
        )
        consumer = member(version, subscription=subscribed, assignment=assigned)
        for protocol_type, members in (
            ("consumer", [consumer, member(version)]),
            ("connect", [consumer]),
            ("", []),
        ):
            stamp = {"current_state_timestamp": 1_700_000_000_000} if version >= 2 else {}
            value = data(
                "GroupMetadataValue",
                version,
                protocol_type=protocol_type,
                generation=version,
                protocol="range" if members else None,
                leader="m-1" if members else None,
                members=members,
                **stamp,
            )
            records.append((group, value))
    records.append((group, None))
    records.append((struct.pack(">h", 99) + b"later", b"unknown"))
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(logcore.build_batch(records))
    out, _ = compare("--files", str(log), "--offsets-decoder")
    assert '"ownedPartitions":[{"topic":"flights","partitions":[0,2]}]' in out
    assert "payload: <DELETE>" in out
    assert "Unknown record type 99 at offset" in out


TOPIC_ID = bytes(range(240, 256))


def test_groups_of_the_consumer_protocol(compare: Compare, tmp_path: Path) -> None:
    # Broken if it failed: records of KIP-848's groups would be missing or wrong.
    group: dict[str, Any] = {"group_id": "g é"}
    one_member = {**group, "member_id": "m-1"}
    assigned = [
        {"topic_id": TOPIC_ID, "partitions": [0, 5]},
        {"topic_id": bytes(16), "partitions": []},
    ]
    member: dict[str, Any] = {
        "instance_id": None,
        "rack_id": None,
        "client_id": 'c "quoted"\n',
        "client_host": "/127.0.0.1",
        "subscribed_topic_names": ["flights", "airports"],
        "subscribed_topic_regex": None,
        "server_assignor": None,
    }
    classic = {
        "session_timeout_ms": 45000,
        "supported_protocols": [
            {"name": "range", "metadata": b"\0\3\xff"},
            {"name": "", "metadata": b""},
        ],
    }
    named = {
        "instance_id": "i",
        "rack_id": "r",
        "subscribed_topic_regex": "f.*",
        "server_assignor": "uniform",
    }
    current = {"member_epoch": 7, "previous_member_epoch": 6}
    unassigned = {"assigned_partitions": [], "partitions_pending_revocation": []}
    values: list[tuple[int, str, dict[str, Any], list[dict[str, Any]]]] = [
        (3, "ConsumerGroupMetadata", group, [{"epoch": 12}]),
        (
            4,
            "ConsumerGroupPartitionMetadata",
            group,
            [
                {"topics": []},
                {
                    "topics": [
                        {
                            "topic_id": TOPIC_ID,
                            "topic_name": "flights",
                            "num_partitions": 2,
                            "partition_metadata": [
                                {"partition": 0, "racks": ["a", "b"]},
                                {"partition": 1, "racks": []},
                            ],
                        },
                        {
                            "topic_id": bytes(16),
                            "topic_name": "airports",
                            "num_partitions": 1,
                            "partition_metadata": [],
                        },
                    ]
                },
            ],
        ),
        (
            5,
            "ConsumerGroupMemberMetadata",
            one_member,
            [
                member,
                {**member, **named, "rebalance_timeout_ms": 300_000},
                {**member, "subscribed_topic_names": [], "classic_member_metadata": classic},
            ],
        ),
        (6, "ConsumerGroupTargetAssignmentMetadata", group, [{"assignment_epoch": 3}]),
        (
            7,
            "ConsumerGroupTargetAssignmentMember",
            one_member,
            [{"topic_partitions": []}, {"topic_partitions": assigned}],
        ),
        (
            8,
            "ConsumerGroupCurrentMemberAssignment",
            one_member,
            [
                {**current, **unassigned, "state": 1},
                {
                    **current,
                    "state": 127,
                    "assigned_partitions": assigned,
                    "partitions_pending_revocation": assigned[:1],
                },
            ],
        ),
    ]
    records: list[tuple[bytes, bytes | None]] = []
    for version, name, key_fields, rows in values:
        key = data(f"{name}Key", version, **key_fields)
        records += [(key, data(f"{name}Value", 0, **row)) for row in rows]
        records.append((key, None))
    # Records of share groups are unknown in 3.9.
    records += [(struct.pack(">h", version) + b"\0\1g", None) for version in (9, 10, 11)]
    # A missing version, or a field that is newer than 3.9, does not stop the tool.
    epoch = data("ConsumerGroupMetadataValue", 0, epoch=5)
    key = data("ConsumerGroupMetadataKey", 3, group_id="g")
    records += [(b"\0", None), (key, b"\0"), (key, epoch[:-1] + b"\1\0\2hi")]
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(logcore.build_batch(records))
    out, _ = compare("--files", str(log), "--offsets-decoder")
    assert '"topicId":"8PHy8_T19vf4-fr7_P3-_w"' in out
    assert '"classicMemberMetadata":{"sessionTimeoutMs":45000' in out
    assert '{"type":"8","data":{"groupId":"g é","memberId":"m-1"}}' in out
    assert "Unknown record type 9 at offset" in out
    assert out.count("Error") == 2


# Broken if it failed: the states of transactions would be missing or wrong.
def test_transaction_state(compare: Compare, tmp_path: Path) -> None:
    key = data("TransactionLogKey", 0, transactional_id="transfer-1")
    records: list[tuple[bytes, bytes | None]] = []
    for version in range(2):
        for status in range(8):
            # One partition only: Kafka prints several in the order of a hash table.
            partitions = None if status == 0 else [{"topic": "accounts", "partition_ids": [2]}]
            value = data(
                "TransactionLogValue",
                version,
                producer_id=4000 + status,
                producer_epoch=3,
                transaction_timeout_ms=60000,
                transaction_status=status,
                transaction_partitions=partitions,
                transaction_last_update_timestamp_ms=1_700_000_000_000,
                transaction_start_timestamp_ms=1_600_000_000_000,
            )
            records.append((key, value))
    records.append((key, None))
    records.append((struct.pack(">h", 7), None))
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(logcore.build_batch(records))
    out, _ = compare("--files", str(log), "--transaction-log-decoder")
    assert "state=PrepareCommit,partitions=[accounts-2]" in out


# Broken if it failed: some directory of an old or killed broker would be printed in another form.
@pytest.mark.parametrize(
    "flags",
    [["--deep-iteration", "--print-data-log"], ["--index-sanity-check"], ["--verify-index-only"], []],
    ids=" ".join,
)
def test_every_golden_directory(compare: Compare, tmp_path: Path, flags: list[str]) -> None:
    """Old formats, transactions, compacted logs, and the directory of a killed broker."""
    copy = shutil.copytree(GOLDEN, tmp_path / "golden")
    kinds = (".index", ".timeindex") if len(flags) == 1 else (".log", ".txnindex", ".snapshot")
    files = [file for file in sorted(copy.glob("*/*")) if file.suffix in kinds and file.stat().st_size]
    if flags == ["--index-sanity-check"]:
        # Neither tool accepts an index with preallocated zeros.
        files = [file for file in files if "killed" not in file.parent.name]
    assert len(files) > 100
    out, _ = compare(*flags, "--files", names(*files))
    assert out.count("Dumping") == len(files)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def framed(kind: int, name: str, version: int, message: dict[str, Any]) -> bytes:
    """A record in the frame of both metadata topics."""
    return varint(1) + varint(kind) + varint(version) + encode_data(name, version, message)


def schemas_of(kinds: dict[int, str]) -> Iterator[tuple[int, Schema, int]]:
    known = {schema.name: schema for schema in schemas() if schema.kind == "data"}
    for kind, name in kinds.items():
        for version in known[name].versions:
            yield kind, known[name], version


NOT_RECORDS = [
    b"",
    b"\x01",
    b"\x00\x00\x00",
    b"\x02\x00\x00",
    b"\x01\xff\xff\x7f\x00",
    b"\x01\xff\xff\xff\xff\xff\xff",
    b"\x01\x63\x00",
]


@pytest.mark.parametrize("seed", range(3))
def test_cluster_metadata(compare: Compare, tmp_path: Path, seed: int) -> None:
    # Broken if it failed: records of a KRaft cluster's metadata would be missing or wrong.
    print(f"seed {seed}")
    source = random.Random(seed)
    directory = tmp_path / "__cluster_metadata-0"
    values = [
        framed(kind, schema.name, version, random_message(schema.fields, version, source))
        for kind, schema, version in schemas_of(CLUSTER_RECORDS)
        for _ in range(3)
    ]
    with logcore.open(directory) as log:
        log.append_records([(None, value, None, 1000) for value in values + NOT_RECORDS])
    out, _ = compare("--files", str(directory / f"{FIRST}.log"), "--cluster-metadata-decoder")
    for name in ("REGISTER_BROKER_RECORD", "PARTITION_CHANGE_RECORD", "ZK_MIGRATION_STATE_RECORD"):
        assert out.count(f'"type":"{name}"') >= 3
    assert out.count("skipping.") == len(NOT_RECORDS)
    compare(
        "--files", str(directory / f"{FIRST}.log"), "--cluster-metadata-decoder", "--skip-record-metadata"
    )


def test_a_formatted_kraft_directory(compare: Compare, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    # Broken if it failed: snapshots of KRaft's metadata could not be read.
    logs = tmp_path / "logs"
    properties = tmp_path / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@localhost:9093\n"
        "listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={logs}\n"
    )
    scram = "SCRAM-SHA-256=[name=alice,password=secret]"
    storage = (
        "format",
        "--config",
        str(properties),
        "--cluster-id",
        "PGe0vV0nQfOgQnwyn2aVtg",
        "--add-scram",
        scram,
    )
    kafka_tools.run("kafka.tools.StorageTool", *storage)
    snapshot = logs / "bootstrap.checkpoint"
    out, _ = compare("--files", str(snapshot), "--cluster-metadata-decoder")
    assert "KRaft bootstrap snapshot" in out
    assert "SnapshotHeader {" in out
    assert '"type":"USER_SCRAM_CREDENTIAL_RECORD"' in out
    named = tmp_path / "00000000000000000007-0000000003.checkpoint"
    shutil.copy(snapshot, named)
    out, _ = compare("--files", str(named), "--cluster-metadata-decoder")
    assert "Snapshot end offset: 7, epoch: 3" in out


def test_control_records_of_kraft(compare: Compare, tmp_path: Path) -> None:
    # Broken if it failed: the voters of a KRaft cluster would be missing.
    source = random.Random(7)
    known = {schema.name: schema for schema in schemas() if schema.kind == "data"}
    batches = b""
    for offset, (kind, (_, name)) in enumerate(CONTROL_RECORDS.items()):
        message = random_message(known[name].fields, 0, source) | {"version": 0}
        batch = bytearray(
            logcore.build_batch([(struct.pack(">hh", 0, kind), encode_data(name, 0, message), None, 1000)])
        )
        struct.pack_into(">q", batch, 0, offset)
        struct.pack_into(">h", batch, 21, 0x20)
        struct.pack_into(">I", batch, 17, calc_crc32c(bytes(batch[21:])))
        batches += batch
    log = tmp_path / f"{FIRST}.log"
    log.write_bytes(batches)
    out, _ = compare("--files", str(log), "--cluster-metadata-decoder")
    assert 'KRaftVersion {"version":0,"kRaftVersion":' in out
    assert 'KRaftVoters {"version":0,"voters":[' in out


@pytest.mark.parametrize("seed", range(3))
def test_remote_log_metadata(compare: Compare, tmp_path: Path, seed: int) -> None:
    # Broken if it failed: the locations of a tiered topic's segments would be missing or wrong.
    print(f"seed {seed}")
    source = random.Random(seed)
    directory = tmp_path / "__remote_log_metadata-0"
    values = []
    for kind, schema, version in schemas_of(REMOTE_RECORDS):
        for _ in range(6):
            message = random_message(schema.fields, version, source)
            # Values that Kafka's classes accept.
            if "start_offset" in message:
                start = source.randrange(1 << 40)
                message |= {"start_offset": start, "end_offset": start + source.randrange(1 << 20)}
                epochs = source.sample(range(1000), 5)
                message["segment_leader_epochs"] = [{"leader_epoch": e, "offset": e * 3} for e in epochs]
            for state, count in (("remote_log_segment_state", 4), ("remote_partition_delete_state", 3)):
                if state in message:
                    message[state] = source.randrange(count)
            values.append(framed(kind, schema.name, version, message))
    with logcore.open(directory) as log:
        log.append_records([(None, value, None, 1000) for value in values + NOT_RECORDS])
    out, _ = compare("--files", str(directory / f"{FIRST}.log"), "--remote-log-metadata-decoder")
    for name in ("Metadata", "MetadataUpdate", "MetadataSnapshot"):
        assert out.count(f"payload: RemoteLogSegment{name}{{") == 6
    assert out.count("payload: RemotePartitionDeleteMetadata{") == 6
