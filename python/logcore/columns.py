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

The columns are those of Spark's Kafka source, and only the named ones are built: key and value (binary),
topic (string), partition (int32), offset (int64), timestamp (microseconds, UTC), timestampType (int32: 0
create time, 1 log append time, -1 none) and headers (a list of key and value, null when a record has none).
The batches, and a scan as a whole, speak Arrow's PyCapsule protocol, so pyarrow, polars and others take them
without a copy. Checksums are verified, compressed batches decompressed, control batches left out, and the
batches of the `aborted` transactions that are named; a scan with `isolation_level="read_committed"` knows them from
the log. Everything runs without the GIL and nothing is ever
written; a directory that a broker appends to is read up to where it ended when the scan began.

Readers that work side by side take one range each of `partition_splits`.
"""

from logcore._log import COLUMNS
from logcore._native import (
    PartitionScan,
    decode_batches,
    partition_offset_for_timestamp,
    partition_offsets,
    partition_splits,
)

__all__ = [
    "COLUMNS",
    "PartitionScan",
    "decode_batches",
    "partition_offset_for_timestamp",
    "partition_offsets",
    "partition_splits",
]
