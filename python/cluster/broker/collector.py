"""Python's search for cycles of objects nobody needs, which stops everything for as long as there are objects to look at.

Owns when it is off: while large requests are at work, whose hundreds of thousands of objects are gone without it once they
are answered; not for long, whatever comes. Lives on the event loop; every broker of a process shares Python's one collector.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SPARED_SECONDS = 10.0
"""The longest of these requests are done by then; who waits longer does so for others."""


@contextmanager
def spared(large: bool) -> Iterator[None]:
    """Keeps the collector away from a request, if it is large and the collector is not away already."""
    if not large or not gc.isenabled():
        yield
        return
    gc.disable()
    timer = asyncio.get_running_loop().call_later(_SPARED_SECONDS, gc.enable)
    try:
        yield
    finally:
        timer.cancel()
        gc.enable()
