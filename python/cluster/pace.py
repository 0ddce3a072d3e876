"""How long a loop over what one request names keeps the event loop: some milliseconds at a time.

Owns the turns of such loops: between two of them whatever else waits is served, and of many loops only one goes on at
a time. Does not own what they work on: `step` is called where others may look at it, and what was read before may have
changed after. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

_TURN_SECONDS = 0.005
"""So long others wait for one turn: no client notices, and going round costs little beside it."""

_LARGE = 1000
"""What has more parts takes longer than a turn, and is thought over in a thread."""

_REST_SECONDS = 1e-5

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

T = TypeVar("T")


class Pace:
    """The pace of one loop."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    async def step(self) -> None:
        """Lets others on the loop when the turn is over."""
        if time.monotonic() - self._begun < _TURN_SECONDS:
            return
        async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await asyncio.sleep(0)
        self._begun = time.monotonic()


def lend(index: int) -> None:
    """Lets others have the interpreter after a run of parts that a thread makes. It sleeps: who lets go of the interpreter
    for no time has it again before those are awake who wait for it.
    """
    if index % _LARGE == _LARGE - 1:
        time.sleep(_REST_SECONDS)


async def thought(parts: int, think: Callable[[], T]) -> T:
    """What `think` returns, which is about so many parts; the interpreter goes from thread to thread by itself."""
    return await asyncio.to_thread(think) if parts > _LARGE else think()
