"""DeleteTopics by id. If it failed, a repeated or queued deletion would delete another topic of the same
name.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.controller import Controller, TopicToDelete
from cluster.controller.driver import Outcomes
from cluster.errors import UnknownTopicId
from cluster.model import TopicId

from ..broker.wire import Wire
from .cutting_proxy import serving
from .requests import create, delete, shown

UNKNOWN_TOPIC_ID = UnknownTopicId.code


def noted(controller: Controller) -> asyncio.Queue[str]:
    """Notifies of each command when it is queued."""
    asked: asyncio.Queue[str] = asyncio.Queue()

    def note(name: str) -> None:
        original = getattr(controller, name)

        async def call(*arguments: object) -> object:
            asked.put_nowait(name)
            return await original(*arguments)

        setattr(controller, name, call)

    note("create_topics")
    note("delete_topics")
    return asked


def test_another_topic_of_the_name_is_not_deleted(tmp_path: Path) -> None:
    async def by_id(wire: Wire, topic_id: bytes) -> int:
        topics = [{"name": None, "topic_id": topic_id}]
        answer = await wire.ask("DeleteTopics", 6, topics=topics, timeout_ms=60_000)
        return int(answer["responses"][0]["error_code"])

    async def main() -> None:
        async with serving(tmp_path) as (_cutter, _, broker, wire):
            controller = broker._controller
            assert controller is not None

            def topic_id() -> TopicId:
                topic = controller._metadata.topic("t")
                assert topic is not None
                return topic.id

            assert await create(wire, "t") == 0
            first = topic_id()
            # Both are checked while there is the first topic, and carried out when there is another one.
            outcomes: Outcomes = []
            held = asyncio.Event()
            holding = asyncio.create_task(controller._command(held.wait))
            async with Wire(broker.bootstrap) as other, Wire(broker.bootstrap) as third:
                asked = noted(controller)
                gone = asyncio.create_task(delete(wire, "t"))
                assert await asked.get() == "delete_topics"
                made = asyncio.create_task(create(other, "t"))
                assert await asked.get() == "create_topics"
                late = asyncio.create_task(by_id(third, first))
                assert await asked.get() == "delete_topics"
                held.set()
                assert await gone == 0
                assert await made == 0
                assert await late == UNKNOWN_TOPIC_ID
            await holding
            assert await shown(wire, "t") == {0: 0, 1: 0}
            second = topic_id()
            assert second != first
            await controller.delete_topics([TopicToDelete("t", first)], outcomes)
            assert [type(outcome) for outcome in outcomes] == [UnknownTopicId]
            assert await by_id(wire, first) == UNKNOWN_TOPIC_ID
            assert await by_id(wire, second) == 0
            assert await shown(wire, "t") == {}

    asyncio.run(main())
