"""The controller's requests to one broker: collected, merged by partition, and put into Kafka's form.

A partition's newer state replaces an older one that was not sent yet, so what waits for a broker that does
not answer is bounded by the cluster's size. Of each kind one request is taken at a time, in Kafka's order:
leaders (LeaderAndIsr), then metadata (UpdateMetadata), then stops (StopReplica). Changed brokers go before
all, because Kafka's broker follows no leader that its metadata does not have. A broker that has just started
gets the partitions' metadata with them (KafkaController.onBrokerStartup). Pure. Source:
ControllerChannelManager.AbstractControllerBrokerRequestBatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.controller.view import UNREADABLE
from cluster.model import NO_LEADER, BrokerId, BrokerInfo, Endpoint, PartitionState, TopicId, TopicInfo
from cluster.peer import Body

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA = 4, 5, 6
VERSIONS = {LEADER_AND_ISR: 7, STOP_REPLICA: 4, UPDATE_METADATA: 8}
"""The versions of inter.broker.protocol.version 3.9."""

LEADER_DURING_DELETE = -2
"""The leader of a partition whose topic is deleted (`LeaderAndIsr.LEADER_DURING_DELETE`)."""
EPOCH_DURING_DELETE = -2
"""The leader's epoch in a request to delete a partition: it is above any other."""

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""`SecurityProtocol`, by id."""


@dataclass(slots=True)
class _Topic:
    id: TopicId
    partitions: dict[int, Body] = field(default_factory=dict)


_Topics = dict[str, _Topic]


def _put(topics: _Topics, name: str, topic_id: TopicId, number: int, entry: Body) -> None:
    topic = topics.get(name)
    if topic is None or topic.id != topic_id:
        topic = topics[name] = _Topic(topic_id)
    topic.partitions[number] = entry


@dataclass(frozen=True, slots=True)
class Sender:
    """The controller that a request comes from, and the receiver's own epoch."""

    controller: BrokerId
    controller_epoch: int
    broker_epoch: int

    def head(self) -> Body:
        """The fields that each request begins with."""
        return {
            "controller_id": self.controller,
            "is_kraft_controller": False,
            "controller_epoch": self.controller_epoch,
            "broker_epoch": self.broker_epoch,
        }


@dataclass(frozen=True, slots=True)
class Request:
    """One request: the API's key and what it carries."""

    api_key: int
    topics: _Topics
    is_first: bool = False
    """The broker has not been sent anything before."""


class Pending:
    """What one broker has not been sent yet."""

    def __init__(self) -> None:
        self._leaders: _Topics = {}
        self._metadata: _Topics = {}
        self._stops: _Topics = {}
        self._brokers_changed = False
        self._is_new = True
        """The broker has just started."""

    def __bool__(self) -> bool:
        return bool(self._leaders or self._metadata or self._stops or self._brokers_changed)

    def lead(self, topic: TopicInfo, number: int, new: bool) -> None:
        """A partition's leader and replicas. `new`: it has no log yet."""
        before = self._leaders.get(topic.name)
        waiting = before.partitions.get(number) if before is not None else None
        entry = leader_entry(topic, number, new or (waiting is not None and waiting["is_new"]))
        _put(self._leaders, topic.name, topic.id, number, entry)

    def publish(self, topic: TopicInfo, number: int, entry: Body) -> None:
        """A partition's metadata, a :func:`metadata_entry` that other brokers may share."""
        _put(self._metadata, topic.name, topic.id, number, entry)

    def withdraw(self, topic: TopicInfo, deleted: bool) -> None:
        """Clients no longer see the topic. One that is not `deleted` is sent without replicas."""
        self._leaders.pop(topic.name, None)
        gone: Body = {"leader": LEADER_DURING_DELETE} if deleted else {"leader": NO_LEADER, "replicas": []}
        for number in topic.assignment:
            _put(self._metadata, topic.name, topic.id, number, metadata_entry(topic, number, ()) | gone)

    def stop(self, topic: TopicInfo, number: int, delete: bool, lives_on: bool = False) -> None:
        """The broker stops serving a partition, and deletes its log if `delete`. If the topic `lives_on`, a
        broker that knows a newer leader epoch refuses it.
        """
        state = topic.partitions.get(number, UNREADABLE)
        epoch = EPOCH_DURING_DELETE if delete and not lives_on else state.leader_epoch
        entry: Body = {"partition_index": number, "leader_epoch": epoch, "delete_partition": delete}
        _put(self._stops, topic.name, topic.id, number, entry)

    def brokers_changed(self) -> None:
        """The live brokers changed."""
        self._brokers_changed = True

    def take(self) -> Request | None:
        """The next request."""
        if self._brokers_changed:
            is_first, self._is_new, self._brokers_changed = self._is_new, False, False
            topics: _Topics = {}
            if is_first:
                topics, self._metadata = self._metadata, topics
            return Request(UPDATE_METADATA, topics, is_first)
        if self._leaders:
            topics, self._leaders = self._leaders, {}
            return Request(LEADER_AND_ISR, topics)
        if self._metadata:
            topics, self._metadata = self._metadata, {}
            return Request(UPDATE_METADATA, topics)
        if self._stops:
            topics, self._stops = self._stops, {}
            return Request(STOP_REPLICA, topics)
        return None

    def put_back(self, request: Request) -> None:
        """A request that was not answered. What was added since is newer, and stays."""
        if request.api_key == UPDATE_METADATA:
            self._brokers_changed = True
            self._is_new = self._is_new or request.is_first
        kinds = {
            LEADER_AND_ISR: self._leaders,
            UPDATE_METADATA: self._metadata,
            STOP_REPLICA: self._stops,
        }
        waiting = kinds[request.api_key]
        for name, topic in request.topics.items():
            newer = waiting.get(name)
            if newer is None:
                waiting[name] = topic
            elif newer.id == topic.id:
                for number, entry in newer.partitions.items():
                    sent = topic.partitions.get(number)
                    if sent is not None and sent.get("is_new"):
                        entry["is_new"] = True
                newer.partitions = topic.partitions | newer.partitions


def leader_entry(topic: TopicInfo, number: int, new: bool) -> Body:
    """A partition of LeaderAndIsr."""
    assigned, state = topic.assignment[number], topic.partitions[number]
    return {
        "partition_index": number,
        **_state(state),
        "partition_epoch": state.zk_version,
        "replicas": list(assigned.replicas),
        "adding_replicas": list(assigned.adding),
        "removing_replicas": list(assigned.removing),
        "is_new": new,
        "leader_recovery_state": state.recovery,
    }


def metadata_entry(topic: TopicInfo, number: int, offline: Iterable[BrokerId]) -> Body:
    """A partition of UpdateMetadata."""
    state = topic.partitions.get(number, UNREADABLE)
    return {
        "partition_index": number,
        **_state(state),
        "zk_version": state.zk_version,
        "replicas": list(topic.assignment[number].replicas),
        "offline_replicas": list(offline),
    }


def _state(state: PartitionState) -> Body:
    return {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }


def _topic_states(topics: _Topics, with_ids: bool = True) -> list[Body]:
    return [
        {"topic_name": name, "partition_states": list(topic.partitions.values())}
        | ({"topic_id": topic.id} if with_ids else {})
        for name, topic in topics.items()
    ]


def body_of(
    request: Request, sender: Sender, alive: Mapping[BrokerId, BrokerInfo], inter_broker_listener: str
) -> Body:
    """The body of a request, with the brokers that are alive when it is sent."""
    if request.api_key == LEADER_AND_ISR:
        leaders = {
            entry["leader"] for topic in request.topics.values() for entry in topic.partitions.values()
        }
        return sender.head() | {
            "type": 0,
            "topic_states": _topic_states(request.topics),
            "live_leaders": [
                {"broker_id": info.id, "host_name": endpoint.host, "port": endpoint.port}
                for info in alive.values()
                if info.id in leaders and (endpoint := info.endpoint(inter_broker_listener)) is not None
            ],
        }
    if request.api_key == UPDATE_METADATA:
        return sender.head() | {
            "type": 0,
            "topic_states": _topic_states(request.topics),
            "live_brokers": [
                {
                    "id": info.id,
                    "endpoints": [_endpoint(endpoint) for endpoint in info.endpoints],
                    "rack": info.rack,
                }
                for info in alive.values()
            ],
        }
    return sender.head() | {"topic_states": _topic_states(request.topics, with_ids=False)}


def _endpoint(endpoint: Endpoint) -> Body:
    return {
        "port": endpoint.port,
        "host": endpoint.host,
        "listener": endpoint.listener,
        "security_protocol": _PROTOCOLS.index(endpoint.security_protocol),
    }


def endpoint_of(body: Body) -> Endpoint:
    """An endpoint of UpdateMetadata."""
    return Endpoint(body["listener"], body["host"], body["port"], _PROTOCOLS[body["security_protocol"]])
