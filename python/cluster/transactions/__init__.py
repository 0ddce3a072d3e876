"""The transaction coordinator. It fences producers, and ends their transactions in all partitions.

- `machine.py`: the pure state machine of one partition of __transaction_state; `messages.py`: its data.
- `records.py`: the records of __transaction_state.
- `markers.py`: the way of transaction markers to the partitions' leaders.
- `driver.py`: the coordinator; `cluster.state_topics` runs its machines.

Only the broker imports this package.
"""

from cluster.transactions.driver import TransactionCoordinator
from cluster.transactions.markers import Leader
from cluster.transactions.messages import (
    EPOCH_A_TRANSACTION,
    Listing,
    ProducerResult,
    SendMarkers,
    Stored,
    TransactionLimits,
    TransactionState,
)

__all__ = [
    "EPOCH_A_TRANSACTION",
    "Leader",
    "Listing",
    "ProducerResult",
    "SendMarkers",
    "Stored",
    "TransactionCoordinator",
    "TransactionLimits",
    "TransactionState",
]
