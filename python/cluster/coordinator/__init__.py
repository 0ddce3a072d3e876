"""The coordinator: a ZooKeeper-compatible server, in-process with the broker or by itself."""

from .errors import CoordinatorError
from .server import CoordinatorServer

__all__ = ["CoordinatorError", "CoordinatorServer"]
