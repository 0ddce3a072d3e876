"""Authentication: the identities that passwords, addresses, certificates and SASL give a client, and those
that it needs.

Owns the schemes' providers (``org.apache.zookeeper.server.auth``), the settings that name super users, and
those that require a login (``AuthenticationHelper``). The SASL users are in a JAAS file (:mod:`.jaas`). Java
gets its name from ``-Djava.security.auth.login.config=FILE``. Here that name is a setting in `zoo.cfg`, or
stands in ``SERVER_JVMFLAGS`` as for `zkServer.sh`
(:func:`cluster.coordinator.configuration.system_properties`). The file's section is ``Server``, or the one
that ``sasl.serverconfig`` names. The only mechanism is DIGEST-MD5; a section for Kerberos is refused.

As in ZooKeeper, an ACL can name ``sasl`` only if an ``authProvider.N`` is SASLAuthenticationProvider, and
``x509`` only if there is a secure port or an X509AuthenticationProvider. The scheme ``digest`` is there
unless ``DigestAuthenticationProvider.enabled`` is false and no ``authProvider.N`` names it.
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
"""Java's names of hash algorithms (``MessageDigest``), and hashlib's."""
_ALIASES = {"SHA": "sha1"} | {java.replace("SHA-", "SHA"): name for java, name in _ALGORITHMS.items()}


@dataclass(frozen=True)
class Authentication:
    """The settings of authentication.

    ``digest_algorithm`` is hashlib's name, None without the scheme ``digest``. ``x509_super_user`` is the
    subject of a super user's certificate, ``sasl_super_users`` are names. With ``schemes`` every client needs
    an identity of one of them.
    """

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
        """Returns the identities of an auth request, none if it fails.

        ``super_digest`` is the super user's ``user:hash``.
        """
        if scheme == "digest" and credentials is not None and self.digest_algorithm is not None:
            identity = digest_identity(credentials, self.digest_algorithm)
            return (SUPER, identity) if identity.id == super_digest else (identity,)
        if scheme == "ip":
            return (address_identity(address),)
        if scheme == "x509" and certificate is not None:
            return self.certificate_identities(certificate)
        return ()

    def certificate_identities(self, certificate: bytes) -> tuple[Id, ...]:
        """Returns the identities of a trusted certificate in DER.

        Raises ValueError if it is not a certificate.
        """
        name = subject(certificate)
        identity = Id("x509", name)
        return (Id(SUPER.scheme, name), identity) if name == self.x509_super_user else (identity,)

    def sasl_identities(self, user: str) -> tuple[Id, ...]:
        """Returns the identities of a client that has logged in under a name."""
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
        """Whether a client with these identities may send other requests than logins."""
        return not self.schemes or any(identity.scheme in self.schemes for identity in identities)


NO_USERS = Authentication()
"""No SASL users, and no super users by certificate or SASL."""


def read_authentication(values: Values, has_tls: bool) -> tuple[Authentication, Rules]:
    """Returns the settings, and the schemes that ACLs may name.

    Raises CoordinatorError, which names the setting.
    """
    rules = _provider_rules(values)
    scheme = values.text("ssl.authProvider") or "x509"
    if has_tls:
        if scheme != "x509":
            raise CoordinatorError(
                f"ssl.authProvider is {scheme!r}, a Java class, which cannot be used here: leave the line "
                "out for x509"
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
            "every client has to log in with SASL, and there are no users: name the file that has them, "
            f"{JAAS_FILE}=FILE"
        )
    return authentication, rules


def _provider_rules(values: Values) -> Rules:
    providers = values.beginning("authProvider.")
    has_digest = values.boolean("DigestAuthenticationProvider.enabled", True)
    rules = Rules.NONE if has_digest or _DIGEST_PROVIDER in providers.values() else Rules.NO_DIGEST
    for name, provider in providers.items():
        if provider not in _RULES:
            raise CoordinatorError(
                f"{name} is {provider!r}, a Java class, which cannot be used here: there are "
                f"{', '.join(each.removeprefix(_PROVIDERS) for each in _RULES)} of {_PROVIDERS[:-1]}; leave "
                "the line out if no ACL names its scheme"
            )
        rules |= _RULES[provider]
    return rules


def _algorithm(java: str) -> str:
    """Returns hashlib's name for Java's, in any case. Raises ValueError for an unknown one."""
    name = (_ALGORITHMS | _ALIASES).get(java.upper())
    if name is None or name not in hashlib.algorithms_available:
        raise ValueError(f"one of {', '.join(_ALGORITHMS)}")
    return name


def _schemes(values: Values, rules: Rules) -> frozenset[str]:
    """Returns the schemes of which a client needs one (``sessionRequireClientSASLAuth``,
    ``enforce.auth``)."""
    requires_sasl = values.boolean("sessionRequireClientSASLAuth", False)
    enabled = values.boolean("enforce.auth.enabled", False)
    listed = [each.strip() for each in values.text("enforce.auth.schemes").split(",")]
    schemes = ["sasl"] if requires_sasl else [each for each in listed if each] if enabled else []
    if enabled and not schemes:
        raise CoordinatorError(
            "enforce.auth.enabled is true and enforce.auth.schemes is empty: name one of digest, ip, sasl, "
            "x509"
        )
    served = {"ip"} if rules & Rules.NO_DIGEST else {"digest", "ip"}
    served |= {name for name, rule in (("sasl", Rules.SASL), ("x509", Rules.X509)) if rules & rule}
    for scheme in schemes:
        if scheme not in served:
            raise CoordinatorError(
                f"every client needs an identity of the scheme {scheme!r}, which has no provider: name one, "
                f"as in authProvider.1={_PROVIDERS}SASLAuthenticationProvider for sasl"
            )
    return frozenset(schemes)


def _login(values: Values) -> Login | None:
    """Returns the SASL users, None if there are none."""
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
            f"fips-mode is true, which forbids DIGEST-MD5, and {JAAS_FILE} needs it: leave one of the two out"
        )
    try:
        sections = jaas.parse(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise CoordinatorError(f"{JAAS_FILE}={file} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CoordinatorError(f"{JAAS_FILE}={file} is not a login configuration: {error}") from None
    if section not in sections:
        raise CoordinatorError(
            f"{JAAS_FILE}={file} has no section {section}: it has {', '.join(sections) or 'none'}"
        )
    passwords: dict[str, str] = {}
    for module in sections[section]:
        if module.name != _DIGEST_MODULE:
            reason = (
                "Kerberos is not supported"
                if module.name.endswith(_KERBEROS_MODULE)
                else "it is not supported"
            )
            raise CoordinatorError(
                f"section {section} of {file} names {module.name}, and {reason}: use {_DIGEST_MODULE} with a "
                "line "
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
