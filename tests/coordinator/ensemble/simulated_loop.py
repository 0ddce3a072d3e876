"""An event loop, an executor and clocks with simulated time: it moves only when nothing is left to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class VirtualSelector(selectors.DefaultSelector):
    """Moves the loop's time instead of waiting."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("the simulation waits for something that cannot happen")
        if not ready and timeout is not None and timeout > 0:
            self.loop.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with simulated time, which runs executor calls inline."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = VirtualSelector()
        selector.loop = self
        super().__init__(selector)
        self.set_default_executor(InlineExecutor())

    def time(self) -> float:
        return self.now


class InlineExecutor(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class SimulatedClock:
    def __init__(self, loop: SimulatedLoop, offset_ms: int) -> None:
        self.loop = loop
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.offset_ms + int(self.loop.now * 1000)

    def monotonic_ms(self) -> int:
        return self.offset_ms + int(self.loop.now * 1000)
