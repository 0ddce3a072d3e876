"""The partitions a consumer reads, and where it reads them.

Only the application's thread calls it: `Consumer` for the application, and for what the background posted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count

from logcore import _native

from ._errors import KafkaError, failed
from ._offsets import Offsets
from ._types import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED, TopicPartition

_FROM_COMMITTED = (OFFSET_STORED, OFFSET_INVALID)
_LOGICAL = (OFFSET_BEGINNING, OFFSET_END)


@dataclass(frozen=True)
class Located:
    """The committed offsets of partitions that begin there."""

    lookup: int
    partitions: list[TopicPartition]


@dataclass(frozen=True)
class LookupFailed:
    """Committed offsets cannot be looked up. Without a `lookup`: one partition's offset, for good."""

    lookup: int | None
    error: KafkaError


class Assignment:
    """See the module. The extension's core has every partition; here is what it does not know."""

    def __init__(
        self,
        core: _native.ConsumerCore,
        offsets: Offsets,
        post: Callable[[Located | LookupFailed], None],
        before_removal: Callable[[], None],
        after_removal: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        """`before_removal` commits consumed offsets; `after_removal` forgets the partitions' commits."""
        self._core = core
        self._offsets = offsets
        self._post = post
        self._before_removal = before_removal
        self._after_removal = after_removal
        self._partitions: set[TopicPartition] = set()
        self._lookups: dict[TopicPartition, int] = {}
        """Partitions that wait for their committed offset -> the number of the look-up."""
        self._numbers = count()

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def partitions(self) -> list[TopicPartition]:
        """The partitions, without offsets."""
        return [TopicPartition(found.topic, found.partition) for found in self._partitions]

    def replace(self, partitions: list[TopicPartition]) -> None:
        """Reads exactly these partitions, each from its offset."""
        self._check_offsets(partitions)
        self.clear()
        self.add(partitions)

    def add(self, partitions: list[TopicPartition]) -> None:
        """Reads these partitions too. OFFSET_STORED and OFFSET_INVALID stand for the committed offset."""
        self._check_offsets(partitions)
        self._core.assign(
            [
                (
                    found.topic,
                    found.partition,
                    OFFSET_STORED if found.offset in _FROM_COMMITTED else found.offset,
                )
                for found in partitions
            ]
        )
        self._partitions.update(_copies(partitions))
        self._look_up(_copies(found for found in partitions if found.offset in _FROM_COMMITTED))

    def _check_offsets(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            if partition.offset < 0 and partition.offset not in (*_LOGICAL, *_FROM_COMMITTED):
                raise failed(KafkaError._INVALID_ARG, f"{partition}: no such offset")

    def remove(self, partitions: list[TopicPartition]) -> None:
        """Stops reading these partitions."""
        self._before_removal()
        self._core.unassign([(found.topic, found.partition) for found in partitions])
        self._after_removal(partitions)
        for partition in partitions:
            self._partitions.discard(partition)
            self._lookups.pop(partition, None)

    def clear(self) -> None:
        """Stops reading."""
        self.remove(self.partitions())

    def seek(self, partition: TopicPartition) -> None:
        """Goes on at the partition's offset."""
        self._lookups.pop(partition, None)
        self._core.seek(partition.topic, partition.partition, partition.offset)

    def set_paused(self, partitions: list[TopicPartition], paused: bool) -> None:
        """Stops or resumes handing out messages."""
        for partition in partitions:
            self._core.set_paused(partition.topic, partition.partition, paused)

    def _look_up(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        number = next(self._numbers)
        self._lookups.update(dict.fromkeys(partitions, number))
        # The job must not keep the consumer alive.
        lookups, post = self._lookups, self._post
        self._offsets.look_up_later(
            partitions,
            lambda: any(lookups.get(partition) == number for partition in partitions),
            lambda found: post(Located(number, found)),
            lambda error: post(LookupFailed(number, error)),
        )

    def begin(self, located: Located) -> list[KafkaError]:
        """Begins at the offsets found, except where the application has sought or unassigned meanwhile.

        Returns the failures of partitions whose offset is not known. They are not read: auto.offset.reset is
        for groups that have no offset.
        """
        failures = []
        for partition in located.partitions:
            if self._lookups.get(partition) != located.lookup:
                continue
            del self._lookups[partition]
            if partition.error is not None:
                failures.append(partition.error)
            else:
                self._core.seek(partition.topic, partition.partition, partition.offset)
        return failures

    def waits_for(self, lookup: int) -> bool:
        """Whether a partition still waits for this look-up."""
        return lookup in self._lookups.values()


def _copies(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions by themselves: the application may change its objects."""
    return [TopicPartition(found.topic, found.partition, found.offset) for found in partitions]
