"""The cluster's topics as groups of the consumer protocol see them: what clients see of them too."""

from __future__ import annotations

from cluster.broker.replicas import MetadataCache
from cluster.errors import InvalidRegularExpression
from cluster.groups import Topic
from cluster.model import NO_TOPIC_ID, TopicId
from logcore._native import matching_names


class GroupTopics:
    """The topics of the metadata cache. One without an id, of a cluster before 2.8, does not exist here."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    @property
    def version(self) -> int:
        """A number that grows with each topic that appears, goes or grows."""
        return self._metadata.topics_version

    def topic(self, name: str) -> Topic | None:
        """The topic of that name."""
        found = self._metadata.topic(name)
        return None if found is None or found.id == NO_TOPIC_ID else Topic(found.id, len(found.assignment))

    def name_of(self, topic_id: TopicId) -> str | None:
        """The name of the topic with that id."""
        return self._metadata.name_of(topic_id)

    def matching(self, regex: str) -> frozenset[str]:
        """The names that a regular expression matches as a whole. Raises InvalidRegularExpression."""
        try:
            return frozenset(matching_names(regex, list(self._metadata.names())))
        except ValueError as error:
            raise InvalidRegularExpression(
                f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."
            ) from None
