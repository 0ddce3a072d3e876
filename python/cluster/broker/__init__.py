"""The broker: its settings, its start and stop, and the handlers of the APIs that Rust does not answer.

- `run` serves until SIGINT or SIGTERM; `run_properties` takes the settings from a server.properties file.
- `run_embedded` also runs a coordinator in the same process.
- `Broker` and `start_embedded` are for programs with their own event loop.
"""

from cluster.broker._broker import Broker
from cluster.broker._processes import run_brokers
from cluster.broker._run import (
    run,
    run_embedded,
    run_properties,
    start_embedded,
)
from cluster.broker.config import BrokerConfig
from cluster.broker.errors import BrokerStartError, BrokerStopError
from cluster.broker.settings import ConfigError

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerStartError",
    "BrokerStopError",
    "ConfigError",
    "run",
    "run_brokers",
    "run_embedded",
    "run_properties",
    "start_embedded",
]
