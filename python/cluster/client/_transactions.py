"""A producer's transactions: their states, the requests to their coordinator, and what errors mean.

`Transactions` is the API of `Producer`; its methods run in the application's thread. One daemon thread adds
partitions to the transaction (AddPartitionsToTxn) when the extension has records for them; their batches
wait for that. The extension takes records only in a transaction and gives them up once one has failed. A
crash leaves the transaction open until the next `init_transactions` or transaction.timeout.ms aborts it.

| state | the next calls |
|---|---|
| NEW | init_transactions |
| READY | begin_transaction |
| OPEN | send_offsets_to_transaction, commit_transaction, abort_transaction |
| FLUSHING, a commit without its EndTxn | commit_transaction, abort_transaction |
| COMMITTING | commit_transaction, after a timeout |
| FAILED: records or offsets are missing | abort_transaction |
| ABORTING | abort_transaction, after a timeout |
| FATAL | none: make a new producer |

Sources: KIP-98, KIP-360 (a later epoch after a gap), KIP-447 (the group's generation), TransactionManager of
the Java client, rdkafka_txnmgr.c of librdkafka for names, states and codes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from logcore import _native

from ._commits import committing
from ._coordinator import TRANSACTION, Coordinator
from ._errors import KafkaError, KafkaException, failed
from ._requests import FOREVER, RETRY_PAUSE, Requests
from ._types import ConsumerGroupMetadata, TopicPartition, group_by_topic

logger = logging.getLogger("cluster.client")

_WAIT = 60.0
"""Seconds the thread waits for partitions before it looks again."""
_CONCURRENT_PAUSE, _CONCURRENT_PAUSE_MAX = 0.001, 0.02
"""Seconds before a request is repeated while the coordinator ends the transaction before; doubled each time.
Its markers are mostly written within 2 ms. The longest is that of the Java client.
"""

_FENCED = frozenset({KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_FATAL = _FENCED | {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.INVALID_TXN_STATE,
    KafkaError._UNSUPPORTED_FEATURE,
}
_NEEDS_EPOCH = frozenset({KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID})
"""The coordinator does not know the producer: it takes a new epoch instead of an EndTxn."""
_MOVED = frozenset(
    {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError.REQUEST_TIMED_OUT}
)
_PASSING = _MOVED | {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_ENOUGH_REPLICAS,
}
"""The same request may succeed later."""


class State(Enum):
    """See the module's table."""

    NEW = "Init"
    READY = "Ready"
    OPEN = "InTransaction"
    FLUSHING = "BeginCommit"
    COMMITTING = "CommittingTransaction"
    FAILED = "AbortableError"
    ABORTING = "AbortingTransaction"
    FATAL = "FatalError"


class Verdict(Enum):
    """What an error code of a coordinator or leader does to the transaction."""

    RETRY = "the same request is sent again"
    ABORT = "the transaction can only be aborted"
    FATAL = "the producer cannot go on"


def judge(error: KafkaError) -> Verdict:
    """Pure. Codes that are not listed end the transaction, as in librdkafka."""
    code = error.code()
    if code in _FATAL:
        return Verdict.FATAL
    if code in _PASSING or error.retriable():
        return Verdict.RETRY
    return Verdict.ABORT


class Transactions:
    """See the module."""

    def __init__(
        self,
        core: _native.TransactionCore,
        requests: Requests,
        settings: dict[str, Any],
        records: _native.ProducerCore,
    ) -> None:
        """`records` is a weak reference, so that the thread does not keep the producer open."""
        self._core = core
        self._requests = requests
        self._id: str = settings["transactional.id"]
        self._timeout_ms: int = settings["transaction.timeout.ms"]
        self._coordinator = Coordinator(requests, self._id, TRANSACTION)
        self._groups: dict[str, Coordinator] = {}
        """The coordinators of groups that offsets were sent for."""
        self._records = records
        self._calls = threading.Lock()
        self._calling = ""
        # Under `_changed`, shared with the thread.
        self._changed = threading.Condition()
        self._state = State.NEW
        self._error: KafkaError | None = None
        """Of FAILED and FATAL."""
        self._producer = (-1, -1)
        self._adding = False
        """The thread has partitions to add."""
        self._begun = False
        """The coordinator has the transaction, because a partition or a group was added to it."""
        self._unsure = False
        """A request that would begin it had no answer."""
        self._new_epoch = False
        self._groups_added: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    # ---- the application's calls ----

    def init(self, timeout: float | None) -> None:
        """InitProducerId: fences older producers of the id and ends their transaction."""
        with self._call("init_transactions", State.NEW):
            until = _until(timeout, 2 * self._timeout_ms / 1000)
            self._obtain_producer((-1, -1), until, "Failed to initialize Producer ID")
            with self._changed:
                self._state = State.READY
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="logcore-transactions", daemon=True
                    )
                    self._thread.start()

    def begin(self) -> None:
        """Begins a transaction. Nothing is sent."""
        with self._call("begin_transaction", State.READY), self._changed:
            self._begun = self._unsure = self._new_epoch = False
            self._groups_added.clear()
            self._core.begin()
            self._state = State.OPEN

    def send_offsets(
        self, positions: list[TopicPartition], group: ConsumerGroupMetadata, timeout: float | None
    ) -> None:
        """AddOffsetsToTxn, then TxnOffsetCommit."""
        if not isinstance(group, ConsumerGroupMetadata):
            raise TypeError("group_metadata must be what Consumer.consumer_group_metadata() returned")
        with self._call("send_offsets_to_transaction", State.OPEN):
            offsets = [found for found in positions if found.offset >= 0]
            if not offsets:
                return
            longest = self._timeout_ms / 1000
            until = min(_until(timeout, longest), time.monotonic() + longest)
            if group.group_id not in self._groups_added:
                message = {"transactional_id": self._id, "group_id": group.group_id, **self._identity()}
                self._ask("AddOffsetsToTxn", message, until, begins=True)
                self._groups_added.add(group.group_id)
            self._commit_offsets(offsets, group, until)

    def commit(self, timeout: float | None) -> None:
        """Flushes, and commits."""
        until = _until(timeout, FOREVER)
        with self._call("commit_transaction", State.OPEN, State.FLUSHING, State.COMMITTING):
            if self._state is not State.COMMITTING:
                with self._changed:
                    self._state = State.FLUSHING
                self._core.close()
                self._flush_all(until)
                with self._changed:
                    self._state = State.COMMITTING
            if self._begun or self._unsure:
                self._ask(
                    "EndTxn", {"transactional_id": self._id, **self._identity(), "committed": True}, until
                )
            with self._changed:
                self._state = State.READY

    def abort(self, timeout: float | None) -> None:
        """Gives up the records that are not written, and aborts."""
        until = _until(timeout, FOREVER)
        with self._call("abort_transaction", State.OPEN, State.FLUSHING, State.FAILED, State.ABORTING):
            with self._changed:
                self._state = State.ABORTING
            self._core.close()
            self._core.fail()
            self._records.purge()
            left = self._records.flush(_left(until))
            with self._changed:
                idle = self._changed.wait_for(lambda: not self._adding, _left(until))
            if self._state is State.FATAL:
                raise KafkaException(self._raised())
            if left or not idle:
                raise _late("Failed to settle the records of the transaction")
            known = self._error is None or self._error.code() not in _NEEDS_EPOCH
            if (self._begun or self._unsure) and known:
                self._abort_at_coordinator(until)
            if self._new_epoch or self._core.status()[2] or not known:
                self._obtain_producer(self._producer, until, "Failed to bump the producer's epoch")
            with self._changed:
                self._state, self._error = State.READY, None

    def close(self) -> None:
        """The thread ends; the extension wakes it when the producer is closed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- states ----

    @contextmanager
    def _call(self, name: str, *states: State) -> Iterator[None]:
        """One call at a time, in one of these states."""
        if not self._calls.acquire(blocking=False):
            same = self._calling == name
            code = KafkaError._PREV_IN_PROGRESS if same else KafkaError._CONFLICT
            raise failed(code, f"{name}: {self._calling} is under way in another thread")
        try:
            self._calling = name
            self._note_failed_records(committing=self._state in (State.OPEN, State.FLUSHING))
            if self._state not in states:
                if self._state in (State.FAILED, State.FATAL):
                    raise KafkaException(self._raised())
                raise failed(KafkaError._STATE, f"Operation not valid in state {self._state.value}")
            yield
        finally:
            self._calls.release()

    def _raised(self) -> KafkaError:
        """The error of FAILED or FATAL, as each call raises it."""
        error = self._error or KafkaError(KafkaError._FATAL)
        fatal = self._state is State.FATAL
        return KafkaError(error.code(), error.str(), fatal, False, not fatal)

    def _note_failed_records(self, committing: bool) -> None:
        """A record that was not written ends the transaction."""
        failure, count, gap = self._core.status()
        if failure is None or not committing:
            return
        if failure.code() < 0:
            text = f"{count} message(s) failed delivery (see individual delivery reports): {failure.str()}"
            failure = KafkaError(KafkaError._INCONSISTENT, text)
        with self._changed:
            self._new_epoch = self._new_epoch or gap
        self._fail(failure)

    def _fail(self, error: KafkaError) -> None:
        """The transaction can only be aborted, or the producer not go on. The first failure counts."""
        fatal = judge(error) is Verdict.FATAL
        code = KafkaError._FENCED if error.code() in _FENCED else error.code()
        self._end(KafkaError(code, error.str()), fatal)

    def _end(self, error: KafkaError, fatal: bool) -> None:
        with self._changed:
            if self._state is State.FATAL:
                return
            if fatal:
                self._state, self._error = State.FATAL, error
            elif self._state is not State.FAILED:
                # A failure while aborting is one of the transaction that is being given up.
                self._error = self._error or error
                if self._state is not State.ABORTING:
                    self._state = State.FAILED
            self._changed.notify_all()
        self._core.fail()

    # ---- requests ----

    def _identity(self) -> dict[str, int]:
        producer, epoch = self._producer
        return {"producer_id": producer, "producer_epoch": epoch}

    def _ask(
        self,
        api: str,
        message: dict[str, Any],
        until: float,
        begins: bool = False,
        expected: frozenset[int] = frozenset(),
    ) -> dict[str, Any]:
        """Asks the coordinator of the transaction until it takes the request.

        `begins`: the request begins the transaction at the coordinator. Raises KafkaException: retriable when
        the time has passed, otherwise what ended the transaction or the producer. `expected` codes are raised
        and end nothing.
        """
        if begins:
            with self._changed:
                self._unsure = True
        response = self._repeat(
            lambda left: self._coordinator.call(api, message, timeout=left, newest=_NEWEST[api]),
            lambda answer: {answer["error_code"]},
            until,
            api,
            expected,
        )
        if begins:
            with self._changed:
                self._begun = True
        return response

    def _repeat(
        self,
        attempt: Callable[[float], dict[str, Any]],
        codes: Callable[[dict[str, Any]], set[int]],
        until: float,
        api: str,
        expected: frozenset[int] = frozenset(),
    ) -> dict[str, Any]:
        concurrent = _CONCURRENT_PAUSE
        while True:
            error = self._attempt(attempt, codes, until, api)
            if isinstance(error, dict):
                return error
            if error.code() in expected:
                raise KafkaException(error)
            if judge(error) is not Verdict.RETRY:
                self._fail(error)
                raise KafkaException(self._raised() if self._state is not State.ABORTING else error)
            pause, concurrent = _pause(error, concurrent)
            if time.monotonic() + pause >= until:
                raise _late(f"{api} was not answered: {error.str()}")
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause)
                if self._closed:
                    raise failed(KafkaError._DESTROY, "the producer is closed")

    def _attempt(
        self,
        attempt: Callable[[float], dict[str, Any]],
        codes: Callable[[dict[str, Any]], set[int]],
        until: float,
        api: str,
    ) -> dict[str, Any] | KafkaError:
        """The response, or the error that it carries; of several the one that weighs most."""
        try:
            response = attempt(_left(until))
        except KafkaException as failure:
            return failure.error
        errors = [KafkaError(code) for code in codes(response) - {0, KafkaError.OPERATION_NOT_ATTEMPTED}]
        if not errors:
            return response
        worst = max(errors, key=lambda error: list(Verdict).index(judge(error)))
        return KafkaError(worst.code(), f"{api} failed: {worst.str()}")

    def _obtain_producer(self, known: tuple[int, int], until: float, what: str) -> None:
        """InitProducerId. With a known producer the epoch goes up; a repeated request gets the same one."""
        message = {
            "transactional_id": self._id,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": known[0],
            "producer_epoch": known[1],
        }
        concurrent = _CONCURRENT_PAUSE
        while True:
            answer = self._attempt(
                lambda left: self._coordinator.call("InitProducerId", message, timeout=left, newest=4),
                lambda found: {found["error_code"]},
                until,
                "InitProducerId",
            )
            if isinstance(answer, dict):
                break
            if judge(answer) is not Verdict.RETRY:
                # Without a producer id there is nothing to abort.
                code = KafkaError._FENCED if answer.code() in _FENCED else answer.code()
                self._end(KafkaError(code, f"{what}: {answer.str()}"), fatal=True)
                raise KafkaException(self._raised())
            pause, concurrent = _pause(answer, concurrent)
            if time.monotonic() + pause >= until:
                raise _late(f"{what}: {answer.str()}")
            time.sleep(pause)
        self._producer = (answer["producer_id"], answer["producer_epoch"])
        self._core.set_producer(*self._producer)

    def _commit_offsets(
        self, offsets: list[TopicPartition], group: ConsumerGroupMetadata, until: float
    ) -> None:
        coordinator = self._groups.setdefault(group.group_id, Coordinator(self._requests, group.group_id))
        message = {
            "transactional_id": self._id,
            "group_id": group.group_id,
            **self._identity(),
            "generation_id": group.generation,
            "member_id": group.member_id,
            "group_instance_id": group.instance_id,
            "topics": [
                {"name": topic, "partitions": [committing(partition) for partition in found]}
                for topic, found in group_by_topic(offsets).items()
            ],
        }
        self._repeat(
            lambda left: _call_for_parts(coordinator, "TxnOffsetCommit", message, _offset_codes, left),
            _offset_codes,
            until,
            "TxnOffsetCommit",
        )

    def _flush_all(self, until: float) -> None:
        left = self._records.flush(_left(until))
        self._note_failed_records(committing=True)
        if self._state in (State.FAILED, State.FATAL):
            raise KafkaException(self._raised())
        if left:
            text = f"Failed to flush all outstanding messages within the API timeout: {left} message(s) left"
            raise _late(text)

    def _abort_at_coordinator(self, until: float) -> None:
        message = {"transactional_id": self._id, **self._identity(), "committed": False}
        # Either the coordinator never had the transaction, or it does not know the producer.
        expected = _NEEDS_EPOCH if self._begun else _NEEDS_EPOCH | {KafkaError.INVALID_TXN_STATE}
        try:
            self._ask("EndTxn", message, until, expected=expected)
        except KafkaException as failure:
            error = failure.error
            if error.code() in expected:
                self._new_epoch = True
            elif error.retriable():
                raise
            else:
                self._end(error, fatal=True)
                raise KafkaException(self._raised()) from None

    # ---- the thread ----

    def _run(self) -> None:
        """Adds partitions to the transaction until the producer is closed."""
        while (partitions := self._core.next_partitions(_WAIT)) is not None:
            if not partitions:
                continue
            with self._changed:
                if self._state not in (State.OPEN, State.FLUSHING):
                    # Its records are given up.
                    continue
                self._adding = True
            try:
                self._add(partitions)
            except RuntimeError:
                # The producer was closed under the request, or the process forked.
                return
            except KafkaException as failure:
                logger.info("%s", failure.error.str())
            finally:
                with self._changed:
                    self._adding = False
                    self._changed.notify_all()

    def _add(self, partitions: list[tuple[str, int]]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        producer, epoch = self._producer
        message = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": producer,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": found} for topic, found in topics.items()],
        }
        with self._changed:
            self._unsure = True
        self._repeat(
            lambda left: _call_for_parts(
                self._coordinator,
                "AddPartitionsToTxn",
                message,
                _partition_codes,
                min(left, self._timeout_ms / 1000),
            ),
            _partition_codes,
            time.monotonic() + FOREVER,
            "AddPartitionsToTxn",
        )
        with self._changed:
            self._begun = True
        self._core.partitions_added(partitions)


_NEWEST = {"AddOffsetsToTxn": 3, "EndTxn": 3}
"""Later versions are of KIP-890's second part, where a broker adds the partitions itself."""


def _call_for_parts(
    coordinator: Coordinator,
    api: str,
    message: dict[str, Any],
    codes: Callable[[dict[str, Any]], set[int]],
    timeout: float,
) -> dict[str, Any]:
    """A request whose answer has a code for each part. If it has moved, the next call finds it anew."""
    answer = coordinator.call(api, message, timeout=timeout, newest=3)
    if codes(answer) & _MOVED:
        coordinator.forget()
    return answer


def _partition_codes(answer: dict[str, Any]) -> set[int]:
    return {
        one["partition_error_code"]
        for topic in answer["results_by_topic_v3_and_below"]
        for one in topic["results_by_partition"]
    }


def _offset_codes(answer: dict[str, Any]) -> set[int]:
    return {one["error_code"] for topic in answer["topics"] for one in topic["partitions"]}


def _pause(error: KafkaError, concurrent: float) -> tuple[float, float]:
    """The pause before a request is repeated, and the next pause for CONCURRENT_TRANSACTIONS."""
    if error == KafkaError.CONCURRENT_TRANSACTIONS:
        return concurrent, min(2 * concurrent, _CONCURRENT_PAUSE_MAX)
    return RETRY_PAUSE, _CONCURRENT_PAUSE


def _until(timeout: float | None, unlimited: float) -> float:
    """The time when `timeout` seconds have passed; None and negative numbers mean `unlimited` seconds."""
    return time.monotonic() + (unlimited if timeout is None or timeout < 0 else timeout)


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)


def _late(text: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{text}; call again", retriable=True))
