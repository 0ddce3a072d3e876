"""`Producer`: confluent-kafka's, over the extension's accumulator and sender."""

from __future__ import annotations

from typing import Any

from logcore import _native

from . import _config
from ._errors import log_error
from ._requests import list_topics
from ._types import ClusterMetadata


class Producer(_native.ProducerCore):
    """Writes records: `produce` takes one and returns, a background thread batches and sends them.

    Delivery reports are callbacks, called from `poll` and `flush` in the calling thread. Idempotent by
    default: a broker that is killed and comes back within `delivery.timeout.ms` has every acknowledged record
    once and in order.

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

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's brokers and topics (or one topic). Seconds; negative waits for as long as it takes.

        Asking about one topic may create it, where the brokers create topics by themselves.
        """
        return list_topics(self._network(self._log), topic, timeout, create=True)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """The cluster's id."""
        return self.list_topics(timeout=timeout).cluster_id

    def close(self, timeout: float = -1) -> bool:
        """Flushes and stops; True when every record was settled. Any use afterwards raises RuntimeError;
        closing twice is allowed.
        """
        if self._closed():
            return True
        self.flush(timeout)
        return self._stop() == 0

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
