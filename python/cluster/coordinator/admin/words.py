"""Four-letter words: the questions that an administrator asks with ``nc``.

Owns the texts that ZooKeeper's tools and monitoring programs expect
(``org.apache.zookeeper.server.command``), and the whitelist. ``srvr`` is always answered, the other words if
``4lw.commands.whitelist`` names them. Pure, over :class:`Seen`.
"""

from __future__ import annotations

import getpass
import os
import platform
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Generic, NamedTuple, TypeVar

from logcore import _native

from ..metrics import ClientTraffic, ServerMetrics, Sizes, Traffic
from ..replication import Ensemble
from ..state.members import host_and_port
from .exposition import java_double, samples

T = TypeVar("T")

VERSION = "3.9.4"
"""The version of ZooKeeper whose protocol is spoken."""
_REVISION = "logcore"
"""Where ZooKeeper has the hash of its revision."""
EVERY_WORD = "*"
NOT_SERVING = "This ZooKeeper instance is not currently serving requests"
_WITHOUT_SERVING = frozenset({"ruok", "isro", "envi"})
ALWAYS = "srvr"


@cache
def full_version() -> str:
    """The version in ZooKeeper's form, ``<version>-<revision>, built on <date>``
    (``Version.getFullVersion``).

    The date is that of the extension's file: when it was built, or when the package was installed.
    """
    built = datetime.fromtimestamp(os.path.getmtime(_native.__file__), UTC)
    return f"{VERSION}-{_REVISION}, built on {built:%Y-%m-%d %H:%M} UTC"


class Client(NamedTuple):
    """A connection.

    ``interest`` is 1 while it is read, and 4 while output waits. Times are in milliseconds since 1970.
    """

    address: str
    port: int
    interest: int
    queued: int
    session_id: int
    timeout_ms: int
    established_ms: int
    traffic: ClientTraffic


class Expiry(NamedTuple, Generic[T]):
    """Sessions, or connections, with the same deadline."""

    at_ms: int
    members: Sequence[T]


@dataclass
class Seen:
    """The present state of a server."""

    mode: str
    is_serving: bool
    is_read_only: bool
    ensemble: Ensemble | None
    """None for a standalone server."""
    client_address: tuple[str, int] | None
    """The address of the port without TLS."""
    last_zxid: int
    node_count: int
    outstanding: int
    traffic: Traffic
    plain: Sequence[Client]
    secure: Sequence[Client]
    """Those of the port with TLS."""
    on_secure: bool
    """Whether the request came on that port. Some words show only the connections of the request's port."""
    auth_failed: int
    plain_remote: int
    """The number of connections without TLS, from other machines and from this one."""
    plain_local: int
    handshakes: int
    """Connections in a TLS handshake."""
    response_sizes: Sizes
    metrics: ServerMetrics
    quotas: Callable[[], Mapping[str, Mapping[str, int]]]
    """Gauges of quotas, by namespace."""
    prometheus: bool
    """Whether ``mntr`` has the metrics of the Prometheus provider."""
    last_snapshot: Callable[[], tuple[int, int] | None]
    """Its zxid, and its time in seconds since 1970."""
    configuration: Callable[[], Mapping[str, object]]
    """The fields of ``conf``, in order."""
    data_bytes: Callable[[], tuple[int, int]]
    """Bytes of snapshots and of logs."""
    data_watches: Callable[[], Iterable[tuple[str | None, Sequence[int]]]]
    """Watched paths, and the sessions that watch them."""
    expiries: Callable[[], Sequence[Expiry[int]]]
    """The deadlines of the sessions, in order."""
    deadlines: Callable[[], Sequence[Expiry[Client]]]
    """The deadlines of the connections on the request's port, in order."""
    timeouts: Callable[[], Mapping[int, int]]
    """The timeout of each session."""
    ephemerals: Callable[[], Mapping[int, Sequence[str]]]
    monitor: Callable[[], Mapping[str, int]]
    """The gauges that are not among the fields above."""
    reset: Callable[[bool], None]
    """Sets counts to 0: those of the connections on the request's port, or (True) those of the server."""

    @property
    def clients(self) -> Sequence[Client]:
        return self.secure if self.on_secure else self.plain

    @property
    def alive(self) -> int:
        """The number of all connections."""
        return len(self.plain) + len(self.secure)


def answer(word: bytes, whitelist: Iterable[str], seen: Callable[[], Seen]) -> str | None:
    """Returns the answer, None if it is not a word."""
    name = word.decode("latin-1")
    show = _WORDS.get(name)
    if show is None:
        return None
    if name != ALWAYS and EVERY_WORD not in whitelist and name not in whitelist:
        return f"{name} is not executed because it is not in the whitelist.\n"
    found = seen()
    if not found.is_serving and name not in _WITHOUT_SERVING:
        return NOT_SERVING + "\n"
    return show(found)


def _lines(lines: Iterable[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _summary(seen: Seen) -> list[str]:
    latency = seen.traffic.latency
    sizes = seen.ensemble.proposals if seen.ensemble is not None else None
    proposals = [f"Proposal sizes last/min/max: {sizes.last}/{sizes.least}/{sizes.most}"] if sizes else []
    return [
        f"Latency min/avg/max: {latency.shortest}/{latency.mean}/{latency.most}",
        f"Received: {seen.traffic.received}",
        f"Sent: {seen.traffic.sent}",
        f"Connections: {seen.alive}",
        f"Outstanding: {seen.outstanding}",
        f"Zxid: {seen.last_zxid:#x}",
        f"Mode: {seen.mode}",
        f"Node count: {seen.node_count}",
        *proposals,
    ]


def _srvr(seen: Seen) -> str:
    return _lines([f"Zookeeper version: {full_version()}", *_summary(seen)])


def _stat(seen: Seen) -> str:
    clients = [_client(client) + ")" for client in seen.clients]
    return _lines([f"Zookeeper version: {full_version()}", "Clients:", *clients, "", *_summary(seen)])


def _client(client: Client) -> str:
    traffic = client.traffic
    return (
        f" /{host_and_port(client.address, client.port)}[{client.interest:x}]"
        f"(queued={client.queued},recved={traffic.received},sent={traffic.sent}"
    )


def _cons(seen: Seen) -> str:
    lines = []
    for client in seen.clients:
        line, traffic = _client(client), client.traffic
        if client.session_id:
            line += f",sid={_long(client.session_id)},lop={traffic.last_operation}"
            line += f",est={client.established_ms},to={client.timeout_ms}"
            if traffic.last_cxid >= 0:
                line += f",lcxid={_long(traffic.last_cxid)}"
            latency = traffic.latency
            line += f",lzxid={_long(traffic.last_zxid)},lresp={traffic.last_response_ms},llat={latency.last}"
            mean = latency.total // latency.count if latency.count else 0
            line += f",minlat={latency.shortest},avglat={mean},maxlat={latency.most}"
        lines.append(line + ")")
    return _lines([*lines, ""])


def _crst(seen: Seen) -> str:
    seen.reset(False)
    return "Connection stats reset.\n"


def _srst(seen: Seen) -> str:
    seen.reset(True)
    return "Server stats reset.\n"


def _dirs(seen: Seen) -> str:
    snapshots, logs = seen.data_bytes()
    return f"datadir_size: {snapshots}\nlogdir_size: {logs}\n"


def _conf(seen: Seen) -> str:
    text = _lines(f"{name}={value}" for name, value in seen.configuration().items())
    return text if seen.ensemble is None else f"{text}membership: \n{seen.ensemble.membership}"


def environment() -> dict[str, str]:
    """Returns the environment under ZooKeeper's names. Java's values are not available."""
    unknown = "<NA>"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return {
        "zookeeper.version": full_version(),
        "host.name": socket.gethostname(),
        **{
            f"java.{name}": unknown
            for name in ("version", "vendor", "home", "class.path", "library.path", "io.tmpdir", "compiler")
        },
        "os.name": platform.system(),
        "os.arch": platform.machine(),
        "os.version": platform.release(),
        "user.name": _user(),
        "user.home": os.path.expanduser("~"),
        "user.dir": os.getcwd(),
        "os.memory.free": f"{free}MB",
        "os.memory.max": f"{memory}MB",
        "os.memory.total": f"{memory}MB",
    }


def _envi(_seen: Seen) -> str:
    return _lines(["Environment:", *(f"{name}={value}" for name, value in environment().items())])


def _user() -> str:
    """Returns the user's name, or the number: a container may have no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _wchs(seen: Seen) -> str:
    """As in ZooKeeper, watches of children do not count."""
    watched = list(seen.data_watches())
    sessions = {session for _path, watchers in watched for session in watchers}
    total = sum(len(watchers) for _path, watchers in watched)
    return f"{len(sessions)} connections watching {len(watched)} paths\nTotal watches:{total}\n"


def _wchc(seen: Seen) -> str:
    by_session: dict[int, list[str | None]] = {}
    for path, watchers in seen.data_watches():
        for session in watchers:
            by_session.setdefault(session, []).append(path)
    lines = []
    for session, paths in by_session.items():
        lines += [_long(session), *(f"\t{path}" for path in paths)]
    return _lines([*lines, ""])


def _wchp(seen: Seen) -> str:
    lines = []
    for path, watchers in seen.data_watches():
        lines += [str(path), *(f"\t{_long(session)}" for session in watchers)]
    return _lines([*lines, ""])


def _dump(seen: Seen) -> str:
    ephemerals = seen.ephemerals()
    lines = ["SessionTracker dump:", *_sessions(seen)]
    lines += ["ephemeral nodes dump:", f"Sessions with Ephemerals ({len(ephemerals)}):"]
    for session, paths in ephemerals.items():
        lines += [f"{_long(session)}:", *(f"\t{path}" for path in paths)]
    lines += ["Connections dump:", *_sets("Connections", seen.deadlines(), _connection)]
    return _lines(lines)


def _sessions(seen: Seen) -> list[str]:
    """Shows the deadlines, which only the leader knows; the other members show the timeouts."""
    if seen.ensemble is not None and seen.ensemble.proposals is None:
        timeouts = seen.timeouts()
        lines = [f"{_long(session)}\t{timeouts[session]}ms" for session in sorted(timeouts)]
        return [f"Global Sessions({len(timeouts)}):", *lines]
    return _sets("Session", seen.expiries(), _long)


def _connection(client: Client) -> str:
    address = host_and_port(client.address, client.port)
    return f"ip: /{address} sessionId: {_long(client.session_id)}"


def _sets(what: str, expiries: Sequence[Expiry[T]], show: Callable[[T], str]) -> list[str]:
    """Shows the deadlines, and what ends at each (``ExpiryQueue.dump``)."""
    count = sum(len(expiry.members) for expiry in expiries)
    lines = [f"{what} Sets ({len(expiries)})/({count}):"]
    for expiry in expiries:
        when = datetime.fromtimestamp(expiry.at_ms / 1000).astimezone()
        lines.append(f"{len(expiry.members)} expire at {when:%a %b %d %H:%M:%S %Z %Y}:")
        lines += [f"\t{show(member)}" for member in expiry.members]
    return lines


def gauges(seen: Seen) -> dict[str, int | float]:
    """Returns the numbers that are read at each request."""
    latency, sizes = seen.traffic.latency, seen.response_sizes
    return {
        "avg_latency": latency.mean,
        "max_latency": latency.most,
        "min_latency": latency.shortest,
        "packets_received": seen.traffic.received,
        "packets_sent": seen.traffic.sent,
        "num_alive_connections": seen.alive,
        "outstanding_requests": seen.outstanding,
        "znode_count": seen.node_count,
        **seen.monitor(),
        "connection_drop_probability": 0.0,
        "last_client_response_size": sizes.last,
        "max_client_response_size": sizes.most,
        "min_client_response_size": sizes.least,
        "outstanding_tls_handshake": seen.handshakes,
        "auth_failed_count": seen.auth_failed,
        "non_mtls_remote_conn_count": seen.plain_remote,
        "non_mtls_local_conn_count": seen.plain_local,
    }


def all_gauges(seen: Seen) -> tuple[dict[str, int | float], Mapping[str, Mapping[str, int]]]:
    """Returns the gauges of the server, and those of quotas by namespace."""
    return gauges(seen), seen.quotas()


def monitored(seen: Seen) -> dict[str, str | int | float]:
    """Returns the data of ``mntr``, and of the admin server's ``monitor``."""
    values, quotas = all_gauges(seen)
    if seen.prometheus:
        return {"version": full_version(), "server_state": seen.mode, **samples(seen.metrics, values, quotas)}
    state = {"peer_state": seen.ensemble.state} if seen.ensemble is not None else {}
    of_quotas = {f"{key}_{name}": value for name, each in quotas.items() for key, value in each.items()}
    numbers = values | of_quotas | seen.metrics.values()
    return {"version": full_version(), "server_state": seen.mode, **numbers, **state}


def _mntr(seen: Seen) -> str:
    return _lines(f"zk_{name}\t{_number(value)}" for name, value in monitored(seen).items())


def _number(value: str | float) -> str:
    return java_double(value) if isinstance(value, float) else str(value)


def _long(value: int) -> str:
    """Writes a Java long in hexadecimal."""
    return f"{value & 0xFFFF_FFFF_FFFF_FFFF:#x}"


def _isro(seen: Seen) -> str:
    if not seen.is_serving:
        return "null"
    return "ro" if seen.is_read_only else "rw"


_WORDS: dict[str, Callable[[Seen], str]] = {
    "ruok": lambda _seen: "imok",
    "isro": _isro,
    "srvr": _srvr,
    "stat": _stat,
    "cons": _cons,
    "crst": _crst,
    "srst": _srst,
    "dirs": _dirs,
    "conf": _conf,
    "envi": _envi,
    "wchs": _wchs,
    "wchc": _wchc,
    "wchp": _wchp,
    "dump": _dump,
    "mntr": _mntr,
}
