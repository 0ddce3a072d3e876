"""What a server asks of the process it runs in: signals that stop it or ask what it does, files it may open, and a log on standard
error.

Called on the event loop of the program's own commands; whoever embeds a server decides about these himself.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import resource
import signal
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from cluster.log_format import formatter

log = logging.getLogger(__name__)

T = TypeVar("T")

_DESCRIPTORS_FEW = 1024
"""Fewer than this, the usual limit of a shell, and a few clients and topics are too many."""


def stop_signal(stack: AsyncExitStack) -> asyncio.Event:
    """Set by SIGINT and SIGTERM, until the stack is left."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
        stack.callback(loop.remove_signal_handler, number)
    return stopped


def tell_stacks_on_quit() -> None:
    """SIGQUIT has every thread's Python stack told on standard error, as a Java machine's, and nothing ends; from here on, for a stop
    that takes long is asked, too. Without a standard error it does nothing."""
    try:
        told = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # closed at the start, or later, or no file
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    else:
        faulthandler.register(signal.SIGQUIT, told)


def raise_descriptor_limit() -> None:
    """Lets the process open as many files as it may, as Java does: every segment and connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s; raise it with ulimit -n", soft, error)
        hard = soft
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_FEW:
        log.warning(
            "at most %d files may be open, and each segment and connection takes one; raise the limit (ulimit -n)",
            hard,
        )


def log_to_stderr(log_format: str | None) -> None:
    """Warnings and errors on standard error, as text or JSON, unless the program has set up its logging itself."""
    # What kazoo has to say (each attempt to connect) is of use only to those who ask for it.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    logger = logging.getLogger("cluster")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter(log_format))
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)


async def unless_stopped(stopped: asyncio.Event, starting: Coroutine[Any, Any, T]) -> T | None:
    """What `starting` gives; None when the signal to stop came first: it was cancelled, and has closed what it had opened."""
    start = asyncio.create_task(starting)
    signalled = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait((start, signalled), return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
        start.cancel()
        await asyncio.wait((start,))
    return None if start.cancelled() else start.result()


async def until_stopped(stopped: asyncio.Event, failed: asyncio.Future[None] | None) -> None:
    """Waits for the signal to stop; raises what a running server fails with first."""
    assert failed is not None, "it was started"
    signalled = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
    if failed.done():
        failed.result()
