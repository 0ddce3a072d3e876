"""A group's committed offsets, looked up in the caller's thread or in the background.

One daemon thread per consumer, started by the first look-up in the background, finds where assigned
partitions begin.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from ._commits import Identity
from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException
from ._faults import LastingFault
from ._requests import retry
from ._types import OFFSET_INVALID, TopicPartition, error_of, group_by_topic

logger = logging.getLogger("cluster.client")

Job = Callable[[], None]
Answers = dict[tuple[str, int], dict[str, Any]]
"""OffsetFetch's answer for each topic and partition."""

_ATTEMPT_TIMEOUT = 10.0
_PAUSE = 0.5
_SEVERAL_GROUPS, _WITH_MEMBER = 8, 9
"""Versions of OffsetFetch: the first one for several groups, and the first one that names the member."""


class Offsets:
    """See the module."""

    def __init__(
        self,
        coordinator: Coordinator,
        settle: Callable[[float], bool] | None = None,
        require_stable: bool = False,
        reader: Callable[[], Identity] = Identity,
    ) -> None:
        """`settle` waits at most so many seconds for the commits before a look-up; whether they are answered.

        `require_stable` waits for open transactions that may change an offset. `reader` returns
        the member of the consumer protocol that asks.
        """
        self._coordinator = coordinator
        self._settle = settle
        self._require_stable = require_stable
        self._reader = reader
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def committed(self, partitions: list[TopicPartition] | None, timeout: float) -> list[TopicPartition]:
        """The committed offsets, OFFSET_INVALID where there is none. `partitions` None asks for all."""
        deadline = time.monotonic() + timeout
        if self._settle is not None and not self._settle(timeout):
            text = f"the commits before were not answered within {timeout:g} s; look up again"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True))
        left = max(deadline - time.monotonic(), 0.001)
        what = f"OffsetFetch for group {self._coordinator.group}"
        answers = retry(lambda left: self._ask(partitions, left), left, what)
        results = []
        for topic, number in answers if partitions is None else map(TopicPartition._key, partitions):
            result = TopicPartition(topic, number)
            answer = answers.get((topic, number))
            if answer is not None:
                offset = answer["committed_offset"]
                result.offset = offset if offset >= 0 else OFFSET_INVALID
                result.metadata = answer["metadata"] or None
                epoch = answer.get("committed_leader_epoch", -1)
                result.leader_epoch = epoch if epoch >= 0 else None
                result.error = error_of(answer["error_code"])
            results.append(result)
        return results

    def _ask(self, partitions: list[TopicPartition] | None, timeout: float) -> Answers:
        topics = None
        if partitions is not None:
            topics = [
                {"name": topic, "partition_indexes": [partition.partition for partition in found]}
                for topic, found in group_by_topic(partitions).items()
            ]
        member = self._reader()

        def message(version: int) -> dict[str, Any]:
            asked: dict[str, Any] = {"group_id": self._coordinator.group, "topics": topics}
            if version >= _WITH_MEMBER:
                asked |= {"member_id": member.member or None, "member_epoch": member.generation}
            fields = {"groups": [asked]} if version >= _SEVERAL_GROUPS else asked
            return fields | ({"require_stable": True} if self._require_stable else {})

        response = self._coordinator.ask("OffsetFetch", message, _fetch_codes, timeout=timeout)
        found = _of_group(response)
        code = found.get("error_code", 0)
        if code:
            # The member's next heartbeat brings the new epoch, or its removal.
            stale = member.member and code in (KafkaError.STALE_MEMBER_EPOCH, KafkaError.UNKNOWN_MEMBER_ID)
            raise KafkaException(KafkaError(code, None, retriable=True if stale else None))
        return {
            (topic["name"], answer["partition_index"]): answer
            for topic in found["topics"]
            for answer in topic["partitions"]
        }

    def look_up_later(
        self,
        partitions: list[TopicPartition],
        still_wanted: Callable[[], bool],
        found: Callable[[list[TopicPartition]], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Finds committed offsets in the background. Tries until it succeeds or `still_wanted` is false.

        `failed` is called once for each kind of failure. The callbacks run in the background thread.
        """

        def job() -> None:
            fault = LastingFault()
            while still_wanted():
                try:
                    found(self.committed(partitions, _ATTEMPT_TIMEOUT))
                    return
                except KafkaException as error:
                    if fault.is_new(error.error):
                        failed(error.error)
                    if not error.error.retriable():
                        return
                    time.sleep(_PAUSE)

        self._submit(job)

    def stop(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for the look-ups under way, and ends the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            # The garbage collector may end a consumer in this very thread.
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _submit(self, job: Job) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logcore-offsets", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except RuntimeError:
                # The client was closed under the request.
                return
            except Exception:
                logger.exception("a background task of the consumer failed")
            # While the thread waits it must not keep alive what the job refers to.
            del job


def _of_group(response: dict[str, Any]) -> dict[str, Any]:
    """The part of the answer with `error_code` (from version 2) and `topics`."""
    groups = response.get("groups")
    found: dict[str, Any] = groups[0] if groups else response
    return found


def _fetch_codes(response: dict[str, Any]) -> set[int]:
    found = _of_group(response)
    partitions = (answer["error_code"] for topic in found["topics"] for answer in topic["partitions"])
    return {found.get("error_code", 0), *partitions}
