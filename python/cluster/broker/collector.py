"""Pauses Python's garbage collector for large requests.

A collection stops every thread for as long as there are objects to visit. A large request has hundreds of
thousands, which are freed without a collection once it is answered. The pause is limited in time. Lives on
the event loop; all brokers of a process share the collector.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_PAUSE_SECONDS_MAX = 10.0
"""The longest of these requests take less; a longer one waits for something."""


@contextmanager
def paused(large: bool) -> Iterator[None]:
    """Pauses the collector during a request if it is large and the collector is not paused yet."""
    if not large or not gc.isenabled():
        yield
        return
    gc.disable()
    timer = asyncio.get_running_loop().call_later(_PAUSE_SECONDS_MAX, gc.enable)
    try:
        yield
    finally:
        timer.cancel()
        gc.enable()
