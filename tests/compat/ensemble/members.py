"""Ensembles of real processes: Apache ZooKeeper's and ours behind one face, started, killed, suspended and started again.

Owns the processes, their zoo.cfg and their directories. Who calls is a test, from its own thread; a test that fails leaves
nothing behind, for :func:`ensemble` ends every process. Apache's and ours are given the same zoo.cfg.
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
from tests.ports import free_ports

from . import apache_log, our_log

START_SECONDS = 60.0
STOP_SECONDS = 30.0
ASK_AGAIN_SECONDS = 0.02
"""No server says that it is ready, or leads: it is asked again, unless its process ends meanwhile."""
TICK_MS = 500
NEVER_MS = 10**9
PEER = "zookeeper-3.9.4"
NOT_SERVING = "not serving"
"""What a member's mode is while it has no leader, or no process."""

SETTINGS = {
    "tickTime": str(TICK_MS),
    "initLimit": "40",
    "syncLimit": "10",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "extendedTypesEnabled": "true",
    "4lw.commands.whitelist": "*",
    # Containers are looked through at no time, or else at another one on each.
    "znode.container.checkIntervalMs": str(NEVER_MS),
}


@dataclass(frozen=True)
class Maker:
    """A kind of server. ``command`` is given the path of a zoo.cfg. ``sync_is_linearizable``: a read behind a sync is never older
    than what anybody was answered before it, even by a leader that is cut off and does not know. Apache's leader answers its own
    clients' syncs as it does reads (``CommitProcessor.matchSyncs``), and may have told others to apply what it has not applied itself
    (``Leader.tryToCommit``); ``locks_are_strict``: nor does a client that is cut off with its server believe in its session for
    longer than the others do; ``counts_outstanding``: a delete may be refused for children that a closeSession before it takes away;
    ``transactions``: what an ensemble agreed on, from its members' directories of data and the number of the one that leads;
    ``next_write_seconds``: after the leader is killed, on a machine that does other things too; ``median_next_write_seconds``: of
    several times, most of which those other things leave alone."""

    name: str
    command: Callable[[Path], list[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    sync_is_linearizable: bool = False
    locks_are_strict: bool = False
    counts_outstanding: bool = False
    transactions: Callable[[list[Path], int], list[Transaction]] | None = None
    next_write_seconds: float = 10.0
    median_next_write_seconds: float = 10.0


def _apache_command(config: Path) -> list[str]:
    jvm = ["java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    # Elections of a test need not wait for members that are far away.
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
"""Ours with logs that are kept no longer than snapshots need, but for some entries, and not looked at."""

MAKERS_OF_ENSEMBLES = (OURS, APACHE) if "LOGCORE_FUZZ_MINUTES" in os.environ else (OURS,)
"""Whose servers stand in ensembles: every test of one runs once for each. `make fuzz` tries the tests themselves on Apache's."""

ALONE_AND_TOGETHER: tuple[tuple[Maker, int], ...] = tuple(
    (maker, count) for maker in MAKERS_OF_ENSEMBLES for count in (1, 3)
)
"""What other people's clients are tried on: who makes the servers, and how many there are."""


@dataclass(frozen=True)
class Addresses:
    """Where a member listens."""

    host: str
    clients: int
    quorum: int
    election: int


class Network:
    """Where members live; this one is loopback, on which nobody can be cut off."""

    def addresses(self, count: int) -> list[Addresses]:
        numbers = free_ports(3 * count)
        return [Addresses("127.0.0.1", *numbers[at : at + 3]) for at in range(0, 3 * count, 3)]

    def command(self, member: int, command: Sequence[str]) -> list[str]:
        """How ``command`` is run where member ``member`` (from 0) lives."""
        return list(command)


class Member:
    """One server: a directory that outlives its processes, of which there is one at most."""

    def __init__(
        self, maker: Maker, number: int, directory: Path, addresses: Addresses, network: Network
    ) -> None:
        self.maker, self.number, self.directory, self.addresses = maker, number, directory, addresses
        self.clock_file = directory / "clock"
        self.data = directory / "data"
        self.clock: Path | None = None
        """The library that lets its wall clock jump, if it is built."""
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None
        self.suspended = False

    @property
    def hosts(self) -> str:
        return f"{self.addresses.host}:{self.addresses.clients}"

    def line(self, role: str = "participant") -> str:
        """Its line of the ensemble's configuration."""
        at = self.addresses
        return f"server.{self.number + 1}={at.host}:{at.quorum}:{at.election}:{role};{at.host}:{at.clients}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"member {self.number} does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ends_within(self, seconds: float) -> bool:
        """Waits for its process to end, so long at most; True when it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(seconds)
                return True
        return False

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
        """Returns before it serves: :meth:`Ensemble.wait_until_serving`."""
        assert not self.runs, f"member {self.number} runs already"
        environment = {**os.environ, **self.maker.environment}
        if self.clock is not None:
            self.jump(0)
            environment |= {"LD_PRELOAD": str(self.clock), "CLOCK_AHEAD": str(self.clock_file)}
        command = self._network.command(self.number, self.maker.command(self.directory / "zoo.cfg"))
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    def jump(self, milliseconds: int) -> None:
        """Its wall clock is so far ahead from now on."""
        with self.clock_file.open("r+b" if self.clock_file.exists() else "wb") as file:
            file.write(struct.pack("=q", milliseconds))

    def output(self) -> str:
        """The end of what its processes said."""
        path = self.directory / "output"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def suspend(self) -> None:
        """Returns once none of its threads runs: the signal stops them when the one that is given it has its turn."""
        os.kill(self.pid, signal.SIGSTOP)
        self.suspended = True
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        if self.suspended and self.runs:
            os.kill(self.pid, signal.SIGCONT)
        self.suspended = False

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int | None:
        """Ends its process, if it has one, and returns its status."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(how)
            self.resume()
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"{self.maker.name}'s member {self.number} ignored {how.name}; it said:\n{self.output()}"
            ) from None
        self._process, self.suspended = None, False
        return status

    def word(self, word: str, seconds: float = 2.0) -> str:
        """What it answers to a four-letter word; empty if it does not."""
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
    """Servers that know of each other, or one by itself. Of more than ``founders`` the others join: their files name the founders
    and themselves. The last ``observers`` do not vote."""

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
        """The hosts in a client's order: member ``number`` (modulo their count) first, for clients on different members."""
        at = number % len(self.members)
        return ",".join(member.hosts for member in [*self.members[at:], *self.members[:at]])

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_until_serving()

    def wait_until_serving(self, members: Sequence[Member] | None = None) -> None:
        """Until a session was opened at each; they say nothing when they are ready, so they are asked again."""
        end = time.monotonic() + START_SECONDS
        for member in self.members if members is None else members:
            while not _opens_a_session(member):
                if not member.runs:
                    raise AssertionError(
                        f"{member.maker.name}'s member {member.number} ended; it said:\n{member.output()}"
                    )
                if time.monotonic() > end:
                    raise AssertionError(
                        f"{member.maker.name}'s member {member.number} does not serve after {START_SECONDS:.0f} s; it said:\n"
                        + member.output()
                    )
                member.ends_within(ASK_AGAIN_SECONDS)

    def leader(self) -> Member:
        """Whoever leads (or stands alone), once somebody does."""
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
            "no member leads; they said:\n" + "\n".join(member.output() for member in self.members)
        )

    def followers(self) -> list[Member]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def member_as(self, role: str) -> Member:
        """The leader, a follower or an observer, once somebody leads."""
        leader = self.leader()
        if role == "leader":
            return leader
        others = self.members[: self._voters] if role == "follower" else self.members[self._voters :]
        return next(member for member in others if member is not leader)

    def heal(self) -> None:
        """Every member runs, is resumed and serves."""
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
    """Whether one can be; it is closed again."""
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
    """Builds what lets members' wall clocks jump; None where there is no C compiler."""
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
    """``count`` servers that serve; they are killed at the end. ``clock``: of :func:`clock_library`."""
    made = Ensemble(maker, directory, count, settings or {}, network or Network(), founders, observers)
    for member in made.members:
        member.clock = clock
    try:
        made.start()
        yield made
    finally:
        made.stop()
