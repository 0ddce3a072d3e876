"""Records as Arrow: partitions on disk, or the bytes of a fetch, as record batches built in Rust.

>>> import logcore, pyarrow, tempfile
>>> from logcore.columns import PartitionScan
>>> directory = tempfile.mkdtemp() + "/flights-0"
>>> with logcore.open(directory) as log:
...     _ = log.append_records([(b"UA", b"departed"), (b"B6", b"landed")])
>>> scan = PartitionScan(directory, "flights", 0, ["offset", "value", "topic"])
>>> pyarrow.table(scan).to_pylist()[1]
{'offset': 1, 'value': b'landed', 'topic': 'flights'}

`Log.scan` does the same for a log that is open, and `Log.append_table` is the way back.

Only the named columns are built. They are those of Spark's Kafka source:

    key, value       binary
    topic            string
    partition        int32
    offset           int64
    timestamp        microseconds, UTC
    timestampType    int32: 0 create time, 1 log append time, -1 none
    headers          a list of structs of key and value; null when a record has none

The batches and the scan have Arrow's PyCapsule protocol, so pyarrow, polars and other libraries take them
without a copy. Checksums are verified. Control batches are left out, and so are the batches of the `aborted`
transactions. With `isolation_level="read_committed"` a scan finds out itself which those are. Everything runs
without the GIL, and nothing is written. Of a directory that a broker appends to, a scan reads what was there
when it began.

`TypedDecoder` makes a struct column of keys or values that are JSON, CSV, Avro or Protobuf. Rows of malformed
records are null, or are left out:

>>> fields = [("carrier", pyarrow.string()), ("delay", pyarrow.int32())]
>>> wanted = pyarrow.field("value", pyarrow.struct(fields))
>>> records = pyarrow.record_batch({"value": [b'{"carrier": "UA", "delay": 2}', b'{"carrier": "B6"']})
>>> decoded, malformed, first = TypedDecoder.json(wanted).decode(records)
>>> pyarrow.record_batch(decoded)["value"].to_pylist()
[{'carrier': 'UA', 'delay': 2}, None]
>>> malformed, first
(1, (1, 'the JSON object is cut off'))

`partition_splits` divides a partition into ranges for readers that work side by side.
"""

from logcore._log import COLUMNS
from logcore._native import (
    PartitionScan,
    TypedDecoder,
    avro_schema,
    decode_batches,
    partition_covers,
    partition_offset_for_timestamp,
    partition_offsets,
    partition_splits,
    partition_topic_id,
    protobuf_schema,
)

__all__ = [
    "COLUMNS",
    "PartitionScan",
    "TypedDecoder",
    "avro_schema",
    "decode_batches",
    "partition_covers",
    "partition_offset_for_timestamp",
    "partition_offsets",
    "partition_splits",
    "partition_topic_id",
    "protobuf_schema",
]
