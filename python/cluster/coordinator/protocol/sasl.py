"""SASL with DIGEST-MD5: the server's side of a login, as Java's ``DigestMD5Server`` in
``ZooKeeperSaslServer``.

Owns the steps of one login (RFC 2831, ``auth`` only). The answer to an empty token is a challenge. The answer
to the client's response proves that the server knows the password, too. A wrong token ends the login, and
there is no second one on a connection. Pure, except for the nonce.

Both sides compute from the password itself, so the file of the server's users has the passwords
(:mod:`cluster.coordinator.settings.jaas`).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

SERVICE = "zookeeper"
REALM = "zk-sasl-md5"
"""The host's name in every ZooKeeper server and client."""
TOKEN_BYTES_MAX = 4096
"""RFC 2831, 2.1.2."""
_NONCE_BYTES = 30
_DIRECTIVE = re.compile(rb'\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))\s*(?:,|$)', re.DOTALL)


class SaslError(Exception):
    """A login that failed."""


@dataclass(frozen=True)
class Login:
    """The users' names and passwords."""

    passwords: Mapping[str, str] = field(repr=False)


class _Step(enum.Enum):
    BEGINNING = enum.auto()
    CHALLENGED = enum.auto()
    OVER = enum.auto()


class DigestMd5:
    """One login. ``user`` is the user's name once it has succeeded."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._step = _Step.BEGINNING
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES).encode("ascii")
        self.user: str | None = None

    def answer(self, token: bytes) -> bytes:
        """Returns the next token for the client. Raises SaslError."""
        step, self._step = self._step, _Step.OVER
        if step is _Step.OVER:
            raise SaslError("the login is over")
        if len(token) > TOKEN_BYTES_MAX:
            raise SaslError(f"the token has {len(token)} bytes, and at most {TOKEN_BYTES_MAX} are allowed")
        if step is _Step.BEGINNING:
            if token:
                raise SaslError("the response came before the challenge")
            self._step = _Step.CHALLENGED
            return b'realm="%s",nonce="%s",charset=utf-8,algorithm=md5-sess' % (REALM.encode(), self._nonce)
        return self._verify(_directives(token))

    def _verify(self, directives: Mapping[str, bytes]) -> bytes:
        for name in ("username", "nonce", "cnonce", "nc", "response"):
            if not directives.get(name):
                raise SaslError(f"the response has no {name}")
        uri = directives.get("digest-uri", b"")
        if uri.lower() != f"{SERVICE}/{REALM}".encode():
            raise SaslError(f"the response is for {_shown(uri)}, not for {SERVICE}/{REALM}")
        if directives.get("qop", b"auth") != b"auth":
            raise SaslError(f"the protection {_shown(directives['qop'])} was not offered")
        if directives.get("charset", b"utf-8").lower() != b"utf-8":
            raise SaslError(f"the character set {_shown(directives['charset'])} was not offered")
        if not hmac.compare_digest(directives["nonce"], self._nonce) or directives["nc"] != b"00000001":
            raise SaslError("the response is to another challenge")
        encoding = "utf-8" if "charset" in directives else "latin-1"
        user = directives["username"].decode(encoding, "replace")
        password = self._login.passwords.get(user)
        if password is None:
            raise SaslError(f"there is no user {user!r}")
        if directives.get("realm", REALM.encode()) != REALM.encode():
            raise SaslError(f"the realm {_shown(directives['realm'])} was not offered")
        clients, servers = proofs(user, REALM, password, directives)
        if not hmac.compare_digest(directives["response"].lower(), clients):
            raise SaslError(f"the password of {user!r} is wrong")
        self.user = user
        return b"rspauth=" + servers


def proofs(user: str, realm: str, password: str, directives: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """Returns the client's response and the server's ``rspauth`` (RFC 2831, 2.1.2.1 and 2.1.3) for the
    other directives."""
    secret = _secret(user, realm, password, directives)
    uri = directives["digest-uri"]
    return _response(secret, b"AUTHENTICATE:" + uri, directives), _response(secret, b":" + uri, directives)


def _secret(user: str, realm: str, password: str, directives: Mapping[str, bytes]) -> bytes:
    """HEX(H(A1))."""
    known = _md5(b":".join(map(_encoded, (user, realm, password)))).digest()
    parts = [known, directives["nonce"], directives["cnonce"]]
    if directives.get("authzid"):
        parts.append(directives["authzid"])
    return _md5(b":".join(parts)).hexdigest().encode("ascii")


def _response(secret: bytes, of: bytes, directives: Mapping[str, bytes]) -> bytes:
    """HEX(KD(HEX(H(A1)), nonce:nc:cnonce:qop:HEX(H(A2))))."""
    hashed = _md5(of).hexdigest().encode("ascii")
    parts = (
        secret,
        directives["nonce"],
        directives["nc"],
        directives["cnonce"],
        directives.get("qop", b"auth"),
        hashed,
    )
    return _md5(b":".join(parts)).hexdigest().encode("ascii")


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)


def _encoded(text: str) -> bytes:
    """Text that ISO 8859-1 can encode is hashed in that encoding."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")


def _directives(token: bytes) -> dict[str, bytes]:
    """Parses ``name=value`` or ``name="value"`` with commas between. Raises SaslError."""
    found: dict[str, bytes] = {}
    position = 0
    while position < len(token):
        match = _DIRECTIVE.match(token, position)
        if match is None:
            raise SaslError("the response is not a list of directives")
        name = match[1].decode("ascii").lower()
        if name in found:
            raise SaslError(f"the response has {name} twice")
        found[name] = (
            re.sub(rb"\\(.)", rb"\1", match[2], flags=re.DOTALL) if match[2] is not None else match[3]
        )
        position = match.end()
    return found


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
