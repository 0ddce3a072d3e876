"""DeleteTopics by id. If it failed, a repeated or queued deletion would delete another topic of the same
name.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.controller import Outcomes, TopicToDelete
from cluster.errors import UnknownTopicId
from cluster.model import TopicId

from ..broker.wire import Wire
from .cutting_proxy import serving
from .requests import create, delete, shown

UNKNOWN_TOPIC_ID = UnknownTopicId.code


def test_another_topic_of_the_name_is_not_deleted(tmp_path: Path) -> None:
    async def by_id(wire: Wire, topic_id: bytes) -> int:
        topics = [{"name": None, "topic_id": topic_id}]
        answer = await wire.ask("DeleteTopics", 6, topics=topics, timeout_ms=60_000)
        return int(answer["responses"][0]["error_code"])

    async def main() -> None:
        async with serving(tmp_path) as (_cutter, _, broker, wire):
            controller = broker._controller
            metadata = broker._parts.metadata
            assert controller is not None
            assert metadata is not None

            def topic_id() -> TopicId:
                topic = metadata.topic("t")
                assert topic is not None
                return topic.id

            assert await create(wire, "t") == 0
            first = topic_id()
            assert await delete(wire, "t") == 0
            assert await create(wire, "t") == 0
            second = topic_id()
            assert second != first
            # As a deletion that was checked while there was the first topic.
            outcomes: Outcomes = []
            await controller.topics.delete([TopicToDelete("t", first)], outcomes)
            assert [type(outcome) for outcome in outcomes] == [UnknownTopicId]
            assert await by_id(wire, first) == UNKNOWN_TOPIC_ID
            assert await by_id(wire, second) == 0
            assert await shown(wire, "t") == {}

    asyncio.run(main())
