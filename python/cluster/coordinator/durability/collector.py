"""Python's cyclic garbage collector, kept from running while a large state is loaded.

A load makes millions of objects that stay, and the collector would look at all of them each time there are a
quarter more. The process has one collector for all its servers. Any thread.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NODES_WORTH_FREEZING = 10_000


@contextmanager
def spared() -> Iterator[None]:
    """Turns the collector off in this block, unless it is off already."""
    if not gc.isenabled():
        yield
        return
    gc.collect(1)  # so that :func:`keep` does not keep garbage
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep(nodes: int) -> None:
    """A state with so many nodes has been loaded. If they are many, the collector never looks at the present
    objects again.

    The state has no cycles, and its objects are freed by their reference counts. The collector's first look
    at them would take a fifth of the load. Other objects in cycles are never freed; few exist at a start.
    """
    if nodes >= NODES_WORTH_FREEZING:
        gc.freeze()
