"""What a coordinator's machine answers, and what it is loaded from. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from cluster.errors import (
    CoordinatorNotAvailable,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)

Token = int
"""The runtime's number of a waiting request."""

WRITE_ERRORS = {
    UnknownTopicOrPartition.code: CoordinatorNotAvailable.code,
    NotEnoughReplicas.code: CoordinatorNotAvailable.code,
    NotEnoughReplicasAfterAppend.code: CoordinatorNotAvailable.code,
    RequestTimedOut.code: CoordinatorNotAvailable.code,
    NotLeaderOrFollower.code: NotCoordinator.code,
    KafkaStorageError.code: NotCoordinator.code,
    MessageTooLarge.code: UnknownServerError.code,
    RecordListTooLarge.code: UnknownServerError.code,
}
"""What a client of a coordinator gets for the error of a write
(`CoordinatorOperationExceptionHelper`, `TransactionStateManager`).
"""


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer the request with this `token`."""

    token: Token
    result: Any


@dataclass(frozen=True, slots=True)
class Write:
    """Append one batch to the machine's partition, and report it with `stored(id, error)`."""

    id: int


class Producer(NamedTuple):
    """The producer of a batch, for records that are part of a transaction."""

    id: int
    epoch: int


class Entry(NamedTuple):
    """A record of a state topic. `producer` is None outside transactions."""

    key: bytes | None
    value: bytes | None
    producer: Producer | None = None


class Marker(NamedTuple):
    """The end of a producer's transaction in a state topic's partition."""

    producer: Producer
    committed: bool


class Batch(NamedTuple):
    """One batch to append. With a `producer` it is part of that producer's transaction."""

    records: list[tuple[bytes, bytes | None]]
    producer: Producer | None = None


class Machine(Protocol):
    """The pure state machine of one partition of a state topic. Returned actions are `Respond`, `Write` and
    what its coordinator defines.
    """

    def load(self, entries: Iterable[Entry | Marker]) -> int:
        """Records were read from the log, in order. Returns how many could not be decoded."""

    def loaded(self, now: int) -> Iterable[object]:
        """The log was read to its end."""

    def unload(self) -> None:
        """Another broker leads the partition now: gives back what the machine shares with others."""

    def stored(self, write: int, error: int, now: int) -> Iterable[object]:
        """A Write was carried out; `error` is its error code, or 0."""

    def next_deadline(self) -> int | None:
        """When `advance` must be called next. It may have nothing to do then."""

    def advance(self, now: int, most: int | None = None) -> Iterable[object]:
        """Handles the timers due at `now`, at most `most` of them."""

    def postpone(self, by_ms: int) -> None:
        """Moves every deadline, because the coordinator stood still and read no requests."""
