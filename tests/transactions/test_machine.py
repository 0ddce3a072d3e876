"""The transaction machine: what a coordinator answers, writes and sends.

If one failed, a fenced producer would go on, a transaction would stay open for ever, or a commit would be an
abort for some partitions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.errors import (
    NONE,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)
from cluster.model import TopicPartition
from cluster.state_topics import Entry, Producer, Respond
from cluster.transactions import (
    EPOCH_A_TRANSACTION,
    ProducerResult,
    SendMarkers,
    TransactionLimits,
    TransactionState,
)
from cluster.transactions.machine import TransactionMachine
from cluster.transactions.messages import LAST_EPOCH, Write
from cluster.transactions.records import encode_write

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TIMEOUT = 60_000
NEW_IDS = 100


class Coordinator:
    """A machine whose records are written at once, and kept."""

    def __init__(self) -> None:
        self.machine = TransactionMachine(TransactionLimits(), 3)
        self.log: list[Entry] = []
        self.sent: list[SendMarkers] = []
        self.error = NONE
        self.now = 1_000
        self._ids = NEW_IDS
        self.results: list[object] = []

    def do(self, actions: list[object]) -> object:
        """Carries actions out; returns the last result."""
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            if isinstance(action, Respond):
                self.results.append(action.result)
            elif isinstance(action, Write):
                if self.error == NONE:
                    self.log += [Entry(*record) for record in encode_write(action, 0).records]
                queue += self.machine.stored(action.id, self.error, self.now)
            else:
                assert isinstance(action, SendMarkers)
                self.sent.append(action)
        return self.results[-1] if self.results else None

    def init(
        self, name: str = "t", expected: Producer | None = None, timeout_ms: int = TIMEOUT
    ) -> ProducerResult:
        new_id = None
        while True:
            result = self.do(list(self.machine.init(1, name, timeout_ms, expected, new_id, self.now)))
            assert isinstance(result, ProducerResult)
            if not result.needs_id:
                return result
            self._ids += 1
            new_id = self._ids

    def producer(self, name: str = "t") -> Producer:
        result = self.init(name)
        assert result.error == NONE
        return result.producer

    def add(
        self, producer: Producer, *partitions: TopicPartition, name: str = "t", version: int = 0
    ) -> object:
        return self.do(list(self.machine.add_partitions(1, name, producer, partitions, version, self.now)))

    def end(self, producer: Producer, committed: bool, name: str = "t") -> int:
        return self.ended(producer, committed, name, 0).error

    def ended(
        self, producer: Producer, committed: bool, name: str = "t", version: int = EPOCH_A_TRANSACTION
    ) -> ProducerResult:
        new_id = None
        while True:
            asked = self.machine.end(1, name, producer, committed, version, new_id, self.now)
            result = self.do(list(asked))
            assert isinstance(result, ProducerResult)
            if not result.needs_id:
                return result
            self._ids += 1
            new_id = self._ids

    def mark(self, *partitions: TopicPartition) -> None:
        """The markers that were sent last reach these partitions, or all."""
        sent = self.sent[-1]
        reached = partitions or tuple(sent.partitions)
        self.do(list(self.machine.marked(sent.transactional_id, sent.producer, reached, self.now)))

    def state(self, name: str = "t") -> TransactionState:
        stored = self.machine.describe(name)
        assert stored is not None
        return stored.state

    def moved(self) -> Coordinator:
        """The coordinator that reads the log next."""
        other = Coordinator()
        other.log, other.now, other._ids = list(self.log), self.now, self._ids
        assert other.machine.load(other.log) == 0
        other.do(list(other.machine.loaded(other.now)))
        return other


def test_a_transaction_from_its_first_partition_to_its_last_marker() -> None:
    made = Coordinator()
    producer = made.producer()
    assert producer == Producer(NEW_IDS + 1, 0)
    assert made.add(producer, A) == NONE
    assert made.add(producer, A, B) == NONE
    assert made.state() is TransactionState.ONGOING
    assert made.end(producer, committed=True) == NONE
    [sent] = made.sent
    assert (sent.committed, sent.partitions, sent.coordinator_epoch) == (True, {A, B}, 3)
    assert made.state() is TransactionState.PREPARE_COMMIT
    assert made.add(producer, A) == ConcurrentTransactions.code
    assert made.end(producer, committed=True) == ConcurrentTransactions.code
    assert made.end(producer, committed=False) == InvalidTxnState.code
    made.mark(A)
    assert made.state() is TransactionState.PREPARE_COMMIT
    described = made.machine.describe("t")
    assert described is not None
    assert described.partitions == {B}, "the partitions without a marker"
    assert made.init(expected=replaced(producer, id=7)).error == ConcurrentTransactions.code
    made.mark(B)
    assert made.state() is TransactionState.COMPLETE_COMMIT
    assert made.end(producer, committed=True) == NONE, "a client that asks again"
    assert made.end(producer, committed=False) == InvalidTxnState.code
    assert made.add(producer, B) == NONE
    assert made.end(producer, committed=False) == NONE
    made.mark()
    assert made.state() is TransactionState.COMPLETE_ABORT


def test_a_transaction_without_partitions_cannot_end() -> None:
    made = Coordinator()
    assert made.end(made.producer(), committed=True) == InvalidTxnState.code


def test_unknown_and_fenced_producers() -> None:
    made = Coordinator()
    old = made.producer()
    assert made.add(replaced(old, id=5), A) == InvalidProducerIdMapping.code
    assert made.add(old, A, name="nobody") == InvalidProducerIdMapping.code
    assert made.end(old, True, name="nobody") == InvalidProducerIdMapping.code
    new = made.producer()
    assert new == replaced(old, epoch=1)
    assert made.add(old, A) == ProducerFenced.code
    assert made.end(old, committed=True) == ProducerFenced.code
    assert made.init(timeout_ms=0).error == InvalidTransactionTimeout.code
    assert made.init(timeout_ms=900_001).error == InvalidTransactionTimeout.code


def replaced(producer: Producer, id: int | None = None, epoch: int | None = None) -> Producer:
    return Producer(producer.id if id is None else id, producer.epoch if epoch is None else epoch)


def test_a_new_producer_aborts_the_transaction_of_the_one_before() -> None:
    made = Coordinator()
    old = made.producer()
    made.add(old, A)
    assert made.init().error == ConcurrentTransactions.code
    [sent] = made.sent
    assert (sent.committed, sent.producer) == (False, replaced(old, epoch=1))
    assert made.end(old, committed=True) == ProducerFenced.code
    assert made.init().error == ConcurrentTransactions.code, "until the markers are written"
    made.mark()
    assert made.producer() == replaced(old, epoch=2), "the epoch of the markers is nobody's"


def test_an_abort_that_could_not_be_written_fences_all_the_same() -> None:
    made = Coordinator()
    old = made.producer()
    made.add(old, A)
    made.error = CoordinatorNotAvailable.code
    for _ in range(3):
        assert made.init().error == CoordinatorNotAvailable.code
    assert made.end(old, committed=True) == ProducerFenced.code
    made.error = NONE
    assert made.init().error == ConcurrentTransactions.code
    assert made.sent[-1].producer == replaced(old, epoch=1), "the epoch is bumped once"


def test_a_producer_that_goes_on_after_an_error_gets_the_next_epoch_once() -> None:
    """KIP-360: the answer may be lost, and the client asks again with the epoch it had."""
    made = Coordinator()
    first = made.producer()
    second = made.init(expected=first)
    assert second.producer == replaced(first, epoch=1)
    assert made.init(expected=first).producer == second.producer
    third = made.producer()
    assert made.init(expected=first).error == ProducerFenced.code
    assert made.init(expected=second.producer).error == ProducerFenced.code
    assert made.init(expected=replaced(third, id=7)).error == ProducerFenced.code


def test_a_producer_whose_epochs_are_exhausted_gets_a_new_id() -> None:
    made = Coordinator()
    producer = made.producer()
    [entry] = made.log
    stored = made.machine.describe("t")
    assert stored is not None
    last = replaced(producer, epoch=LAST_EPOCH - 1)
    made.log = [
        Entry(*record) for record in encode_write(Write(1, "t", replace(stored, producer=last), 1), 0).records
    ]
    assert made.log[0].key == entry.key
    made = made.moved()
    fresh = made.init(expected=last)
    assert fresh.producer == Producer(producer.id + 1, 0)
    assert made.init(expected=last).producer == fresh.producer, "the answer was lost"
    assert made.init(expected=replaced(last, epoch=3)).error == ProducerFenced.code
    made.add(fresh.producer, A)
    assert made.init(expected=last).error == ProducerFenced.code, "a late repeat aborts nothing"
    assert made.state() is TransactionState.ONGOING


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    made = Coordinator()
    producer = made.producer()
    made.add(producer, A)
    made.now += TIMEOUT
    made.do(list(made.machine.abort_timed_out("t", made.now)))
    assert not made.sent
    made.now += 1
    made.do(list(made.machine.abort_timed_out("t", made.now)))
    assert made.sent[-1].committed is False
    assert made.end(producer, committed=True) == ProducerFenced.code
    made.mark()
    assert made.state() is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_coordinator_sends_the_markers_of_a_decided_transaction(committed: bool) -> None:
    made = Coordinator()
    producer = made.producer()
    made.add(producer, A, B)
    made.end(producer, committed)
    made.mark(A)
    after = made.moved()
    [sent] = after.sent
    assert (sent.committed, sent.partitions, sent.producer) == (committed, {A, B}, producer)
    after.mark()
    final = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    assert after.state() is after.moved().state() is final


def test_an_end_that_could_not_be_written_is_written_again() -> None:
    made = Coordinator()
    producer = made.producer()
    made.add(producer, A)
    made.end(producer, committed=True)
    made.error = CoordinatorNotAvailable.code
    made.mark()
    assert made.state() is TransactionState.PREPARE_COMMIT
    made.error = NONE
    at = made.machine.next_deadline()
    assert at is not None
    made.now = at
    made.do(list(made.machine.advance(at)))
    assert made.state() is TransactionState.COMPLETE_COMMIT
    assert made.machine.next_deadline() is None


def test_partitions_are_verified() -> None:
    made = Coordinator()
    producer = made.producer()
    verify = made.machine.verify
    assert verify("t", producer, [A]) == {A: TransactionAbortable.code}
    made.add(producer, A)
    assert verify("t", producer, [A, B]) == {A: NONE, B: TransactionAbortable.code}
    assert verify("t", replaced(producer, epoch=4), [A]) == {A: ProducerFenced.code}
    assert verify("x", producer, [A]) == {A: InvalidProducerIdMapping.code}
    made.end(producer, committed=True)
    assert verify("t", producer, [A]) == {A: ConcurrentTransactions.code}


V2 = EPOCH_A_TRANSACTION


@pytest.mark.parametrize("committed", [True, False])
def test_each_transaction_has_its_epoch(committed: bool) -> None:
    """KIP-890: a late batch or request of a transaction is none of the next one."""
    made = Coordinator()
    first = made.producer()
    made.add(first, A, version=V2)
    second = made.ended(first, committed).producer
    assert second == replaced(first, epoch=first.epoch + 1)
    assert made.sent[-1].producer == second, "its marker fences the epoch of the transaction"
    assert made.ended(first, committed).error == ConcurrentTransactions.code, "asked again before the end"
    assert made.ended(first, not committed).error == InvalidTxnState.code
    made = made.moved()
    made.mark()
    assert made.ended(first, committed) == ProducerResult(producer=second), "the answer was lost"
    assert made.ended(first, not committed).error == InvalidTxnState.code
    assert made.add(first, A, version=V2) == ProducerFenced.code
    assert made.add(second, B, version=V2) == NONE
    assert made.ended(first, committed).error == ProducerFenced.code
    assert made.ended(second, committed).producer == replaced(first, epoch=first.epoch + 2)


def test_an_abort_of_nothing_takes_an_epoch_and_a_commit_of_nothing_is_refused() -> None:
    made = Coordinator()
    first = made.producer()
    assert made.ended(first, committed=True).error == InvalidTxnState.code
    second = made.ended(first, committed=False).producer
    assert second == replaced(first, epoch=first.epoch + 1)
    assert made.state() is TransactionState.COMPLETE_ABORT
    assert not made.sent
    assert made.ended(first, committed=False).producer == second
    assert made.ended(second, committed=True).error == InvalidTxnState.code
    assert made.ended(second, committed=False).producer == replaced(first, epoch=first.epoch + 2)


def test_the_last_epoch_of_a_producer_id_is_followed_by_another_id() -> None:
    made = Coordinator()
    first = made.producer()
    stored = made.machine.describe("t")
    assert stored is not None
    last = replaced(first, epoch=LAST_EPOCH - 1)
    written = encode_write(Write(1, "t", replace(stored, producer=last), 1), V2)
    made.log = [Entry(*record) for record in written.records]
    made = made.moved()
    made.add(last, A, version=V2)
    fresh = Producer(first.id + 1, 0)
    assert made.ended(last, committed=True).producer == fresh
    assert made.sent[-1].producer == replaced(last, epoch=LAST_EPOCH)
    made = made.moved()
    made.mark()
    assert made.ended(last, committed=True).producer == fresh, "the answer was lost"
    made = made.moved()
    assert made.ended(last, committed=True).producer == fresh
    assert made.add(fresh, B, version=V2) == NONE
    assert made.ended(last, committed=True).error == InvalidProducerIdMapping.code


def test_a_producer_that_was_too_slow_is_not_given_the_next_epoch() -> None:
    made = Coordinator()
    slow = made.producer()
    made.add(slow, A, version=V2)
    made.now += TIMEOUT + 1
    made.do(list(made.machine.abort_timed_out("t", made.now)))
    made.mark()
    assert made.state() is TransactionState.COMPLETE_ABORT
    for committed in (True, False):
        assert made.ended(slow, committed).error == ProducerFenced.code


def test_transactional_ids_that_nobody_uses_expire() -> None:
    made = Coordinator()
    idle, busy = made.producer("idle"), made.producer("busy")
    made.add(busy, A, name="busy")
    made.now += TransactionLimits().expiration_ms
    assert made.machine.lapsed(made.now) == ["idle"]
    for name in ("idle", "busy", "unknown"):
        made.do(list(made.machine.expire(name, made.now)))
    assert made.machine.describe("idle") is None
    assert made.state("busy") is TransactionState.ONGOING
    assert made.moved().machine.describe("idle") is None
    assert made.producer("idle").id != idle.id


def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    made = Coordinator()
    made.producer("empty")
    busy = made.producer("busy")
    made.add(busy, A, name="busy")
    made.now += 500

    def names(*states: TransactionState, ids: tuple[int, ...] = (), duration: int = -1) -> list[str]:
        found = made.machine.list_transactions(states, ids, duration, made.now)
        return sorted(one.transactional_id for one in found)

    assert names() == ["busy", "empty"]
    assert names(TransactionState.ONGOING) == ["busy"]
    assert names(ids=(busy.id,)) == ["busy"]
    assert names(TransactionState.ONGOING, duration=499) == ["busy"]
    assert names(TransactionState.ONGOING, duration=500) == []


def test_a_damaged_record_is_skipped() -> None:
    made = Coordinator()
    made.producer()
    damaged = [
        Entry(b"\0\0", b"x"),
        Entry(None, b"x"),
        Entry(b"\0\7t", None),
        Entry(made.log[0].key, b"\0\0\0"),
    ]
    fresh = TransactionMachine(TransactionLimits(), 0)
    assert fresh.load([*made.log, *damaged]) == len(damaged)
    found = fresh.describe("t")
    assert found is not None
    assert found.producer == Producer(NEW_IDS + 1, 0)
