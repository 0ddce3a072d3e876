"""Ensembles of real processes, Apache ZooKeeper's or ours: started, killed, suspended and restarted.

Owns the processes, their zoo.cfg and their directories. A test calls it from its own thread. :func:`ensemble`
ends every process, also when the test fails. Both implementations get the same zoo.cfg.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.compat.conftest import peer_jars
from tests.coordinator.histories.history import Transaction
from tests.coordinator.support import RawClient
from tests.faults.network import Addresses, Network
from tests.faults.process import STOP_SECONDS, Server

from . import apache_log, our_log

START_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.02
"""The interval of polling whether a server is ready or leads; servers do not announce it."""
TICK_MS = 500
NEVER_MS = 10**9
PEER = "zookeeper-3.9.4"
NOT_SERVING = "not serving"
"""A member's mode while it has no leader or no process."""

SETTINGS = {
    "tickTime": str(TICK_MS),
    "initLimit": "40",
    "syncLimit": "10",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "extendedTypesEnabled": "true",
    "4lw.commands.whitelist": "*",
    # No container is deleted: each server would do it at another time.
    "znode.container.checkIntervalMs": str(NEVER_MS),
}


@dataclass(frozen=True)
class Maker:
    """An implementation of the server: how to start it, and what it promises."""

    name: str
    command: Callable[[Path], list[str]]
    """Takes the path of a zoo.cfg."""
    environment: Mapping[str, str] = field(default_factory=dict)
    sync_is_linearizable: bool = False
    """A read after a sync is as new as every answer given before it, even from a leader that is cut off.

    Apache does not promise this. Its leader answers its own clients' syncs without asking the followers
    (``CommitProcessor.matchSyncs``), and followers may apply a commit before the leader does
    (``Leader.tryToCommit``).
    """
    locks_are_strict: bool = False
    """A client that is cut off with its server gives its session up before the other servers expire it."""
    counts_outstanding: bool = False
    """A delete may be refused because of children that an outstanding closeSession removes."""
    transactions: Callable[[list[Path], int], list[Transaction]] | None = None
    """Reads the agreed transactions from the members' data directories; the number is the leader's."""
    next_write_seconds: float = 10.0
    """The limit from the kill of the leader to the next write, on a busy machine."""
    median_next_write_seconds: float = 10.0
    """The limit of the median of several such times."""


def _apache_command(config: Path) -> list[str]:
    jvm = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    # Short waits for election messages: all members are on this machine.
    election = [
        "-Dzookeeper.fastleader.minNotificationInterval=50",
        "-Dzookeeper.fastleader.maxNotificationInterval=500",
    ]
    containers = f"-Dznode.container.checkIntervalMs={NEVER_MS}"
    jars = ["-cp", f"{peer_jars(PEER)}/*"]
    return [
        *jvm,
        *election,
        containers,
        *jars,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config),
    ]


def _our_command(config: Path) -> list[str]:
    return [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]


APACHE = Maker("apache", _apache_command, counts_outstanding=True, transactions=apache_log.read_transactions)
OURS = Maker(
    "ours",
    _our_command,
    {"PYTHONPATH": ":".join(path for path in sys.path if path)},
    sync_is_linearizable=True,
    locks_are_strict=True,
    transactions=our_log.read_transactions,
    next_write_seconds=3.0,
    median_next_write_seconds=1.0,
)

_SAVING = (
    "import sys; from cluster.coordinator.ensemble import engine; engine.ENTRIES_KEPT = 20; "
    "from cluster.cli import main; sys.exit(main())"
)
SAVING = replace(
    OURS,
    name="ours-saving",
    command=lambda config: [sys.executable, "-c", _SAVING, "coordinator", str(config)],
    transactions=None,
)
"""Ours, keeping only 20 log entries behind a snapshot. The log is not complete, so it is not read."""

MAKERS_OF_ENSEMBLES = (OURS, APACHE) if "LOGCORE_FUZZ_MINUTES" in os.environ else (OURS,)
"""Each test of an ensemble runs once for each of these. `make fuzz` runs the tests on Apache's too."""

SERVER_COUNTS: tuple[tuple[Maker, int], ...] = tuple(
    (maker, count) for maker in MAKERS_OF_ENSEMBLES for count in (1, 3)
)
"""The servers that other projects' clients are tested on: an implementation and the number of servers."""


class Member(Server):
    """One server: a directory, and at most one process at a time."""

    def __init__(
        self, maker: Maker, number: int, directory: Path, addresses: Addresses, network: Network
    ) -> None:
        super().__init__(f"{maker.name}'s member {number}", number, directory, network)
        self.maker, self.addresses = maker, addresses
        self.clock_file = directory / "clock"
        self.data = directory / "data"
        self.clock: Path | None = None
        """The preloaded library that shifts its wall clock; None without a C compiler."""

    @property
    def hosts(self) -> str:
        return f"{self.addresses.host}:{self.addresses.clients}"

    def line(self, role: str = "participant") -> str:
        """Its server line in the ensemble's configuration."""
        at = self.addresses
        return f"server.{self.number + 1}={at.host}:{at.quorum}:{at.election}:{role};{at.host}:{at.clients}"

    def configure(self, settings: Mapping[str, str], servers: Mapping[str, str]) -> None:
        self.data.mkdir(parents=True)
        lines = {
            "dataDir": str(self.data),
            "clientPort": str(self.addresses.clients),
            "clientPortAddress": self.addresses.host,
            **SETTINGS,
            **settings,
            **servers,
        }
        (self.directory / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        if servers:
            (self.data / "myid").write_text(f"{self.number + 1}\n")

    def start(self) -> None:
        """Starts its process. :meth:`Ensemble.wait_until_serving` waits until it serves."""
        environment = dict(self.maker.environment)
        if self.clock is not None:
            self.jump(0)
            environment |= {"LD_PRELOAD": str(self.clock), "CLOCK_AHEAD": str(self.clock_file)}
        self.run(self.maker.command(self.directory / "zoo.cfg"), environment)

    def jump(self, milliseconds: int) -> None:
        """From now on its wall clock is this far ahead."""
        with self.clock_file.open("r+b" if self.clock_file.exists() else "wb") as file:
            file.write(struct.pack("=q", milliseconds))

    def word(self, word: str, seconds: float = 2.0) -> str:
        """The answer to a four-letter word; empty if none came."""
        try:
            with socket.create_connection(
                (self.addresses.host, self.addresses.clients), seconds
            ) as connection:
                connection.settimeout(seconds)
                connection.sendall(word.encode())
                parts = iter(lambda: connection.recv(65536), b"")
                return b"".join(parts).decode(errors="replace")
        except OSError:
            return ""

    def mode(self) -> str:
        """leader, follower, observer, standalone or NOT_SERVING."""
        found = re.search(r"^Mode: (.+)$", self.word("srvr"), re.MULTILINE)
        return found[1] if found else NOT_SERVING


class Ensemble:
    """The servers of one ensemble, or a standalone server.

    ``founders``: members after the first ``founders`` join later; their zoo.cfg names the founders and
    themselves. ``observers``: the last so many members do not vote.
    """

    def __init__(
        self,
        maker: Maker,
        directory: Path,
        count: int,
        settings: Mapping[str, str],
        network: Network,
        founders: int | None = None,
        observers: int = 0,
    ) -> None:
        self.maker, self.network = maker, network
        self._voters = count - observers
        addresses = network.addresses(count)
        self.members = [
            Member(maker, number, directory / f"{maker.name}-{number + 1}", each, network)
            for number, each in enumerate(addresses)
        ]
        roles = [""] * self._voters + [":observer"] * observers
        lines = [
            (f"server.{number + 1}", f"{each.host}:{each.quorum}:{each.election}{roles[number]}")
            for number, each in enumerate(addresses)
        ]
        for member in self.members:
            servers = dict([*lines[: founders or count], lines[member.number]])
            member.configure(settings, servers if count > 1 else {})

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Hosts and ports for clients."""
        return [(member.addresses.host, member.addresses.clients) for member in self.members]

    @property
    def hosts(self) -> str:
        return ",".join(member.hosts for member in self.members)

    def hosts_from(self, number: int) -> str:
        """All hosts, member ``number`` (modulo their count) first, which spreads clients over the members."""
        at = number % len(self.members)
        return ",".join(member.hosts for member in [*self.members[at:], *self.members[:at]])

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_until_serving()

    def wait_until_serving(self, members: Sequence[Member] | None = None) -> None:
        """Waits until each member opens a session."""
        end = time.monotonic() + START_SECONDS
        for member in self.members if members is None else members:
            while not _opens_a_session(member):
                if not member.runs:
                    raise AssertionError(
                        f"{member.maker.name}'s member {member.number} ended; its output:\n{member.output()}"
                    )
                if time.monotonic() > end:
                    raise AssertionError(
                        f"{member.maker.name}'s member {member.number} does not serve "
                        f"after {START_SECONDS:.0f} s; its output:\n{member.output()}"
                    )
                member.ends_within(ASK_AGAIN_SECONDS)

    def leader(self) -> Member:
        """Waits for a leader (or the standalone server) and returns it."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for member in self.members:
                if member.runs and not member.suspended and member.mode() in ("leader", "standalone"):
                    return member
            running = [member for member in self.members if member.runs]
            if not running:
                break
            running[0].ends_within(ASK_AGAIN_SECONDS)
        raise AssertionError(
            "no member leads; their output:\n" + "\n".join(member.output() for member in self.members)
        )

    def followers(self) -> list[Member]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def member_as(self, role: str) -> Member:
        """Waits for a leader, then returns it, a follower or an observer."""
        leader = self.leader()
        if role == "leader":
            return leader
        others = self.members[: self._voters] if role == "follower" else self.members[self._voters :]
        return next(member for member in others if member is not leader)

    def heal(self) -> None:
        """Resumes or restarts every member and waits until all serve."""
        for member in self.members:
            member.resume()
            if not member.runs:
                member.end()
                member.start()
        self.wait_until_serving()

    def stop(self) -> None:
        for member in self.members:
            member.end(signal.SIGKILL)


def _opens_a_session(member: Member) -> bool:
    """Opens a session and closes it; returns whether that worked."""
    try:
        client = RawClient(member.addresses.clients, member.addresses.host)
        try:
            client.socket.settimeout(2.0)
            return client.connect()[1] != 0 and client.request(1, -11)[2] == 0
        finally:
            client.close()
    except OSError:
        return False


def clock_library(directory: Path) -> Path | None:
    """Builds the library that shifts a member's wall clock; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "clock.so"
    source = Path(__file__).with_name("clock.c")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)],
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return library


@contextlib.contextmanager
def ensemble(
    maker: Maker,
    directory: Path,
    count: int,
    settings: Mapping[str, str] | None = None,
    network: Network | None = None,
    clock: Path | None = None,
    founders: int | None = None,
    observers: int = 0,
) -> Iterator[Ensemble]:
    """Starts ``count`` servers and kills them at the end. ``clock``: the library of :func:`clock_library`."""
    made = Ensemble(maker, directory, count, settings or {}, network or Network(), founders, observers)
    for member in made.members:
        member.clock = clock
    try:
        made.start()
        yield made
    finally:
        made.stop()
