"""Networks in which members can be cut off from each other, one direction at a time.

Each member has its own network namespace; a router in another namespace joins them. The router drops the
packets of a cut direction silently, like a broken cable. Needs `ip` (iproute2) and root, or CAP_SYS_ADMIN and
CAP_NET_ADMIN.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from .members import Addresses, Network

_NUMBERS = itertools.count()
_SECONDS = 20.0


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
        self._cuts: set[tuple[int, int]] = set()
        try:
            self._namespace("hub")
            self._ip("netns", "exec", self._of("hub"), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            self._join("hub", "root", 31)
            self._ip("route", "add", f"{self._net}.0/24", "via", self._host(31, 1))
        except NotPermittedError:
            self.close()
            raise

    def addresses(self, count: int) -> list[Addresses]:
        for number in range(count):
            self._namespace(f"m{number}")
            self._join("hub", f"m{number}", number)
            self._ip("-n", self._of(f"m{number}"), "route", "add", "default", "via", self._host(number, 1))
        return [Addresses(self._host(number, 2), 2181, 2888, 3888) for number in range(count)]

    def command(self, member: int, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._of(f"m{member}"), *command]

    def cut(self, sender: int, receiver: int) -> None:
        """Drops every packet from ``sender`` to ``receiver``."""
        self._rule("add", sender, receiver)
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Undoes every cut."""
        while self._cuts:
            self._rule("del", *self._cuts.pop())

    def close(self) -> None:
        for name in self._made:
            with suppress(NotPermittedError):
                self._ip("netns", "del", name)

    def _rule(self, verb: str, sender: int, receiver: int) -> None:
        both = ("from", self._host(sender, 2), "to", self._host(receiver, 2))
        self._ip("-n", self._of("hub"), "rule", verb, *both, "priority", "100", "blackhole")

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
    if isinstance(network, Namespaces):
        return network
    try:
        Namespaces().close()
        reason = "they can be made now"
    except NotPermittedError as error:
        reason = str(error)
    message = f"no network namespaces for partitions: {reason} (run as root, with iproute2)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
