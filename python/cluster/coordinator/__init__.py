"""The coordinator: a ZooKeeper-compatible server, in the broker's process or in its own."""

from .admin.prometheus import PrometheusProvider
from .admin.server import AdminServer, AdminServerError
from .admin.view import view
from .admin.words import all_gauges
from .busy_poll import event_loop
from .configuration import Configuration, parse_configuration, system_properties
from .errors import CoordinatorError, DataDirectoryError
from .running import CoordinatorPorts, replication_of, run_coordinator
from .server import CoordinatorServer
from .settings.server import Settings

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
