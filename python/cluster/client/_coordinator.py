"""The coordinator of a group or transactional id: finding it, and requests to it. Any thread may call it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ._errors import KafkaError, KafkaException
from ._requests import Message, Requests, retry
from ._types import Node

_MOVED = frozenset(
    {KafkaError.REQUEST_TIMED_OUT, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
)
"""The coordinator moved, is not ready or did not write in time (offsets.commit.timeout.ms): find it anew."""
_NOT_YET = frozenset({KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.UNSTABLE_OFFSET_COMMIT})
"""The coordinator loads, or an open transaction may change the offset: ask again."""


GROUP = 0
TRANSACTION = 1
"""Kinds of coordinators (FindCoordinatorRequest.CoordinatorType)."""


def find_coordinator(requests: Requests, key: str, timeout: float, kind: int = GROUP) -> Node:
    """The broker that coordinates a group, or a transactional id. Raises KafkaException when none is found in
    time.
    """
    what = "group" if kind == GROUP else "transactional id"
    return retry(
        lambda left: _ask_for_coordinator(requests, key, left, kind),
        timeout,
        f"finding the coordinator of {what} {key}",
    )


def _ask_for_coordinator(requests: Requests, key: str, timeout: float, kind: int = GROUP) -> Node:
    message = {"key": key, "key_type": kind}
    served = requests.network.versions(requests.key("FindCoordinator"), timeout=timeout)
    if served is not None and served[1] < 1:
        del message["key_type"]
    response = requests.send("FindCoordinator", message, timeout=timeout)
    if response["error_code"]:
        raise KafkaException(KafkaError(response["error_code"], response.get("error_message")))
    return Node(response["node_id"], response["host"], response["port"])


class Coordinator:
    """One coordinator, found when needed and forgotten when it moves.

    `group` is the group's name; with `kind` TRANSACTION it is the transactional id.
    """

    def __init__(self, requests: Requests, group: str, kind: int = GROUP) -> None:
        self._requests = requests
        self._group = group
        self._kind = kind
        self._lock = threading.Lock()
        self._node: Node | None = None

    @property
    def group(self) -> str:
        return self._group

    @property
    def requests(self) -> Requests:
        return self._requests

    def forget(self) -> None:
        """The next request finds the coordinator anew."""
        with self._lock:
            self._node = None

    def _find(self, timeout: float) -> Node:
        with self._lock:
            node = self._node
        if node is None:
            # One attempt: the caller tries again, and reports a failure that lasts.
            node = _ask_for_coordinator(self._requests, self._group, timeout, self._kind)
            with self._lock:
                self._node = node
        return node

    def call(
        self,
        api: str,
        message: Message,
        *,
        timeout: float,
        purpose: str = "general",
        newest: int | None = None,
    ) -> dict[str, Any]:
        """Sends one request, once. After a failure the next call finds the coordinator anew."""
        deadline = time.monotonic() + timeout
        node = self._find(timeout)
        left = max(deadline - time.monotonic(), 0.001)
        try:
            response = self._requests.send(
                api, message, broker=node.id, purpose=purpose, timeout=left, newest=newest
            )
        except KafkaException:
            self.forget()
            raise
        if response.get("error_code", 0) in _MOVED:
            self.forget()
        return response

    def ask(
        self,
        api: str,
        message: Message,
        codes: Callable[[dict[str, Any]], set[int]],
        *,
        timeout: float,
    ) -> dict[str, Any]:
        """Sends one request, and raises KafkaException for codes that ask to try again, here or elsewhere.

        `codes` returns the error codes in a response.
        """
        response = self.call(api, message, timeout=timeout)
        found = codes(response)
        if found & _MOVED:
            self.forget()
        passing = found & (_MOVED | _NOT_YET)
        if passing:
            raise KafkaException(KafkaError(min(passing)))
        return response

    def ask_until(
        self,
        api: str,
        message: Message,
        codes: Callable[[dict[str, Any]], set[int]],
        *,
        timeout: float,
    ) -> dict[str, Any]:
        """`ask`, tried again while that may help and time is left. Raises the last failure."""
        what = f"{api} for group {self._group}"
        return retry(lambda left: self.ask(api, message, codes, timeout=left), timeout, what)
