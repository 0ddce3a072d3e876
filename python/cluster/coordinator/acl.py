"""Access control: what the identities of a client may do to a znode.

Owns the schemes ``world``, ``auth``, ``digest`` and ``ip`` and ZooKeeper's checks on them
(``ZooKeeperServer.checkACL``, ``PrepRequestProcessor.fixupACL``). Pure functions over values; other schemes
are refused with InvalidACL, as by a ZooKeeper server without their provider.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence

from .errors import Code, ZooKeeperError
from .jute import Acl, Id

READ = 1
WRITE = 2
CREATE = 4
DELETE = 8
ADMIN = 16
ALL = 31

ANYONE = Id("world", "anyone")
OPEN = (Acl(ALL, ANYONE),)
"""Everything to everybody: ``ZooDefs.Ids.OPEN_ACL_UNSAFE``."""


def digest_identity(credentials: bytes) -> Id | None:
    """The identity of ``user:password``, as DigestAuthenticationProvider makes it; None without a colon."""
    user, colon, _password = credentials.partition(b":")
    if not colon:
        return None
    hashed = base64.b64encode(hashlib.sha1(credentials, usedforsecurity=False).digest()).decode("ascii")
    return Id("digest", f"{user.decode('utf-8', 'replace')}:{hashed}")


def allowed(acl: Sequence[Acl], permission: int, identities: Iterable[Id]) -> bool:
    """Whether ``identities`` have any bit of ``permission`` under ``acl``. No ACL allows everything."""
    if not acl:
        return True
    identities = tuple(identities)
    for entry in acl:
        if entry.perms & permission == 0:
            continue
        if entry.id == ANYONE:
            return True
        for identity in identities:
            if identity.scheme == entry.id.scheme and _matches(identity, entry.id.id):
                return True
    return False


def check(acl: Sequence[Acl], permission: int, identities: Iterable[Id], path: str) -> None:
    """Raises NoAuth unless :func:`allowed`."""
    if not allowed(acl, permission, identities):
        raise ZooKeeperError(Code.NO_AUTH, path)


def resolve(acl: Sequence[Acl], identities: Sequence[Id], path: str) -> tuple[Acl, ...]:
    """The ACL to store for a requested one: duplicates dropped, ``auth`` replaced by the creator's
    identities.

    Raises InvalidACL when it is empty, names an unknown scheme or an id its scheme does not have.
    """
    resolved: dict[Acl, None] = {}
    for entry in acl:
        scheme, name = entry.id
        if entry.id == ANYONE:
            resolved[entry] = None
        elif scheme == "auth":
            own = [identity for identity in identities if identity.scheme == "digest"]
            if not own:
                raise ZooKeeperError(Code.INVALID_ACL, path)
            for identity in own:
                resolved[Acl(entry.perms, identity)] = None
        elif (scheme == "digest" and name.count(":") == 1) or (scheme == "ip" and _network(name) is not None):
            resolved[entry] = None
        else:
            raise ZooKeeperError(Code.INVALID_ACL, path)
    if not resolved:
        raise ZooKeeperError(Code.INVALID_ACL, path)
    return tuple(resolved)


def without_digests(acl: Sequence[Acl]) -> list[Acl]:
    """The ACL as one without ADMIN sees it: password hashes replaced by ``x``."""
    return [
        Acl(entry.perms, Id("digest", f"{entry.id.id.partition(':')[0]}:x"))
        if entry.id.scheme == "digest"
        else entry
        for entry in acl
    ]


def _matches(identity: Id, pattern: str) -> bool:
    if identity.scheme != "ip":
        return identity.id == pattern
    network = _network(pattern)
    try:
        return network is not None and ipaddress.ip_address(identity.id) in network
    except ValueError:
        return False


def _network(pattern: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None
