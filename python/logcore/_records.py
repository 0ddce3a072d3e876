"""Records as a program gives them to a log, and record batches as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from logcore import _native
from logcore._native import Record

if TYPE_CHECKING:
    from typing_extensions import Buffer

Headers: TypeAlias = "Mapping[str, Buffer | None] | Sequence[tuple[str, Buffer | None]]"

RecordLike: TypeAlias = (
    "Buffer | Record"
    " | tuple[Buffer | None, Buffer | None]"
    " | tuple[Buffer | None, Buffer | None, Headers | None]"
    " | tuple[Buffer | None, Buffer | None, Headers | None, int | None]"
)
"""What can be appended: a value, a `Record`, or `(key, value)`, `(key, value, headers)`,
`(key, value, headers, timestamp)`. Keys and values are bytes-like or None."""


def build_batch(
    records: Iterable[RecordLike],
    compression: str = "none",
    *,
    level: int | None = None,
    producer: tuple[int, int, int] | None = None,
) -> bytes:
    """Encodes `records` as one record batch (format v2, KIP-98), for `Log.append_batches` or a Kafka client.

    `level` is on the codec's own scale, as in Kafka: 1 to 9 for gzip, or -1 for its default; 1 to 17 for lz4,
    without effect here; -131072 to 22 for zstd. none and snappy have no levels. `producer` is the id, epoch
    and first sequence of an idempotent producer.

    Raises ValueError for an unknown compression, a level that the codec does not have, or no records.

    >>> import logcore
    >>> batch = logcore.build_batch([(b"key", b"value", {"h": None}, 5)], compression="lz4")
    >>> logcore.parse_batches(batch)
    [Record(offset=0, timestamp=5, key=b'key', value=b'value', headers=(('h', None),))]
    """
    return _native.build_batch(records, compression, level, producer)


def parse_batches(
    batches: Buffer, offset: int = 0, *, aborted: Sequence[tuple[int, int, int | None]] = ()
) -> list[Record]:
    """Decodes the records at or after `offset` in whole batches. Checksums are verified; control records are
    left out.

    Batches may have any format (also v0 and v1). An incomplete batch at the end is ignored. Records of the
    `aborted` transactions are left out: see `Log.aborted_transactions`. None stands for an unknown offset of
    the marker, as in a Fetch response.

    Raises CorruptLogError or InvalidRecordError.

    >>> import logcore
    >>> batch = logcore.build_batch([b"departed", b"landed"], compression="gzip")
    >>> [(record.offset, record.value) for record in logcore.parse_batches(batch, offset=1)]
    [(1, b'landed')]
    """
    return _native.parse_batches(batches, offset, aborted=aborted)
