"""Requests of old versions that name the topic in each partition."""

from __future__ import annotations

from cluster.broker.context import Body


def grouped(body: Body, field: str) -> Body:
    """The request with its partitions by topic, as in newer versions."""
    if not body.get(field):
        return body
    topics: dict[str, list[Body]] = {}
    for state in body[field]:
        topics.setdefault(state["topic_name"], []).append(state)
    return body | {
        "topic_states": [{"topic_name": name, "partition_states": states} for name, states in topics.items()]
    }
