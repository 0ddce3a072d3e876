"""Errors of the coordinator.

Owns ZooKeeper's error codes (the numbers of ``org.apache.zookeeper.KeeperException.Code``) and the three
exceptions of this package. A :class:`ZooKeeperError` is an answer to a request, a :class:`JuteError` are bytes
that are no request, a :class:`CoordinatorError` stops the server. Pure; imported by every module here.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path


class Code(IntEnum):
    """ZooKeeper's error codes, as they travel in a reply header."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    UNKNOWN_SESSION = -12
    NEW_CONFIG_NO_QUORUM = -13
    RECONFIG_IN_PROGRESS = -14
    API_ERROR = -100
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_CALLBACK = -113
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    EPHEMERAL_ON_LOCAL_SESSION = -120
    NO_WATCHER = -121
    REQUEST_TIMEOUT = -122
    RECONFIG_DISABLED = -123
    SESSION_CLOSED_REQUIRE_AUTH = -124
    QUOTA_EXCEEDED = -125
    THROTTLED_OP = -127


class ZooKeeperError(Exception):
    """A request is refused; ``code`` goes into the header of its reply."""

    def __init__(self, code: Code, path: str | None = "") -> None:
        super().__init__(f"{code.name} {path or ''}".rstrip())
        self.code = code
        self.path = path


class JuteError(Exception):
    """Bytes of a client that are no request. In a frame's header, a handshake or credentials they cost the
    connection, elsewhere the request: MarshallingError."""


class MissingValueError(JuteError):
    """A null where its request needs a value. ZooKeeper finds out at another place than about other errors,
    so that it costs no transaction id."""


class AnswerTooLargeError(Exception):
    """What a client asked for is more than it may have at once."""


class CoordinatorError(OSError):
    """The coordinator cannot start or cannot go on; the text says what happened, where, and what to do.

    An OSError, for directories, ports and disks are what it is about.
    """


class DataDirectoryError(CoordinatorError):
    """The coordinator cannot have its data where it is to be: ZooKeeper's exit status 3."""

    @classmethod
    def of(cls, directory: Path, error: OSError) -> DataDirectoryError:
        """For a data directory that cannot be made or written to."""
        told = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        return cls(
            f"cannot use the coordinator's data directory {directory}: {told}; mend that, or name another one"
        )


class DiskFullError(CoordinatorError):
    """There was no room for what was to be written. The log is whole, may hold some of it, and takes the same again."""
