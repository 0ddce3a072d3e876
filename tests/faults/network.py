"""Networks in which members can be cut off from each other, or slowed down, one direction at a time.

Each member has its own network namespace; a router in another namespace joins them. The router drops the
packets of a cut direction silently, like a broken cable. It sends those of a slow direction through
:mod:`.slow_link`. Needs `ip` (iproute2) and root, or CAP_SYS_ADMIN and CAP_NET_ADMIN.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from tests.ports import free_ports

CLIENTS = 31
"""The number of this process, which clients run in, among the members of a network."""
_NUMBERS = itertools.count()
_SECONDS = 20.0
_TUN = "/dev/net/tun"
_TABLE = "100"
"""The routing table that leads to the slow link."""


@dataclass(frozen=True)
class Addresses:
    """Where a member listens."""

    host: str
    clients: int
    quorum: int
    election: int


class Network:
    """The network of the members. This one is loopback, where no member can be cut off."""

    def addresses(self, count: int) -> list[Addresses]:
        """Places for the next ``count`` members, which are numbered from 0."""
        numbers = free_ports(3 * count)
        return [Addresses("127.0.0.1", *numbers[at : at + 3]) for at in range(0, 3 * count, 3)]

    def command(self, member: int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in the network of member ``member`` (from 0)."""
        return list(command)


class NotPermittedError(Exception):
    """Namespaces cannot be made here; the text is the output of `ip`."""


class Namespaces(Network):
    """Up to 30 members. Their addresses are 10.200-249.x.y, which nothing else on this machine may use."""

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self._name = f"lc{os.getpid()}x{number}"
        # 61 and 250 have no common divisor, so each network of a process has its own addresses.
        self._net = f"10.{200 + os.getpid() % 50}.{(os.getpid() // 50 + 61 * number) % 250}"
        self._made: list[str] = []
        self._members = 0
        self._cuts: set[tuple[int, int]] = set()
        self._slow: set[tuple[int, int]] = set()
        self._link: subprocess.Popen[bytes] | None = None
        try:
            self._namespace("hub")
            self._ip("netns", "exec", self._of("hub"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            self._join("hub", "root", CLIENTS)
            self._ip("route", "add", f"{self._net}.0/24", "via", self._host(CLIENTS, 1))
        except NotPermittedError:
            self.close()
            raise

    def addresses(self, count: int) -> list[Addresses]:
        numbers = range(self._members, self._members + count)
        self._members += count
        for number in numbers:
            self._namespace(f"m{number}")
            self._join("hub", f"m{number}", number)
            self._ip("-n", self._of(f"m{number}"), "route", "add", "default", "via", self._host(number, 1))
        return [Addresses(self._host(number, 2), 2181, 2888, 3888) for number in numbers]

    def command(self, member: int, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._of(f"m{member}"), *command]

    def cut(self, sender: int, receiver: int) -> None:
        """Drops every packet from ``sender`` to ``receiver``."""
        if (sender, receiver) not in self._cuts:
            self._rule("add", sender, receiver, "priority", "100", "blackhole")
            self._cuts.add((sender, receiver))

    def slow_down(self, pairs: Sequence[tuple[int, int]], delay_ms: int, loss: float, seed: int) -> None:
        """Delays the packets from each pair's first member to its second, and loses a part of them.

        One speed at a time: pairs that are slow already keep theirs.
        """
        if self._link is None:
            self._start_link(delay_ms, loss, seed)
        for sender, receiver in set(pairs) - self._slow:
            self._rule("add", sender, receiver, "priority", "110", "lookup", _TABLE)
            self._slow.add((sender, receiver))

    def _start_link(self, delay_ms: int, loss: float, seed: int) -> None:
        hub, device = self._of("hub"), "slow"
        program = [sys.executable, str(Path(__file__).with_name("slow_link.py"))]
        arguments = [device, str(delay_ms), str(loss), str(seed)]
        command = ["ip", "netns", "exec", hub, *program, *arguments]
        self._link = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._link.stdout is not None
        if self._link.stdout.readline() != b"ready\n":
            raise NotPermittedError("no TUN device, which a slow network needs")
        self._ip("-n", hub, "link", "set", device, "up")
        # A packet that comes from the link goes on its way.
        self._ip("-n", hub, "rule", "add", "iif", device, "priority", "90", "lookup", "main")
        self._ip("-n", hub, "route", "add", "default", "dev", device, "table", _TABLE)

    def heal(self) -> None:
        """Undoes every cut, and the slowness."""
        while self._cuts:
            self._rule("del", *self._cuts.pop(), "priority", "100", "blackhole")
        while self._slow:
            self._rule("del", *self._slow.pop(), "priority", "110", "lookup", _TABLE)
        if self._link is not None:
            self._ip("-n", self._of("hub"), "rule", "del", "priority", "90")
            self._end_link()

    def _end_link(self) -> None:
        """Ends the link's process, and with it the device and its route."""
        if self._link is not None:
            self._link.kill()
            self._link.communicate()
            self._link = None

    def close(self) -> None:
        self._end_link()
        for name in self._made:
            with suppress(NotPermittedError):
                self._ip("netns", "del", name)

    def _rule(self, verb: str, sender: int, receiver: int, *rest: str) -> None:
        both = ("from", self._host(sender, 2), "to", self._host(receiver, 2))
        self._ip("-n", self._of("hub"), "rule", verb, *both, *rest)

    def _namespace(self, what: str) -> None:
        self._ip("netns", "add", self._of(what))
        self._made.append(self._of(what))
        self._ip("-n", self._of(what), "link", "set", "lo", "up")

    def _join(self, hub: str, what: str, number: int) -> None:
        """Makes a cable between the router and a namespace; ``root`` is the namespace of this process."""
        router, other = f"{self._name}r{number}", f"{self._name}e{number}"
        self._ip("link", "add", router, "type", "veth", "peer", "name", other)
        self._ip("link", "set", router, "netns", self._of(hub))
        inside: tuple[str, ...] = ()
        if what != "root":
            self._ip("link", "set", other, "netns", self._of(what))
            inside = ("-n", self._of(what))
        self._ip("-n", self._of(hub), "addr", "add", f"{self._host(number, 1)}/30", "dev", router)
        self._ip("-n", self._of(hub), "link", "set", router, "up")
        self._ip(*inside, "addr", "add", f"{self._host(number, 2)}/30", "dev", other)
        self._ip(*inside, "link", "set", other, "up")

    def _host(self, number: int, end: int) -> str:
        """The address of an end of cable ``number``: 1 is the router's end, 2 the member's."""
        return f"{self._net}.{4 * number + end}"

    def _of(self, what: str) -> str:
        return f"{self._name}-{what}"

    @staticmethod
    def _ip(*arguments: str) -> None:
        if shutil.which("ip") is None:
            raise NotPermittedError("the command `ip` is not installed")
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode != 0:
            raise NotPermittedError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextmanager
def network_with_cuts() -> Iterator[Network]:
    """Namespaces if they can be made; else loopback, where no member can be cut off."""
    try:
        made = Namespaces()
    except NotPermittedError:
        yield Network()
        return
    try:
        yield made
    finally:
        made.close()


def cuttable(network: Network) -> Namespaces:
    """The network, if its members can be cut off. Otherwise skips the test, or fails it under CI=true."""
    if not isinstance(network, Namespaces):
        try:
            Namespaces().close()
            reason = "they can be made now"
        except NotPermittedError as error:
            reason = str(error)
        _impossible(f"no network namespaces for partitions: {reason} (run as root, with iproute2)")
    return network


def can_slow_down() -> None:
    """Skips the test if :meth:`Namespaces.slow_down` has no device to work with. Fails it under CI=true."""
    if not os.access(_TUN, os.R_OK | os.W_OK):
        _impossible(f"no slow networks: {_TUN} is missing or not permitted (run as root)")


def _impossible(message: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
