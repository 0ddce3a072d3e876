"""The simulation notices a broken machine: each test breaks one rule and needs a seed that fails.

If one failed, the histories would no longer reach what that rule is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.broker.replicas import ReplicaManager
from cluster.controller import driver
from cluster.controller.elections import Elections
from cluster.controller.state import ControllerState
from cluster.controller.zookeeper import Check
from cluster.errors import NONE
from cluster.replication import ReplicationState

from .data_plane import DataPlane
from .histories import run

SEEDS = 200
"""A broken machine is noticed within so many seeds."""

Break = Callable[[pytest.MonkeyPatch], None]


def obey_a_deposed_controller(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaManager, "_fenced", lambda *_: NONE)


def take_an_older_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaManager, "_refusal", lambda *_: None)


def elect_outside_the_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControllerState, "elects_uncleanly", lambda *_: True)


def elect_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    choose = Elections._choose

    def chosen(self: Any, topic: Any, number: int, state: Any, *able: Any) -> Any:
        found = choose(self, topic, number, state, *able)
        return found and replace(found, leader_epoch=state.leader_epoch)

    patch.setattr(Elections, "_choose", chosen)


def keep_the_dead_in_the_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Elections, "_in_sync", lambda *_: None)


def grant_every_isr(patch: pytest.MonkeyPatch) -> None:
    def alter(self: Any, _broker: int, wish: Any) -> Any:
        state = self.topics[self.names[wish.topic_id]].partitions[wish.partition]
        return replace(state, isr=wish.isr, controller_epoch=self.epoch)

    patch.setattr(ControllerState, "_alter", alter)


def write_after_being_deposed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(driver, "Check", lambda path, _version: Check(path, -1))


def forget_deletions_of_brokers_that_come_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControllerState, "_stop", lambda self, *_: [])


def tell_new_brokers_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControllerState, "_welcome", lambda *_: [])


def do_not_wait_for_replicas_that_join(patch: pytest.MonkeyPatch) -> None:
    set_isr = ReplicationState._set_isr
    patch.setattr(ReplicationState, "_set_isr", lambda *of: replace(set_isr(*of), pending=()))


def shrink_the_isr_before_it_is_granted(patch: pytest.MonkeyPatch) -> None:
    set_isr = ReplicationState._set_isr

    def early(self: Any, partition: Any) -> Any:
        return replace(set_isr(self, partition), isr=self.led[partition].wished or self.led[partition].isr)

    patch.setattr(ReplicationState, "_set_isr", early)


def do_not_truncate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DataPlane, "_truncate", lambda *_: None)


BREAKS: tuple[Break, ...] = (
    obey_a_deposed_controller,
    take_an_older_leader_epoch,
    elect_outside_the_isr,
    elect_in_the_same_epoch,
    keep_the_dead_in_the_isr,
    grant_every_isr,
    write_after_being_deposed,
    forget_deletions_of_brokers_that_come_back,
    tell_new_brokers_nothing,
    do_not_wait_for_replicas_that_join,
    shrink_the_isr_before_it_is_granted,
    do_not_truncate,
)


@pytest.mark.parametrize("change", BREAKS, ids=lambda change: change.__name__)
def test_a_broken_rule_is_noticed(change: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch)
    for seed in range(2, 2 + SEEDS):
        try:
            run(seed, tmp_path)
        except AssertionError as error:
            print(f"noticed with seed {seed}: {str(error).splitlines()[-1]}")
            return
    pytest.fail(f"{SEEDS} histories went well without this rule")
