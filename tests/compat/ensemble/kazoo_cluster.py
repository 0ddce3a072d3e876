"""A plugin of pytest's for kazoo's own tests: instead of starting a ZooKeeper they find the servers that the environment names.

``KAZOO_TEST_HOSTS`` is a list of host:port. kazoo ends its cluster after every class of tests; these servers go on.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Server:
    """One that runs; what kazoo's tests ask of ``ManagedZooKeeper``."""

    address: str
    running: bool = True


class Cluster:
    """What kazoo's tests ask of ``ZookeeperCluster``."""

    def __init__(self, hosts: str) -> None:
        self._servers = [Server(host) for host in hosts.split(",")]

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __getitem__(self, number: int) -> Server:
        return self._servers[number]

    def start(self) -> None:
        """They run."""

    def terminate(self) -> None:
        """They go on."""

    def get_logs(self) -> list[str]:
        return []


# The module that starts ZooKeepers needs pyOpenSSL for their certificates; nothing else of it is used.
starter = ModuleType("kazoo.testing.common")
starter.ZookeeperCluster = Cluster  # type: ignore[attr-defined]
sys.modules[starter.__name__] = starter

# Of objgraph they count objects.
counter = ModuleType("objgraph")
counter.count = lambda name: sum(type(each).__name__ == name for each in gc.get_objects())  # type: ignore[attr-defined]
sys.modules[counter.__name__] = counter

import kazoo.testing.harness  # noqa: E402

CLUSTER = Cluster(os.environ["KAZOO_TEST_HOSTS"])
kazoo.testing.harness.get_global_cluster = lambda: CLUSTER
