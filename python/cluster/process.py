"""The process of a server: signals, the limit of open files, and the log on standard error.

The command line calls this on its event loop. Programs that embed a server decide about these themselves.
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
"""The usual limit of a shell. With fewer, a few clients and topics are too many."""


def stop_signal(stack: AsyncExitStack) -> asyncio.Event:
    """An event that SIGINT, SIGTERM and SIGHUP set, until the stack is left.

    SIGHUP comes when a terminal is closed. As in Java, an ignored one (nohup) stays ignored.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, stopped.set)
        stack.callback(loop.remove_signal_handler, number)
    return stopped


def print_stacks_on_quit() -> None:
    """Makes SIGQUIT print every thread's Python stack to standard error, as in Java, without ending the
    process.

    Without a standard error SIGQUIT does nothing. It stays so until the process ends, to see what a long stop
    waits for.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    else:
        faulthandler.register(signal.SIGQUIT, descriptor)


def raise_descriptor_limit() -> None:
    """Raises the limit of open files to its maximum, as Java does: every segment and connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s; raise it with ulimit -n", soft, error)
        hard = soft
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_FEW:
        log.warning(
            "at most %d files may be open, and each segment and connection takes one; raise the limit "
            "(ulimit -n)",
            hard,
        )


def log_to_stderr(log_format: str | None) -> None:
    """Logs warnings and errors to standard error, as text or JSON, unless logging is set up already."""
    # kazoo logs each attempt to connect.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    logger = logging.getLogger("cluster")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter(log_format))
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)


async def unless_stopped(stopped: asyncio.Event, starting: Coroutine[Any, Any, T]) -> T | None:
    """The result of `starting`; None if the signal to stop came first and cancelled it."""
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
    """Waits for the signal to stop. Raises the server's error if it fails first."""
    assert failed is not None, "it was started"
    signalled = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
    if failed.done():
        failed.result()
