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
from dataclasses import dataclass

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
class TopicEntries:
    """Partitions of one topic. Metadata are never changed, because brokers share them."""

    id: TopicId
    partitions: dict[int, Body]
    _metadata: Body | None = None

    def metadata(self, name: str) -> Body:
        """The topic in UpdateMetadata, made once for all brokers."""
        if self._metadata is None:
            self._metadata = _topic_state(name, self)
        return self._metadata


def _topic_state(name: str, topic: TopicEntries) -> Body:
    states = list(topic.partitions.values())
    return {"topic_name": name, "topic_id": topic.id, "partition_states": states}


_Topics = dict[str, TopicEntries]


def _put(topics: _Topics, name: str, topic_id: TopicId, number: int, entry: Body) -> None:
    topic = topics.get(name)
    if topic is None or topic.id != topic_id:
        topic = topics[name] = TopicEntries(topic_id, {})
    topic.partitions[number] = entry


def _put_shared(topics: _Topics, name: str, newer: TopicEntries) -> None:
    older = topics.get(name)
    if older is not None and older.id == newer.id:
        newer = TopicEntries(newer.id, older.partitions | newer.partitions)
    topics[name] = newer


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

    def publish(self, name: str, entries: TopicEntries) -> None:
        """A topic's metadata."""
        _put_shared(self._metadata, name, entries)

    def withdraw(self, name: str, entries: TopicEntries) -> None:
        """Clients no longer see the topic."""
        self._leaders.pop(name, None)
        _put_shared(self._metadata, name, entries)

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
        for name, sent in request.topics.items():
            newer = waiting.get(name)
            if newer is None:
                waiting[name] = sent
            elif newer.id == sent.id:
                for number, entry in newer.partitions.items():
                    before = sent.partitions.get(number)
                    if before is not None and before.get("is_new"):
                        entry["is_new"] = True
                waiting[name] = TopicEntries(sent.id, sent.partitions | newer.partitions)


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


def withdrawal(topic: TopicInfo, deleted: bool) -> TopicEntries:
    """The metadata that hide a topic. One that is not `deleted` is sent without replicas."""
    gone: Body = {"leader": LEADER_DURING_DELETE} if deleted else {"leader": NO_LEADER, "replicas": []}
    entries = {number: metadata_entry(topic, number, ()) | gone for number in topic.assignment}
    return TopicEntries(topic.id, entries)


def published(topic: TopicInfo, offline: Mapping[int, Iterable[BrokerId]]) -> TopicEntries:
    """The metadata of partitions, with their replicas that are offline."""
    entries = {number: metadata_entry(topic, number, brokers) for number, brokers in offline.items()}
    return TopicEntries(topic.id, entries)


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


class LiveBrokers:
    """The brokers that are alive, and their part of UpdateMetadata, which every broker gets alike."""

    def __init__(self, infos: Iterable[BrokerInfo]) -> None:
        self.infos = {info.id: info for info in infos}
        self.bodies: list[Body] = [
            {
                "id": info.id,
                "endpoints": [_endpoint(endpoint) for endpoint in info.endpoints],
                "rack": info.rack,
            }
            for info in self.infos.values()
        ]


def body_of(request: Request, sender: Sender, alive: LiveBrokers, inter_broker_listener: str) -> Body:
    """The body of a request, with the brokers that are alive when it is sent."""
    if request.api_key == LEADER_AND_ISR:
        leaders = {
            entry["leader"] for topic in request.topics.values() for entry in topic.partitions.values()
        }
        return sender.head() | {
            "type": 0,
            "topic_states": [_topic_state(name, topic) for name, topic in request.topics.items()],
            "live_leaders": [
                {"broker_id": leader, "host_name": endpoint.host, "port": endpoint.port}
                for leader in sorted(leaders)
                if (info := alive.infos.get(leader)) is not None
                and (endpoint := info.endpoint(inter_broker_listener)) is not None
            ],
        }
    if request.api_key == UPDATE_METADATA:
        return sender.head() | {
            "type": 0,
            "topic_states": [topic.metadata(name) for name, topic in request.topics.items()],
            "live_brokers": alive.bodies,
        }
    stops = [
        {"topic_name": name, "partition_states": list(topic.partitions.values())}
        for name, topic in request.topics.items()
    ]
    return sender.head() | {"topic_states": stops}


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
