"""A pytest plugin for kazoo's own tests: they use the running servers of ``KAZOO_TEST_HOSTS`` and start no
ZooKeeper.

``KAZOO_TEST_HOSTS`` is a list of host:port. kazoo stops its cluster after each test class; these servers keep
running.
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
    """A running server, with the part of ``ManagedZooKeeper`` that kazoo's tests use."""

    address: str
    running: bool = True


class Cluster:
    """The running servers, with the part of ``ZookeeperCluster`` that kazoo's tests use."""

    def __init__(self, hosts: str) -> None:
        self._servers = [Server(host) for host in hosts.split(",")]

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __getitem__(self, number: int) -> Server:
        return self._servers[number]

    def start(self) -> None:
        """Does nothing: the servers run."""

    def terminate(self) -> None:
        """Does nothing: the servers keep running."""

    def get_logs(self) -> list[str]:
        return []


# kazoo's module that starts ZooKeeper imports pyOpenSSL, which is not installed; its tests need this one
# class of it.
starter = ModuleType("kazoo.testing.common")
starter.ZookeeperCluster = Cluster  # type: ignore[attr-defined]
sys.modules[starter.__name__] = starter

# kazoo's tests use only objgraph.count.


def count(name: str) -> int:
    return sum(type(each).__name__ == name for each in gc.get_objects())


counter = ModuleType("objgraph")
counter.count = count  # type: ignore[attr-defined]
sys.modules[counter.__name__] = counter

import kazoo.testing.harness  # noqa: E402

CLUSTER = Cluster(os.environ["KAZOO_TEST_HOSTS"])
kazoo.testing.harness.get_global_cluster = lambda: CLUSTER
