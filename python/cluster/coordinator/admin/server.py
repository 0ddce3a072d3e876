"""The admin server: ZooKeeper's commands over HTTP, with answers in JSON (``JettyAdminServer``).

Owns ``/commands`` and ``/commands/<name>``, the permission to take and restore snapshots, and their rate
limits. Commands run one after the other on the event loop, and a thread encodes the answer, so that a large
one delays clients as little as possible. As in ZooKeeper, a standalone server does not start if the port is
in use.

Every peer may send commands. Only snapshot and restore need an ``Authorization`` header, ``digest
user:password``, ``ip``, or ``x509``, with all permissions on ``/``. A snapshot has this server's format
(:mod:`cluster.coordinator.durability.snapshot`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..errors import CoordinatorError, JuteError
from ..ports.http import HttpServer, Request, Response
from ..ports.listener import cannot_listen
from ..ports.tls import TlsSettings, server_context, tls_settings
from ..protocol.jute import Id
from ..settings.values import Values
from ..state.acl import ALL, Subject
from ..state.tree import ROOT
from .commands import Commands, Data
from .java_json import indented
from .view import Observed, view
from .words import NOT_SERVING

RESTORE_BYTES_MAX = 1 << 30
"""The largest snapshot that can be restored. It is in memory meanwhile, one at a time."""
SNAPSHOT, RESTORE = "snapshot", "restore"
_ALIASES = {"snap": SNAPSHOT, "rest": RESTORE}
_JSON = "application/json;charset=utf-8"
_WITHOUT_A_SERVER = {
    "environment",
    "get_trace_mask",
    "monitor",
    "set_trace_mask",
    "system_properties",
    "zabstate",
}

_logger = logging.getLogger(__name__)


class AdminServerError(CoordinatorError):
    """The admin server cannot start, and with it the coordinator: ZooKeeper's exit status 4."""


@dataclass(frozen=True)
class AdminSettings:
    """The address of the commands; times are in milliseconds.

    ``tls`` means HTTPS, with plain HTTP too if ``accepts_plain``.
    """

    host: str = "0.0.0.0"
    port: int = 8080
    url: str = "/commands"
    idle_ms: int = 30_000
    rate_interval_ms: int = 300_000
    takes_snapshots: bool = True
    restores: bool = True
    tls: TlsSettings | None = None
    accepts_plain: bool = False


def admin_settings(values: Values) -> AdminSettings | None:
    """Returns the settings ``admin.*``, None if it is off.

    Raises CoordinatorError, which names the setting.
    """
    enabled = values.text("admin.enableServer") != "false"
    defaults = AdminSettings()
    url = "/" + (values.text("admin.commandURL") or defaults.url).strip("/")
    forces_https = values.boolean("admin.forceHttps", False)
    unifies = values.boolean("admin.portUnification", False)
    needs_certificate = values.boolean("admin.needClientAuth", False)
    values.text("admin.httpVersion")
    settings = AdminSettings(
        host=values.text("admin.serverAddress") or defaults.host,
        port=values.system_number("admin.serverPort", defaults.port, 0, 65535),
        url=url,
        idle_ms=values.system_number("admin.idleTimeout", defaults.idle_ms, 1),
        rate_interval_ms=values.number("admin.rateLimiterIntervalInMS", defaults.rate_interval_ms),
        takes_snapshots=values.boolean("admin.snapshot.enabled", True),
        restores=values.boolean("admin.restore.enabled", True),
        accepts_plain=unifies and not forces_https,
    )
    if not enabled:
        return None
    if forces_https or unifies:
        tls = tls_settings(values, "ssl.quorum.", "need" if needs_certificate else "none")
        return replace(settings, tls=tls)
    return settings


class Administered(Observed, Protocol):
    """A server to which commands do more than read it."""

    async def take_snapshot(self) -> tuple[int, Path]:
        """Saves the applied state. Returns its zxid and its file. Raises OSError."""

    async def restore(self, data: bytes) -> int:
        """Replaces the whole state by a snapshot.

        Returns the new zxid. Raises JuteError, ValueError, OSError.
        """


class AdminServer:
    """The commands of one coordinator.

    ``initial`` is the text of its `zoo.cfg`, ``properties`` are its settings.
    """

    def __init__(
        self,
        coordinator: Administered,
        settings: AdminSettings,
        initial: str,
        properties: Mapping[str, str],
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._commands = Commands(initial, properties)
        self._one_at_a_time = asyncio.Lock()
        self._restoring = asyncio.Lock()
        self._last: dict[str, int] = {}
        self._http = HttpServer(
            self._answer,
            settings.idle_ms / 1000,
            context=server_context(settings.tls) if settings.tls is not None else None,
            accepts_plain=settings.accepts_plain,
        )

    async def start(self) -> int:
        """Listens, and returns the port. Raises AdminServerError."""
        host, port = self._settings.host, self._settings.port
        try:
            return await self._http.start(host, port)
        except (OSError, UnicodeError) as error:
            mend = (
                "stop what uses the port, choose another with admin.serverPort, or turn the admin server "
                "off with admin.enableServer=false"
            )
            raise AdminServerError(
                str(cannot_listen("the admin server", host, port, error, "admin.serverAddress", mend))
            ) from error

    async def stop(self) -> None:
        """Safe to repeat."""
        await self._http.stop()

    async def _answer(self, request: Request) -> Response:
        url = self._settings.url
        if request.method not in ("GET", "HEAD", "POST"):
            return _refused("GET, HEAD, POST")
        if request.path in (url, url + "/"):
            return self._links()
        if not request.path.startswith(url + "/"):
            return Response(f"the commands are at {url}\n".encode(), status=404)
        asked = request.path[len(url) + 1 :]
        name = _ALIASES.get(asked, asked)
        if name in (SNAPSHOT, RESTORE):
            return await self._privileged(name, asked, request)
        if request.method == "POST" and self._commands.find(name) is not None:
            return _refused("GET, HEAD")
        async with self._one_at_a_time:
            return await self._run_command(asked, request.query)

    def _links(self) -> Response:
        names = sorted([*self._commands.names(), SNAPSHOT, RESTORE])
        lines = [f'<a href="{self._settings.url}/{name}">{name}</a>\n<br/>\n' for name in names]
        return Response("".join(lines).encode(), "text/html;charset=utf-8")

    async def _run_command(self, asked: str, parameters: Mapping[str, str]) -> Response:
        command = self._commands.find(asked)
        if command is None:
            return await _written(asked, {"error": f"Unknown command: {asked}"}, first=False)
        name = command.names[0]
        serves = self._coordinator.is_serving or self._coordinator.replication.is_reading_only
        if not serves and name not in _WITHOUT_A_SERVER:
            return await _written(asked, {"error": NOT_SERVING}, first=False)
        return await _written(name, command.run(view(self._coordinator), parameters))

    # ---- snapshots ----

    async def _privileged(self, name: str, asked: str, request: Request) -> Response:
        """Runs a command that needs a permission."""
        if not self._coordinator.is_serving:
            return await _written(asked, {"error": NOT_SERVING}, first=False)
        header = request.headers.get("authorization", "")
        if not header:
            return await _written(name, {"error": "Auth info is missing for the command"}, 401)
        identities = self._identities(header, request)
        if not identities:
            self._coordinator.auth_failed += 1
            return await _written(name, {"error": "Not authenticated"}, 401)
        root = self._coordinator.machine.tree.node(ROOT).state.acl
        subject = Subject(identities, self._coordinator.settings.rules)
        if not all(subject.may(1 << bit, root) for bit in range(ALL.bit_length())):
            return await _written(name, {"error": "Not authorized"}, 403)
        if (request.method == "POST") != (name == RESTORE):
            return _refused("POST" if name == RESTORE else "GET, HEAD")
        enabled = self._settings.takes_snapshots if name == SNAPSHOT else self._settings.restores
        if not enabled:
            return await _written(name, {}, 503)
        if not self._in_time(name):
            self._coordinator.metrics.count(f"{name}_rate_limited_count")
            return await _written(name, {}, 429)
        return await (self._snapshot(request) if name == SNAPSHOT else self._restore(request))

    def _identities(self, header: str, request: Request) -> tuple[Id, ...]:
        scheme, space, credentials = header.partition(" ")
        settings = self._coordinator.settings
        try:
            return settings.authentication.identities(
                scheme,
                credentials.encode("latin-1") if space else None,
                request.address,
                request.certificate,
                settings.super_digest,
            )
        except ValueError:
            return ()

    def _in_time(self, name: str) -> bool:
        """Whether the rate limit allows another one now."""
        now = self._coordinator.clock.monotonic_ms()
        last = self._last.get(name)
        if last is not None and now - last < self._settings.rate_interval_ms:
            return False
        self._last[name] = now
        return True

    async def _snapshot(self, request: Request) -> Response:
        try:
            async with self._one_at_a_time:
                zxid, path = await self._coordinator.take_snapshot()
            size = path.stat().st_size
        except OSError as error:
            self._coordinator.metrics.count("snapshot_error_count")
            _logger.error("no snapshot was taken for %s: %s", request.address, error)
            return await _written(SNAPSHOT, {}, 500)
        headers = {"last_zxid": f"{zxid:#x}", "snapshot_size": str(size)}
        if request.query.get("streaming", "true").lower() != "true":
            response = await _written(SNAPSHOT, {})
            return replace(response, headers=headers)
        return Response(path, "application/octet-stream", headers=headers)

    async def _restore(self, request: Request) -> Response:
        async with self._restoring:
            return await self._restored(request)

    async def _restored(self, request: Request) -> Response:
        data = await request.read_body(RESTORE_BYTES_MAX)
        if not data:
            return await _written(RESTORE, {}, 400)
        try:
            async with self._one_at_a_time:
                zxid = await self._coordinator.restore(data)
        except (JuteError, ValueError, OSError) as error:
            self._coordinator.metrics.count("restore_error_count")
            _logger.error("the snapshot that %s sent was not restored: %s", request.address, error)
            return await _written(RESTORE, {"error": f"not restored: {error}"}, 500)
        _logger.warning("%s restored a snapshot of %d bytes", request.address, len(data))
        return await _written(RESTORE, {"last_zxid": zxid})


def _refused(allowed: str) -> Response:
    return Response(f"use {allowed}\n".encode(), status=405, headers={"Allow": allowed})


async def _written(command: str, data: Data, status: int = 200, first: bool = True) -> Response:
    """Returns the answer in JSON: its data, the command's name, and its error or null.

    ``first``: the data comes before the others.
    """
    fields: Data = {**data, "command": command} if first else {"command": command, **data}
    fields.setdefault("error", None)
    text = await asyncio.get_running_loop().run_in_executor(None, indented, fields)
    return Response(text.encode("utf-8", "surrogatepass"), _JSON, status)
