"""Single events that random histories meet rarely. Each once had a defect.

If one failed, a leader would count an ISR that nobody wrote, a topic that is being deleted would change, or a
broker would be taken for dead for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from cluster.controller import NewIsr, NewPartitions, NewTopic, znodes
from cluster.controller.zookeeper import Create, Delete, SetData
from cluster.errors import InvalidTopicException, NotController
from cluster.model import BrokerId

from .broker import Broker
from .network import REQUEST_SECONDS
from .world import World


class Scenario(World):
    """A cluster of three brokers with one topic, in which `event` happens. Then it must come to rest."""

    def __init__(self, directory: Path, event: Callable[[Scenario, Broker], Awaitable[None]]) -> None:
        super().__init__(1, directory, brokers=3, steps=0)
        self._event = event

    async def happen(self) -> None:
        controller = self.controller()
        [made] = await controller.controller.topics.create([NewTopic("t", 3, 3)])
        assert not isinstance(made, Exception)
        await self._until("come to rest", self.restless)
        await self._event(self, controller)
        self._check()

    def epochs_below(self, epoch: int) -> str | None:
        """Why no partition of the topic `alone` has that leader epoch."""
        found = [item.leader_epoch for (name, _), item in self.checker.states.items() if name == "alone"]
        return None if max(found) >= epoch else f"the epochs are {found}"

    def controller(self) -> Broker:
        [found] = [broker for broker in self.brokers.values() if broker.controller.active]
        return found


# If this failed, a leader would acknowledge records with an ISR that is not the cluster's.
def test_a_deposed_controller_grants_no_isr(tmp_path: Path) -> None:
    async def deposed(world: Scenario, controller: Broker) -> None:
        before = world.checker.states["t", 0]
        # Another controller is elected, and this one does not know it yet.
        world.coordinator.transaction(0, [SetData(znodes.CONTROLLER_EPOCH, b"7")])
        topic_id, _ = world.checker.topics["t"]
        wish = NewIsr("", topic_id, 0, before.leader_epoch, (before.leader,), before.zk_version)
        epoch = controller.controller.state.registered[before.leader].epoch
        try:
            answer = await controller.controller.alter_isr(before.leader, epoch, [wish])
        except NotController:
            assert not controller.controller.active
        else:
            raise AssertionError(f"it granted {answer}")
        assert world.checker.states["t", 0] == before

    Scenario(tmp_path, deposed).run()


def test_a_topic_that_is_being_deleted_gets_no_partitions(tmp_path: Path) -> None:
    async def grown(world: Scenario, controller: Broker) -> None:
        dead = next(broker for broker in world.brokers if broker != controller.id)
        world.kill(dead)
        world.coordinator.transaction(0, [Create(znodes.delete_topic_path("t"), b"")])
        await controller.controller.queue.command(lambda: controller.controller.delete("t"))
        outcomes: list[object] = []
        await controller.controller.topics.create_partitions([NewPartitions("t", 5)], outcomes)
        assert isinstance(outcomes[0], InvalidTopicException)

    Scenario(tmp_path, grown).run()


def register_again(world: Scenario, controller: Broker) -> BrokerId:
    """A broker, not the controller, registers again before the controller sees that it was gone."""
    broker = next(item for item in world.brokers.values() if item is not controller)
    path = znodes.broker_path(broker.id)
    again = [Delete(path), Create(path, world.coordinator.nodes[path].data, ephemeral=True)]
    world.coordinator.transaction(broker.session.session_id, again)
    broker.replicas.broker_epoch = world.coordinator.nodes[path].czxid
    return broker.id


# If this failed, a broker that restarted would lead nothing until it restarts again.
def test_a_refused_connection_of_the_last_process_does_not_count(tmp_path: Path) -> None:
    async def restarted(world: Scenario, controller: Broker) -> None:
        controller.controller.brokers_changed()
        broker = register_again(world, controller)
        # Queued behind the work that reads the new registration.
        controller.controller.connection_refused(broker)
        await controller.controller.queue.command(controller.controller.delivered)

    Scenario(tmp_path, restarted).run()


# If this failed, the leader would take an epoch before it is written, and refuse the written one.
def test_a_broker_that_registers_again_gets_only_written_states(tmp_path: Path) -> None:
    async def restarted(world: Scenario, controller: Broker) -> None:
        [made] = await controller.controller.topics.create([NewTopic("alone", 3, 1)])
        assert not isinstance(made, Exception)
        await world._until("come to rest", world.restless)
        register_again(world, controller)
        await world._until("write new epochs", lambda: world.epochs_below(2))

    Scenario(tmp_path, restarted).run()


# If this failed, a broker that was cut off for a while would never hear of its partitions.
def test_what_a_broker_did_not_answer_is_sent_again(tmp_path: Path) -> None:
    async def cut(world: Scenario, controller: Broker) -> None:
        others = [broker for broker in world.brokers if broker != controller.id]
        world.network.cuts = {(controller.id, broker) for broker in others}
        [made] = await controller.controller.topics.create([NewTopic("later", 3, 3)])
        assert not isinstance(made, Exception)
        await asyncio.sleep(2 * REQUEST_SECONDS)
        assert world.restless() is not None

    Scenario(tmp_path, cut).run()
