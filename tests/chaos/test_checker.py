"""The history checker catches each kind of violation.

If one of these failed, a fault run could lose, repeat or reorder records, and its test would pass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .checker import longest_gap, problems
from .history import UNKNOWN_OFFSET, Acked, Failed, History, Read, Sent, value_of


def sound() -> History:
    """Two producers with three records each in two partitions, one consumer, and a group of two."""
    history = History(reads={"c": []}, group_reads={"g": [], "h": []})
    for partition, producer in enumerate(("p", "q")):
        for number in range(3):
            at = float(number)
            history.sent.append(Sent(producer, number, "k", at))
            history.acked.append(Acked(producer, number, partition, number, at + 0.5))
            read = Read(partition, number, "k", value_of(producer, number), at + 0.7)
            history.reads["c"].append(read)
            history.group_reads["g" if partition else "h"].append(read)
            history.final.append(read._replace(at=9.0))
        history.replicas[partition] = {0: "same", 1: "same", 2: "same"}
    return history


def test_a_history_that_keeps_every_promise_has_no_problem() -> None:
    assert problems(sound()) == []


def lost(history: History) -> None:
    del history.final[2]
    del history.reads["c"][2]
    del history.group_reads["h"][2]


def lost_in_the_middle(history: History) -> None:
    del history.final[1]


def acknowledged_at_another_offset(history: History) -> None:
    history.acked[2] = history.acked[2]._replace(offset=1)


def there_twice(history: History) -> None:
    again = history.final[1]._replace(offset=3)
    history.final.insert(3, again)
    history.reads["c"].insert(3, again)


def there_twice_in_two_partitions(history: History) -> None:
    again = history.final[1]._replace(partition=1, offset=3)
    history.final.append(again)
    history.reads["c"].append(again)


def never_sent(history: History) -> None:
    strange = Read(0, 3, "k", "p 7", 9.0)
    history.final.insert(3, strange)
    history.reads["c"].insert(3, strange)


def with_another_key(history: History) -> None:
    for reads in (history.final, history.reads["c"], history.group_reads["h"]):
        reads[0] = reads[0]._replace(key="other")


def out_of_order(history: History) -> None:
    for reads in (history.final, history.reads["c"], history.group_reads["h"]):
        first, second = reads[0], reads[1]
        reads[0], reads[1] = first._replace(value=second.value), second._replace(value=first.value)
    history.acked[0] = history.acked[0]._replace(offset=UNKNOWN_OFFSET)
    history.acked[1] = history.acked[1]._replace(offset=UNKNOWN_OFFSET)


def one_key_in_two_partitions(history: History) -> None:
    history.sent[0] = history.sent[0]._replace(producer="q", number=7)
    history.acked[0] = history.acked[0]._replace(producer="q", number=7)
    for reads in (history.final, history.reads["c"], history.group_reads["h"]):
        reads[0] = reads[0]._replace(value="q 7")


def read_and_then_gone(history: History) -> None:
    history.reads["c"].insert(3, Read(0, 3, "k", "p 7", 2.0))


def read_by_a_group_and_then_different(history: History) -> None:
    history.group_reads["g"][0] = history.group_reads["g"][0]._replace(value="q 7")
    history.group_reads["h"].append(history.final[3])


def a_consumer_misses_one(history: History) -> None:
    del history.reads["c"][1]


def a_consumer_goes_back(history: History) -> None:
    history.reads["c"].insert(2, history.reads["c"][0])


def a_consumer_stops(history: History) -> None:
    del history.reads["c"][5]


def an_offset_is_not_used(history: History) -> None:
    for reads in (history.final, history.reads["c"], history.group_reads["h"]):
        reads[2] = reads[2]._replace(offset=3)
    history.acked[2] = history.acked[2]._replace(offset=3)


def a_group_misses_one(history: History) -> None:
    del history.group_reads["g"][1]


def a_replica_differs(history: History) -> None:
    history.replicas[1][2] = "other"


def not_delivered(history: History) -> None:
    history.sent.append(Sent("p", 3, "k", 3.0))
    history.failed.append(Failed("p", 3, "OUT_OF_ORDER_SEQUENCE_NUMBER", 4.0))


def never_answered(history: History) -> None:
    history.sent.append(Sent("p", 3, "k", 3.0))


VIOLATIONS: dict[Callable[[History], None], str] = {
    lost: "lost: p 2, acknowledged at 0@2",
    lost_in_the_middle: "not dense: the last consumer read 0@2 when 1 was next",
    acknowledged_at_another_offset: "moved: p 2, acknowledged at 0@1, is at 2",
    there_twice: "duplicate: p 1 is at 0@1, 0@3",
    there_twice_in_two_partitions: "duplicate: p 1 is at 0@1, 1@3",
    never_sent: "never sent: p 7 with key k at 0@3",
    with_another_key: "never sent: p 0 with key other at 0@0",
    out_of_order: "order: p 1 at 0@0 comes before p 0 at 1, with the same key k",
    one_key_in_two_partitions: "scattered: key k of q is in 0 and 1",
    read_and_then_gone: "above the high watermark: c read p 7 at 0@3, where nothing is at the end",
    read_by_a_group_and_then_different: (
        "above the high watermark: g read q 7 at 1@0, where q 0 is at the end"
    ),
    a_consumer_misses_one: "not dense: c read 0@2 when 1 was next",
    a_consumer_goes_back: "not dense: c read 0@0 when 2 was next",
    a_consumer_stops: "missed: c read 1 up to 1, and its last record is at 2",
    an_offset_is_not_used: "not dense: the last consumer read 0@3 when 2 was next",
    a_group_misses_one: "missed by the group: q 1 at 1@1",
    a_replica_differs: "replicas differ: partition 1: {0: 'same', 1: 'same', 2: 'other'}",
    not_delivered: "not delivered: p 3: OUT_OF_ORDER_SEQUENCE_NUMBER",
    never_answered: "never answered: p 3",
}


@pytest.mark.parametrize("violate", VIOLATIONS, ids=lambda violate: violate.__name__)
def test_a_violation_is_found(violate: Callable[[History], None]) -> None:
    history = sound()
    violate(history)
    assert VIOLATIONS[violate] in problems(history)


def test_an_acknowledgement_without_an_offset_is_no_problem() -> None:
    history = sound()
    history.acked[0] = history.acked[0]._replace(offset=UNKNOWN_OFFSET)
    assert problems(history) == []


def test_the_longest_gap_counts_from_the_beginning_and_to_the_end() -> None:
    history = sound()
    # Partition 0 has acknowledgements at 0.5, 1.5 and 2.5.
    assert longest_gap(history, 0, 0.0, 3.0) == 1.0
    assert longest_gap(history, 0, -2.0, 3.0) == 2.5
    assert longest_gap(history, 0, 1.0, 9.0) == 6.5
    assert longest_gap(history, 0, 1.6, 2.0) == pytest.approx(0.4)
