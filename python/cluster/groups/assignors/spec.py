"""What an assignor gets and returns. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cluster.model import TopicId

Assignment = Mapping[TopicId, frozenset[int]]
"""Partitions by topic. No topic has an empty set, so that equal assignments are equal values."""

EMPTY: Assignment = {}
"""No partitions."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it."""

    instance: str | None
    topics: frozenset[TopicId]
    """The topics it reads. All of them exist."""
    target: Assignment = field(default_factory=dict)
    """Its part of the previous target assignment."""


class Assignor(Protocol):
    """A server-side assignor."""

    name: str

    def assign(
        self, members: Mapping[str, MemberSpec], partitions: Mapping[TopicId, int]
    ) -> dict[str, Assignment]:
        """Each member's assignment. `partitions`: how many partitions each topic has."""


def read_the_same(members: Mapping[str, MemberSpec]) -> bool:
    """Every member reads the same topics."""
    specs = iter(members.values())
    first = next(specs)
    return all(spec.topics is first.topics or spec.topics == first.topics for spec in specs)
