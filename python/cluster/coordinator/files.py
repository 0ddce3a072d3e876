"""The ensemble's configuration in a server's files, as ZooKeeper keeps it (``QuorumPeerConfig``).

Owns ``<zoo.cfg>.dynamic.<version>``, with the lines ``server.N`` of one version of the configuration, and what of `zoo.cfg` itself
gives way to it: the lines ``server.N``, ``group.N``, ``weight.N``, ``peerType``, ``dynamicConfigFile``, and the clients' address if the
configuration has it; its last line names the dynamic file. A file that had the servers in it is kept as ``<zoo.cfg>.bak``. Called
on the event loop; the files are written in a thread, one version after the other, and nothing older than what is there.

Each file is replaced whole, the dynamic one first: a crash leaves the configuration before or this one. Files that cannot be
written are told and the server goes on: its members are what the log says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.properties import parse_properties

from .members import Member, members_text

DYNAMIC = ".dynamic"
_GIVE_WAY = ("server.", "group", "weight")
_GIVE_WAY_NAMES = frozenset({"dynamicConfigFile", "peerType"})
_CLIENTS = frozenset({"clientPort", "clientPortAddress"})

_logger = logging.getLogger(__name__)


class ConfigurationFiles:
    """The files of a server with its `zoo.cfg` at ``config``."""

    def __init__(self, config: Path, server_id: int) -> None:
        self._config = config
        self._server_id = server_id
        self._was_listed = False
        self._wanted: tuple[Sequence[Member], int] | None = None
        self._writing: asyncio.Future[None] | None = None

    def follow(self, members: Sequence[Member], version: int) -> None:
        """Has the files say this; those of a server that was not listed yet stay as they are, so that it can start again."""
        self._was_listed |= any(member.server_id == self._server_id for member in members)
        if not self._was_listed:
            return
        self._wanted = members, version
        if self._writing is None:
            self._write()

    async def wait(self) -> None:
        """Returns once nothing is being written."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)  # what was asked for meanwhile begins

    def _write(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(
            None, write_configuration, self._config, self._server_id, *wanted
        )
        self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if writing.cancelled():
            return
        if (error := writing.exception()) is not None:
            _logger.error(
                "%s does not say what the ensemble's members are: %s; correct it before the server starts again",
                self._config,
                error,
            )
        self._write()


def dynamic_version(path: str) -> int:
    """The version in a dynamic file's name; 0 when it has none."""
    _name, _dot, digits = path.rpartition(".") if "." in path else ("", "", "")
    with contextlib.suppress(ValueError):
        return int(digits, 16)
    return 0


def write_configuration(config: Path, server_id: int, members: Sequence[Member], version: int) -> None:
    """Has a server's files say who the members are, unless they say something newer. Raises OSError, ValueError."""
    settings = parse_properties(config.read_text(encoding="utf-8"))
    current = settings.get("dynamicConfigFile", "")
    if current and dynamic_version(current) > version:
        return
    dynamic = Path(f"{config}{DYNAMIC}.{version:x}").absolute()
    text = "\n".join(sorted(members_text(members).splitlines())) + "\n"
    if current == str(dynamic) and dynamic.exists() and dynamic.read_text(encoding="utf-8") == text:
        return
    if not current:
        shutil.copyfile(config, f"{config}.bak")
    _replace(dynamic, text)
    _replace(config, _static_text(settings, server_id, members, dynamic))


def _static_text(
    settings: Mapping[str, str], server_id: int, members: Sequence[Member], dynamic: Path
) -> str:
    own = next((member for member in members if member.server_id == server_id), None)
    dropped = _GIVE_WAY_NAMES | (_CLIENTS if own is not None and own.client else frozenset())
    kept = {
        name: value
        for name, value in settings.items()
        if name not in dropped and not name.startswith(_GIVE_WAY)
    }
    kept["dynamicConfigFile"] = str(dynamic)
    return "".join(f"{name}={_escaped(value)}\n" for name, value in kept.items())


def _escaped(value: str) -> str:
    """As a properties file has it: a value may have backslashes, line breaks and blanks in front."""
    for plain, escape in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        value = value.replace(plain, escape)
    return f"\\{value}" if value.startswith(" ") else value


def _replace(path: Path, text: str) -> None:
    """All of it or nothing, and on disk."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        shutil.copymode(path, temporary)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
