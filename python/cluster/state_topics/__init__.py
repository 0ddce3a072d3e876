"""The runtime of coordinators: what keeps its state in a topic, as consumer groups and transactions do.

- `messages.py`: what a coordinator's pure machine is asked and answers.
- `runtime.py`: one machine a partition, loaded when this broker begins to lead the partition and dropped when
  it does no more.
- `log.py`: the partitions' logs.

Source: CoordinatorRuntime (KIP-848).
"""

from cluster.state_topics.log import StateTopicLog, partition_of
from cluster.state_topics.messages import (
    WRITE_ERRORS,
    Batch,
    Entry,
    Machine,
    Marker,
    Producer,
    Respond,
    Token,
    Write,
)
from cluster.state_topics.runtime import Clock, Coordinators, Rules, StateLog

__all__ = [
    "WRITE_ERRORS",
    "Batch",
    "Clock",
    "Coordinators",
    "Entry",
    "Machine",
    "Marker",
    "Producer",
    "Respond",
    "Rules",
    "StateLog",
    "StateTopicLog",
    "Token",
    "Write",
    "partition_of",
]
