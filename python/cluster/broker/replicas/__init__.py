"""What a broker does with the controller's requests, and the metadata that its clients see.

- `manager.py`: LeaderAndIsr, UpdateMetadata and StopReplica, fenced and carried out.
- `metadata.py`: the metadata cache.
- `configs.py`: the topics' settings, read from the coordinator.
- `logs.py`, `topic_logs.py`: what the data plane is asked to do.
"""

from cluster.broker.replicas.configs import TopicConfigs
from cluster.broker.replicas.logs import Logs, PartitionSpec
from cluster.broker.replicas.manager import ReplicaManager
from cluster.broker.replicas.metadata import MetadataCache
from cluster.broker.replicas.topic_logs import TopicLogs

__all__ = ["Logs", "MetadataCache", "PartitionSpec", "ReplicaManager", "TopicConfigs", "TopicLogs"]
