"""The members of an ensemble: the lines ``server.N`` and ``/zookeeper/config``.

Owns their grammar (``QuorumPeer.QuorumServer``)::

    server.N=address[:participant|observer][|address...][;[clientHost:]clientPort]
    address=host:quorumPort:electionPort

and the checks of lines that contradict each other. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..errors import CoordinatorError

SERVER_ID_MAX = 255
_NAME = re.compile(r"server\.(.*)")
# Surrogates have no bytes, and a line break would end the line.
_HOST = r"(?:\[([^\[\];|\s\\\x00-\x1f\ud800-\udfff]+)\]|([^\[\]:;|\s\\\x00-\x1f\ud800-\udfff]+))"
_HOST_BYTES_MAX = 255
"""The quorum's limit."""
_ADDRESS = re.compile(rf"{_HOST}:([0-9]+):([0-9]+)(?::([A-Za-z]+))?")
_CLIENT = re.compile(rf"(?:{_HOST}:)?([0-9]+)")
_LOCAL_EVERYWHERE = re.compile(r"0\.0\.0\.0|::1?|localhost|127\..*")
_FORM = "host:quorumPort:electionPort[:participant|:observer][;[clientHost:]clientPort]"


class Member(NamedTuple):
    """A line ``server.N``. ``client`` is ``host:port`` of the client port, or empty."""

    server_id: int
    host: str
    quorum_port: int
    election_port: int
    client: str
    observer: bool


class Ensemble(NamedTuple):
    """The members by id, and warnings about their lines."""

    members: tuple[Member, ...]
    warnings: tuple[str, ...]

    @property
    def voters(self) -> int:
        return sum(not member.observer for member in self.members)

    def find(self, server_id: int) -> Member | None:
        return next((member for member in self.members if member.server_id == server_id), None)


def parse_members(properties: Mapping[str, str]) -> Ensemble:
    """Parses the lines ``server.N`` of some properties. Raises CoordinatorError, which names the line."""
    members: list[Member] = []
    warnings: list[str] = []
    for name, text in properties.items():
        if (found := _NAME.fullmatch(name)) is not None:
            members.append(_member(name, found[1], text, warnings))
    members.sort()
    for one, other in itertools.pairwise(members):
        if one.server_id == other.server_id:
            raise CoordinatorError(f"server.{one.server_id} appears twice: give each server an id of its own")
    for host, shared in shared_addresses(members):
        if not is_local_everywhere(host):
            raise CoordinatorError(f"{shared}: give each its own")
        warnings.append(f"{shared}: the others reach at most one of them; give each its own")
    return Ensemble(tuple(members), tuple(warnings))


def voters_warning(count: int) -> str | None:
    """Returns a warning about an unwise number of voters."""
    if count == 2:
        return "2 servers vote: the loss of one stops the ensemble; run 3"
    if count and count % 2 == 0:
        return (
            f"{count} servers vote: that survives no more losses than {count - 1} servers; run an odd number"
        )
    return None


def members_text(members: Iterable[Member]) -> str:
    """Returns the lines as ``/zookeeper/config`` has them."""
    return "".join(
        f"server.{each.server_id}={_bracketed(each.host)}:{each.quorum_port}:{each.election_port}:"
        f"{'observer' if each.observer else 'participant'}{_client_text(each.client)}\n"
        for each in sorted(members)
    )


def configuration_text(lines: str, version: int) -> bytes:
    """Returns the data of ``/zookeeper/config``. ``version`` is the zxid of its change, 0 for the first."""
    return f"{lines}version={version:x}".encode()


def _member(name: str, number: str, text: str, warnings: list[str]) -> Member:
    if not re.fullmatch("[0-9]{1,3}", number) or not 1 <= int(number) <= SERVER_ID_MAX:
        raise CoordinatorError(
            f"{name}: a server's id is a whole number from 1 to {SERVER_ID_MAX}, as in ZooKeeper; give it "
            "such a number in its line on every server and in its myid, and restart one server after the "
            "other"
        )
    servers, semicolon, client = text.partition(";")
    parts = [_ADDRESS.fullmatch(part.strip()) for part in servers.split("|")]
    of_clients = _CLIENT.fullmatch(client.strip()) if semicolon else None
    roles = {(part[5] or "participant").lower() for part in parts if part is not None}
    if None in parts or (semicolon and of_clients is None) or not roles <= {"participant", "observer"}:
        raise CoordinatorError(f"{name} is {text!r}, and has to be {_FORM}")
    if len(roles) > 1:
        raise CoordinatorError(f"{name} is {text!r}: one server is either a participant or an observer")
    first = parts[0]
    assert first is not None
    for host in (first[1] or first[2], of_clients and (of_clients[1] or of_clients[2])):
        if host and len(host.encode()) > _HOST_BYTES_MAX:
            raise CoordinatorError(
                f"{name} has a host of {len(host)} letters, and the limit is {_HOST_BYTES_MAX} bytes"
            )
    if len(parts) > 1:
        warnings.append(f"{name} has {len(parts)} addresses: {first[0]} is used, the others are not")
    quorum_port, election_port = (_port(name, text, each) for each in (first[3], first[4]))
    if quorum_port == election_port:
        raise CoordinatorError(f"{name} is {text!r}: its quorum port and its election port have to differ")
    address = ""
    if of_clients is not None:
        host = of_clients[1] or of_clients[2] or "0.0.0.0"
        address = host_and_port(host, _port(name, text, of_clients[3]))
    observer = roles == {"observer"}
    return Member(int(number), first[1] or first[2], quorum_port, election_port, address, observer)


def _port(name: str, text: str, digits: str) -> int:
    if len(digits) > 5 or not 1 <= int(digits) <= 65535:
        raise CoordinatorError(f"{name} is {text!r}: {digits} is not a port, a number from 1 to 65535")
    return int(digits)


def is_local_everywhere(host: str) -> bool:
    """Whether a host means the local machine, on every machine. Several servers may have such a host
    (``QuorumServer.checkAddressDuplicate``)."""
    return _LOCAL_EVERYWHERE.fullmatch(host.lower()) is not None


def shared_addresses(members: Iterable[Member]) -> Iterator[tuple[str, str]]:
    """Yields the host, and a sentence, for each quorum address that two servers have."""
    owners: dict[tuple[str, int], Member] = {}
    for member in members:
        for port in (member.quorum_port, member.election_port):
            other = owners.setdefault((member.host.lower(), port), member)
            if other is not member:
                yield (
                    member.host,
                    f"server.{other.server_id} and server.{member.server_id} are at {member.host}:{port}",
                )


def configured_members(data: bytes) -> tuple[Member, ...]:
    """Returns the members in the data of ``/zookeeper/config``."""
    lines = (line.partition("=") for line in data.decode().splitlines())
    return parse_members({name: text for name, _equals, text in lines}).members


def host_and_port(host: str, port: int) -> str:
    """Returns both as one text. An IPv6 address gets brackets."""
    return f"{_bracketed(host)}:{port}"


def split_client(address: str) -> tuple[str, int]:
    """Returns the host and the port of a :attr:`Member.client`."""
    host, _colon, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _client_text(address: str) -> str:
    if not address:
        return ""
    return f";{host_and_port(*split_client(address))}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
