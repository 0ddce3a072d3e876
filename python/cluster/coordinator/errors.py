"""Errors of the coordinator.

Owns ZooKeeper's error codes (the numbers of ``org.apache.zookeeper.KeeperException.Code``) and the three
exceptions of this package. A :class:`ZooKeeperError` is an answer to a request, a :class:`JuteError` costs a
connection, a :class:`CoordinatorError` stops the server. Pure; imported by every module here.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """ZooKeeper's error codes, as they travel in a reply header."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121


class ZooKeeperError(Exception):
    """A request is refused; ``code`` goes into the header of its reply."""

    def __init__(self, code: Code, path: str = "") -> None:
        super().__init__(f"{code.name} {path}".rstrip())
        self.code = code
        self.path = path


class JuteError(Exception):
    """Bytes of a client that are no request: its connection is closed, nobody else notices."""


class CoordinatorError(OSError):
    """The coordinator cannot start or cannot go on; the text says what happened, where, and what to do.

    An OSError, for directories, ports and disks are what it is about.
    """
