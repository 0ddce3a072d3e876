"""How far a stream has come: offsets of partitions, and what the next micro-batch reads. Pure.

In checkpoints offsets have the form of Spark's Kafka source, `{"topic":{"0":23}}`, so that a query's
checkpoint moves over. How `maxOffsetsPerTrigger` is shared among partitions is that source's rule, too
(`KafkaMicroBatchStream.rateLimit`), so that both read the same micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark_logcore._plan import Bounds, Key, OffsetRange

Offsets: TypeAlias = dict[Key, int]
Json: TypeAlias = dict[str, dict[str, int]]


def to_json(offsets: Mapping[Key, int]) -> Json:
    """The form of checkpoints, sorted: Spark compares its text."""
    found: Json = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Reads the form of checkpoints."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def share(start: Mapping[Key, int], latest: Mapping[Key, int], most: int) -> Offsets:
    """The end of a micro-batch of about `most` offsets. Each partition has its share in proportion to what is
    new in it, rounded down, and one offset at least. Every partition of `latest` is in `start`.
    """
    new = {key: end - start[key] for key, end in latest.items() if end > start[key]}
    total = sum(new.values())
    until = dict(latest)
    for key, size in new.items():
        part = most * (size / total)
        until[key] = min(latest[key], start[key] + (math.ceil(part) if part < 1 else math.floor(part)))
    return until


def offsets_within(
    start: Mapping[Key, int],
    latest: Mapping[Key, int],
    bounds: Mapping[Key, Bounds],
    sizes: Mapping[Key, int],
    most_bytes: int,
) -> int:
    """How many new offsets, shared among partitions in proportion, have about `most_bytes`; 1 at least.
    `sizes` are those of whole partitions, so a record counts as an average one.
    """
    new_bytes = 0.0
    for key, end in latest.items():
        there = bounds[key].latest - bounds[key].earliest
        if there > 0:
            new_bytes += sizes[key] * max(end - start[key], 0) / there
    new = count_new(start, latest)
    return new if new_bytes <= most_bytes else max(int(new * (most_bytes / new_bytes)), 1)


def count_new(start: Mapping[Key, int], latest: Mapping[Key, int]) -> int:
    """The offsets that a micro-batch up to `latest` would have."""
    return sum(max(end - start[key], 0) for key, end in latest.items())


def ranges(
    start: Mapping[Key, int],
    end: Mapping[Key, int],
    bounds: Mapping[Key, Bounds],
    lost: Callable[[str], None],
) -> list[OffsetRange]:
    """What a micro-batch reads. `bounds` has the partitions that exist now. Calls `lost` with a sentence for
    each loss of records: a deleted partition, one that was made anew, offsets that retention deleted.
    """
    found = []
    for key in sorted(start.keys() | end.keys()):
        name = f"{key[0]}-{key[1]}"
        if key not in end or key not in bounds:
            lost(f"{name} was deleted; the stream had read it up to offset {start.get(key, 0)}")
            continue
        found_at, earliest = bounds[key], bounds[key].earliest
        first, until = start.get(key), end[key]
        if first is None:
            if earliest > 0:
                lost(f"{name} is new, but its first offset is {earliest}, not 0")
            first = min(earliest, until)
        if until < first:
            lost(f"{name} ends at offset {until}, and the stream had read it up to {first}: it was made anew")
            continue
        if first < earliest and first < until:
            gone = min(earliest, until)
            lost(f"offsets [{first}, {gone}) of {name} were deleted before the stream had read them")
            first = gone
        if until > first:
            found.append(OffsetRange(*key, first, until, found_at.leader_epoch, found_at.topic_id))
    return found
