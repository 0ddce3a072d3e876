"""SASL with DIGEST-MD5: the server's side of a login, as Java's ``DigestMD5Server`` in ``ZooKeeperSaslServer``.

Owns one login's steps (RFC 2831, ``auth`` only): an empty token is answered with a challenge, the client's response
to it with a proof that the server knows the password, too. Pure but for the nonce. A token that is wrong ends the login;
there is no second try on a connection.

Both sides of a login are computed from the password itself, which therefore is in the file of the server's users
(:mod:`.jaas`).
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
"""What ZooKeeper's servers and clients call the host, wherever they are."""
TOKEN_BYTES_MAX = 4096
"""RFC 2831, 2.1.2."""
_NONCE_BYTES = 30
_DIRECTIVE = re.compile(rb'\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))\s*(?:,|$)', re.DOTALL)


class SaslError(Exception):
    """A login that failed."""


@dataclass(frozen=True)
class Login:
    """Names and passwords of those who may log in."""

    passwords: Mapping[str, str] = field(repr=False)


class _Step(enum.Enum):
    BEGINNING = enum.auto()
    CHALLENGED = enum.auto()
    OVER = enum.auto()


class DigestMd5:
    """One login. ``user`` is who it is, once it succeeded."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._step = _Step.BEGINNING
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES).encode("ascii")
        self.user: str | None = None

    def answer(self, token: bytes) -> bytes:
        """The next token for the client. Raises SaslError."""
        step, self._step = self._step, _Step.OVER
        if step is _Step.OVER:
            raise SaslError("the login is over")
        if len(token) > TOKEN_BYTES_MAX:
            raise SaslError(f"a token of {len(token)} bytes, at most {TOKEN_BYTES_MAX} are taken")
        if step is _Step.BEGINNING:
            if token:
                raise SaslError("a response before there was a challenge")
            self._step = _Step.CHALLENGED
            return b'realm="%s",nonce="%s",charset=utf-8,algorithm=md5-sess' % (REALM.encode(), self._nonce)
        return self._verify(_directives(token))

    def _verify(self, said: Mapping[str, bytes]) -> bytes:
        for name in ("username", "nonce", "cnonce", "nc", "response"):
            if not said.get(name):
                raise SaslError(f"the response has no {name}")
        uri = said.get("digest-uri", b"")
        if uri.lower() != f"{SERVICE}/{REALM}".encode():
            raise SaslError(f"the response is for {_shown(uri)}, not for {SERVICE}/{REALM}")
        if said.get("qop", b"auth") != b"auth":
            raise SaslError(f"the protection {_shown(said['qop'])} was not offered")
        if said.get("charset", b"utf-8").lower() != b"utf-8":
            raise SaslError(f"the character set {_shown(said['charset'])} was not offered")
        if not hmac.compare_digest(said["nonce"], self._nonce) or said["nc"] != b"00000001":
            raise SaslError("the response is to another challenge")
        encoding = "utf-8" if "charset" in said else "latin-1"
        user = said["username"].decode(encoding, "replace")
        password = self._login.passwords.get(user)
        if password is None:
            raise SaslError(f"there is no user {user!r}")
        if said.get("realm", REALM.encode()) != REALM.encode():
            raise SaslError(f"the realm {_shown(said['realm'])} was not offered")
        clients, servers = proofs(user, REALM, password, said)
        if not hmac.compare_digest(said["response"].lower(), clients):
            raise SaslError(f"the password of {user!r} is wrong")
        self.user = user
        return b"rspauth=" + servers


def proofs(user: str, realm: str, password: str, said: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """The client's response and the server's ``rspauth`` (RFC 2831, 2.1.2.1 and 2.1.3), given the other directives."""
    secret = _secret(user, realm, password, said)
    uri = said["digest-uri"]
    return _response(secret, b"AUTHENTICATE:" + uri, said), _response(secret, b":" + uri, said)


def _secret(user: str, realm: str, password: str, said: Mapping[str, bytes]) -> bytes:
    """HEX(H(A1))."""
    known = _md5(b":".join(map(_encoded, (user, realm, password)))).digest()
    parts = [known, said["nonce"], said["cnonce"]]
    if said.get("authzid"):
        parts.append(said["authzid"])
    return _md5(b":".join(parts)).hexdigest().encode("ascii")


def _response(secret: bytes, of: bytes, said: Mapping[str, bytes]) -> bytes:
    """HEX(KD(HEX(H(A1)), nonce:nc:cnonce:qop:HEX(H(A2))))."""
    hashed = _md5(of).hexdigest().encode("ascii")
    parts = (secret, said["nonce"], said["nc"], said["cnonce"], said.get("qop", b"auth"), hashed)
    return _md5(b":".join(parts)).hexdigest().encode("ascii")


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)


def _encoded(text: str) -> bytes:
    """What fits into ISO 8859-1 is hashed in it."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8")


def _directives(token: bytes) -> dict[str, bytes]:
    """``name=value`` or ``name="value"``, with commas between. Raises SaslError."""
    found: dict[str, bytes] = {}
    position = 0
    while position < len(token):
        match = _DIRECTIVE.match(token, position)
        if match is None:
            raise SaslError("the response is no list of directives")
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
