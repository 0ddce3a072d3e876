"""A group's committed offsets: committing, looking up, and doing either in the background.

One daemon thread per consumer, started when first needed, does asynchronous commits, commits at intervals, and finds where
assigned partitions begin. Synchronous calls run in the caller's thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ._coordinator import Coordinator
from ._errors import KafkaError, KafkaException
from ._types import OFFSET_INVALID, TopicPartition, error_of, group_by_topic

logger = logging.getLogger("cluster.client")

COMMIT_TIMEOUT = 60.0
"""Seconds a commit may take, retries included."""


@dataclass(frozen=True)
class Identity:
    """Who commits: a member of a generation, or (generation -1) a consumer that assigns partitions to itself."""

    generation: int = -1
    member: str = ""
    instance: str | None = None


Job = Callable[[], None]


class Offsets:
    """See the module."""

    def __init__(
        self,
        coordinator: Coordinator,
        identity: Callable[[], Identity],
        stored: Callable[[], list[TopicPartition]],
        commit_interval: float | None,
        committed: Callable[[KafkaError | None, list[TopicPartition]], None],
    ) -> None:
        """`stored` names what is to be committed; `commit_interval` (seconds) None means only when asked;
        `committed` hears how each commit in the background ended."""
        self._coordinator = coordinator
        self._identity = identity
        self._stored = stored
        self._interval = commit_interval
        self._committed = committed
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done: dict[TopicPartition, int] = {}

    def commit(
        self, partitions: list[TopicPartition], timeout: float = COMMIT_TIMEOUT
    ) -> list[TopicPartition]:
        """Commits, and returns the partitions with each one's error. Raises KafkaException when all fail alike."""

        def message() -> dict[str, Any]:
            identity = self._identity()
            return {
                "group_id": self._coordinator.group,
                "generation_id_or_member_epoch": identity.generation,
                "member_id": identity.member,
                "group_instance_id": identity.instance,
                "topics": [
                    {"name": topic, "partitions": [_committing(partition) for partition in group]}
                    for topic, group in group_by_topic(partitions).items()
                ],
            }

        response = self._coordinator.call_until("OffsetCommit", message, _partition_codes, timeout=timeout)
        codes = {
            (topic["name"], answer["partition_index"]): answer["error_code"]
            for topic in response["topics"]
            for answer in topic["partitions"]
        }
        results = []
        for partition in partitions:
            result = TopicPartition(
                partition.topic,
                partition.partition,
                partition.offset,
                partition.metadata,
                partition.leader_epoch,
            )
            result.error = error_of(codes.get((partition.topic, partition.partition), 0))
            if result.error is None:
                self._done[result] = result.offset
            results.append(result)
        errors = {result.error.code() for result in results if result.error is not None}
        if len(errors) == 1 and all(result.error is not None for result in results):
            raise KafkaException(KafkaError(errors.pop()))
        return results

    def commit_later(self, partitions: list[TopicPartition]) -> None:
        """Commits in the background."""
        self._submit(lambda: self._commit_and_tell(partitions))

    def commit_stored(self, timeout: float = COMMIT_TIMEOUT) -> None:
        """Commits what is stored and not committed yet; a failure is told like one in the background."""
        fresh = [found for found in self._stored() if self._done.get(found) != found.offset]
        if fresh:
            self._commit_and_tell(fresh, timeout)

    def _commit_and_tell(self, partitions: list[TopicPartition], timeout: float = COMMIT_TIMEOUT) -> None:
        try:
            results = self.commit(partitions, timeout)
        except KafkaException as error:
            self._committed(error.error, partitions)
        else:
            failures = [result.error for result in results if result.error is not None]
            self._committed(failures[0] if failures else None, results)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that others may commit from now on."""
        for partition in partitions:
            self._done.pop(partition, None)

    def committed(
        self, partitions: list[TopicPartition] | None, timeout: float, require_stable: bool = False
    ) -> list[TopicPartition]:
        """The group's committed offsets, OFFSET_INVALID where there is none; without partitions all that there are.

        `require_stable`: an offset that an open transaction may change is waited for.
        """
        message: dict[str, Any] = {
            "group_id": self._coordinator.group,
            "topics": None
            if partitions is None
            else [
                {"name": topic, "partition_indexes": [partition.partition for partition in group]}
                for topic, group in group_by_topic(partitions).items()
            ],
        }
        if require_stable:
            message["require_stable"] = True
        response = self._coordinator.call_until("OffsetFetch", lambda: message, _fetch_codes, timeout=timeout)
        if response.get("error_code", 0):
            raise KafkaException(KafkaError(response["error_code"]))
        answers = {
            (topic["name"], answer["partition_index"]): answer
            for topic in response["topics"]
            for answer in topic["partitions"]
        }
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

    def look_up_later(
        self,
        partitions: list[TopicPartition],
        still_wanted: Callable[[], bool],
        found: Callable[[list[TopicPartition]], None],
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Finds committed offsets in the background, trying until it succeeds or nobody wants them any more."""

        def job() -> None:
            told = False
            while still_wanted():
                try:
                    found(self.committed(partitions, 10.0))
                    return
                except KafkaException as error:
                    if not told:
                        failed(error.error)
                        told = True
                    if not error.error.retriable():
                        return
                    time.sleep(0.5)

        self._submit(job)

    def start(self) -> None:
        """Starts the thread, for commits at intervals."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logcore-offsets", daemon=True)
                self._thread.start()

    def stop(self, timeout: float) -> None:
        """Lets what was submitted finish, at most `timeout` seconds."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(timeout)

    def _submit(self, job: Job) -> None:
        self.start()
        self._jobs.put(job)

    def _run(self) -> None:
        due = time.monotonic() + (self._interval or 0)
        while True:
            wait = None if self._interval is None else max(due - time.monotonic(), 0)
            try:
                job = self._jobs.get(timeout=wait)
            except queue.Empty:
                job = self.commit_stored
            if job is None:
                return
            try:
                job()
            except RuntimeError:
                # The client was closed under the request.
                return
            except Exception:
                logger.exception("a background task of the consumer failed")
            # A job knows its consumer; one that was let go of must not live on in a thread that waits.
            del job
            if self._interval is not None and time.monotonic() >= due:
                due = time.monotonic() + max(self._interval, 0.01)


def _committing(partition: TopicPartition) -> dict[str, Any]:
    epoch = partition.leader_epoch
    return {
        "partition_index": partition.partition,
        "committed_offset": partition.offset,
        "committed_leader_epoch": -1 if epoch is None else epoch,
        "committed_metadata": partition.metadata or "",
    }


def _partition_codes(response: dict[str, Any]) -> set[int]:
    return {answer["error_code"] for topic in response["topics"] for answer in topic["partitions"]}


def _fetch_codes(response: dict[str, Any]) -> set[int]:
    return {response.get("error_code", 0)} | _partition_codes(response)
