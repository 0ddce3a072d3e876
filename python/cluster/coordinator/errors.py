"""The coordinator's errors.

Owns ZooKeeper's error codes (``org.apache.zookeeper.KeeperException.Code``) and this package's exceptions. A
:class:`ZooKeeperError` is the answer to a request. A :class:`JuteError` says that bytes are not a request. A
:class:`CoordinatorError` stops the server. Pure.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
"""A full disk, and a quota that is used up."""
UNUSABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
"""A path that is not a directory, or that this process may not write to."""


class Code(IntEnum):
    """ZooKeeper's error codes, as in a reply's header."""

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
    """A request is refused. ``code`` goes into the header of its reply."""

    def __init__(self, code: Code, path: str | None = "") -> None:
        super().__init__(f"{code.name} {path or ''}".rstrip())
        self.code = code
        self.path = path


class JuteError(Exception):
    """A client's bytes are not a request.

    In a frame's header, a handshake or credentials they end the connection. Elsewhere the request is answered
    MarshallingError.
    """


class MissingValueError(JuteError):
    """A null where the request needs a value. Such a request takes no transaction id, as in ZooKeeper."""


class AnswerTooLargeError(Exception):
    """The answer to a request is larger than one answer may be."""


class CoordinatorError(OSError):
    """The coordinator cannot start or cannot go on. The text says what happened, where, and what to do.

    It is an OSError because its causes are directories, ports and disks.
    """


class DataDirectoryError(CoordinatorError):
    """A data directory cannot be used: ZooKeeper's exit status 3."""

    @classmethod
    def of(cls, directory: Path, error: OSError) -> DataDirectoryError:
        """For a data directory that cannot be made or written to."""
        reason = error.strerror
        if isinstance(error, FileExistsError):
            is_link = directory.is_symlink()
            reason = (
                f"it is a link to {directory.readlink()}, which is not there" if is_link else "it is a file"
            )
        return cls(
            f"cannot use the coordinator's data directory {directory}: {reason}; correct that, or name "
            "another one"
        )


class DiskFullError(CoordinatorError):
    """The disk is full.

    The log is whole, may hold part of what was to be written, and takes the same records again.
    """


@contextlib.contextmanager
def directory_error(sentence: str) -> Iterator[None]:
    """Turns an OSError into a CoordinatorError: DiskFullError on a full disk, else DataDirectoryError."""
    try:
        yield
    except CoordinatorError:
        raise
    except OSError as error:
        kind = DiskFullError if error.errno in DISK_FULL_ERRNOS else DataDirectoryError
        raise kind(f"{sentence}: {error.strerror or error}") from error
