"""Who a client is: identities from passwords, addresses, certificates and SASL, and which of them it has to have.

Owns the schemes' providers (``org.apache.zookeeper.server.auth``), the settings that name super users, and those that
turn away who is nobody (``AuthenticationHelper``). The users of SASL are in a JAAS file (:mod:`.jaas`): Java is told of it
with ``-Djava.security.auth.login.config=FILE``, here the same name stands in `zoo.cfg`, or in ``SERVER_JVMFLAGS`` as for
`zkServer.sh` (:func:`.configuration.system_properties`). Its section is ``Server``, or what ``sasl.serverconfig`` says. Only
DIGEST-MD5 is there: a section for Kerberos is refused.

As in ZooKeeper an ACL can name ``sasl`` only where ``authProvider.N`` is its SASLAuthenticationProvider, and ``x509`` where
there is a secure port or its X509AuthenticationProvider. The scheme ``digest`` is there unless
``DigestAuthenticationProvider.enabled`` is false and no ``authProvider.N`` names it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from cluster.x509 import subject

from ..errors import CoordinatorError
from ..protocol.jute import Id
from ..protocol.sasl import Login
from ..state.acl import SUPER, Rules, address_identity, digest_identity
from . import jaas
from .values import Values

JAAS_FILE = "java.security.auth.login.config"
_PROVIDERS = "org.apache.zookeeper.server.auth."
_DIGEST_PROVIDER = _PROVIDERS + "DigestAuthenticationProvider"
_DIGEST_MODULE = _PROVIDERS + "DigestLoginModule"
_KERBEROS_MODULE = "Krb5LoginModule"
_SUPER_USER = re.compile(r"superUser(\..*)?", re.DOTALL)
_USER = "user_"
_PRINCIPAL = re.compile(r"([^/@]*)(/[^/@]*)?(@[^/@]*)")

_RULES = {
    _PROVIDERS + "SASLAuthenticationProvider": Rules.SASL,
    _PROVIDERS + "X509AuthenticationProvider": Rules.X509,
    _DIGEST_PROVIDER: Rules.NONE,
    _PROVIDERS + "IPAuthenticationProvider": Rules.NONE,
}

_ALGORITHMS = {
    "MD5": "md5",
    "SHA-1": "sha1",
    **{f"SHA-{bits}": f"sha{bits}" for bits in (224, 256, 384, 512)},
    **{f"SHA-512/{bits}": f"sha512_{bits}" for bits in (224, 256)},
    **{f"SHA3-{bits}": f"sha3_{bits}" for bits in (224, 256, 384, 512)},
}
"""Java's names of what hashes (``MessageDigest``), and hashlib's."""
_ALIASES = {"SHA": "sha1"} | {java.replace("SHA-", "SHA"): name for java, name in _ALGORITHMS.items()}


@dataclass(frozen=True)
class Authentication:
    """What is set about who clients are. ``digest_algorithm``: hashlib's name of what hashes passwords, None where there is no scheme
    ``digest``. ``x509_super_user``: the subject, and ``sasl_super_users``: the names, of those who may do everything. ``schemes``:
    every client has to have an identity of one of them, if there are any."""

    digest_algorithm: str | None = "sha1"
    x509_super_user: str = ""
    sasl_super_users: frozenset[str] = frozenset()
    login: Login | None = None
    allows_failed_sasl: bool = False
    removes_host: bool = False
    removes_realm: bool = False
    schemes: frozenset[str] = frozenset()

    def identities(
        self,
        scheme: str,
        credentials: bytes | None,
        address: str,
        certificate: bytes | None,
        super_digest: str,
    ) -> tuple[Id, ...]:
        """Who an auth request makes its client, nobody if it fails; ``super_digest`` is the digest identity, ``user:hash``, of
        who may do everything."""
        if scheme == "digest" and credentials is not None and self.digest_algorithm is not None:
            identity = digest_identity(credentials, self.digest_algorithm)
            return (SUPER, identity) if identity.id == super_digest else (identity,)
        if scheme == "ip":
            return (address_identity(address),)
        if scheme == "x509" and certificate is not None:
            return self.certificate_identities(certificate)
        return ()

    def certificate_identities(self, certificate: bytes) -> tuple[Id, ...]:
        """Who a client is whose certificate, in DER, is trusted. Raises ValueError for what is none."""
        name = subject(certificate)
        identity = Id("x509", name)
        return (Id(SUPER.scheme, name), identity) if name == self.x509_super_user else (identity,)

    def sasl_identities(self, user: str) -> tuple[Id, ...]:
        """Who a client is that has logged in under a name."""
        found = _PRINCIPAL.fullmatch(user)
        name = user
        if found is not None:
            host, realm = found[2] or "", found[3] or ""
            name = found[1] + ("" if self.removes_host else host) + ("" if self.removes_realm else realm)
        identity = Id("sasl", name)
        return (identity, SUPER) if name in self.sasl_super_users else (identity,)

    @property
    def requires_sasl(self) -> bool:
        return "sasl" in self.schemes

    def lets_in(self, identities: tuple[Id, ...]) -> bool:
        """Whether who has these may ask for anything."""
        return not self.schemes or any(identity.scheme in self.schemes for identity in identities)


NOBODY = Authentication()
"""Nobody can log in, and nobody is a super user by certificate or SASL."""


def read_authentication(values: Values, has_tls: bool) -> tuple[Authentication, Rules]:
    """What is set, and which schemes ACLs may name. Raises CoordinatorError, which names the setting."""
    rules = _provider_rules(values)
    scheme = values.text("ssl.authProvider") or "x509"
    if has_tls:
        if scheme != "x509":
            raise CoordinatorError(
                f"ssl.authProvider is {scheme!r}, a class of Java's that is not here: leave the line out for x509"
            )
        rules |= Rules.X509
    algorithm = values.read("DigestAuthenticationProvider.digestAlg", "sha1", _algorithm)
    login = _login(values)
    authentication = Authentication(
        digest_algorithm=None if rules & Rules.NO_DIGEST else algorithm,
        x509_super_user=values.text("X509AuthenticationProvider.superUser"),
        sasl_super_users=frozenset(
            user
            for name in tuple(values.texts)
            if _SUPER_USER.fullmatch(name) and (user := values.text(name))
        ),
        login=login,
        allows_failed_sasl=values.boolean("allowSaslFailedClients", False),
        removes_host=values.boolean("kerberos.removeHostFromPrincipal", False),
        removes_realm=values.boolean("kerberos.removeRealmFromPrincipal", False),
        schemes=_schemes(values, rules),
    )
    if authentication.requires_sasl and login is None:
        raise CoordinatorError(
            f"every client has to log in with SASL, and nobody could: name the file with the users, {JAAS_FILE}=FILE"
        )
    return authentication, rules


def _provider_rules(values: Values) -> Rules:
    providers = values.beginning("authProvider.")
    has_digest = values.boolean("DigestAuthenticationProvider.enabled", True)
    rules = Rules.NONE if has_digest or _DIGEST_PROVIDER in providers.values() else Rules.NO_DIGEST
    for name, provider in providers.items():
        if provider not in _RULES:
            raise CoordinatorError(
                f"{name} is {provider!r}, a class of Java's that is not here: there are "
                f"{', '.join(each.removeprefix(_PROVIDERS) for each in _RULES)} of {_PROVIDERS[:-1]}; leave the line out if no ACL names "
                "its scheme, which nobody would have"
            )
        rules |= _RULES[provider]
    return rules


def _algorithm(java: str) -> str:
    """hashlib's name of what Java calls so, in any case. Raises ValueError for what is not there."""
    name = (_ALGORITHMS | _ALIASES).get(java.upper())
    if name is None or name not in hashlib.algorithms_available:
        raise ValueError(f"one of {', '.join(_ALGORITHMS)}")
    return name


def _schemes(values: Values, rules: Rules) -> frozenset[str]:
    """The schemes of which a client has to have one (``sessionRequireClientSASLAuth``, ``enforce.auth``)."""
    requires_sasl = values.boolean("sessionRequireClientSASLAuth", False)
    enabled = values.boolean("enforce.auth.enabled", False)
    listed = [each.strip() for each in values.text("enforce.auth.schemes").split(",")]
    schemes = ["sasl"] if requires_sasl else [each for each in listed if each] if enabled else []
    if enabled and not schemes:
        raise CoordinatorError(
            "enforce.auth.enabled is true and enforce.auth.schemes is empty: name one of digest, ip, sasl, x509"
        )
    served = {"ip"} if rules & Rules.NO_DIGEST else {"digest", "ip"}
    served |= {name for name, rule in (("sasl", Rules.SASL), ("x509", Rules.X509)) if rules & rule}
    for scheme in schemes:
        if scheme not in served:
            raise CoordinatorError(
                f"every client has to have an identity of the scheme {scheme!r}, which is not there: name its provider, as in "
                f"authProvider.1={_PROVIDERS}SASLAuthenticationProvider for sasl"
            )
    return frozenset(schemes)


def _login(values: Values) -> Login | None:
    """Who may log in with SASL, or None when nobody can."""
    file = values.text(JAAS_FILE)
    section = values.text("sasl.serverconfig")
    super_password = values.text("SASLAuthenticationProvider.superPassword")
    if not file:
        if section:
            raise CoordinatorError(
                f"sasl.serverconfig is {section!r}, and no file is named: {JAAS_FILE}=FILE"
            )
        return None
    section = section or "Server"
    if values.boolean("fips-mode", False):
        raise CoordinatorError(
            f"fips-mode is true, which rules out DIGEST-MD5, and {JAAS_FILE} asks for it: leave one out"
        )
    try:
        sections = jaas.parse(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise CoordinatorError(f"{JAAS_FILE}={file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CoordinatorError(f"{JAAS_FILE}={file} is no login configuration: {error}") from None
    if section not in sections:
        raise CoordinatorError(
            f"{JAAS_FILE}={file} has no section {section}: it has {', '.join(sections) or 'none'}"
        )
    passwords: dict[str, str] = {}
    for module in sections[section]:
        if module.name != _DIGEST_MODULE:
            reason = (
                "Kerberos needs a library that is not here"
                if module.name.endswith(_KERBEROS_MODULE)
                else "it is not here"
            )
            raise CoordinatorError(
                f"section {section} of {file} names {module.name}, and {reason}: use {_DIGEST_MODULE} with a line "
                f'{_USER}NAME="password" for each user'
            )
        passwords |= {
            name.removeprefix(_USER): password
            for name, password in module.options.items()
            if name.startswith(_USER)
        }
    if super_password and "super" in passwords:
        passwords["super"] = super_password
    return Login(passwords)
