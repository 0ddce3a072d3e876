"""The faults of an ensemble: members killed, suspended or cut off, slow disks, clocks that jump.

A thread beside the clients applies and heals a fault. The seed decides which members it strikes.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.compat.conftest import missing
from tests.faults.disks import slow_disks, traceable
from tests.faults.network import cuttable

from .members import Ensemble, Member

Heal = Callable[[], None]
Fault = Callable[[Ensemble, random.Random], Heal]

SLOW_SECONDS = 0.15
"""The duration of each flush on a slow disk."""
JUMP_MS = 3_600_000


def nothing(_ensemble: Ensemble, _chance: random.Random) -> Heal:
    return lambda: None


def leader_killed(ensemble: Ensemble, _chance: random.Random) -> Heal:
    ensemble.leader().kill()
    return ensemble.heal


def follower_killed(ensemble: Ensemble, chance: random.Random) -> Heal:
    chance.choice(ensemble.followers()).kill()
    return ensemble.heal


def all_killed(ensemble: Ensemble, _chance: random.Random) -> Heal:
    for member in ensemble.members:
        member.kill()
    return ensemble.heal


def restarted_in_turn(ensemble: Ensemble, _chance: random.Random) -> Heal:
    """A rolling restart: a member is stopped with SIGTERM once the one before it serves again."""
    for member in ensemble.members:
        member.end(signal.SIGTERM)
        ensemble.heal()
    return lambda: None


def leader_suspended(ensemble: Ensemble, _chance: random.Random) -> Heal:
    ensemble.leader().suspend()
    return ensemble.heal


def follower_suspended(ensemble: Ensemble, chance: random.Random) -> Heal:
    chance.choice(ensemble.followers()).suspend()
    return ensemble.heal


def leader_not_heard(ensemble: Ensemble, _chance: random.Random) -> Heal:
    """The leader's packets are lost; it still receives."""
    leader = ensemble.leader()
    return _cut(ensemble, [(leader, other) for other in ensemble.members if other is not leader])


def leader_deaf(ensemble: Ensemble, _chance: random.Random) -> Heal:
    """Packets to the leader are lost; its own arrive."""
    leader = ensemble.leader()
    return _cut(ensemble, [(other, leader) for other in ensemble.members if other is not leader])


def follower_not_heard_by_one(ensemble: Ensemble, chance: random.Random) -> Heal:
    follower = chance.choice(ensemble.followers())
    return _cut(
        ensemble, [(follower, chance.choice([each for each in ensemble.members if each is not follower]))]
    )


def leader_cut_off(ensemble: Ensemble, _chance: random.Random) -> Heal:
    leader = ensemble.leader()
    others = [each for each in ensemble.members if each is not leader]
    return _cut(ensemble, [pair for each in others for pair in ((leader, each), (each, leader))])


def _cut(ensemble: Ensemble, pairs: list[tuple[Member, Member]]) -> Heal:
    network = cuttable(ensemble.network)
    for sender, receiver in pairs:
        network.cut(sender.number, receiver.number)

    def heal() -> None:
        network.heal()
        ensemble.heal()

    return heal


def leaders_disk_slow(ensemble: Ensemble, _chance: random.Random) -> Heal:
    return _slow(ensemble, [ensemble.leader()])


def majoritys_disks_slow(ensemble: Ensemble, chance: random.Random) -> Heal:
    return _slow(ensemble, [ensemble.leader(), chance.choice(ensemble.followers())])


def _slow(ensemble: Ensemble, members: list[Member]) -> Heal:
    """Each flush of these members takes longer."""
    end = slow_disks([member.pid for member in members], "fsync,fdatasync", SLOW_SECONDS)

    def heal() -> None:
        end()
        ensemble.heal()

    return heal


def clocks_jump(ensemble: Ensemble, chance: random.Random) -> Heal:
    """One member's clock jumps an hour ahead, another's an hour back."""
    one, other = chance.sample(ensemble.members, 2)
    one.jump(JUMP_MS)
    other.jump(-JUMP_MS)

    def heal() -> None:
        one.jump(0)
        other.jump(0)
        ensemble.heal()

    return heal


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        nothing,
        leader_killed,
        follower_killed,
        all_killed,
        restarted_in_turn,
        leader_suspended,
        follower_suspended,
        leader_not_heard,
        leader_deaf,
        follower_not_heard_by_one,
        leader_cut_off,
        leaders_disk_slow,
        majoritys_disks_slow,
        clocks_jump,
    )
}
PARTITIONS = ("leader_not_heard", "leader_deaf", "follower_not_heard_by_one", "leader_cut_off")
SUSPENSIONS = ("leader_suspended", "follower_suspended")


def possible_or_skip(name: str, ensemble: Ensemble) -> None:
    """Skips the test, with the reason, if this machine cannot make the fault; fails it under CI=true."""
    if name in PARTITIONS:
        cuttable(ensemble.network)
    elif name.endswith("slow"):
        traceable()
    elif name == "clocks_jump" and ensemble.members[0].clock is None:
        missing("cc", "apt-get install gcc")


def possible(name: str, ensemble: Ensemble) -> bool:
    with suppress(pytest.skip.Exception):
        possible_or_skip(name, ensemble)
        return True
    return False
