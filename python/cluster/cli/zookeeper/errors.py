"""Errors with the messages and exit codes of zkCli (CliException, CliWrapperException, PathUtils)."""

from __future__ import annotations

import re

FAILED = 1
NOT_FOUND = 127

SYSTEM_ERROR = -1
CONNECTION_LOSS = -4
MARSHALLING_ERROR = -5
NEW_CONFIG_NO_QUORUM = -13
RECONFIG_IN_PROGRESS = -14
NO_NODE = -101
NODE_EXISTS = -110
SESSION_EXPIRED = -112
INVALID_ACL = -114
EPHEMERAL_ON_LOCAL_SESSION = -120
NO_WATCHER = -121

# The names of KeeperException.Code in its messages.
_NAMES = {
    SYSTEM_ERROR: "SystemError",
    -2: "RuntimeInconsistency",
    -3: "DataInconsistency",
    CONNECTION_LOSS: "ConnectionLoss",
    MARSHALLING_ERROR: "MarshallingError",
    -6: "Unimplemented",
    -7: "OperationTimeout",
    -8: "BadArguments",
    -12: "Unknown session",
    NEW_CONFIG_NO_QUORUM: "NewConfigNoQuorum",
    RECONFIG_IN_PROGRESS: "ReconfigInProgress",
    -100: "APIError",
    NO_NODE: "NoNode",
    -102: "NoAuth",
    -103: "BadVersion",
    -108: "NoChildrenForEphemerals",
    NODE_EXISTS: "NodeExists",
    -111: "Directory not empty",
    SESSION_EXPIRED: "Session expired",
    -113: "Invalid callback",
    INVALID_ACL: "InvalidACL",
    -115: "AuthFailed",
    -118: "Session moved",
    -119: "Not a read-only call",
    EPHEMERAL_ON_LOCAL_SESSION: "Ephemeral node on local session",
    NO_WATCHER: "No such watcher",
    -122: "Request timeout",
    -123: "Reconfig is disabled",
    -124: "Session closed because client failed to authenticate",
    -125: "Quota has exceeded",
    -127: "Op throttled due to high load",
}

# zkCli's messages in place of the code's name. A path follows the messages that end in a space.
_SENTENCES = {
    NO_NODE: "Node does not exist: ",
    -108: "Ephemerals cannot have children: ",
    NODE_EXISTS: "Node already exists: ",
    -111: "Node not empty: ",
    -119: "Not a read-only call: ",
    INVALID_ACL: "Acl is not valid : ",
    -102: "Insufficient permission : ",
    -8: "Arguments are not valid : ",
    -103: "version No is not valid : ",
    RECONFIG_IN_PROGRESS: "Another reconfiguration is in progress -- concurrent reconfigs"
    " not supported (yet)",
    NEW_CONFIG_NO_QUORUM: "No quorum of new config is connected and up-to-date with the leader of"
    " last commmitted config - try invoking reconfiguration after new servers are connected and synced",
    -125: "Quota has exceeded : ",
}


class ShellError(Exception):
    """Ends a command with one line on standard error and an exit status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


class ServerError(ShellError):
    """The server answered with an error, or did not answer."""

    def __init__(self, code: int, path: str | None) -> None:
        self.code = code
        self.path = path
        sentence = _SENTENCES.get(code)
        if sentence is None:
            super().__init__(self.plain)
        else:
            super().__init__(sentence + (path or "null") if sentence.endswith(" ") else sentence)

    @property
    def plain(self) -> str:
        """The message of Java's KeeperException."""
        name = _NAMES.get(self.code, f"Unknown error {self.code}")
        return f"KeeperErrorCode = {name}" + (f" for {self.path}" if self.path else "")


def check_path(path: str, sequential: bool = False) -> None:
    """Raises ShellError for a path that no node can have. The path of a sequential node may end in a
    slash.
    """
    if sequential:
        path += "1"
    if not path:
        raise ShellError("Path length must be > 0")
    if not path.startswith("/"):
        raise ShellError("Path must start with / character")
    if path == "/":
        return
    if path.endswith("/"):
        raise ShellError("Path must not end with / character")
    start = 1
    for name in path[1:].split("/"):
        reason = _wrong_name(name, start)
        if reason:
            raise ShellError(f'Invalid path string "{path}" caused by {reason}')
        start += len(name) + 1


def _wrong_name(name: str, start: int) -> str | None:
    """What is wrong with a node's name, and at which position; the name begins at `start`."""
    if not name:
        return f"empty node name specified @{start}"
    if name in (".", ".."):
        return f"relative paths not allowed @{start + len(name) - 1}"
    for index, character in enumerate(name, start):
        if character == "\0":
            return f"null character not allowed @{index}"
        if _FORBIDDEN.match(character):
            return f"invalid character @{index}"
    return None


# For Java, a character beyond 16 bits is two characters that are not allowed.
_FORBIDDEN = re.compile("[\x01-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def integer(text: str, bits: int = 32, radix: int = 10) -> int:
    """Parses a number as Java's Integer.parseInt or Long.parseLong. Raises ShellError with Java's message."""
    digits = {8: "0-7", 10: "0-9", 16: "0-9a-fA-F"}[radix]
    # 64 bits have at most 22 digits in these radixes. Python would refuse thousands of decimal digits.
    found = re.fullmatch(f"([+-]?)0*([{digits}]{{1,22}})", text)
    if found is not None:
        number = int(found[1] + found[2], radix)
        if -(1 << bits - 1) <= number < 1 << bits - 1:
            return number
    raise ShellError(f'For input string: "{text}"')
