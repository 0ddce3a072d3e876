"""Offsets that are committed in transactions, and offsets that are deleted.

If one failed, an application that copies exactly once would read its input again, or skip some of it.
"""

from __future__ import annotations

from cluster.errors import (
    NONE,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    NotCoordinator,
    OffsetMetadataTooLarge,
    UnknownMemberId,
)
from cluster.groups import Commit, CommittedOffset, GroupLimits, Join
from cluster.groups.messages import CommitResult, Write
from cluster.groups.partition import PartitionGroups
from cluster.groups.records import encode_write
from cluster.model import TopicPartition
from cluster.state_topics import Entry, Marker, Producer, Respond
from tests.groups.logs import expire_all

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
ONE, TWO = Producer(1, 0), Producer(2, 0)


class Groups:
    """A machine whose writes end when they are told to, and its log."""

    def __init__(self) -> None:
        self.machine = PartitionGroups(GroupLimits(initial_delay_ms=0), lambda: "id")
        self.machine.offsets.read_subscription = lambda data: frozenset(data.decode().split("+"))
        self.log: list[Entry | Marker] = []
        self.writes: list[Write] = []
        self.results: list[CommitResult] = []

    def do(self, actions: list[object]) -> None:
        for action in actions:
            if isinstance(action, Write):
                self.writes.append(action)
                self.log += [Entry(*record, action.producer) for record in encode_write(action)]
            elif isinstance(action, Respond) and isinstance(action.result, CommitResult):
                self.results.append(action.result)

    def written(self, error: int = NONE) -> None:
        """Every write ends."""
        while self.writes:
            self.do(list(self.machine.stored(self.writes.pop(0).id, error, 0)))

    def commit(
        self,
        offset: int,
        item: TopicPartition = A,
        producer: Producer | None = None,
        member: str = "",
        generation: int = -1,
    ) -> int:
        """Begins a commit, and returns its error, or 0."""
        request = Commit("g", generation, member, None, {item: CommittedOffset(offset)}, producer)
        before = len(self.results)
        self.do(list(self.machine.commit(1, request, 0)))
        return self.results[-1].error if len(self.results) > before else NONE

    def end(self, producer: Producer, committed: bool) -> None:
        self.log.append(Marker(producer, committed))
        self.do(list(self.machine.transaction_ended(producer.id, committed)))

    def join(self, topics: str = "a") -> str:
        protocols = (("range", topics.encode()),)
        self.do(
            list(
                self.machine.join(1, Join("g", "", None, "c", "/h", 60_000, 60_000, "consumer", protocols), 0)
            )
        )
        self.do(list(self.machine.advance(0)))
        [member] = self.machine.table.groups["g"].members
        return member

    def offsets(self) -> dict[TopicPartition, int]:
        return {item: kept.offset for item, kept in self.machine.committed("g").items()}

    def loaded(self) -> dict[TopicPartition, int]:
        """The offsets of the next coordinator."""
        after = Groups()
        assert after.machine.load(self.log) == 0
        after.machine.loaded(0)
        return after.offsets()


def test_offsets_count_once_their_transaction_commits() -> None:
    groups = Groups()
    groups.commit(5, producer=ONE)
    groups.written()
    assert groups.results == [CommitResult()]
    assert groups.offsets() == {}
    assert groups.machine.unstable("g", [A, B]) == {0}
    groups.end(ONE, committed=True)
    assert groups.offsets() == groups.loaded() == {A: 5}
    assert not groups.machine.unstable("g", [A])
    groups.commit(7, producer=ONE)
    groups.commit(8, B, producer=ONE)
    groups.written()
    groups.end(ONE, committed=False)
    assert groups.offsets() == groups.loaded() == {A: 5}


def test_of_two_commits_the_later_record_counts() -> None:
    groups = Groups()
    groups.commit(5, producer=ONE)
    groups.commit(6)
    groups.written()
    groups.end(ONE, committed=True)
    assert groups.offsets() == groups.loaded() == {A: 6}
    groups.commit(7, producer=ONE)
    groups.commit(8, producer=TWO)
    groups.written()
    groups.end(TWO, committed=True)
    groups.end(ONE, committed=True)
    assert groups.offsets() == groups.loaded() == {A: 8}
    groups.commit(9)
    groups.commit(10, producer=ONE)
    groups.written()
    groups.end(ONE, committed=True)
    assert groups.offsets() == groups.loaded() == {A: 10}


def test_a_marker_may_come_before_the_commit_is_answered() -> None:
    groups = Groups()
    groups.commit(5, producer=ONE)
    groups.end(ONE, committed=True)
    groups.written()
    assert groups.offsets() == groups.loaded() == {A: 5}
    assert not groups.machine.unstable("g", [A])


def test_a_commit_that_could_not_be_written_is_forgotten() -> None:
    groups = Groups()
    groups.commit(5, producer=ONE)
    groups.written(NotCoordinator.code)
    assert groups.results[-1].error == NotCoordinator.code
    assert "g" not in groups.machine.table.groups
    groups.end(ONE, committed=True)
    assert groups.offsets() == {}


def test_only_members_of_the_present_generation_commit_in_transactions() -> None:
    """KIP-447. Producers of old clients do not name themselves."""
    groups = Groups()
    assert groups.commit(1, producer=ONE, member="m", generation=3) == UnknownMemberId.code
    assert "g" not in groups.machine.table.groups
    member = groups.join()
    groups.written()
    generation = groups.machine.table.groups["g"].generation
    assert groups.commit(1, producer=ONE, member=member, generation=generation + 1) == IllegalGeneration.code
    assert groups.commit(1, producer=ONE, member="other", generation=generation) == UnknownMemberId.code
    assert groups.commit(1, producer=ONE, member=member, generation=generation) == NONE
    assert groups.commit(2, producer=ONE) == NONE
    assert groups.commit(3) == UnknownMemberId.code


def test_offsets_of_a_deleted_topic_do_not_come_back_with_a_transaction() -> None:
    groups = Groups()
    groups.commit(5, producer=ONE)
    groups.commit(6, B, producer=ONE)
    groups.written()
    groups.do(list(groups.machine.topics_deleted(["a"])))
    groups.written()
    groups.end(ONE, committed=True)
    assert groups.offsets() == groups.loaded() == {B: 6}


def test_the_length_of_metadata_is_counted_as_kafka_counts() -> None:
    groups = Groups()
    limit = GroupLimits().metadata_bytes_max
    for metadata, error in [
        ("é" * limit, NONE),
        ("é" * (limit + 1), OffsetMetadataTooLarge.code),
        ("𝛼" * (limit // 2), NONE),
        ("𝛼" * (limit // 2 + 1), OffsetMetadataTooLarge.code),
    ]:
        request = Commit("g", -1, "", None, {A: CommittedOffset(1, metadata=metadata)}, None)
        groups.do(list(groups.machine.commit(1, request, 0)))
        groups.written()
        assert groups.results[-1].errors.get(A, NONE) == error


def test_pending_offsets_keep_their_group() -> None:
    groups = Groups()
    groups.commit(5, producer=ONE)
    groups.written()
    groups.do(list(expire_all(groups.machine, 10**15)))
    assert "g" in groups.machine.table.groups
    groups.end(ONE, committed=True)
    groups.do(list(expire_all(groups.machine, 10**15)))
    groups.written()
    assert "g" not in groups.machine.table.groups
    assert groups.loaded() == {}


def test_offsets_are_deleted_where_no_member_reads() -> None:
    groups = Groups()

    def delete(*items: TopicPartition) -> CommitResult:
        groups.do(list(groups.machine.delete_offsets(1, "g", items)))
        groups.written()
        return groups.results[-1]

    assert delete(A).error == GroupIdNotFound.code
    groups.commit(5)
    groups.commit(6, B)
    groups.written()
    member = groups.join("a")
    assert delete(A, B) == CommitResult(NONE, {A: GroupSubscribedToTopic.code})
    assert groups.offsets() == groups.loaded() == {A: 5}
    groups.machine.table.groups["g"].protocol_type = "connect"
    assert delete(A).error == NonEmptyGroup.code
    assert member in groups.machine.table.groups["g"].members
