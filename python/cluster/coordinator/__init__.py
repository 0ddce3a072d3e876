"""The coordinator: a ZooKeeper-compatible server, in-process with the broker or by itself."""

from .configuration import Configuration, parse_configuration
from .errors import CoordinatorError
from .server import CoordinatorServer
from .settings import Settings

__all__ = ["Configuration", "CoordinatorError", "CoordinatorServer", "Settings", "parse_configuration"]
