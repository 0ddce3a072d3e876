"""Finding a group's coordinator and talking to it, again and again until it answers or time is up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cluster.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    NotCoordinator,
    RequestTimedOut,
    UnstableOffsetCommit,
)

from ._errors import KafkaError, KafkaException
from ._requests import RETRY_PAUSE, Requests
from ._types import Node

# The coordinator moved, is not ready or could not write in time (offsets.commit.timeout.ms): find it anew and ask again.
_MOVED = frozenset(error.code for error in (RequestTimedOut, CoordinatorNotAvailable, NotCoordinator))
# The coordinator is loading, or an open transaction may change the offset: ask again.
_NOT_YET = frozenset(error.code for error in (CoordinatorLoadInProgress, UnstableOffsetCommit))


def find_coordinator(requests: Requests, group: str, timeout: float) -> Node:
    """The broker that coordinates `group`. Raises KafkaException when none is found in time."""
    deadline = time.monotonic() + timeout
    while True:
        left = max(deadline - time.monotonic(), 0.001)
        message = {"key": group, "key_type": 0}
        served = requests.network.versions(10, timeout=left)
        if served is not None and served[1] < 1:
            del message["key_type"]
        response = requests.send_until("FindCoordinator", message, timeout=left)
        code = response["error_code"]
        if code == 0:
            return Node(response["node_id"], response["host"], response["port"])
        error = KafkaException(KafkaError(code, response.get("error_message")))
        if not error.error.retriable() or time.monotonic() + RETRY_PAUSE >= deadline:
            raise error
        time.sleep(RETRY_PAUSE)


class Coordinator:
    """One group's coordinator, found when needed and forgotten when it moves. Any thread may use it."""

    def __init__(self, requests: Requests, group: str) -> None:
        self._requests = requests
        self._group = group
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
            node = find_coordinator(self._requests, self._group, timeout)
            with self._lock:
                self._node = node
        return node

    def call(
        self,
        api: str,
        message: dict[str, Any],
        *,
        timeout: float,
        purpose: str = "general",
        newest: int | None = None,
    ) -> dict[str, Any]:
        """One attempt. A failure to reach the coordinator makes the next call find it anew."""
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
        message: dict[str, Any],
        codes: Callable[[dict[str, Any]], set[int]],
        *,
        timeout: float,
    ) -> dict[str, Any]:
        """One attempt. A response with a code that only says "not now" or "not here" is a KafkaException, too.

        `codes` names the codes of a response.
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
        message: dict[str, Any],
        codes: Callable[[dict[str, Any]], set[int]],
        *,
        timeout: float,
    ) -> dict[str, Any]:
        """`ask`, again and again while that may help and time is left. Raises the last failure."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.ask(api, message, codes, timeout=max(deadline - time.monotonic(), 0.001))
            except KafkaException as error:
                if not error.error.retriable() or time.monotonic() + RETRY_PAUSE >= deadline:
                    raise
            time.sleep(RETRY_PAUSE)
