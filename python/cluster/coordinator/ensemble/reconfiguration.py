"""The members that a ``reconfig`` asks for (``PrepRequestProcessor``).

Owns the checks of its texts, in ZooKeeper's order. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cluster.properties import parse_properties

from ..errors import Code, CoordinatorError, ZooKeeperError
from ..protocol.requests import Reconfig
from ..state.acl import Rules
from ..state.members import Member, is_local_everywhere, parse_members, shared_addresses, split_client

_PORT = re.compile(r":([0-9]+)(?![^\[]*\])")
_PORT_MAX, _INT_MAX = 0xFFFF, 0x7FFF_FFFF
_LONG_MAX = 1 << 63
TEXT_LETTERS_MAX = 128 << 10
"""The limit of each text: the most servers, with the longest names. Every member parses them."""
_SERVER_LETTERS_MAX = 1024
_PARTS_MAX = 512


def reconfigured(members: Sequence[Member], request: Reconfig, rules: Rules) -> tuple[Member, ...]:
    """Returns the new members.

    Raises BadArguments, and MarshallingError for a malformed number or a new list without voters.
    """
    texts = (request.members, request.joining, request.leaving)
    if any(len(text) > TEXT_LETTERS_MAX for text in texts if text is not None):
        raise ZooKeeperError(Code.BAD_ARGUMENTS)
    if request.members is not None:
        found = _whole(request.members, rules)
    else:
        found = _changed(members, request.joining, request.leaving)
    voters = sum(not member.observer for member in found)
    if voters < (1 if rules & Rules.ONE_VOTER else 2):
        raise ZooKeeperError(Code.BAD_ARGUMENTS)
    return found


def _whole(text: str, rules: Rules) -> tuple[Member, ...]:
    # Lenient, because a request in an old log has to keep its meaning.
    lines = parse_properties(text.replace(",", "\n"), lenient=True)
    lines.pop("version", None)
    found = tuple(sorted(_member(name, value) for name, value in lines.items()))
    voters = sum(not member.observer for member in found)
    has_none = voters == 0 and (found or rules & Rules.ONE_VOTER)
    if has_none or (voters == 1 and len(found) > 1 and not rules & Rules.ONE_VOTER):
        raise ZooKeeperError(Code.MARSHALLING_ERROR)
    try:
        parse_members(lines)
    except CoordinatorError:
        raise ZooKeeperError(Code.BAD_ARGUMENTS) from None
    if any(shared_addresses(found)):
        raise ZooKeeperError(Code.BAD_ARGUMENTS)
    return found


def _changed(members: Sequence[Member], joining: str | None, leaving: str | None) -> tuple[Member, ...]:
    found = {member.server_id: member for member in members}
    addresses = {member.server_id: _addresses(member) for member in members}
    for text in _parts(leaving):
        found.pop(_number(text), None)
    for text in _parts(joining):
        sides = _parts(text, "=")
        if len(sides) != 2:
            raise ZooKeeperError(Code.BAD_ARGUMENTS)
        name, spec = sides
        member = _member(f"server.{_number(name.rpartition('.')[2])}", spec)
        if not member.client:
            raise ZooKeeperError(Code.BAD_ARGUMENTS)
        own = addresses[member.server_id] = _addresses(member)
        if any(number != member.server_id and own & addresses[number] for number in found):
            raise ZooKeeperError(Code.BAD_ARGUMENTS)
        found[member.server_id] = member
    return tuple(sorted(found.values()))


def _parts(text: str | None, separator: str = ",") -> list[str]:
    """Splits as ``StringUtils.split``: trimmed, without empty parts.

    Raises BadArguments for more parts than servers.
    """
    parts = [found for part in (text or "").split(separator) if (found := part.strip())]
    if len(parts) > _PARTS_MAX:
        raise ZooKeeperError(Code.BAD_ARGUMENTS)
    return parts


def _number(text: str) -> int:
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if digits.isascii() and digits.isdigit():
        value = int((digits.lstrip("0") or "0")[:20])
        if value < _LONG_MAX:
            return -value if text.startswith("-") else value
    raise ZooKeeperError(Code.MARSHALLING_ERROR)


def _member(name: str, spec: str) -> Member:
    kind, _dot, number = name.partition(".")
    if kind != "server":
        raise ZooKeeperError(Code.BAD_ARGUMENTS)
    _number(number)
    if "|" in spec or len(spec) > _SERVER_LETTERS_MAX:
        raise ZooKeeperError(Code.BAD_ARGUMENTS)
    if any(_PORT_MAX < int(port[:11]) <= _INT_MAX for port in _PORT.findall(spec)):
        raise ZooKeeperError(Code.MARSHALLING_ERROR)
    try:
        return parse_members({name: spec}).members[0]
    except CoordinatorError:
        raise ZooKeeperError(Code.BAD_ARGUMENTS) from None


def _addresses(member: Member) -> set[tuple[str, int]]:
    """Returns the addresses that no other server may have."""
    host = member.host.lower()
    addresses = {(host, member.quorum_port), (host, member.election_port)}
    if member.client:
        addresses.add(split_client(member.client.lower()))
    return {address for address in addresses if not is_local_everywhere(address[0])}
