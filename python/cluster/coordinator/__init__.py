"""The coordinator: a ZooKeeper-compatible server, in-process with the broker or by itself."""

from .admin import AdminServer, AdminServerError
from .configuration import Configuration, parse_configuration, system_properties
from .errors import CoordinatorError, DataDirectoryError
from .prometheus import PrometheusProvider
from .running import CoordinatorPorts, run_coordinator
from .server import CoordinatorServer
from .settings import Settings
from .starting import replication_of
from .view import view
from .vigil import event_loop
from .words import all_gauges

__all__ = [
    "AdminServer",
    "AdminServerError",
    "Configuration",
    "CoordinatorError",
    "CoordinatorPorts",
    "CoordinatorServer",
    "DataDirectoryError",
    "PrometheusProvider",
    "Settings",
    "all_gauges",
    "event_loop",
    "parse_configuration",
    "replication_of",
    "run_coordinator",
    "system_properties",
    "view",
]
