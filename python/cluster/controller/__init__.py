"""The controller: which topics there are, where their partitions lie, who leads them.

`state.py` is the pure state machine, `topics.py` and `assignment.py` the checks and the placing of new
topics, `znodes.py` Kafka's paths and JSON, `metadata.py` the view clients are given, `driver.py` what makes
it all happen, with `_actions.py` and `zookeeper.py` for the doing. Only the broker imports this room.
"""

from cluster.controller import znodes
from cluster.controller._actions import Logs, Replica
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
    "Replica",
    "TopicDefaults",
    "TopicToDelete",
    "ZooKeeper",
    "outcome_of",
    "znodes",
]
