"""Access control: the permissions that a client's identities have on a znode.

Owns the schemes ``world``, ``auth``, ``digest``, ``ip``, ``sasl``, ``x509`` and ``super``, and ZooKeeper's
checks on them (``ZooKeeperServer.checkACL``, ``PrepRequestProcessor.fixupACL``, the providers in
``org.apache.zookeeper.server.auth``). Pure.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache
from typing import NamedTuple

from cluster.x509 import is_name

from ..errors import Code, ZooKeeperError
from ..protocol.jute import OPEN_ACL, Acl, Id

READ = 1
WRITE = 2
CREATE = 4
DELETE = 8
ADMIN = 16
ALL = 31

ANYONE = OPEN_ACL.id
OPEN = (OPEN_ACL,)
"""All permissions for every client: ``ZooDefs.Ids.OPEN_ACL_UNSAFE``."""
READ_ONLY = (Acl(READ, ANYONE),)
SUPER = Id("super", "")
"""The identity of a super user. It has all permissions."""
SASL_SUPER = "super"
"""A SASL user of this name has every identity of the scheme ``sasl`` (SASLAuthenticationProvider)."""

AUTH_BYTES_MAX = 1 << 20
"""The most bytes that ``auth`` in one ACL may stand for.

Each ``auth`` is replaced by all of the creator's identities.
"""
_ACL_BYTES = 64
"""About the bytes of an entry besides its id."""

_NETWORK_LETTERS = 128
"""The most letters of an address and its prefix, with leading zeros and signs.

Longer texts are neither parsed nor cached.
"""
_DECIMAL = re.compile(r"[+-]?[0-9]{1,10}")
_HEXADECIMAL_GROUP = re.compile(r"[0-9a-fA-F]{1,4}")
# A Kerberos name as KerberosName reads it: primary@realm or primary/instance@realm. Without @ all of it is
# the primary.
_PRINCIPAL = re.compile(r"[^/@]*(/[^/@]*)?@[^/@]*|[^@]*")


class Rules(IntFlag):
    """The settings that decide what a write does. They are part of the logged command, so that it has the
    same effect on every server, and after every restart."""

    NONE = 0
    EXTENDED_TYPES = 1
    """Nodes with a TTL may be created (``zookeeper.extendedTypesEnabled``)."""
    ENFORCE_QUOTA = 2
    """Hard limits of quotas are enforced (``zookeeper.enforceQuota``)."""
    SKIP_ACL = 4
    """ACLs are ignored (``zookeeper.skipACL``)."""
    SASL = 8
    """ACLs may name the scheme ``sasl``."""
    X509 = 16
    """ACLs may name the scheme ``x509``."""
    ONE_VOTER = 32
    """An ensemble may have a single participant (``standaloneEnabled`` is false)."""
    NO_DIGEST = 64
    """The scheme ``digest`` is off (``DigestAuthenticationProvider.enabled`` is false)."""
    ALL = 127


_RULES = tuple(Rules(bits) for bits in range(Rules.ALL + 1))


def rules_of(bits: int) -> Rules:
    """Returns the rules with these bits. Unknown bits are ignored."""
    # To look a flag up is faster than to make it, and every transaction has one.
    return _RULES[bits & len(_RULES) - 1]


_NEEDED = {"sasl": Rules.SASL, "x509": Rules.X509}


class _Names(NamedTuple):
    """A client's identities, prepared for checks."""

    own: frozenset[Id]
    is_super: bool
    is_sasl_super: bool
    addresses: tuple[str, ...]

    @classmethod
    def of(cls, identities: tuple[Id, ...]) -> _Names:
        own = frozenset(identities)
        return cls(
            own,
            any(each.scheme == "super" for each in own),
            Id("sasl", SASL_SUPER) in own,
            tuple(each.id for each in own if each.scheme == "ip"),
        )

    def have(self, wanted: Id, rules: Rules) -> bool:
        """Whether one of them matches an ACL's entry."""
        if wanted == ANYONE:
            return True
        scheme, name = wanted
        needed = _NEEDED.get(scheme)
        if needed is not None and not rules & needed:
            return False
        if scheme == "ip":
            return any(_is_in(address, name) for address in self.addresses)
        if wanted in self.own:
            return scheme != "digest" or not rules & Rules.NO_DIGEST
        return scheme == "sasl" and self.is_sasl_super


class Subject:
    """The identities that ask, and the rules. One that ``remembers`` checks each ACL once. It keeps the ACLs
    in memory, so it is for one request only."""

    __slots__ = ("_names", "_verdicts", "identities", "rules")

    def __init__(
        self, identities: tuple[Id, ...], rules: Rules = Rules.NONE, remembers: bool = False
    ) -> None:
        self.identities = identities
        self.rules = rules
        # Most ACLs are open, so the identities are prepared when they are first needed.
        self._names: _Names | None = None
        self._verdicts: dict[tuple[int, int], tuple[Sequence[Acl], bool]] | None = {} if remembers else None

    def remembering(self) -> Subject:
        """Returns the same subject, for one request."""
        return Subject(self.identities, self.rules, remembers=True)

    def may(self, permission: int, acl: Sequence[Acl]) -> bool:
        """Whether it has any bit of ``permission``. An empty ACL allows everything."""
        if acl is OPEN or not acl or self.rules & Rules.SKIP_ACL:
            return True
        if self._verdicts is None:
            return self._is_granted(permission, acl)
        asked = id(acl), permission
        if (known := self._verdicts.get(asked)) is None:
            # The ACL itself is kept, so that no other object gets its id.
            known = self._verdicts[asked] = acl, self._is_granted(permission, acl)
        return known[1]

    def _is_granted(self, permission: int, acl: Sequence[Acl]) -> bool:
        names = self._names = self._names or _Names.of(self.identities)
        return names.is_super or any(
            perms & permission and names.have(wanted, self.rules) for perms, wanted in acl
        )

    def check(self, permission: int, acl: Sequence[Acl], path: str | None) -> None:
        """Raises NoAuth if it :meth:`may` not."""
        if not self.may(permission, acl):
            raise ZooKeeperError(Code.NO_AUTH, path)


def digest_identity(credentials: bytes, algorithm: str = "sha1") -> Id:
    """Returns the identity of ``user:password``, as DigestAuthenticationProvider does. Without a colon all of
    it is the name.

    ``algorithm`` is hashlib's name.
    """
    text = credentials.decode("utf-8", "replace")
    hashed = hashlib.new(algorithm, text.encode("utf-8"), usedforsecurity=False).digest()
    return Id("digest", f"{text.partition(':')[0]}:{base64.b64encode(hashed).decode('ascii')}")


def address_identity(address: str) -> Id:
    """Returns the identity of a peer's address, written as in Java: IPv6 has eight groups."""
    host, percent, scope = address.partition("%")
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return Id("ip", address)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return Id("ip", str(parsed.ipv4_mapped))
        groups = (f"{int(group, 16):x}" for group in parsed.exploded.split(":"))
        return Id("ip", ":".join(groups) + percent + scope)
    return Id("ip", host)


def resolve(acl: Sequence[Acl], subject: Subject, path: str | None) -> tuple[Acl, ...]:
    """Returns the ACL to store for a requested one: without duplicates, and with the creator's identities for
    ``auth``.

    Raises InvalidACL if it is empty, has an unknown scheme or an id that its scheme does not allow, or if
    ``auth`` stands for more than :data:`AUTH_BYTES_MAX`.
    """
    if len(acl) == 1 and acl[0] is OPEN_ACL:
        return OPEN
    resolved: list[Acl] = []
    own = [identity for identity in subject.identities if _authenticated(identity, subject.rules)]
    own_bytes = sum(_ACL_BYTES + len(identity.id) for identity in own)
    left = AUTH_BYTES_MAX
    for entry in dict.fromkeys(acl):
        if entry.id == ANYONE:
            resolved.append(entry)
        elif entry.id.scheme == "auth":
            left -= own_bytes
            if not own or left < 0:
                raise ZooKeeperError(Code.INVALID_ACL, path)
            resolved += [Acl(entry.perms, identity) for identity in own]
        elif _valid(entry.id, subject.rules):
            resolved.append(entry)
        else:
            raise ZooKeeperError(Code.INVALID_ACL, path)
    if not resolved:
        raise ZooKeeperError(Code.INVALID_ACL, path)
    return stored(resolved)


def stored(acl: Sequence[Acl]) -> tuple[Acl, ...]:
    """Returns the ACL for a node.

    An open one is :data:`OPEN`, one object for all nodes, which is recognised at once.
    """
    found = tuple(acl)
    return OPEN if found == OPEN else found


@dataclass(slots=True)
class _Counted:
    acl: tuple[Acl, ...]
    nodes: int


class SharedAcls:
    """The ACLs of all nodes, each once, however many nodes have it (``ReferenceCountedACLCache``).

    :data:`OPEN` is not counted.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Acl, ...], _Counted] = {}

    def __len__(self) -> int:
        return len(self._held)

    def same(self, acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
        """Returns the equal ACL of another node, if there is one."""
        held = None if acl is OPEN else self._held.get(acl)
        return acl if held is None else held.acl

    def add(self, acl: tuple[Acl, ...]) -> None:
        """Counts one more node that has it."""
        if acl is not OPEN:
            self._held.setdefault(acl, _Counted(acl, 0)).nodes += 1

    def release(self, acl: tuple[Acl, ...]) -> None:
        """Counts one node less."""
        if acl is not OPEN:
            held = self._held[acl]
            held.nodes -= 1
            if held.nodes == 0:
                del self._held[acl]


def without_digests(acl: Sequence[Acl]) -> list[Acl]:
    """Returns the ACL as a client without ADMIN sees it: with ``x`` instead of password hashes."""
    return [
        Acl(entry.perms, Id("digest", f"{entry.id.id.partition(':')[0]}:x"))
        if entry.id.scheme == "digest"
        else entry
        for entry in acl
    ]


def shown(identity: Id) -> Id:
    """Returns an identity as whoAmI shows it."""
    if identity.scheme == "digest":
        return Id("digest", identity.id.partition(":")[0])
    return identity


def _authenticated(identity: Id, rules: Rules) -> bool:
    """Whether an identity comes from a login, and not from an address."""
    if identity.scheme == "digest":
        return not rules & Rules.NO_DIGEST
    return identity.scheme in ("sasl", "x509")


def _valid(wanted: Id, rules: Rules) -> bool:
    if wanted.scheme == "digest":
        # Java's split drops empty parts at the end.
        return not rules & Rules.NO_DIGEST and len(wanted.id.rstrip(":").split(":")) == 2
    if wanted.scheme == "ip":
        return _network(wanted.id) is not None
    if wanted.scheme == "sasl":
        return bool(rules & Rules.SASL) and _PRINCIPAL.fullmatch(wanted.id) is not None
    if wanted.scheme == "x509":
        return bool(rules & Rules.X509) and is_name(wanted.id)
    return False


def _is_in(address: str, wanted: str) -> bool:
    """Whether an address equals the address of an ACL's entry, or is in its network."""
    network = _network(wanted)
    own = _address(address)
    if network is None or own is None or len(own) != len(network[0]):
        return False
    kept = len(own) * 8 - network[1]
    return int.from_bytes(own, "big") >> kept == int.from_bytes(network[0], "big") >> kept


def _network(wanted: str) -> tuple[bytes, int] | None:
    """Returns the address and the prefix of ``address`` or ``address/bits`` (IPAuthenticationProvider)."""
    return _parsed_network(wanted) if len(wanted) <= _NETWORK_LETTERS else None


def _address(text: str) -> bytes | None:
    return _parsed_address(text) if len(text) <= _NETWORK_LETTERS else None


@lru_cache(maxsize=1024)
def _parsed_network(wanted: str) -> tuple[bytes, int] | None:
    text, slash, bits = wanted.partition("/")
    address = _address(text)
    if address is None:
        return None
    if not slash:
        return address, len(address) * 8
    if _DECIMAL.fullmatch(bits) is None or not 0 <= int(bits) <= len(address) * 8:
        return None
    return address, int(bits)


@lru_cache(maxsize=1024)
def _parsed_address(text: str) -> bytes | None:
    if ":" in text:
        return _ipv6(text)
    parts = text.split(".")
    if len(parts) != 4 or any(_DECIMAL.fullmatch(part) is None for part in parts):
        return None
    numbers = [int(part) for part in parts]
    return bytes(numbers) if all(0 <= number <= 255 for number in numbers) else None


def _ipv6(text: str) -> bytes | None:
    head, gap, tail = text.partition("::")
    groups = [part.split(":") if part else [] for part in (head, tail)]
    missing = 8 - len(groups[0]) - len(groups[1])
    if (missing < 1 if gap else missing != 0) or any(
        _HEXADECIMAL_GROUP.fullmatch(group) is None for part in groups for group in part
    ):
        return None
    whole = groups[0] + ["0"] * missing + groups[1]
    return b"".join(int(group, 16).to_bytes(2, "big") for group in whole)
