"""What an answer says again, because its request names the same thing again and again.

Kafka says it as often as it is named (`GroupCoordinatorAdapter.describeGroups`, `KafkaApis.handleDescribeProducersRequest`), so a
small request may have an answer without bounds. Here what is said again is bounded; what there is can always be said as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from cluster.errors import InvalidRequest

REPEATED_MAX = 1 << 20
"""So many bytes, and what one thing has more, may be in an answer again; no tool asks for any."""

_NUMBER = 8

Said = TypeVar("Said")


class RepeatBudget:
    """Counts them in one answer."""

    def __init__(self) -> None:
        self._named: set[Hashable] = set()
        self._left = REPEATED_MAX

    def say(self, name: Hashable, describe: Callable[[], Said]) -> Said:
        """What `describe` says of `name`; InvalidRequest when it is named again after too much was said again."""
        again = self.is_again(name)
        said = describe()
        if again:
            self.count(said)
        return said

    def is_again(self, name: Hashable) -> bool:
        """Whether `name` is named again, so that what is said of it counts; InvalidRequest after too much was said again."""
        if name not in self._named:
            self._named.add(name)
            return False
        if self._left <= 0:
            raise InvalidRequest(
                f"The request names the same things again and again: at most {REPEATED_MAX} bytes are repeated"
            )
        return True

    def count(self, said: object) -> None:
        """This is said again."""
        self._left -= _size(said, self._left)


def _size(said: object, most: int) -> int:
    """About as many bytes as an answer has of it, counted up to `most`."""
    size = 0
    inner: Iterable[object]
    match said:
        case str() | bytes():
            return _NUMBER + len(said)
        case dict():
            inner = said.values()
        case Iterable():
            size, inner = _NUMBER, said
        case _:
            return _NUMBER
    for part in inner:
        if size >= most:
            break
        size += _size(part, most - size)
    return size
