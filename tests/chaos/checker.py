"""The promises that a history must keep. Pure: it takes a history and returns what is wrong with it.

- An acknowledged record is read, at the offset of its acknowledgement.
- No record of an idempotent producer is there twice, and none that was not sent is there.
- A producer's records of one key are in one partition, in the order in which they were sent.
- What any consumer read is there at the end, at its offset: it was not above the high watermark.
- The offsets of a partition are dense, from 0. A consumer of a partition misses none.
- A group's members together read every acknowledged record.
- The replicas of a partition are equal at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from .history import UNKNOWN_OFFSET, History, Read, value_of

Check = Callable[[History], Iterator[str]]


def problems(history: History) -> list[str]:
    """What is wrong with the history; empty if nothing is."""
    return [problem for check in CHECKS for problem in check(history)]


def _failures(history: History) -> Iterator[str]:
    """The producers wait for longer than any fault lasts, so each record must be acknowledged in the end."""
    for each in history.failed:
        yield f"not delivered: {value_of(each.producer, each.number)}: {each.error}"
    answered = {(each.producer, each.number) for each in history.acked}
    answered |= {(each.producer, each.number) for each in history.failed}
    for sent in history.sent:
        if (sent.producer, sent.number) not in answered:
            yield f"never answered: {value_of(sent.producer, sent.number)}"


def _acknowledged_are_read(history: History) -> Iterator[str]:
    where = {(each.partition, each.value): each.offset for each in history.final}
    for each in history.acked:
        value = value_of(each.producer, each.number)
        found = where.get((each.partition, value))
        if found is None:
            yield f"lost: {value}, acknowledged at {each.partition}@{each.offset}"
        elif each.offset not in (found, UNKNOWN_OFFSET):
            yield f"moved: {value}, acknowledged at {each.partition}@{each.offset}, is at {found}"


def _nothing_twice(history: History) -> Iterator[str]:
    sent = {value_of(each.producer, each.number): each.key for each in history.sent}
    for value, times in Counter(each.value for each in history.final).items():
        if times > 1:
            places = [f"{each.partition}@{each.offset}" for each in history.final if each.value == value]
            yield f"duplicate: {value} is at {', '.join(places)}"
    for each in history.final:
        if sent.get(each.value) != each.key:
            yield f"never sent: {each.value} with key {each.key} at {each.partition}@{each.offset}"


def _in_order(history: History) -> Iterator[str]:
    last: dict[tuple[str, str], tuple[int, Read]] = {}
    for each in sorted(history.final, key=lambda read: (read.partition, read.offset)):
        producer, _, text = each.value.rpartition(" ")
        number, before = int(text), last.get((producer, each.key))
        if before is not None and before[1].partition != each.partition:
            yield (
                f"scattered: key {each.key} of {producer} is in {before[1].partition} and {each.partition}"
            )
        elif before is not None and before[0] > number:
            yield (
                f"order: {before[1].value} at {each.partition}@{before[1].offset} comes before "
                f"{each.value} at {each.offset}, with the same key {each.key}"
            )
        last[producer, each.key] = (number, each)


def _reads_stay(history: History) -> Iterator[str]:
    final = {(each.partition, each.offset): (each.key, each.value) for each in history.final}
    for name, reads in (*history.reads.items(), *history.group_reads.items()):
        for each in reads:
            now = final.get((each.partition, each.offset))
            if now != (each.key, each.value):
                there = "nothing" if now is None else now[1]
                yield (
                    f"above the high watermark: {name} read {each.value} at {each.partition}@{each.offset}, "
                    f"where {there} is at the end"
                )


def _dense(history: History) -> Iterator[str]:
    ends = dict.fromkeys(history.replicas, -1)
    for each in history.final:
        ends[each.partition] = max(ends.get(each.partition, -1), each.offset)
    for name, reads in (("the last consumer", history.final), *history.reads.items()):
        following: dict[int, int] = {}
        for each in reads:
            expected = following.get(each.partition, 0)
            if each.offset != expected:
                yield f"not dense: {name} read {each.partition}@{each.offset} when {expected} was next"
            following[each.partition] = each.offset + 1
        for partition, end in ends.items():
            reached = following.get(partition, 0) - 1
            if reached < end:
                yield f"missed: {name} read {partition} up to {reached}, and its last record is at {end}"


def _groups_read_all(history: History) -> Iterator[str]:
    if not history.group_reads:
        return
    seen = {each.value for reads in history.group_reads.values() for each in reads}
    for acked in history.acked:
        value = value_of(acked.producer, acked.number)
        if value not in seen:
            yield f"missed by the group: {value} at {acked.partition}@{acked.offset}"


def _replicas_equal(history: History) -> Iterator[str]:
    for partition, logs in history.replicas.items():
        if len(set(logs.values())) > 1:
            yield f"replicas differ: partition {partition}: {logs}"


CHECKS: tuple[Check, ...] = (
    _failures,
    _acknowledged_are_read,
    _nothing_twice,
    _in_order,
    _reads_stay,
    _dense,
    _groups_read_all,
    _replicas_equal,
)


def longest_gap(history: History, partition: int, begins: float, ends: float) -> float:
    """The longest time without an acknowledgement of the partition between two points in time."""
    times = sorted(
        each.at for each in history.acked if each.partition == partition and begins < each.at < ends
    )
    points = [begins, *times, ends]
    return max(after - before for before, after in pairwise(points))
