"""Topics that the broker itself creates: those that clients ask for, and the state topics.

The controller creates them: on this broker by a command, elsewhere by a CreateTopics request to it. Lives on
the event loop. Source: DefaultAutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.broker.controller_link import ControllerLink
from cluster.broker.replicas import MetadataCache
from cluster.controller import Controller, NewTopic
from cluster.errors import (
    NONE,
    CoordinatorNotAvailable,
    KafkaProtocolError,
    TopicAlreadyExists,
    for_code,
)
from cluster.model import TopicId, TopicInfo

_CREATE_TOPICS, _VERSION = 19, 7

Created = TopicInfo | KafkaProtocolError


class AutoTopics:
    """Creates topics for requests that need them."""

    def __init__(
        self,
        controller: Controller,
        link: ControllerLink,
        metadata: MetadataCache,
        state_topics: Sequence[NewTopic],
        timeout_ms: int,
    ) -> None:
        self._controller = controller
        self._link = link
        self._metadata = metadata
        self._state_topics = {topic.name: topic for topic in state_topics}
        self._timeout_ms = timeout_ms

    def new_topic(self, name: str) -> NewTopic:
        """A topic with the broker's defaults, or those of a state topic."""
        return self._state_topics.get(name) or NewTopic(name)

    async def create(self, news: Sequence[NewTopic]) -> list[Created]:
        """Creates topics. Returns each topic or its error, in order. Raises KafkaProtocolError."""
        if self._controller.active:
            return await self._controller.topics.create(news)
        topics: list[dict[str, Any]] = [
            {
                "name": new.name,
                "num_partitions": new.partitions,
                "replication_factor": new.replication_factor,
                "assignments": [],
                "configs": [{"name": name, "value": value} for name, value in new.config.items()],
            }
            for new in news
        ]
        body = {"topics": topics, "timeout_ms": self._timeout_ms, "validate_only": False}
        try:
            answer = await self._link.request(_CREATE_TOPICS, _VERSION, body)
        except (OSError, ValueError) as error:
            raise CoordinatorNotAvailable(f"The controller does not answer: {error}") from error
        return [_created(item) for item in answer["topics"]]

    async def ensure_state_topic(self, name: str) -> None:
        """Creates a state topic if it does not exist. Raises KafkaProtocolError."""
        if self._metadata.topic(name) is not None:
            return
        [made] = await self.create([self._state_topics[name]])
        if isinstance(made, KafkaProtocolError) and not isinstance(made, TopicAlreadyExists):
            raise made


def _created(item: dict[str, Any]) -> Created:
    if item["error_code"] == NONE:
        return TopicInfo(item["name"], TopicId(item["topic_id"]), {})
    error = for_code(item["error_code"])
    return error(item["error_message"]) if item["error_message"] else error()
