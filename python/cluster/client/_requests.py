"""Requests of any API by name, over a client's connections: negotiates versions, encodes and decodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from logcore import _native

from ._errors import KafkaError, KafkaException, failed, logger
from ._faults import LastingFault
from ._types import ClusterMetadata, cluster_metadata

Result = TypeVar("Result")

ANY_BROKER = -1
CONTROLLER = -2

# The newest version that this package is written for; the codec has newer ones.
_NEWEST = {
    "Metadata": 12,
    "CreateTopics": 7,
    "DeleteTopics": 5,
    "OffsetCommit": 9,
    "OffsetFetch": 9,
    "FindCoordinator": 3,
    "DescribeGroups": 5,
    "ListGroups": 5,
}

Message = dict[str, Any] | Callable[[int], dict[str, Any]]
"""A request's fields, or what makes them for a version."""

RETRY_PAUSE = 0.1
"""Seconds between two attempts at the same request."""


class Requests:
    """Sends requests of any API. Any thread may call it."""

    def __init__(self, network: _native.Network) -> None:
        self.network = network
        self._keys = _native.api_keys()

    def send(
        self,
        api: str,
        message: Message,
        *,
        broker: int = ANY_BROKER,
        purpose: str = "general",
        timeout: float = 60.0,
        newest: int | None = None,
    ) -> dict[str, Any]:
        """Sends one request in the newest version that both sides know, and returns the decoded response.

        Fields that the version does not have are left out if they may be. Raises KafkaException when the
        broker cannot be reached, does not serve the API, or does not answer in time. The caller handles error
        codes inside the response.
        """
        key = self._keys[api]
        deadline = time.monotonic() + timeout
        version = self._version(api, key, broker, purpose, timeout, newest)
        fields = message(version) if callable(message) else message
        body = _native.encode_request(key, version, fields)
        left = max(deadline - time.monotonic(), 0.001)
        answer = self.network.request(key, version, body, broker=broker, purpose=purpose, timeout=left)
        return _native.decode_response(key, version, answer)

    def key(self, api: str) -> int:
        """The API's key."""
        return self._keys[api]

    def _version(
        self, api: str, key: int, broker: int, purpose: str, timeout: float, newest: int | None
    ) -> int:
        served = self.network.versions(key, broker=broker, purpose=purpose, timeout=timeout)
        first, last = _native.valid_versions(key)
        last = min(last, newest if newest is not None else _NEWEST.get(api, last))
        if served is not None and served[0] <= last and first <= served[1]:
            return min(last, served[1])
        spoken = "not at all" if served is None else f"in versions {served[0]} to {served[1]}"
        raise failed(
            KafkaError._UNSUPPORTED_FEATURE,
            f"{api}: the broker serves it {spoken}; this client speaks versions {first} to {last}",
        )

    def send_until(
        self, api: str, message: dict[str, Any], *, timeout: float, **where: Any
    ) -> dict[str, Any]:
        """`send`, tried again while the failure may pass and time is left."""
        return retry(lambda left: self.send(api, message, timeout=left, **where), timeout, api)


def retry(attempt: Callable[[float], Result], timeout: float, what: str) -> Result:
    """Calls `attempt` with the seconds that are left, again while its failure may pass. Raises the last
    failure.
    """
    deadline = time.monotonic() + timeout
    fault = LastingFault()
    last: KafkaException | None = None
    while True:
        try:
            return attempt(max(deadline - time.monotonic(), 0.001))
        except KafkaException as failure:
            if not failure.error.retriable():
                raise
            if last is None or failure.error != KafkaError._TIMED_OUT:
                last = failure
            if time.monotonic() + RETRY_PAUSE >= deadline:
                # The last attempt may have had too little time to fail for its own reason.
                raise last from None
            log_lasting(fault, what, failure.error)
        time.sleep(RETRY_PAUSE)


def ask_controller(
    requests: Requests,
    api: str,
    message: dict[str, Any],
    codes: Callable[[dict[str, Any]], Iterable[int]],
    timeout: float,
) -> dict[str, Any]:
    """A request to the controller, sent again when the controller has moved.

    `codes` lists the error codes inside a response.
    """
    deadline = time.monotonic() + timeout
    fault = LastingFault()
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        response = requests.send_until(api, message, broker=CONTROLLER, timeout=left)
        moved = KafkaError.NOT_CONTROLLER in codes(response)
        if not moved or time.monotonic() + RETRY_PAUSE >= deadline:
            return response
        log_lasting(fault, api, KafkaError(KafkaError.NOT_CONTROLLER))
        time.sleep(RETRY_PAUSE)
        requests.network.metadata([], timeout=left)


def log_lasting(fault: LastingFault, what: str, error: KafkaError) -> None:
    """Logs a broker's answer that lasts; the extension reports connections by itself."""
    if error.code() > 0 and fault.lasts(error, time.monotonic()):
        logger.warning("%s fails and is tried again: %s", what, error.str())


FOREVER = 10 * 365 * 86_400.0
"""Seconds that stand for "as long as it takes"."""


def seconds(timeout: float | None) -> float:
    """A confluent-kafka timeout: None and negative numbers mean no limit."""
    return FOREVER if timeout is None or timeout < 0 else timeout


def list_topics(network: _native.Network, topic: str | None, timeout: float, create: bool) -> ClusterMetadata:
    """`list_topics` of the three clients. `create`: asking for the topic may create it."""
    names = None if topic is None else [topic]
    return cluster_metadata(network.metadata(names, create=create, timeout=seconds(timeout)))
