"""Groups of the consumer protocol (KIP-848), one step at a time.

If one failed, a member could get partitions that another one still reads, be fenced although it is up to
date, never be told what to read, or a broker that takes over would know another group than the one before.
"""

from __future__ import annotations

import pytest

from cluster.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    NotEnoughReplicas,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from cluster.groups import Commit, CommittedOffset, ConsumerLimits, Heartbeat
from cluster.groups.assignors import Assignment
from cluster.groups.consumer.group import Kind
from cluster.model import TopicPartition
from tests.groups.consumers import GROUP, REBALANCE_MS, SESSION_MS, Topics, World
from tests.groups.logs import expire_all


def world(**limits: object) -> World:
    return World(Topics(t=4), ConsumerLimits(**limits))  # type: ignore[arg-type]


def owned(world: World, *numbers: int, topic: str = "t") -> Assignment:
    found = world.topics.topic(topic)
    assert found is not None
    return {found.id: frozenset(numbers)} if numbers else {}


def test_a_lone_member_gets_everything_at_its_first_heartbeat() -> None:
    here = world()
    joined = here.join("a", "t")
    assert (joined.error, joined.member, joined.epoch, joined.interval_ms) == (0, "a", 1, 5_000)
    assert joined.assignment == owned(here, 0, 1, 2, 3)
    assert here.group.state == "Stable"
    again = here.beat("a", 1)
    assert (again.epoch, again.assignment) == (1, None)
    full = here.beat(
        "a", 1, rebalance_timeout_ms=REBALANCE_MS, topics=frozenset({"t"}), owned=owned(here, 0, 1, 2, 3)
    )
    assert full.assignment == owned(here, 0, 1, 2, 3)


def test_a_member_gives_up_partitions_before_another_one_gets_them() -> None:
    here = world()
    here.join("a", "t")
    second = here.join("b", "t")
    assert (second.epoch, second.assignment) == (2, {})
    assert here.group.state == "Reconciling"
    asked = here.beat("a", 1, owned=owned(here, 0, 1, 2, 3))
    assert asked.epoch == 1
    assert asked.assignment == owned(here, 0, 1)
    # It still has them: nothing moves.
    assert here.beat("a", 1, owned=owned(here, 0, 1, 2, 3)).assignment is None
    assert here.beat("b", 2).assignment is None
    released = here.beat("a", 1, owned=owned(here, 0, 1))
    assert (released.epoch, released.assignment) == (2, None)
    got = here.beat("b", 2)
    assert (got.epoch, got.assignment) == (2, owned(here, 2, 3))
    assert here.group.state == "Stable"


def test_a_member_that_keeps_its_partitions_too_long_is_removed() -> None:
    here = world()
    here.join("a", "t")
    here.join("b", "t")
    here.beat("a", 1, owned=owned(here, 0, 1, 2, 3))
    for _ in range(2):
        here.beat("a", 1, owned=owned(here, 0, 1, 2, 3))
        here.beat("b", 2)
        here.wait(REBALANCE_MS // 2)
    assert list(here.group.members) == ["b"]
    assert here.beat("b", 2).assignment == owned(here, 0, 1, 2, 3)
    assert here.beat("a", 1).error == UnknownMemberId.code


def test_a_silent_member_loses_its_partitions_when_its_session_ends() -> None:
    here = world()
    here.join("a", "t")
    here.join("b", "t")
    here.wait(SESSION_MS - 1)
    here.beat("b", 2)
    assert list(here.group.members) == ["a", "b"]
    here.wait(1)
    assert list(here.group.members) == ["b"]
    got = here.beat("b", 2)
    assert (got.epoch, got.assignment) == (3, owned(here, 0, 1, 2, 3))


def test_a_member_that_leaves_is_gone_at_once() -> None:
    here = world()
    here.join("a", "t")
    here.join("b", "t")
    left = here.beat("a", -1)
    assert (left.error, left.member, left.epoch) == (0, "a", -1)
    assert here.beat("b", 2).assignment == owned(here, 0, 1, 2, 3)
    here.beat("b", -1)
    assert here.group.state == "Empty"
    assert not here.group.owners
    assert not here.group.deadlines


def test_epochs_fence_members_that_are_behind_or_ahead() -> None:
    here = world()
    here.join("a", "t")
    here.topics.grow("t", 5)
    assert here.beat("a", 1).epoch == 2
    assert here.beat("a", 3).error == FencedMemberEpoch.code
    # The response with epoch 2 may have been lost: the epoch before is good with partitions that it has.
    assert here.beat("a", 1, owned=owned(here, 0, 1)).epoch == 2
    assert here.beat("a", 1, owned=owned(here, 7)).error == FencedMemberEpoch.code
    assert here.beat("a", 1).error == FencedMemberEpoch.code
    assert here.beat("b", 1).error == UnknownMemberId.code


def test_a_group_that_does_not_exist_is_not_found() -> None:
    here = world()
    for epoch in (3, -1):
        assert here.beat("a", epoch).error == GroupIdNotFound.code


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": 0, "topics": frozenset({"t"}), "owned": {}},
        {"epoch": 0, "rebalance_timeout_ms": 1, "owned": {}},
        {"epoch": 0, "rebalance_timeout_ms": 1, "topics": frozenset({"t"})},
        {"epoch": 0, "rebalance_timeout_ms": 1, "topics": frozenset({"t"}), "owned": {b"x" * 16: {1}}},
        {"epoch": -2},
        {"epoch": -3},
        {"epoch": 1, "instance": " "},
        {"epoch": 1, "rack": ""},
        {"epoch": 1, "member": ""},
        {"epoch": 0, "member": "", "rebalance_timeout_ms": 1, "topics": frozenset({"t"}), "owned": {}},
        {"epoch": 1, "topics": frozenset({"t" * (2 << 20)})},
        {"epoch": 1, "member": "x" * 40_000},
        {"epoch": 1, "regex": "x" * 40_000},
    ],
)
def test_a_request_that_no_group_could_answer_is_refused(fields: dict[str, object]) -> None:
    here = world()
    request = {"member": "a", **fields}
    assert here.beat(**request).error == InvalidRequest.code  # type: ignore[arg-type]
    assert not here.log


def test_an_unknown_assignor_is_refused_and_a_known_one_is_used() -> None:
    here = world()
    assert here.join("a", "t", assignor="sticky").error == UnsupportedAssignor.code
    here.topics.create("u", 4)
    here.join("a", "t", "u", assignor="range")
    here.join("b", "t", "u", assignor="range")
    assert here.machine.describe_consumer(GROUP).assignor == "range"
    targets = [here.topics.by_name(here.group.target(member)) for member in "ab"]
    assert targets == [{"t": [0, 1], "u": [0, 1]}, {"t": [2, 3], "u": [2, 3]}]


def test_a_group_is_not_larger_than_allowed() -> None:
    here = world(members_max=1)
    assert here.join("a", "t").error == 0
    assert here.join("b", "t").error == GroupMaxSizeReached.code
    assert here.beat("a", 1).error == 0


def test_members_take_bounded_memory() -> None:
    here = world()
    here.machine.memory.bytes_max = 4_096
    assert here.join("a", "t").error == 0
    before = here.machine.memory.bytes
    assert here.join("b", "t", "x" * 5_000).error == CoordinatorNotAvailable.code
    assert here.machine.memory.bytes == before
    here.beat("a", -1)
    here.machine.unload()
    assert here.machine.memory.bytes == 0


def test_a_topic_that_grows_appears_or_goes_begins_an_epoch() -> None:
    here = world()
    here.join("a", "t", "later")
    here.topics.create("later", 2)
    got = here.beat("a", 1)
    assert got.epoch == 2
    assert here.topics.by_name(got.assignment or {}) == {"t": [0, 1, 2, 3], "later": [0, 1]}
    here.topics.grow("t", 5)
    assert here.topics.by_name(here.beat("a", 2).assignment or {})["t"] == [0, 1, 2, 3, 4]
    here.topics.delete("later")
    gone = here.beat("a", 3)
    assert gone.epoch == 3
    assert here.topics.by_name(gone.assignment or {}) == {"t": [0, 1, 2, 3, 4]}
    assert here.beat("a", 3, owned=owned(here, 0, 1, 2, 3, 4)).epoch == 4
    here.topics.create("unread", 1)
    assert here.beat("a", 4).epoch == 4


def test_a_topic_that_is_created_anew_is_another_one() -> None:
    here = world()
    here.join("a", "t")
    before = owned(here, 0, 1, 2, 3)
    here.topics.create("t", 2)
    assert here.beat("a", 1, owned=before).assignment == {}
    got = here.beat("a", 1, owned={})
    assert (got.epoch, got.assignment) == (2, owned(here, 0, 1))


def test_a_changed_subscription_begins_an_epoch() -> None:
    here = world()
    here.topics.create("u", 1)
    here.join("a", "t")
    got = here.beat("a", 1, topics=frozenset({"u"}), owned=owned(here, 0, 1, 2, 3))
    assert (got.epoch, got.assignment) == (1, {})
    got = here.beat("a", 1, owned={})
    assert (got.epoch, here.topics.by_name(got.assignment or {})) == (2, {"u": [0]})


# ---- static members ----


def test_a_static_member_comes_back_to_its_partitions() -> None:
    here = world()
    here.join("a1", "t", instance="a")
    here.join("b", "t")
    here.beat("a1", 1, instance="a", owned=owned(here, 0, 1, 2, 3))
    here.beat("a1", 1, instance="a", owned=owned(here, 0, 1))
    here.beat("b", 2)
    assert here.join("a2", "t", instance="a").error == UnreleasedInstanceId.code
    left = here.beat("a1", -2, instance="a")
    assert (left.error, left.epoch) == (0, -2)
    assert here.beat("b", 2).assignment is None
    back = here.join("a2", "t", instance="a")
    assert (back.error, back.epoch, back.assignment) == (0, 2, owned(here, 0, 1))
    assert here.beat("b", 2).epoch == 2, "no rebalance"
    assert here.beat("a1", 2, instance="a").error == FencedInstanceId.code
    assert here.beat("a2", 2, instance="x").error == UnknownMemberId.code


def test_a_static_member_that_stays_away_is_removed() -> None:
    here = world()
    here.join("a", "t", instance="a")
    here.beat("a", -2, instance="a")
    here.wait(SESSION_MS)
    assert here.group.state == "Empty"
    assert here.join("b", "t", instance="a").assignment == owned(here, 0, 1, 2, 3)


def test_a_static_member_leaves_for_good() -> None:
    here = world()
    here.join("a", "t", instance="a")
    assert here.beat("x", -1, instance="a").error == FencedInstanceId.code
    assert here.beat("a", -1, instance="a").error == 0
    assert here.group.state == "Empty"


# ---- regular expressions ----


def test_a_regular_expression_finds_topics_that_appear() -> None:
    here = world()
    here.topics.create("logs-1", 1)
    got = here.join("a", regex="logs-.*")
    assert here.topics.by_name(got.assignment or {}) == {"logs-1": [0]}
    here.topics.create("logs-2", 1)
    assert here.beat("a", 1).epoch == 1, "expressions are resolved at most every 10 seconds"
    here.wait(10_000)
    got = here.beat("a", 1)
    assert here.topics.by_name(got.assignment or {}) == {"logs-1": [0], "logs-2": [0]}
    assert here.group.get(Kind.REGEX, "logs-.*").topics == {"logs-1", "logs-2"}
    here.beat("a", 2, regex="", topics=frozenset({"t"}))
    assert here.group.get(Kind.REGEX, "logs-.*") is None


def test_a_wrong_regular_expression_changes_nothing() -> None:
    here = world()
    assert here.join("a", regex="(").error == InvalidRegularExpression.code
    assert not here.log
    assert here.machine.consumer.get(GROUP) is None


# ---- offsets, deletion, lists ----


def commit(here: World, member: str, epoch: int, version: int = 9) -> int:
    request = Commit(
        GROUP, epoch, member, None, {TopicPartition("t", 0): CommittedOffset(5)}, version=version
    )
    result = here.ask(lambda machine, token, now: machine.commit(token, request, now))
    return result.error  # type: ignore[no-any-return]


def test_only_members_of_the_epoch_commit_and_fetch() -> None:
    here = world()
    assert commit(here, "a", 1) == GroupIdNotFound.code
    here.join("a", "t")
    assert commit(here, "a", 0) == StaleMemberEpoch.code
    assert commit(here, "b", 1) == UnknownMemberId.code
    assert commit(here, "", -1) == UnknownMemberId.code
    assert commit(here, "a", 1, version=8) == UnsupportedVersion.code
    assert commit(here, "a", 1) == 0
    assert here.machine.committed(GROUP)[TopicPartition("t", 0)].offset == 5
    assert here.machine.check_fetch(GROUP, None, -1) == 0
    assert here.machine.check_fetch(GROUP, "a", 1) == 0
    assert here.machine.check_fetch(GROUP, "a", 0) == StaleMemberEpoch.code
    assert here.machine.check_fetch(GROUP, "b", 1) == UnknownMemberId.code
    here.beat("a", -1)
    assert commit(here, "", -1) == 0


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    here = world()
    here.join("a", "t")
    commit(here, "a", 1)
    error, actions = here.machine.delete(GROUP)
    assert (error, actions) == (NonEmptyGroup.code, [])
    here.beat("a", -1)
    error, actions = here.machine.delete(GROUP)
    here.take(actions)
    here.settle()
    assert error == 0
    assert dict(here.log) == dict.fromkeys(dict(here.log)), "every key has a tombstone"
    assert not here.machine.list_groups()
    assert not here.restarted().list_groups()


def test_offsets_expire_only_of_topics_that_no_member_reads() -> None:
    here = world()
    here.join("a", "t")
    commit(here, "a", 1)
    retention = here.group_limits.offsets_retention_ms
    here.now += retention
    here.take(expire_all(here.machine, here.now))
    assert here.machine.committed(GROUP)
    here.beat("a", -1)
    here.take(expire_all(here.machine, here.now))
    here.settle()
    assert not here.machine.committed(GROUP)
    here.take(expire_all(here.machine, here.now))
    here.settle()
    assert not here.machine.list_groups(), "a group without members and offsets goes"
    assert dict(here.log) == dict.fromkeys(dict(here.log))


def test_groups_are_listed_by_state_and_type() -> None:
    here = world()
    here.join("a", "t")
    commit(here, "a", 1)
    assert [(each.group, each.type, each.state) for each in here.machine.list_groups()] == [
        (GROUP, "consumer", "Stable")
    ]
    assert here.machine.list_groups(["Stable"], ["Consumer"])
    assert not here.machine.list_groups(["Empty"], [])
    assert not here.machine.list_groups([], ["classic"])
    assert here.machine.describe(GROUP).state == "Dead"


# ---- writes ----


def test_a_write_that_is_not_in_the_log_is_undone() -> None:
    here = world()
    here.join("a", "t")
    before = here.group.entries[Kind.CURRENT].copy(), here.group.epoch
    here.refusal = NotEnoughReplicas.code
    assert here.join("b", "t").error == CoordinatorNotAvailable.code
    here.refusal = 0
    assert (here.group.entries[Kind.CURRENT], here.group.epoch) == before
    assert list(here.group.members) == ["a"]
    assert here.beat("a", 1).epoch == 1


def test_a_write_that_the_replicas_are_late_with_stays() -> None:
    here = world()
    request = Heartbeat(GROUP, "a", 0, rebalance_timeout_ms=1, topics=frozenset({"t"}), owned={})
    token = here.call(lambda machine, token, now: machine.consumer_heartbeat(token, request, now))
    here.settle(RequestTimedOut.code)
    assert here.answers[token].error == CoordinatorNotAvailable.code
    # As after a lost response, the client joins again with the same id.
    assert list(here.group.members) == ["a"]
    assert here.beat("a", 1).epoch == 1
    assert list(here.restarted().consumer.get(GROUP).members) == ["a"]  # type: ignore[union-attr]


def test_an_answer_waits_for_the_write_before_it() -> None:
    here = world()
    here.join("a", "t")
    leaving = Heartbeat(GROUP, "a", -1)
    here.call(lambda machine, token, now: machine.consumer_heartbeat(token, leaving, now))
    refused = Heartbeat(GROUP, "a", 1)
    second = here.call(lambda machine, token, now: machine.consumer_heartbeat(token, refused, now))
    assert here.answers[second].error == UnknownMemberId.code
    here.settle()
    here.join("a", "t")
    here.topics.grow("t", 6)
    first = here.call(lambda m, token, now: m.consumer_heartbeat(token, Heartbeat(GROUP, "a", 3), now))
    second = here.call(lambda m, token, now: m.consumer_heartbeat(token, Heartbeat(GROUP, "a", 4), now))
    assert first not in here.answers
    assert second not in here.answers, "it could report an epoch that is undone"
    here.settle()
    assert here.answers[first].epoch == here.answers[second].epoch == 4


def test_a_group_that_is_loaded_goes_on() -> None:
    here = world()
    here.join("a", "t")
    here.join("b", "t", instance="i", assignor="uniform", rack="r")
    here.beat("a", 1, owned=owned(here, 0, 1, 2, 3))
    before = here.group
    here.machine = here.restarted()
    assert here.group.entries == before.entries
    assert here.group.owners == before.owners
    assert here.group.static == {"i": "b"}
    here.beat("a", 1, owned=owned(here, 0, 1))
    assert here.beat("b", 2, instance="i").assignment == owned(here, 2, 3)
    here.wait(SESSION_MS)
    assert here.group.state == "Empty"
