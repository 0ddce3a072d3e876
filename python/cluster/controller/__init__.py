"""The controller: creates and deletes topics, assigns their partitions and elects leaders.

- `state.py`: the pure state machine.
- `topics.py`, `assignment.py`: checks of new topics, and the assignment of their replicas.
- `znodes.py`: Kafka's paths and JSON.
- `metadata.py`: the view that clients see.
- `driver.py`, `_actions.py`: elections, watches, commands, and the execution of actions.
- `zookeeper.py`: the session with the coordinator. Only this module imports kazoo.

Only the broker imports this package.
"""

from cluster.controller import znodes
from cluster.controller._actions import Logs, PartitionSpec
from cluster.controller.driver import Controller, Outcomes, outcome_of
from cluster.controller.metadata import MetadataCache
from cluster.controller.topics import NewPartitions, NewTopic, TopicDefaults, TopicToDelete
from cluster.controller.zookeeper import ZooKeeper

__all__ = [
    "Controller",
    "Logs",
    "MetadataCache",
    "NewPartitions",
    "NewTopic",
    "Outcomes",
    "PartitionSpec",
    "TopicDefaults",
    "TopicToDelete",
    "ZooKeeper",
    "outcome_of",
    "znodes",
]
