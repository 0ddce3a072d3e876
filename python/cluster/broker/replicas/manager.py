"""The replica manager: carries out the controller's LeaderAndIsr, UpdateMetadata and StopReplica requests.

Fences by controller epoch, broker epoch and leader epoch, commands the data plane, and fills the metadata
cache. One request is carried out at a time. Lives on the event loop; the data plane opens logs in threads.
Not persistent: the controller sends everything to a broker that starts. Source: kafka.server.ReplicaManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from cluster.broker.replicas.configs import TopicConfigs
from cluster.broker.replicas.logs import Logs, PartitionSpec, Replica
from cluster.broker.replicas.metadata import MetadataCache
from cluster.controller.requests import EPOCH_DURING_DELETE, LEADER_AND_ISR, STOP_REPLICA
from cluster.errors import (
    NONE,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaStorageError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    UnknownTopicOrPartition,
)
from cluster.model import NO_LEADER, NO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from cluster.peer import Body
from cluster.replication import Replication

log = logging.getLogger(__name__)

_NAMES_SHOWN = 20
"""Partitions that one log line names."""

_NO_EPOCH = -1
"""The leader's epoch in the requests of old controllers."""

LeadershipChanged = Callable[[int, int | None, bool], None]
"""Called on the loop with a partition of a state topic, the leader epoch if this broker leads it, and whether
it is new.
"""

TopicsDeleted = Callable[[Sequence[str]], None]
"""Called on the loop with the names of topics that the cluster deletes."""


@dataclass(slots=True)
class _Held:
    """A topic with partitions on this broker."""

    id: TopicId
    specs: dict[int, PartitionSpec] = field(default_factory=dict)
    """What the data plane was last told of each partition, without the settings."""
    offline: set[int] = field(default_factory=set)
    """Partitions whose logs failed."""
    on_failed_disk: set[int] = field(default_factory=set)
    """Offline partitions that the data plane does not know, because their directory had failed before."""


class ReplicaManager:
    """The replicas of the broker `local`."""

    def __init__(
        self,
        logs: Logs,
        metadata: MetadataCache,
        configs: TopicConfigs,
        local: BrokerId,
        inter_broker_listener: str,
        report_failed_log_dir: Callable[[], Awaitable[None]],
        isr: Replication,
    ) -> None:
        self.broker_epoch = -1
        """The epoch of this broker's registration."""
        self.informed = asyncio.Event()
        """Set once a controller has sent the metadata, and this broker's partitions."""
        self._controller_epoch = -1
        self._compared = (-1, -1)
        """The epochs of controller and registration for which the metadata were compared with the topics."""
        self._logs = logs
        self._metadata = metadata
        self._configs = configs
        self._local = local
        self._listener = inter_broker_listener
        self._report_failed_log_dir = report_failed_log_dir
        self._isr = isr
        self._held: dict[str, _Held] = {}
        self._changing = asyncio.Lock()
        """Held while a request is carried out."""
        self._addresses: dict[int, tuple[str, int]] = {}
        """By broker: host and port for followers."""
        self._topics_deleted: TopicsDeleted | None = None
        self._leadership_changed: dict[str, LeadershipChanged] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._given_up: set[TopicPartition] = set()
        """Led partitions whose next LeaderAndIsr request in the same epoch is answered with
        KAFKA_STORAGE_ERROR, so that the controller elects another leader.
        """
        self._leaving = False
        """See :meth:`leave`."""
        isr.on_give_up(self._give_up)

    def leave(self) -> None:
        """This broker stops. It follows nobody any more without being in the ISR.

        A new leader would ask for it to be in the ISR, and wait for it with acks=all until the controller
        refuses that; Apache Kafka's leader may wait for the next record as well.
        """
        self._leaving = True

    def on_topics_deleted(self, callback: TopicsDeleted) -> None:
        """Sets the function that learns of deleted topics."""
        self._topics_deleted = callback

    def on_leadership(self, topic: str, callback: LeadershipChanged) -> None:
        """Sets the function that learns which partitions of a state topic are led here."""
        self._leadership_changed[topic] = callback

    def _tell_coordinator(self, topic: str, number: int, epoch: int | None, new: bool = False) -> None:
        changed = self._leadership_changed.get(topic)
        if changed is not None:
            changed(number, epoch, new)

    async def stop(self) -> None:
        """Ends reports to the controller that are under way."""
        for task in self._reports:
            task.cancel()
        await asyncio.gather(*self._reports, return_exceptions=True)

    async def request(self, api_key: int, version: int, body: Body) -> Body:
        """Carries out a request of the controller on this broker, and returns the response."""
        if api_key == LEADER_AND_ISR:
            return await self.leader_and_isr(body)
        if api_key == STOP_REPLICA:
            return await self.stop_replica(body)
        return await self.update_metadata(body)

    async def connect(self) -> None:
        """The controller on this broker needs no connection."""

    async def lost(self) -> None:
        """Never returns: there is no connection that could end."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """The controller sends nothing more."""

    def _fenced(self, body: Body) -> int:
        """The error code of an outdated request, or 0. Remembers the controller's epoch."""
        if body["controller_epoch"] < self._controller_epoch:
            log.warning(
                "a request of controller %d, epoch %d, is refused: the controller's epoch is %d now",
                body["controller_id"],
                body["controller_epoch"],
                self._controller_epoch,
            )
            return StaleControllerEpoch.code
        if -1 < body["broker_epoch"] < self.broker_epoch:
            return StaleBrokerEpoch.code
        self._controller_epoch = body["controller_epoch"]
        return NONE

    # ---- LeaderAndIsr ----

    async def leader_and_isr(self, body: Body) -> Body:
        """Opens partitions and sets their leaders. Returns the response."""
        async with self._changing:
            code = self._fenced(body)
            if code != NONE:
                return {"error_code": code, "topics": []}
            self._set_addresses(
                self._addresses
                | {item["broker_id"]: (item["host_name"], item["port"]) for item in body["live_leaders"]}
            )
            codes: dict[str, dict[int, int]] = {}
            specs: list[PartitionSpec] = []
            for topic in body["topic_states"]:
                name, topic_id = topic["topic_name"], TopicId(topic["topic_id"])
                codes[name] = {}
                for state in topic["partition_states"]:
                    number = state["partition_index"]
                    refused = self._refusal(name, topic_id, state)
                    codes[name][number] = NONE if refused is None else refused
                    if refused is None:
                        specs.append(await self._spec(name, topic_id, state))
                        # Reports of the data plane that the new state answers are for the old epoch.
                        self._isr.follows(TopicPartition(name, number))
            for spec, code in await asyncio.to_thread(self._open, specs):
                # Also if the log is another topic's: nobody can serve the partition here.
                codes[spec.topic][spec.partition] = NONE if code == NONE else KafkaStorageError.code
                self._remember(spec, code)
                leads = code == NONE and spec.leader_id == self._local
                epoch = spec.leader_epoch if leads else None
                self._tell_coordinator(spec.topic, spec.partition, epoch, spec.new)
                if leads:
                    partition = TopicPartition(spec.topic, spec.partition)
                    self._isr.leads(
                        partition,
                        TopicId(spec.topic_id),
                        spec.leader_epoch,
                        spec.isr,
                        spec.partition_epoch,
                    )
            self._show_offline({spec.topic for spec in specs})
            self._note_informed()
        return {
            "error_code": NONE,
            "topics": [
                {
                    "topic_id": topic["topic_id"],
                    "partition_errors": [
                        {"partition_index": number, "error_code": code}
                        for number, code in codes[topic["topic_name"]].items()
                    ],
                }
                for topic in body["topic_states"]
            ],
        }

    def _refusal(self, name: str, topic_id: TopicId, state: Body) -> int | None:
        """The error code of a partition that stays as it is; None if its new state is carried out."""
        held, number = self._held.get(name), state["partition_index"]
        if self._local not in state["replicas"]:
            return UnknownTopicOrPartition.code
        if held is None:
            return None
        if number in held.offline:
            return KafkaStorageError.code
        spec = held.specs.get(number)
        partition = TopicPartition(name, number)
        if partition in self._given_up:
            self._given_up.discard(partition)
            if spec is not None and state["leader_epoch"] == spec.leader_epoch:
                return KafkaStorageError.code
        if spec is None:
            return None
        if held.id != topic_id and NO_TOPIC_ID not in (held.id, topic_id):
            return InconsistentTopicId.code
        if state["leader_epoch"] > spec.leader_epoch or held.id != topic_id:
            return None
        return StaleControllerEpoch.code

    async def _spec(self, name: str, topic_id: TopicId, state: Body) -> PartitionSpec:
        follows = not self._leaving or self._local in state["isr"]
        return PartitionSpec(
            topic=name,
            topic_id=topic_id,
            partition=state["partition_index"],
            leader_epoch=state["leader_epoch"],
            leader_id=state["leader"] if follows else NO_LEADER,
            config=await self._configs.get(name),
            new=state["is_new"],
            replicas=self._replicas(state["replicas"]),
            isr=list(state["isr"]),
            partition_epoch=state["partition_epoch"],
        )

    def _replicas(self, brokers: Iterable[int]) -> list[Replica]:
        """The replicas with the racks and listeners of those that are alive."""

        def replica(broker: int) -> Replica:
            info = self._metadata.brokers.get(BrokerId(broker))
            if info is None:
                return broker, None, ()
            return broker, info.rack, [endpoint.listener for endpoint in info.endpoints]

        return [replica(broker) for broker in brokers]

    def _open(self, specs: Sequence[PartitionSpec]) -> list[tuple[PartitionSpec, int]]:
        """Gives partitions to the data plane. Returns each one's error code of the data plane."""
        codes: list[tuple[PartitionSpec, int]] = []
        failed: list[tuple[PartitionSpec, Exception]] = []
        for spec in specs:
            try:
                self._logs.create_partition(spec)
                codes.append((spec, NONE))
            except Exception as error:
                failed.append((spec, error))
                codes.append((spec, getattr(error, "code", KafkaStorageError.code)))
        if failed:
            names = _names([TopicPartition(spec.topic, spec.partition) for spec, _ in failed])
            log.error("these partitions are offline: %s (the first: %s)", names, failed[0][1])
        return codes

    def _remember(self, spec: PartitionSpec, code: int) -> None:
        held = self._held.get(spec.topic)
        if held is None:
            held = self._held[spec.topic] = _Held(TopicId(spec.topic_id))
        held.id = TopicId(spec.topic_id)
        if code == NONE:
            held.specs[spec.partition] = replace(spec, config={}, new=False)
            held.offline.discard(spec.partition)
            held.on_failed_disk.discard(spec.partition)
        else:
            held.offline.add(spec.partition)
        if code == KafkaStorageError.code:
            held.on_failed_disk.add(spec.partition)

    def _show_offline(self, topics: Iterable[str]) -> None:
        """Tells the data plane the partitions that it answers with an error."""
        for name in topics:
            topic, held = self._metadata.topic(name), self._held.get(name)
            if topic is not None:
                offline = sorted(held.offline) if held is not None else []
                self._logs.know_topic(name, topic.id, 1 + max(topic.assignment, default=-1), offline)

    # ---- UpdateMetadata ----

    async def update_metadata(self, body: Body) -> Body:
        """Updates what clients see. Returns the response."""
        async with self._changing:
            code = self._fenced(body)
            if code != NONE:
                return {"error_code": code}
            self._metadata.set_controller(BrokerId(body["controller_id"]))
            await self._forget_missing()
            deleted = [
                topic["topic_name"]
                for topic in body["topic_states"]
                if self._update(topic["topic_name"], TopicId(topic["topic_id"]), topic["partition_states"])
            ]
            if deleted and self._topics_deleted is not None:
                self._topics_deleted(deleted)
            if self._metadata.set_brokers(body["live_brokers"]):
                self._set_addresses(
                    {
                        info.id: (endpoint.host, endpoint.port)
                        for info in self._metadata.brokers.values()
                        if (endpoint := info.endpoint(self._listener)) is not None
                    }
                )
                await asyncio.to_thread(self._open, self._outdated())
            self._note_informed()
        return {"error_code": NONE}

    def _note_informed(self) -> None:
        """Sets `informed` once every partition that the metadata places here has been sent too."""
        if self.informed.is_set() or self._local not in self._metadata.brokers:
            return
        for topic in self._metadata.topics():
            held = self._held.get(topic.name)
            sent = set() if held is None else held.offline.union(held.specs)
            for number, state in topic.partitions.items():
                # One without an epoch has an unreadable znode: nobody is sent it.
                is_here = self._local in topic.assignment[number].replicas and state.leader_epoch >= 0
                if is_here and number not in sent:
                    return
        self.informed.set()

    async def _forget_missing(self) -> None:
        """Drops topics that were deleted while this broker was not registered, or whose deletion the last
        controller did not tell. This controller tells each one.
        """
        epochs = self._controller_epoch, self.broker_epoch
        if epochs == self._compared:
            return
        known = set(self._metadata.names())
        if known:
            for name in sorted(known - await self._configs.topics()):
                self._metadata.forget(name)
                self._configs.forget(name)
                self._logs.forget_topic(name)
        self._compared = epochs

    def _update(self, name: str, topic_id: TopicId, partitions: Sequence[Body]) -> bool:
        """Updates a topic. Returns whether the cluster deletes it."""
        known = self._metadata.topic(name)
        if known is not None and known.id != topic_id:
            self._configs.forget(name)
        if self._metadata.update(name, topic_id, partitions) is not None:
            self._show_offline([name])
            return False
        self._configs.forget(name)
        self._logs.forget_topic(name)
        # A topic whose znode vanished has no replicas either, but its records stay.
        return any(item["replicas"] for item in partitions)

    def _set_addresses(self, addresses: dict[int, tuple[str, int]]) -> None:
        addresses.pop(self._local, None)
        if addresses != self._addresses:
            self._addresses = addresses
            self._logs.set_brokers([(broker, host, port) for broker, (host, port) in addresses.items()])

    def _outdated(self) -> list[PartitionSpec]:
        """The partitions led here whose followers have other racks or listeners than the data plane knows."""
        changed = []
        for held in self._held.values():
            for number, spec in held.specs.items():
                if spec.leader_id != self._local or len(spec.replicas) < 2 or number in held.offline:
                    continue
                fresh = self._replicas([broker for broker, _, _ in spec.replicas])
                if fresh != list(spec.replicas):
                    isr, epoch = self._isr.isr(TopicPartition(spec.topic, number)) or (
                        spec.isr,
                        spec.partition_epoch,
                    )
                    held.specs[number] = replace(spec, replicas=fresh, isr=list(isr), partition_epoch=epoch)
                    config = self._configs.known(spec.topic)
                    changed.append(replace(held.specs[number], config=config))
        return changed

    # ---- StopReplica ----

    async def stop_replica(self, body: Body) -> Body:
        """Stops serving partitions, and deletes logs. Returns the response."""
        async with self._changing:
            code = self._fenced(body)
            if code != NONE:
                return {"error_code": code, "partition_errors": []}
            answers: list[Body] = []
            stops: list[tuple[str, int, bool]] = []
            for topic in body["topic_states"]:
                name = topic["topic_name"]
                for state in topic["partition_states"]:
                    number = state["partition_index"]
                    delete = state["delete_partition"]
                    refused = self._stop_refusal(name, number, state["leader_epoch"], delete)
                    if refused is None:
                        stops.append((name, number, delete))
                    else:
                        answers.append(_partition_error(name, number, refused))
            for (name, number, delete), code in zip(
                stops, await asyncio.to_thread(self._stop, stops), strict=True
            ):
                answers.append(_partition_error(name, number, code))
                self._isr.follows(TopicPartition(name, number))
                self._tell_coordinator(name, number, None)
                held = self._held.get(name)
                if held is not None and code == NONE:
                    held.specs.pop(number, None)
                    if delete:
                        held.offline.discard(number)
                    if not held.specs and not held.offline:
                        del self._held[name]
            self._show_offline({name for name, _, _ in stops})
        return {"error_code": NONE, "partition_errors": answers}

    def _stop_refusal(self, name: str, number: int, leader_epoch: int, delete: bool) -> int | None:
        held = self._held.get(name)
        if held is None:
            return None
        if delete and number in held.on_failed_disk:
            # Its log comes back with the disk. Until then the topic's deletion waits.
            return KafkaStorageError.code
        spec = held.specs.get(number)
        is_any = leader_epoch in (EPOCH_DURING_DELETE, _NO_EPOCH)
        if spec is not None and not is_any and leader_epoch < spec.leader_epoch:
            return FencedLeaderEpoch.code
        return None

    def _stop(self, stops: Sequence[tuple[str, int, bool]]) -> list[int]:
        codes = []
        for name, number, delete in stops:
            try:
                self._logs.stop_partition(name, number, delete)
                codes.append(NONE)
            except Exception as error:
                log.error("%s-%d could not be %s: %s", name, number, "deleted" if delete else "closed", error)
                codes.append(KafkaStorageError.code)
        return codes

    # ---- this broker's own events ----

    async def topic_config_changed(self, name: str) -> None:
        """Reads a topic's settings again and applies them to its logs."""
        self._configs.forget(name)
        async with self._changing:
            if name in self._held:
                config = await self._configs.get(name)
                await asyncio.to_thread(self._configure, name, config)

    def _configure(self, name: str, config: dict[str, str]) -> None:
        try:
            self._logs.update_topic_config(name, dict(config))
        except Exception as error:
            # Every log of the topic may be offline.
            if getattr(error, "code", None) != UnknownTopicOrPartition.code:
                log.exception("the settings of topic %s could not be applied", name)

    def logs_failed(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Logs went offline while they were served. The controller is told, and elects other leaders."""
        failed = list(partitions)
        for name, number in failed:
            held = self._held.get(name)
            if held is not None:
                held.offline.add(number)
            self._tell_coordinator(name, number, None)
        if not failed:
            return
        self._show_offline({name for name, _ in failed})
        names = _names([TopicPartition(name, number) for name, number in failed])
        log.error("these partitions went offline; repair their disk and start the broker again: %s", names)
        self._report()

    def _give_up(self, partition: TopicPartition) -> None:
        """The disk has no space for records of a led partition. The controller is told as of a failed log
        directory, and elects another in-sync replica. This one follows, and is in sync once it has space.
        """
        self._given_up.add(partition)
        if not self._reports:
            log.warning("%s is given up to another in-sync replica: the disk is full; free space", partition)
            self._report()

    def _report(self) -> None:
        task = asyncio.ensure_future(self._report_failed_log_dir())
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)


def _partition_error(name: str, number: int, code: int) -> Body:
    return {"topic_name": name, "partition_index": number, "error_code": code}


def _names(partitions: Sequence[TopicPartition]) -> str:
    """Partitions as a log line names them."""
    names = ", ".join(map(str, partitions[:_NAMES_SHOWN]))
    more = len(partitions) - _NAMES_SHOWN
    return f"{names} and {more} more" if more > 0 else names
