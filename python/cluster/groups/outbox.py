"""The actions of a partition's machine, and its writes that are not carried out yet. Knows no group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from cluster.groups.committed import CommittedOffset
from cluster.groups.messages import Action, StoredGroup, Write
from cluster.model import TopicPartition
from cluster.state_topics import Producer, Respond, Token

Written = Callable[[int, int], None]
"""Called with the error of a write and the time."""


class Outbox:
    """Collects actions until the machine returns them."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._writing: dict[int, Written] = {}
        self._numbers = itertools.count(1)

    def respond(self, token: Token | None, result: object) -> None:
        """Answers a request, if there is one."""
        if token is not None:
            self._actions.append(Respond(token, result))

    def write(
        self,
        group: str,
        written: Written = lambda error, now: None,
        *,
        stored: StoredGroup | None = None,
        remove_group: bool = False,
        offsets: Mapping[TopicPartition, CommittedOffset | None] | None = None,
        producer: Producer | None = None,
        records: Sequence[tuple[bytes, bytes | None]] = (),
    ) -> int:
        """Writes records of a group. Returns the write's number, which rises from write to write."""
        number = self.number()
        self._writing[number] = written
        self._actions.append(Write(number, group, stored, remove_group, offsets or {}, producer, records))
        return number

    def number(self) -> int:
        """A number above those of all writes before, and below those of all later ones."""
        return next(self._numbers)

    def stored(self, write: int, error: int, now: int) -> None:
        """A Write was carried out; `error` is its error code, or 0."""
        self._writing.pop(write)(error, now)

    def take(self) -> list[Action]:
        """The actions since the last call."""
        actions, self._actions = self._actions, []
        return actions
