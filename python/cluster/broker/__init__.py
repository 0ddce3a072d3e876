"""The broker: settings, start and stop, and an answer for every API that is not answered in Rust.

`run` serves until a signal comes; `run_properties` does so from a server.properties file, and `run_embedded`
with a coordinator in the same process. `Broker` and `start_embedded` are for programs with an event loop of
their own.
"""

from cluster.broker._broker import Broker
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
    "run_embedded",
    "run_properties",
    "start_embedded",
]
