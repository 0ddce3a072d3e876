"""The transaction machine's requests, results and actions. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from cluster.errors import NONE
from cluster.model import TopicPartition
from cluster.state_topics import Producer
from cluster.state_topics import Write as StateWrite

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NOBODY = Producer(NO_PRODUCER_ID, NO_EPOCH)
LAST_EPOCH = 2**15 - 1
"""The last producer epoch. It only ends the transactions of a producer, which never gets it."""


class TransactionState(Enum):
    """The states: Kafka's name, and the number in a transaction's record (`TransactionState`)."""

    EMPTY = "Empty", 0
    ONGOING = "Ongoing", 1
    PREPARE_COMMIT = "PrepareCommit", 2
    PREPARE_ABORT = "PrepareAbort", 3
    COMPLETE_COMMIT = "CompleteCommit", 4
    COMPLETE_ABORT = "CompleteAbort", 5
    DEAD = "Dead", 6
    PREPARE_EPOCH_FENCE = "PrepareEpochFence", 7

    @property
    def text(self) -> str:
        """Kafka's name."""
        return self.value[0]

    @property
    def number(self) -> int:
        """The number in a record."""
        return self.value[1]


EPOCH_A_TRANSACTION = 2
"""The `transaction.version` from which on each transaction has its own epoch (KIP-890)."""

STATES = {state.number: state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The broker's settings for transactions, in milliseconds."""

    timeout_max_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3_600_000
    """How long a transactional id without a transaction is kept."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A transactional id's record (TransactionLogValue)."""

    producer: Producer
    last_producer: Producer
    """The producer before: it may ask again for the one that it was given."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    start_ms: int = -1
    """When the transaction began; -1 when none did."""
    client_version: int = 0
    """The `transaction.version` that the transaction's client follows: 0, or 2 (an epoch a transaction)."""
    previous_id: int = NO_PRODUCER_ID
    """The producer id whose last epoch the last transaction took."""
    next_id: int = NO_PRODUCER_ID
    """In a Prepare state: the producer id of the next transaction, if this one takes the last epoch."""

    @property
    def next_producer(self) -> Producer:
        """The producer of the next transaction."""
        return self.producer if self.next_id == NO_PRODUCER_ID else Producer(self.next_id, 0)


@dataclass(frozen=True, slots=True)
class Write(StateWrite):
    """A transactional id's record; None removes it."""

    transactional_id: str
    stored: Stored | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the markers that end a transaction to its partitions, and report each with `marked`."""

    transactional_id: str
    producer: Producer
    committed: bool
    partitions: frozenset[TopicPartition]
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerResult:
    """The response to InitProducerId and EndTxn. `needs_id`: ask again with a new producer id."""

    error: int = NONE
    producer: Producer = NOBODY
    needs_id: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """A transactional id in ListTransactions."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True)
class Description:
    """A transactional id in DescribeTransactions."""

    stored: Stored


Result = ProducerResult | int | Mapping[TopicPartition, int]
"""An ProducerResult; an error code; or an error code for each partition."""

Partitions = Iterable[TopicPartition]
