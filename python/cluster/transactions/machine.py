"""The transactions of one partition of __transaction_state, as one pure state machine.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing ...
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing ...

Requests and the time go in, actions come out: `Respond`, `Write`, `SendMarkers`. A state is in force once its
record is on every in-sync replica; until then other requests for the transactional id get
CONCURRENT_TRANSACTIONS. A transaction is decided with its Prepare record: the client is answered then, and
the markers are sent until every partition has one. Source: TransactionCoordinator, TransactionMetadata and
TransactionStateManager (KIP-98, KIP-360, KIP-890).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from cluster.errors import (
    NONE,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
)
from cluster.model import TopicPartition
from cluster.state_topics import Entry, Marker, Producer, Respond, Token
from cluster.transactions.messages import (
    EPOCH_A_TRANSACTION,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NOBODY,
    Listing,
    Partitions,
    ProducerResult,
    SendMarkers,
    Stored,
    TransactionLimits,
    TransactionState,
    Write,
)
from cluster.transactions.records import read_record

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARED = {TransactionState.PREPARE_COMMIT: True, TransactionState.PREPARE_ABORT: False}
"""The states in which markers are sent, and whether they commit."""
COMPLETED = {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}
_PREPARE = {committed: state for state, committed in PREPARED.items()}
_COMPLETE = {committed: state for state, committed in COMPLETED.items()}

RETRY_MS = 100
"""Before a Complete record that could not be written is written again."""

Action = Respond | Write | SendMarkers


@dataclass(slots=True)
class _Transaction:
    """A transactional id."""

    id: str
    stored: Stored
    writing: bool = False
    """A record is on its way to the log."""
    unmarked: set[TopicPartition] = field(default_factory=set)
    """The partitions whose markers are not written yet, in a Prepare state."""
    retry_at: int | None = None
    """When the Complete record is written again."""
    fenced: Producer | None = None
    """The producer of an abort whose record could not be written."""


Then = Callable[[int, int], None]
"""Called with the error of a write and the time."""


class TransactionMachine:
    """The transactional ids of one partition."""

    def __init__(self, limits: TransactionLimits, coordinator_epoch: int) -> None:
        self.limits = limits
        self._coordinator_epoch = coordinator_epoch
        self._transactions: dict[str, _Transaction] = {}
        self._out: list[Action] = []
        self._write_ids = itertools.count(1)
        self._writing: dict[int, tuple[_Transaction, Stored | None, Then]] = {}
        self._retrying: dict[str, _Transaction] = {}

    def _take(self) -> list[Action]:
        actions, self._out = self._out, []
        return actions

    # ---- the log ----

    def load(self, entries: Iterable[Entry | Marker]) -> int:
        """Records were read from the log, in order. Returns how many could not be decoded."""
        skipped = 0
        for entry in entries:
            try:
                if isinstance(entry, Marker):
                    continue
                name, stored = read_record(entry)
            except ValueError:
                skipped += 1
                continue
            if stored is None:
                self._transactions.pop(name, None)
            else:
                self._transactions[name] = _Transaction(name, stored)
        return skipped

    def loaded(self, now: int) -> list[Action]:
        """The log was read to its end: markers of decided transactions are sent again."""
        for transaction in self._transactions.values():
            if transaction.stored.state in PREPARED:
                self._send_markers(transaction, now)
        return self._take()

    def unload(self) -> None:
        """Another broker leads the partition now."""

    def stored(self, write: int, error: int, now: int) -> list[Action]:
        """A Write was carried out; `error` is its error code, or 0."""
        transaction, stored, then = self._writing.pop(write)
        transaction.writing = False
        if error == NONE:
            if stored is None:
                del self._transactions[transaction.id]
            else:
                transaction.stored = stored
        then(error, now)
        return self._take()

    def _write(self, transaction: _Transaction, stored: Stored | None, then: Then) -> None:
        number = next(self._write_ids)
        transaction.writing = True
        self._writing[number] = transaction, stored, then
        timeout_ms = (stored or transaction.stored).timeout_ms
        self._out.append(Write(number, transaction.id, stored, timeout_ms))

    # ---- timers ----

    def next_deadline(self) -> int | None:
        """When `advance` must be called next."""
        return min(
            (one.retry_at for one in self._retrying.values() if one.retry_at is not None), default=None
        )

    def advance(self, now: int, most: int | None = None) -> list[Action]:
        """Writes Complete records again that could not be written."""
        due = [one for one in self._retrying.values() if one.retry_at is not None and one.retry_at <= now]
        for transaction in due[:most]:
            transaction.retry_at = None
            del self._retrying[transaction.id]
            self._complete(transaction, now)
        return self._take()

    def postpone(self, by_ms: int) -> None:
        """No deadline depends on requests."""

    def timed_out(self, now: int) -> list[str]:
        """The transactional ids whose transaction is open for longer than its timeout."""
        return [one.id for one in self._transactions.values() if _is_timed_out(one, now)]

    def abort_timed_out(self, name: str, now: int) -> list[Action]:
        """Aborts a transaction that is still as `timed_out` says, and fences its producer."""
        transaction = self._transactions.get(name)
        if transaction is not None and _is_timed_out(transaction, now):
            self._fence(transaction, now, lambda error: None)
        return self._take()

    def lapsed(self, now: int) -> list[str]:
        """The transactional ids that had no transaction for `transactional.id.expiration.ms`."""
        return [one.id for one in self._transactions.values() if self._is_lapsed(one, now)]

    def expire(self, name: str, now: int) -> list[Action]:
        """Removes a transactional id that is still as `lapsed` says."""
        transaction = self._transactions.get(name)
        if transaction is not None and self._is_lapsed(transaction, now):
            self._write(transaction, None, lambda error, now: None)
        return self._take()

    def _is_lapsed(self, transaction: _Transaction, now: int) -> bool:
        stored = transaction.stored
        return (
            (stored.state is EMPTY or stored.state in COMPLETED)
            and stored.updated_ms <= now - self.limits.expiration_ms
            and not transaction.writing
        )

    # ---- InitProducerId ----

    def init(
        self,
        token: Token,
        name: str,
        timeout_ms: int,
        expected: Producer | None,
        new_id: int | None,
        now: int,
    ) -> list[Action]:
        """InitProducerId. `expected` is the producer that a client had (KIP-360), `new_id` an unused producer
        id, if one was needed before.
        """

        def respond(result: ProducerResult) -> list[Action]:
            self._out.append(Respond(token, result))
            return self._take()

        if not 0 < timeout_ms <= self.limits.timeout_max_ms:
            return respond(ProducerResult(InvalidTransactionTimeout.code))
        transaction = self._transactions.get(name)
        if transaction is None:
            if new_id is None:
                return respond(ProducerResult(needs_id=True))
            nobody = Producer(NO_PRODUCER_ID, NO_EPOCH)
            created = Stored(Producer(new_id, NO_EPOCH), nobody, timeout_ms, EMPTY, frozenset(), now)
            transaction = self._transactions[name] = _Transaction(name, created)
        stored = transaction.stored
        if transaction.writing or stored.state in PREPARED:
            return respond(ProducerResult(ConcurrentTransactions.code))
        if expected is not None and not _is_valid(stored, expected):
            return respond(ProducerResult(ProducerFenced.code))
        if stored.state is ONGOING:
            # The client asks again, and gets the next epoch once the transaction is aborted.
            def fenced(error: int) -> None:
                self._out.append(Respond(token, ProducerResult(error or ConcurrentTransactions.code)))

            self._fence(transaction, now, fenced)
            return self._take()
        chosen = _next_producer(stored, expected, new_id)
        if isinstance(chosen, ProducerResult):
            return respond(chosen)
        producer, last = chosen
        renewed = Stored(producer, last, timeout_ms, EMPTY, frozenset(), now)

        def written(error: int, now: int) -> None:
            result = ProducerResult(error) if error else ProducerResult(producer=producer)
            self._out.append(Respond(token, result))

        self._write(transaction, renewed, written)
        return self._take()

    def _fence(self, transaction: _Transaction, now: int, then: Callable[[int], None]) -> None:
        """Aborts an open transaction with the next epoch, which no producer has."""
        stored = transaction.stored
        fenced = transaction.fenced or replace_epoch(stored.producer, stored.producer.epoch + 1)
        nobody = Producer(stored.producer.id, NO_EPOCH)
        aborting = replace(
            stored,
            producer=fenced,
            last_producer=nobody,
            state=TransactionState.PREPARE_ABORT,
            updated_ms=now,
            # Its producer is not given the epoch that follows.
            client_version=0,
        )

        def written(error: int, now: int) -> None:
            # After an error the record may be in the log all the same. So nobody writes with the old epoch
            # any more, and the next attempt has the same epoch.
            transaction.fenced = fenced if error else None
            transaction.stored = replace(transaction.stored, producer=fenced, last_producer=nobody)
            then(error)
            if error == NONE:
                self._send_markers(transaction, now)

        self._write(transaction, aborting, written)

    # ---- partitions ----

    def add_partitions(
        self,
        token: Token,
        name: str,
        producer: Producer,
        partitions: Partitions,
        client_version: int,
        now: int,
    ) -> list[Action]:
        """AddPartitionsToTxn and AddOffsetsToTxn. Responds with an error code."""

        def respond(error: int, now: int = now) -> None:
            self._out.append(Respond(token, error))

        transaction = self._transactions.get(name)
        error = self._check(transaction, producer)
        if error == NONE and transaction is not None:
            added = frozenset(partitions)
            stored = transaction.stored
            if transaction.writing or stored.state in PREPARED:
                error = ConcurrentTransactions.code
            elif stored.state is not ONGOING or not added <= stored.partitions:
                begun = stored.start_ms if stored.state is ONGOING else now
                # The producer before cannot abort this transaction by asking again.
                opened = replace(
                    stored,
                    last_producer=Producer(stored.producer.id, stored.last_producer.epoch),
                    state=ONGOING,
                    partitions=stored.partitions | added if stored.state is ONGOING else added,
                    updated_ms=now,
                    start_ms=begun,
                    client_version=client_version,
                )
                self._write(transaction, opened, respond)
                return self._take()
        respond(error)
        return self._take()

    def verify(self, name: str, producer: Producer, partitions: Partitions) -> dict[TopicPartition, int]:
        """AddPartitionsToTxn that only asks: an error code for each partition (KIP-890)."""
        transaction = self._transactions.get(name)
        error = self._check(transaction, producer)
        if error == NONE and transaction is not None:
            if transaction.stored.state in PREPARED:
                error = ConcurrentTransactions.code
            else:
                known = transaction.stored.partitions
                return {one: NONE if one in known else TransactionAbortable.code for one in partitions}
        return dict.fromkeys(partitions, error)

    @staticmethod
    def _check(transaction: _Transaction | None, producer: Producer) -> int:
        if transaction is None or transaction.stored.producer.id != producer.id:
            return InvalidProducerIdMapping.code
        return NONE if transaction.stored.producer.epoch == producer.epoch else ProducerFenced.code

    # ---- the end of a transaction ----

    def end(
        self,
        token: Token,
        name: str,
        producer: Producer,
        committed: bool,
        client_version: int,
        new_id: int | None,
        now: int,
    ) -> list[Action]:
        """EndTxn. Responds with a ProducerResult, once it is decided: the producer of the next transaction.
        `new_id` is an unused producer id, if one was needed before.
        """

        def respond(error: int, producer: Producer = NOBODY, *, needs_id: bool = False) -> list[Action]:
            self._out.append(Respond(token, ProducerResult(error, producer, needs_id)))
            return self._take()

        transaction = self._transactions.get(name)
        if transaction is None:
            return respond(InvalidProducerIdMapping.code)
        stored = transaction.stored
        has_ended = _has_ended(stored, producer)
        error = NONE if has_ended else self._check(transaction, producer)
        if error != NONE:
            return respond(error)
        if transaction.writing:
            return respond(ConcurrentTransactions.code)
        if stored.state in PREPARED:
            is_same = PREPARED[stored.state] == committed
            return respond(ConcurrentTransactions.code if is_same else InvalidTxnState.code)
        bumps = client_version >= EPOCH_A_TRANSACTION
        # Such a client need not know whether a partition was added before it aborts.
        if stored.state is ONGOING or (bumps and not has_ended and not committed):
            if bumps and _is_exhausted(stored.producer.epoch) and new_id is None:
                return respond(NONE, needs_id=True)
            self._decide(transaction, token, committed, client_version, new_id, now)
            return self._take()
        is_same = stored.state in COMPLETED and COMPLETED[stored.state] == committed
        if is_same and (has_ended or not bumps):
            return respond(NONE, stored.producer)
        return respond(InvalidTxnState.code)

    def _decide(
        self,
        transaction: _Transaction,
        token: Token,
        committed: bool,
        client_version: int,
        new_id: int | None,
        now: int,
    ) -> None:
        stored = transaction.stored
        decided = replace(stored, state=_PREPARE[committed], updated_ms=now, client_version=client_version)
        if stored.state is not ONGOING:
            decided = replace(decided, start_ms=now)
        if client_version >= EPOCH_A_TRANSACTION:
            is_last = _is_exhausted(stored.producer.epoch) and new_id is not None
            decided = replace(
                decided,
                producer=replace_epoch(stored.producer, stored.producer.epoch + 1),
                last_producer=stored.producer,
                next_id=new_id if is_last and new_id is not None else NO_PRODUCER_ID,
            )

        def written(error: int, now: int) -> None:
            result = ProducerResult(error) if error else ProducerResult(producer=decided.next_producer)
            self._out.append(Respond(token, result))
            if error == NONE:
                self._send_markers(transaction, now)

        self._write(transaction, decided, written)

    def _send_markers(self, transaction: _Transaction, now: int) -> None:
        stored = transaction.stored
        transaction.unmarked = set(stored.partitions)
        if not transaction.unmarked:
            self._complete(transaction, now)
            return
        self._out.append(
            SendMarkers(
                transaction.id,
                stored.producer,
                PREPARED[stored.state],
                stored.partitions,
                self._coordinator_epoch,
            )
        )

    def marked(self, name: str, producer: Producer, partitions: Partitions, now: int) -> list[Action]:
        """The markers of these partitions are on every in-sync replica, or the partitions are gone."""
        transaction = self._transactions.get(name)
        if transaction is not None and transaction.stored.producer == producer and transaction.unmarked:
            transaction.unmarked.difference_update(partitions)
            if not transaction.unmarked:
                self._complete(transaction, now)
        return self._take()

    def _complete(self, transaction: _Transaction, now: int) -> None:
        stored = transaction.stored
        completed = replace(
            stored,
            state=_COMPLETE[PREPARED[stored.state]],
            producer=stored.next_producer,
            partitions=frozenset(),
            updated_ms=now,
            previous_id=NO_PRODUCER_ID if stored.next_id == NO_PRODUCER_ID else stored.producer.id,
            next_id=NO_PRODUCER_ID,
        )

        def written(error: int, now: int) -> None:
            if error not in (NONE, NotCoordinator.code):
                transaction.retry_at = now + RETRY_MS
                self._retrying[transaction.id] = transaction

        self._write(transaction, completed, written)

    # ---- what is there ----

    def describe(self, name: str) -> Stored | None:
        """A transactional id's state, as it is in force. Partitions that have their marker are left out."""
        transaction = self._transactions.get(name)
        if transaction is None:
            return None
        stored = transaction.stored
        if stored.state in PREPARED:
            return replace(stored, partitions=frozenset(transaction.unmarked))
        return stored

    def list_transactions(
        self, states: Iterable[TransactionState], producer_ids: Iterable[int], duration_ms: int, now: int
    ) -> Iterator[Listing]:
        """The transactional ids in one of `states`, of `producer_ids`, open for longer than `duration_ms`.
        Empty filters and a negative duration stand for all. Others may change while the caller looks at one.
        """
        wanted, ids = set(states), set(producer_ids)
        for one in list(self._transactions.values()):
            stored = one.stored
            if (
                (not wanted or stored.state in wanted)
                and (not ids or stored.producer.id in ids)
                and (duration_ms < 0 or now - stored.start_ms > duration_ms)
            ):
                yield Listing(one.id, stored.producer.id, stored.state)


def _is_timed_out(transaction: _Transaction, now: int) -> bool:
    stored = transaction.stored
    return stored.state is ONGOING and not transaction.writing and stored.start_ms + stored.timeout_ms < now


def replace_epoch(producer: Producer, epoch: int) -> Producer:
    """The producer with another epoch."""
    return Producer(producer.id, epoch)


def _is_exhausted(epoch: int) -> bool:
    """Only one epoch is left, which fences."""
    return epoch >= LAST_EPOCH - 1


def _has_ended(stored: Stored, producer: Producer) -> bool:
    """The producer's transaction has ended, with an epoch of its own: the client, which did not get the
    answer, asks again.
    """
    if stored.client_version < EPOCH_A_TRANSACTION:
        return False
    if stored.previous_id == producer.id and stored.state in COMPLETED:
        return _is_exhausted(producer.epoch) and stored.producer.epoch == 0
    ended = stored.state in PREPARED or stored.state in COMPLETED
    return ended and stored.producer == replace_epoch(producer, producer.epoch + 1)


def _is_valid(stored: Stored, expected: Producer) -> bool:
    """A client's producer may go on: the metadata is new, or the producer is the present one, or the one
    before whose epochs were exhausted and whose answer was lost.
    """
    return (
        stored.producer.epoch == NO_EPOCH
        or expected.id == stored.producer.id
        or (expected.id == stored.last_producer.id and _is_exhausted(expected.epoch))
    )


def _next_producer(
    stored: Stored, expected: Producer | None, new_id: int | None
) -> tuple[Producer, Producer] | ProducerResult:
    """The producer for a client, and the one before; or the refusal."""
    current, last = stored.producer, stored.last_producer
    if _is_exhausted(current.epoch) and (expected is None or expected.epoch == current.epoch):
        if new_id is None:
            return ProducerResult(needs_id=True)
        return Producer(new_id, 0), Producer(current.id, NO_EPOCH if expected is None else current.epoch)
    bumped = replace_epoch(current, current.epoch + 1)
    if expected is None:
        return bumped, Producer(current.id, NO_EPOCH)
    if current.epoch == NO_EPOCH or expected.epoch == current.epoch:
        return bumped, current
    if expected.epoch == last.epoch:
        # The answer was lost, and the client asks again.
        return current, last
    return ProducerResult(ProducerFenced.code)
