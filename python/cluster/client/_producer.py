"""`Producer`: confluent-kafka's, over the extension's accumulator and sender."""

from __future__ import annotations

import weakref
from typing import Any

from logcore import _native

from . import _config
from ._errors import KafkaError, failed, log_error
from ._requests import Requests, list_topics
from ._transactions import Transactions
from ._types import ClusterMetadata, ConsumerGroupMetadata, TopicPartition


class Producer(_native.ProducerCore):
    """Writes records: `produce` takes one and returns, a background thread batches and sends them.

    Delivery reports are callbacks, called from `poll` and `flush` in the calling thread. Idempotent by
    default: a broker that is killed and comes back within `delivery.timeout.ms` has every acknowledged record
    once and in order. With `transactional.id` its records, and offsets of groups, are committed together:
    `init_transactions` once, then `begin_transaction` and `commit_transaction` or `abort_transaction`. A
    failure's `KafkaError` says whether to call again (`retriable`), to abort (`txn_requires_abort`) or to
    make a new producer (`fatal`).

    Raises KafkaException naming the property for a wrong configuration. After a fork every method raises
    RuntimeError in the child: make a new producer there.
    """

    def __init__(self, *configs: dict[str, Any], **overrides: Any) -> None:
        config = _config.parse(configs, "p", overrides)
        _config.finish_producer(config)
        callbacks = config.callbacks
        error_cb = callbacks.get("error_cb")
        self._log = None if error_cb is not None else log_error
        self._start(config.values, callbacks.get("on_delivery"), error_cb or log_error, error_cb is not None)
        self._transactional: Transactions | None = None
        if "transactional.id" in config.values:
            requests = Requests(self._network(self._log))
            self._transactional = Transactions(
                self._transactions(), requests, config.values, weakref.proxy(self)
            )

    def produce_table(self, table: object, topic: str | None = None) -> int:
        """Takes the rows of an Arrow table or record batch as records, in their order; returns how many.

        Columns: `key` and `value` (binary or string; one of them is needed), `headers` (a list of structs of
        `key` and `value`, or a map), `timestamp` (a null is the present time), `partition` (int32; the
        partitioner chooses for a null), and `topic` unless `topic` is passed. Others are ignored. Waits while
        the queue is full.

        Rows have no delivery reports. Instead the next `produce_table` or `flush` raises KafkaException once
        a record was not written. Raises TypeError for a column of a wrong type, and ValueError for a row that
        cannot be a record; the rows before it were taken.
        """
        return self._produce_table(table, topic)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's brokers and topics (or one topic). Seconds; negative waits for as long as it takes.

        Asking about one topic may create it, where the brokers create topics by themselves.
        """
        return list_topics(self._network(self._log), topic, timeout, create=True)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """The cluster's id."""
        return self.list_topics(timeout=timeout).cluster_id

    def init_transactions(self, timeout: float = -1) -> None:
        """Gets this producer's id and epoch. Ends what an older producer of the transactional id left open.

        Seconds; negative waits twice transaction.timeout.ms. Call it again after a retriable error.
        """
        self._of_transactions().init(timeout)

    def begin_transaction(self) -> None:
        """Begins a transaction: from now on records are taken."""
        self._of_transactions().begin()

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: ConsumerGroupMetadata, timeout: float = -1
    ) -> None:
        """Commits a group's offsets with the transaction. `group_metadata`: the consumer's
        `consumer_group_metadata()`. Waits at most transaction.timeout.ms.
        """
        self._of_transactions().send_offsets(positions, group_metadata, timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Flushes, calling delivery reports, and commits. After a retriable error call it again."""
        self._of_transactions().commit(timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Gives up the records that wait, calling delivery reports, and aborts. After a retriable error call
        it again.
        """
        self._of_transactions().abort(timeout)

    def _of_transactions(self) -> Transactions:
        # Raises when the producer is closed, or the process forked.
        self._network(self._log)
        if self._transactional is None:
            text = "The Transactional API requires transactional.id to be configured"
            raise failed(KafkaError._NOT_CONFIGURED, text)
        return self._transactional

    def close(self, timeout: float = -1) -> bool:
        """Flushes and stops; True when every record was settled. Any use afterwards raises RuntimeError;
        closing twice is allowed.
        """
        if self._closed():
            return True
        try:
            # Raises when rows of tables were not written.
            self.flush(timeout)
        finally:
            if self._transactional is not None:
                self._transactional.close()
            left = self._stop()
        return left == 0

    def __del__(self) -> None:
        # The thread that adds partitions ends with the producer.
        transactional: Transactions | None = getattr(self, "_transactional", None)
        if transactional is not None and not self._closed():
            transactional.close()
            self._stop()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
