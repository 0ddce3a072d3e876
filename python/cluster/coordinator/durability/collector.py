"""Python's search for cycles of objects nobody needs, which is kept away from loads: they make millions of objects that stay, and
it would look at all of them each time there are a quarter more. Any thread; every server of a process shares the one collector.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 10_000
"""Nodes of a state that is worth :func:`keep`."""


@contextmanager
def spared() -> Iterator[None]:
    """Keeps the collector away meanwhile, if it is not away already."""
    if not gc.isenabled():
        yield
        return
    gc.collect(1)  # what :func:`keep` would keep
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep(nodes: int) -> None:
    """A state with so many nodes has been loaded: where there are many, what there is now is never looked at again (``gc.freeze``).
    It has no cycles, each object goes once nobody has it, and the first look would take a fifth of the load. What has cycles among
    the rest stays for good; that is what the process has beside it at a start, or when a member is given another's state."""
    if nodes >= LARGE:
        gc.freeze()
