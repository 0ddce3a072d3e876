"""Records as Arrow: partitions on disk, or the bytes of a fetch, as record batches built in Rust.

    import pyarrow
    from logcore.columns import PartitionScan

    scan = PartitionScan("data/flights-0", "flights", 0, ["offset", "value"])
    table = pyarrow.Table.from_batches(pyarrow.record_batch(batch) for batch in scan)

The columns are those of Spark's Kafka source, and only the named ones are built: key and value (binary),
topic (string), partition (int32), offset (int64), timestamp (microseconds, UTC), timestampType (int32: 0
create time, 1 log append time, -1 none) and headers (a list of key and value, null when a record has none).
The batches speak Arrow's PyCapsule protocol, so pyarrow, polars and others take them without a copy.
Checksums are verified, compressed batches decompressed, control batches left out. Everything runs without the
GIL and nothing is ever written; a directory that a broker appends to is read up to where it ended when the
scan began.
"""

from logcore._native import PartitionScan, decode_batches, partition_offset_for_timestamp, partition_offsets

__all__ = ["PartitionScan", "decode_batches", "partition_offset_for_timestamp", "partition_offsets"]
