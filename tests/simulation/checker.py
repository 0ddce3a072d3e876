"""What must always be true, checked at each change of a log, a high watermark and a znode.

The committed records of a partition are those below a high watermark that some leader had: consumers may have
read them, and acks=all acknowledged them. Every member of the ISR in the coordinator must have them. After an
unclean election only those that its leader has are left, which is what Kafka promises.
"""

from __future__ import annotations

from cluster.controller import znodes
from cluster.model import NO_LEADER, PartitionState, Replicas, TopicId

from .data_plane import Disk, Key
from .logs import Log, Record

_STATES = f"{znodes.TOPICS}/"


class Checker:
    """Watches one history."""

    def __init__(self, disks: dict[int, Disk], unclean: bool) -> None:
        self.failures: list[str] = []
        self.topics: dict[str, tuple[TopicId, dict[int, Replicas]]] = {}
        self.states: dict[tuple[str, int], PartitionState] = {}
        self.deletions: set[str] = set()
        self.controller_epoch = 0
        self.acknowledgements = self.elections = self.truncations = self.unclean_elections = 0
        self._disks = disks
        self._unclean = unclean
        self._names: dict[TopicId, str] = {}
        self._committed: dict[Key, list[Record]] = {}
        self._prefixes: dict[tuple[Key, int, int], int] = {}
        self._unclean_epochs: dict[Key, int] = {}

    def complain(self, text: str) -> None:
        self.failures.append(text)

    # ---- the data planes ----

    def appended(self, broker: int, where: Key, log: Log) -> None:
        last = log.records[-1]
        known = self._prefixes.setdefault((where, log.end - 1, last.epoch), last.prefix)
        if known != last.prefix:
            self.complain(
                f"the log of {self._name(where)} on broker {broker} differs from another one before offset "
                f"{log.end - 1}, which both have in epoch {last.epoch}"
            )

    def truncated(self, broker: int, where: Key, log: Log) -> None:
        self.truncations += 1
        state = self._state(where)
        if state is not None and broker in state.isr:
            self._check_member(broker, where)

    def raised(self, broker: int, where: Key, log: Log, epoch: int) -> None:
        if epoch < self._unclean_epochs.get(where, 0):
            return
        committed = self._committed.setdefault(where, [])
        before = len(committed)
        committed.extend(log.records[before : log.high_watermark])
        if log.high_watermark <= before and log.high_watermark:
            same = committed[log.high_watermark - 1].prefix == log.prefix(log.high_watermark)
        else:
            same = not before or committed[before - 1].prefix == log.prefix(before)
        if not same:
            self.complain(f"{self._name(where)} shows other records on broker {broker} than before")
        state = self._state(where)
        if state is not None and len(committed) > before:
            for member in state.isr:
                self._check_member(member, where)

    def acknowledged(self, where: Key, offset: int, value: int) -> None:
        self.acknowledgements += 1

    def deleted(self, broker: int, where: Key) -> None:
        name = self._names.get(TopicId(where[0]))
        if name is not None and name not in self.deletions:
            self.complain(f"broker {broker} deleted its log of {self._name(where)}, which exists")

    def _check_member(self, broker: int, where: Key) -> None:
        committed = self._committed.get(where)
        name = self._names.get(TopicId(where[0]))
        if not committed or name is None or name in self.deletions:
            return
        log = self._disks[broker].logs.get((name, where[1]))
        has = log is not None and log.topic_id == where[0] and log.end >= len(committed)
        if log is None or not has or log.prefix(len(committed)) != committed[-1].prefix:
            self.complain(
                f"broker {broker} is in the ISR of {self._name(where)} without committed records: it has "
                f"{log.end if log else 'no log'}, committed are {len(committed)}"
            )

    def _state(self, where: Key) -> PartitionState | None:
        name = self._names.get(TopicId(where[0]))
        return None if name is None else self.states.get((name, where[1]))

    def _name(self, where: Key) -> str:
        return f"{self._names.get(TopicId(where[0]), where[0].hex())}-{where[1]}"

    # ---- the coordinator ----

    def written(self, path: str, data: bytes | None, version: int) -> None:
        """A znode changed."""
        if path == znodes.CONTROLLER_EPOCH and data is not None:
            epoch = znodes.decode_controller_epoch(data)
            if epoch < self.controller_epoch:
                self.complain(f"the controller's epoch goes back to {epoch}")
            self.controller_epoch = epoch
        elif path.startswith(f"{znodes.DELETE_TOPICS}/"):
            name = path.rpartition("/")[2]
            (self.deletions.discard if data is None else self.deletions.add)(name)
        elif path.startswith(_STATES):
            parts = path[len(_STATES) :].split("/")
            if len(parts) == 1:
                self._topic_written(parts[0], data)
            elif parts[-1] == "state":
                self._state_written(parts[0], int(parts[2]), data, version)

    def _topic_written(self, name: str, data: bytes | None) -> None:
        if data is None:
            topic_id, _ = self.topics.pop(name)
            del self._names[topic_id]
            return
        topic_id, assignment = znodes.decode_topic(name, data)
        before = self.topics.get(name)
        if before is not None and (before[0] != topic_id or before[1].keys() - assignment.keys()):
            self.complain(f"the topic {name} was overwritten: {before} became {assignment}")
        self.topics[name] = topic_id, assignment
        self._names[topic_id] = name

    def _state_written(self, name: str, number: int, data: bytes | None, version: int) -> None:
        if data is None:
            self.states.pop((name, number), None)
            return
        state = znodes.decode_state(name, number, data, version)
        before = self.states.get((name, number))
        self.states[name, number] = state
        what = f"the state of {name}-{number} became {state} after {before}"
        if state.controller_epoch != self.controller_epoch:
            self.complain(f"a deposed controller wrote: {what}")
        if name not in self.topics:
            self.complain(f"there is no such topic: {what}")
            return
        topic_id, assignment = self.topics[name]
        where = topic_id, number
        if number in assignment and not {*state.isr} <= {*assignment[number].replicas}:
            self.complain(f"the ISR has foreign brokers: {what}")
        if not state.isr or (state.leader != NO_LEADER and state.leader not in state.isr):
            self.complain(f"the leader is not in the ISR: {what}")
        if before is not None:
            self._state_followed(where, before, state, what)
        for member in state.isr:
            self._check_member(member, where)

    def _state_followed(self, where: Key, before: PartitionState, state: PartitionState, what: str) -> None:
        if state.leader_epoch < before.leader_epoch:
            self.complain(f"the leader's epoch went back: {what}")
        if state.leader == before.leader:
            return
        self.elections += 1
        if state.leader_epoch == before.leader_epoch:
            self.complain(f"another leader has the same epoch: {what}")
        if state.leader in (NO_LEADER, *before.isr):
            return
        self.unclean_elections += 1
        if not self._unclean:
            self.complain(f"the leader was not in the ISR: {what}")
        self._unclean_epochs[where] = state.leader_epoch
        name = self._names[TopicId(where[0])]
        log = self._disks[state.leader].logs.get((name, where[1]))
        committed = self._committed.get(where, [])
        kept = 0
        if log is not None and log.topic_id == where[0]:
            while kept < min(log.end, len(committed)) and committed[kept].prefix == log.records[kept].prefix:
                kept += 1
        del committed[kept:]
