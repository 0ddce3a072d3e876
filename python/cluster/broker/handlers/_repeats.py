"""Bounds the parts of a response that are repeated because the request names the same thing repeatedly.

Kafka repeats them without a bound (`GroupCoordinatorAdapter.describeGroups`,
`KafkaApis.handleDescribeProducersRequest`), so a small request can have a very large response. Here the
repeated parts are bounded; a response without repeats is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TypeVar

from cluster.errors import InvalidRequest
from cluster.time_slice import TimeSlice

REPEATED_MAX = 1 << 20
"""Repeated bytes of a response. The last repeated part may exceed it. No tool needs any."""

_NUMBER = 8

Part = TypeVar("Part")


class RepeatBudget:
    """The budget of one response."""

    def __init__(self) -> None:
        self._named: set[Hashable] = set()
        self._left = REPEATED_MAX

    def described(self, name: Hashable, describe: Callable[[], Part]) -> Part:
        """The result of `describe`, counted if `name` is repeated. Raises InvalidRequest if the budget is
        used up.
        """
        again = self.is_again(name)
        part = describe()
        if again:
            self.count(part)
        return part

    def is_again(self, name: Hashable) -> bool:
        """`name` is repeated. Raises InvalidRequest if it is and the budget is used up."""
        if name not in self._named:
            self._named.add(name)
            return False
        if self._left <= 0:
            raise InvalidRequest(
                f"The request names the same things repeatedly: at most {REPEATED_MAX} bytes are repeated"
            )
        return True

    def count(self, part: object) -> None:
        """Takes a repeated part from the budget."""
        self._left -= _size(part, self._left)


async def describe_each(
    names: Iterable[str], describe: Callable[[str], Part], refused: Callable[[str, int], Part]
) -> list[Part]:
    """Describes each name, or calls `refused` with the code when the budget is used up. Lets other tasks run
    meanwhile.
    """
    repeats, time_slice = RepeatBudget(), TimeSlice()
    parts = []
    for name in names:
        try:
            parts.append(repeats.described(name, partial(describe, name)))
        except InvalidRequest as error:
            parts.append(refused(name, error.code))
        await time_slice.yield_if_over()
    return parts


def _size(value: object, most: int) -> int:
    """The approximate number of encoded bytes, counted up to `most`."""
    size = 0
    inner: Iterable[object]
    match value:
        case str() | bytes():
            return _NUMBER + len(value)
        case dict():
            inner = value.values()
        case Iterable():
            size, inner = _NUMBER, value
        case _:
            return _NUMBER
    for part in inner:
        if size >= most:
            break
        size += _size(part, most - size)
    return size
