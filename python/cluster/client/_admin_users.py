"""`AdminClient`'s operations on users' SCRAM credentials, and their types in confluent-kafka's shape.

The functions run in the calling thread. The password is salted here, so that it is never sent.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import total_ordering
from typing import Any

from ._errors import KafkaException, failure_of
from ._requests import Requests, ask_controller

_SALT_BYTES = 32


@total_ordering
class ScramMechanism(Enum):
    """A SCRAM mechanism (RFC 5802, RFC 7677)."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    def __lt__(self, other: object) -> bool:
        return self.value < other.value if isinstance(other, ScramMechanism) else NotImplemented


@dataclass(unsafe_hash=True)
class ScramCredentialInfo:
    """A credential's mechanism and its number of iterations."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(unsafe_hash=True)
class UserScramCredentialsDescription:
    """The credentials of a user, without their secrets."""

    user: str
    scram_credential_infos: list[ScramCredentialInfo] = field(hash=False)


@dataclass(unsafe_hash=True)
class UserScramCredentialAlteration:
    """A change of a user's credentials."""

    user: str


@dataclass(unsafe_hash=True)
class UserScramCredentialUpsertion(UserScramCredentialAlteration):
    """Sets a credential. Without `salt` a random one is taken."""

    scram_credential_info: ScramCredentialInfo
    password: bytes = field(repr=False)
    salt: bytes | None = None


@dataclass(unsafe_hash=True)
class UserScramCredentialDeletion(UserScramCredentialAlteration):
    """Removes a credential."""

    mechanism: ScramMechanism


def describe_scram(
    requests: Requests, users: list[str] | None, timeout: float
) -> dict[str, UserScramCredentialsDescription | KafkaException]:
    """The credentials of these users, or of all."""
    message = {"users": None if users is None else [{"name": user} for user in users]}
    response = requests.send_until("DescribeUserScramCredentials", message, timeout=timeout)
    if failure := failure_of(response):
        raise failure
    return {
        result["user"]: failure_of(result)
        or UserScramCredentialsDescription(
            result["user"],
            [
                ScramCredentialInfo(ScramMechanism(info["mechanism"]), info["iterations"])
                for info in result["credential_infos"]
            ],
        )
        for result in response["results"]
    }


def alter_scram(
    requests: Requests, alterations: list[UserScramCredentialAlteration], timeout: float
) -> dict[str, KafkaException | None]:
    """Sets and removes credentials; the failure of each user, or None."""
    message: dict[str, list[dict[str, Any]]] = {"deletions": [], "upsertions": []}
    for one in alterations:
        if isinstance(one, UserScramCredentialDeletion):
            message["deletions"].append({"name": one.user, "mechanism": one.mechanism.value})
        elif isinstance(one, UserScramCredentialUpsertion):
            message["upsertions"].append(_salted(one))
        else:
            raise TypeError(f"expected an upsertion or a deletion, not {one!r}")

    def codes(response: dict[str, Any]) -> Iterable[int]:
        return [result["error_code"] for result in response["results"]]

    response = ask_controller(requests, "AlterUserScramCredentials", message, codes, timeout)
    return {result["user"]: failure_of(result) for result in response["results"]}


def _salted(one: UserScramCredentialUpsertion) -> dict[str, Any]:
    info = one.scram_credential_info
    algorithm = "sha256" if info.mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
    salt = one.salt or secrets.token_bytes(_SALT_BYTES)
    return {
        "name": one.user,
        "mechanism": info.mechanism.value,
        "iterations": info.iterations,
        "salt": salt,
        "salted_password": hashlib.pbkdf2_hmac(algorithm, one.password, salt, info.iterations),
    }
