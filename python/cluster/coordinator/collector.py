"""Python's search for cycles of objects nobody needs, which is kept away from loads: they make millions of objects that stay, and
it would look at all of them each time there are a quarter more. Any thread; every server of a process shares the one collector.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spared() -> Iterator[None]:
    """Keeps the collector away meanwhile, if it is not away already."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
