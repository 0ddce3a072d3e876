"""The ensemble's configuration in a server's files, as ZooKeeper keeps it (``QuorumPeerConfig``).

Owns ``<zoo.cfg>.dynamic.<version>``, which has the lines ``server.N`` of one version. From `zoo.cfg` it
removes the lines that this file replaces: ``server.N``, ``group.N``, ``weight.N``, ``peerType``,
``dynamicConfigFile``, and the client address if the configuration has it. The last line of `zoo.cfg` names
the dynamic file. All its other bytes stay, comments too (ZooKeeper removes comments). A file that had the
servers in it is kept as ``<zoo.cfg>.bak``. Called on the event loop. A thread writes the files, one version
after the other, and never an older one.

Each file is replaced whole, the dynamic one first, so a crash leaves the configuration before or this one. If
the files cannot be written, a warning says so, and the server goes on: the log decides its members.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from cluster.properties import decode_properties, parse_properties, properties_lines

from ..state.members import Member, members_text

DYNAMIC = ".dynamic"
_GIVE_WAY = ("server.", "group", "weight")
_GIVE_WAY_NAMES = frozenset({"dynamicConfigFile", "peerType"})
_GOES_ON = re.compile(r"\\(?:\r\n|\r|\n)\Z")
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
        """Begins to write this configuration.

        The files of a server that was never listed stay, so that it can start again.
        """
        self._was_listed |= any(member.server_id == self._server_id for member in members)
        if not self._was_listed:
            return
        self._wanted = members, version
        if self._writing is None:
            self._write()

    async def wait(self) -> None:
        """Returns once no file is being written."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)  # a write that was asked for meanwhile begins

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
                "%s could not be updated with the ensemble's members: %s; correct it before the next start "
                "of the server",
                self._config,
                error,
            )
        self._write()


def dynamic_version(path: str) -> int:
    """Returns the version in a dynamic file's name, 0 if there is none."""
    _name, _dot, digits = path.rpartition(".") if "." in path else ("", "", "")
    with contextlib.suppress(ValueError):
        return int(digits, 16)
    return 0


def write_configuration(config: Path, server_id: int, members: Sequence[Member], version: int) -> None:
    """Writes the members to a server's files, unless these have newer ones. Raises OSError, ValueError."""
    before = config.read_bytes()
    settings = parse_properties(decode_properties(before))
    current = settings.get("dynamicConfigFile", "")
    if current and dynamic_version(current) > version:
        return
    dynamic = Path(f"{config}{DYNAMIC}.{version:x}").absolute()
    lines = ("\n".join(sorted(members_text(members).splitlines())) + "\n").encode()
    if current == str(dynamic) and dynamic.exists() and dynamic.read_bytes() == lines:
        return
    if not current:
        shutil.copyfile(config, f"{config}.bak")
    _replace(dynamic, lines)
    _replace(config, _static(before, server_id, members, dynamic))


def _static(before: bytes, server_id: int, members: Sequence[Member], dynamic: Path) -> bytes:
    own = next((member for member in members if member.server_id == server_id), None)
    dropped = _GIVE_WAY_NAMES | (_CLIENTS if own is not None and own.client else frozenset())
    # One character for each byte: the relevant names are ASCII, and all other bytes are written back.
    lines = properties_lines(before.decode("iso-8859-1"))
    kept = "".join(
        line.text
        for line in lines
        if line.key is None or (line.key not in dropped and not line.key.startswith(_GIVE_WAY))
    )
    if kept and not kept.endswith(("\n", "\r")):
        kept += "\n"
    if _GOES_ON.search(kept):
        kept += "\n"  # the last line must not continue
    return f"{kept}dynamicConfigFile={_escaped(str(dynamic))}\n".encode("iso-8859-1")


def _escaped(value: str) -> str:
    """Escapes a value for a properties file: backslashes, line breaks, blanks in front, and characters
    outside ASCII."""
    for plain, escape in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\f", "\\f")):
        value = value.replace(plain, escape)
    units = value.encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
    value = "".join(chr(int(unit, 16)) if unit < "0080" else f"\\u{unit}" for unit in units)
    return f"\\{value}" if value.startswith(" ") else value


def _replace(path: Path, data: bytes) -> None:
    """Replaces a file whole, and on disk. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
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
