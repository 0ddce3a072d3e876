"""The context that a client port with TLS begins its handshakes with; unless ``client.certReload`` says no, it follows its stores.

Owns the look at the key store and the trust store each second (``X509Util``, ``FileChangeWatcher``). Who is connected
stays as he came; who comes later is shown the new certificate, and held against the new authorities. Stores that make no context,
for one is gone, half written, or a key without its certificate yet, leave the old one in use until they change again. Where they are
and what opens them is what it was at the start. Runs on the event loop; the stores are looked at and opened in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from ..errors import CoordinatorError
from .tls import TlsSettings, server_context

LOOK_SECONDS = 1.0
"""From one look at the stores to the next."""

_Marks = tuple[tuple[int, ...] | None, ...]
"""What tells one state of each store from another, None for one that is not there."""

_logger = logging.getLogger(__name__)


class Renewal:
    """``context`` is the last that the stores made. Raises CoordinatorError if they make none at first."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._seen = self._marks()  # before they are read: what changes meanwhile is read again
        self.context = server_context(settings)
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follows the stores, if it is set so."""
        if self._settings.reloads:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        """Follows them no longer. Safe to repeat."""
        if self._following is not None:
            self._following.cancel()

    async def wait_closed(self) -> None:
        """Returns when it is so."""
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
                    "%s; new connections have what was read before, until the stores change again",
                    error,
                    exc_info=None if isinstance(error, CoordinatorError) else error,
                )
            else:
                if renewed is not None:
                    self.context = renewed
                    prefix = self._settings.prefix
                    _logger.info(
                        "new connections have what %skeyStore and %strustStore hold now", prefix, prefix
                    )

    def _renewed(self) -> ssl.SSLContext | None:
        """A new context, if there is a change. Raises CoordinatorError."""
        marks = self._marks()
        if marks == self._seen:
            return None
        self._seen = marks
        return server_context(self._settings)

    def _marks(self) -> _Marks:
        stores = (self._settings.key_store, self._settings.trust_store)
        return tuple(_mark(store.path) for store in stores if store is not None)


def _mark(path: os.PathLike[str]) -> tuple[int, ...] | None:
    """The time of its last change tells of one that keeps the time of its content, and of a right to read it that is given."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
