"""Groups that change between the classic and the consumer protocol.

If one failed, a running group could not move to the consumer protocol and back, a refused move would disturb
it, or a broker that takes over would know it by the other protocol.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import (
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    NotEnoughReplicas,
    RebalanceInProgress,
    UnknownMemberId,
)
from cluster.groups import ConsumerLimits, Join
from tests.groups.consumers import GROUP, REBALANCE_MS, SESSION_MS, Topics, World
from tests.groups.test_consumer_properties import ClassicClient, flat


def classic_group(**limits: Any) -> tuple[World, ClassicClient]:
    """A classic group with one member, which has all partitions."""
    here = World(Topics(t=4), ConsumerLimits(**limits))
    member = ClassicClient(here, "k", cooperative=True)
    settle(here, member)
    assert len(member.owned) == 4
    return here, member


def settle(here: World, member: ClassicClient) -> None:
    for _ in range(8):
        member.step()
        here.settle()
        here.wait(1)
        member.receive()


def state(here: World) -> list[tuple[str, str]]:
    return [(group.type, group.state) for group in here.machine.list_groups()]


def heartbeat(here: World, member: ClassicClient) -> int:
    return here.machine.heartbeat(GROUP, member.generation, member.member, None, here.now)


def test_a_consumer_joins_a_classic_group_and_shares_with_its_member() -> None:
    here, member = classic_group()
    joined = here.join("c", "t")
    assert (joined.error, joined.assignment) == (0, {})
    assert state(here) == [("consumer", "Reconciling")]
    assert here.machine.describe(GROUP).state == "Dead"
    assert heartbeat(here, member) == RebalanceInProgress.code
    settle(here, member)
    got = here.beat("c", joined.epoch)
    assert len(flat(got.assignment)) == len(member.owned) == 2
    assert not flat(got.assignment) & member.owned
    assert state(here) == [("consumer", "Stable")]
    assert here.restarted().consumer.get(GROUP).entries == here.group.entries  # type: ignore[union-attr]
    assert not here.restarted().classic.describe(GROUP).members


def test_the_last_consumer_leaves_and_the_group_is_classic() -> None:
    here, member = classic_group()
    joined = here.join("c", "t")
    settle(here, member)
    here.beat("c", joined.epoch)
    here.beat("c", -1)
    assert state(here) == [("classic", "PreparingRebalance")]
    settle(here, member)
    assert state(here) == [("classic", "Stable")]
    assert len(member.owned) == 4
    loaded = here.restarted()
    assert [view.id for view in loaded.describe(GROUP).members] == [member.member]
    assert loaded.consumer.get(GROUP) is None


@pytest.mark.parametrize(
    ("limits", "fields", "error"),
    [
        ({"upgrade": False}, {}, GroupIdNotFound),
        ({"members_max": 1}, {}, GroupMaxSizeReached),
        ({}, {"regex": "("}, InvalidRegularExpression),
    ],
)
def test_a_refused_consumer_does_not_disturb_the_group(
    limits: dict[str, Any], fields: dict[str, Any], error: type[Exception]
) -> None:
    here, member = classic_group(**limits)
    log = list(here.log)
    assert here.join("c", **fields).error == error.code  # type: ignore[attr-defined]
    assert heartbeat(here, member) == 0
    assert state(here) == [("classic", "Stable")]
    assert here.log == log


def test_a_group_of_another_protocol_type_is_no_consumer_group() -> None:
    here = World(Topics(t=4))
    for known in (True, False):
        join = Join(GROUP, "", None, "c", "/h", REBALANCE_MS, SESSION_MS, "connect", (("x", b""),), known)
        here.call(lambda machine, token, now, join=join: machine.join(token, join, now))
    here.wait(1)
    assert here.join("c", "t").error == GroupIdNotFound.code


def test_a_move_that_is_not_written_is_undone() -> None:
    here, member = classic_group()
    here.refusal = NotEnoughReplicas.code
    assert here.join("c", "t").error != 0
    here.refusal = 0
    assert [group.type for group in here.machine.list_groups()] == ["classic"]
    settle(here, member)
    assert len(member.owned) == 4


def test_a_group_that_may_not_go_back_keeps_its_classic_member() -> None:
    here, member = classic_group(downgrade=False)
    joined = here.join("c", "t")
    settle(here, member)
    here.beat("c", joined.epoch)
    here.beat("c", -1)
    settle(here, member)
    assert state(here) == [("consumer", "Stable")]
    assert len(member.owned) == 4


def test_classic_members_are_removed_when_they_are_late() -> None:
    """Without a heartbeat, without a join after a rebalance began, and without a sync after the join."""
    for late in ("heartbeat", "join", "sync"):
        here, member = classic_group()
        here.join("c", "t")
        if late != "heartbeat":
            assert heartbeat(here, member) == RebalanceInProgress.code
        if late == "sync":
            member.step()
            member.step()
            here.settle()
            member.receive()
            assert member.state == "joined"
        for _ in range(4):
            here.wait(REBALANCE_MS // 4)
            here.beat("c", here.group.current("c").epoch, owned={})
            if late != "heartbeat":
                heartbeat(here, member)
        assert list(here.group.members) == ["c"], late
        assert heartbeat(here, member) == UnknownMemberId.code


def test_an_empty_group_has_the_protocol_of_the_next_member() -> None:
    here = World(Topics(t=4))
    here.join("c", "t")
    here.beat("c", -1)
    member = ClassicClient(here, "k", cooperative=False)
    settle(here, member)
    assert state(here) == [("classic", "Stable")]
    member.leave()
    here.settle()
    assert here.join("c", "t").error == 0
    assert state(here) == [("consumer", "Stable")]
    assert here.restarted().consumer.get(GROUP) is not None
    assert not here.restarted().classic.describe(GROUP).members
