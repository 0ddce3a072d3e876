"""Who a client is: its address, its certificate, and what it has logged in as.

Owns the identities of one connection, and the state of its SASL login. A change makes a new
:class:`.state.acl.Subject`; a request that waits keeps the one with which it was sent. Runs on the event
loop.
"""

from __future__ import annotations

import logging

from .protocol.jute import IDENTITIES_BYTES_MAX, Id, Writer
from .protocol.requests import Auth
from .protocol.sasl import DigestMd5, SaslError
from .settings.server import Settings
from .state.acl import Subject, address_identity

_logger = logging.getLogger(__name__)


class TooManyIdentitiesError(Exception):
    """The identities of one connection would take more than :data:`.protocol.jute.IDENTITIES_BYTES_MAX`."""


class ClientIdentity:
    """The identities of the client at one address."""

    def __init__(self, settings: Settings, address: str) -> None:
        self._settings = settings
        self._address = address
        self._certificate: bytes | None = None
        self._login: DigestMd5 | None = None
        self.subject = Subject((address_identity(address),), settings.rules)

    @property
    def may_proceed(self) -> bool:
        """Whether the client may send requests other than logins."""
        return self._settings.authentication.lets_in(self.subject.identities)

    def add_certificate(self, certificate: bytes) -> None:
        """Adds the identities of a certificate in DER. Raises ValueError, TooManyIdentitiesError."""
        self._certificate = certificate
        self._add(self._settings.authentication.certificate_identities(certificate))

    def authenticate(self, request: Auth) -> bool:
        """Adds the identities of credentials.

        Returns False if they are not valid, or there is no such scheme.
        """
        settings = self._settings
        try:
            added = settings.authentication.identities(
                request.scheme, request.credentials, self._address, self._certificate, settings.super_digest
            )
            self._add(added)
        except (ValueError, TooManyIdentitiesError):
            return False
        except Exception:  # as in ZooKeeper, whatever an authentication scheme raises
            _logger.exception("the credentials of %s in scheme %r failed", self._address, request.scheme)
            return False
        return bool(added)

    def log_in(self, token: bytes) -> bytes | None:
        """Takes the next step of a SASL login, and returns the server's token. Raises SaslError.

        Without a configured login it does nothing, as ``ZooKeeperServer.processSasl``.
        """
        authentication = self._settings.authentication
        if authentication.login is None:
            return None
        self._login = self._login or DigestMd5(authentication.login)
        answer = self._login.answer(token)
        if self._login.user is not None:
            try:
                self._add(authentication.sasl_identities(self._login.user))
            except TooManyIdentitiesError as error:
                raise SaslError(str(error)) from None
        return answer

    def _add(self, added: tuple[Id, ...]) -> None:
        identities = tuple(dict.fromkeys((*self.subject.identities, *added)))
        if len(Writer().ids(identities).out) > IDENTITIES_BYTES_MAX:
            raise TooManyIdentitiesError(f"its identities take more than {IDENTITIES_BYTES_MAX} bytes")
        self.subject = Subject(identities, self.subject.rules)
