"""The controller: creates and deletes topics, assigns their partitions and elects leaders, for every broker.

- `state.py`: the pure state machine of the cluster, with its parts `elections.py` and `reassignment.py`; what
  they share is in `view.py`, what they ask of the driver in `actions.py`.
- `requests.py`, `channel.py`: its requests to the brokers, and the channel to each.
- `topics.py`, `assignment.py`: checks of new topics, and the assignment of their replicas.
- `znodes.py`: Kafka's paths and JSON.
- `driver.py`, `commands.py`, `operations.py`, `work.py`, `executor.py`: the controller's own election and
  watches, commands on topics, operators' requests, the queue they run in, and the execution of actions.
- `features.py`: the features of KIP-584, and which updates of them are allowed.
- `zookeeper.py`: the session with the coordinator. Only this module imports kazoo.

Only the broker imports this package.
"""

from cluster.controller import znodes
from cluster.controller.channel import Transport
from cluster.controller.commands import Outcomes, outcome_of
from cluster.controller.driver import Controller
from cluster.controller.elections import ElectionResults, ElectionType
from cluster.controller.operations import PRODUCER_IDS, Balance
from cluster.controller.state import NewIsr
from cluster.controller.topics import NewPartitions, NewTopic, TopicDefaults, TopicToDelete
from cluster.controller.zookeeper import ZooKeeper, ZooKeeperError

__all__ = [
    "PRODUCER_IDS",
    "Balance",
    "Controller",
    "ElectionResults",
    "ElectionType",
    "NewIsr",
    "NewPartitions",
    "NewTopic",
    "Outcomes",
    "TopicDefaults",
    "TopicToDelete",
    "Transport",
    "ZooKeeper",
    "ZooKeeperError",
    "outcome_of",
    "znodes",
]
