"""The TLS context of a client port, which follows its key store and trust store unless ``client.certReload``
is false.

Owns the look at the two stores each second (``X509Util``, ``FileChangeWatcher``). Open connections keep their
certificate. New connections get the new one, and are checked against the new authorities. Stores that cannot
be used (one is missing, half written, or a key without its certificate) leave the old context in use until
they change again. Their paths and passwords are those of the start. Runs on the event loop; the stores are
looked at and opened in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from ..errors import CoordinatorError
from .tls import TlsSettings, server_context

LOOK_SECONDS = 1.0
"""Between two looks at the stores."""

_Marks = tuple[tuple[int, ...] | None, ...]
"""Differs from one state of each store to another; None for a missing store."""

_logger = logging.getLogger(__name__)


class Renewal:
    """``context`` is the newest. Raises CoordinatorError if the stores cannot be used at the start."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen = self._marks()  # before they are read, so that a change in the meantime is seen
        self.context = server_context(settings)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to follow the stores, if that is configured."""
        if self._settings.reloads:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        """Stops to follow them. Safe to repeat."""
        if self._following is not None:
            self._following.cancel()

    async def wait_closed(self) -> None:
        """Returns when it has stopped."""
        if self._following is not None:
            await asyncio.wait([self._following])

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                renewed = await loop.run_in_executor(None, self._renewed)
            except Exception as error:
                _logger.warning(
                    "%s; new connections use the last stores that could be read, until the stores change "
                    "again",
                    error,
                    exc_info=None if isinstance(error, CoordinatorError) else error,
                )
            else:
                if renewed is not None:
                    self.context = renewed
                    prefix = self._settings.prefix
                    _logger.info("new connections use the new %skeyStore and %strustStore", prefix, prefix)

    def _renewed(self) -> ssl.SSLContext | None:
        """Returns a new context if a store has changed. Raises CoordinatorError."""
        marks = self._marks()
        if marks == self._seen:
            return None
        self._seen = marks
        return server_context(self._settings)

    def _marks(self) -> _Marks:
        stores = (self._settings.key_store, self._settings.trust_store)
        return tuple(_mark(store.path) for store in stores if store is not None)


def _mark(path: os.PathLike[str]) -> tuple[int, ...] | None:
    """ctime also shows a change that keeps mtime, and a new permission to read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
