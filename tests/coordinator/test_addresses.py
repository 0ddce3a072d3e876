"""The addresses that the ports listen on, and the addresses of their clients.

If these fail, clients that try IPv6 first cannot connect, or ACLs, limits and `cons` see a wrong address for
IPv4 clients.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import pytest

from cluster.coordinator import Settings, parse_configuration
from cluster.coordinator.ports.listener import Listener, is_everywhere, listen_everywhere, peer_address
from cluster.coordinator.ports.tls import SecurePort, TlsSettings
from cluster.coordinator.protocol.jute import Id, Reader
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.members import host_and_port
from cluster.keystores import Store
from tests.ports import free_port

from .certificates import Authority
from .conftest import StartCoordinator
from .support import WAIT_SECONDS, RawClient


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
WORDS = frozenset({"*"})
CLIENTS = 500


def identities(client: RawClient) -> list[Id]:
    reader = Reader(client.request(1, Op.WHO_AM_I)[3])
    return [Id(reader.string() or "", reader.string() or "") for _ in range(reader.i32())]


@needs_ipv6
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_a_wildcard_address_takes_ipv4_and_ipv6(start_coordinator: StartCoordinator, host: str) -> None:
    settings = Settings(max_client_connections=2, words_whitelist=WORDS)
    server = start_coordinator(host=host, settings=settings)
    four, six = (RawClient(server.port, address) for address in ("127.0.0.1", "::1"))
    for client, shown in ((four, "127.0.0.1"), (six, "0:0:0:0:0:0:0:1")):
        client.connect()
        assert identities(client) == [Id("ip", shown)]
    asking = RawClient(server.port)
    for refused in (RawClient(server.port), RawClient(server.port)):
        assert refused.receive() == b"", (
            "the limit of two connections did not count both forms of the address"
        )
        refused.close()
    asking.socket.sendall(b"cons")
    listed = re.findall(r"(?m)^ /(\S+):\d+\[", asking.read_all().decode())
    assert sorted(listed) == ["127.0.0.1", "127.0.0.1", "[0:0:0:0:0:0:0:1]"]
    assert server.thread.call(lambda: (server.server.plain_local, server.server.plain_remote)) == (3, 0)
    for client in (four, six, asking):
        client.close()


@needs_ipv6
def test_ports_with_tls_take_both_families(start_coordinator: StartCoordinator, tmp_path: Path) -> None:
    """Ports with TLS have a listener of another kind."""
    authority = Authority(tmp_path)
    tls = TlsSettings(Store(authority.issue("server", "/CN=localhost")), client_auth="none")
    server = start_coordinator(host="0.0.0.0", unified=tls, secure=SecurePort("0.0.0.0", 0, tls))
    context = authority.client_context()
    for port in (server.port, server.server.secure_port):
        for address in ("127.0.0.1", "::1"):
            client = RawClient(port, address)
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
            client.connect()
            client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_small_answers_are_sent_at_once(
    start_coordinator: StartCoordinator, tmp_path: Path, host: str
) -> None:
    """If this failed, a small answer would wait for the acknowledgement of the last one (Nagle)."""
    authority = Authority(tmp_path)
    tls = TlsSettings(Store(authority.issue("server", "/CN=localhost")), client_auth="none")
    server = start_coordinator(host=host, secure=SecurePort(host, 0, tls))
    plain, secure = RawClient(server.port), RawClient(server.server.secure_port)
    secure.socket = authority.client_context().wrap_socket(secure.socket, server_hostname="localhost")

    def no_delay() -> list[int]:
        transports = [connection._transport for connection in server.server.connections]
        sockets = [transport.get_extra_info("socket") for transport in transports if transport is not None]
        return [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets]

    for client in (plain, secure):
        client.connect()
    assert server.thread.call(no_delay) == [1, 1]
    for client in (plain, secure):
        client.close()


def test_an_ipv4_address_takes_only_ipv4(start_coordinator: StartCoordinator) -> None:
    server = start_coordinator(host="127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        RawClient(server.port, "::1" if has_ipv6() else "127.0.0.2")
    RawClient(server.port).close()


# If this failed, a machine without IPv6 could not serve clients.
@pytest.mark.parametrize("kernel_has_it", [False, True])
def test_without_ipv6_a_wildcard_address_takes_ipv4(
    monkeypatch: pytest.MonkeyPatch, kernel_has_it: bool
) -> None:
    create_server = socket.create_server

    def create(address: tuple[str, int], **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
        return create_server(address, **options)

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: kernel_has_it)
    monkeypatch.setattr(socket, "create_server", create)
    with listen_everywhere(0) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), WAIT_SECONDS).close()


# If this failed, two servers could share a port, one for IPv4 and one for IPv6 clients.
@needs_ipv6
@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_a_port_that_is_used_in_one_family_is_refused(taken: str) -> None:
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with (
        socket.create_server((taken, free_port()), family=family) as other,
        pytest.raises(OSError, match="Address already in use"),
    ):
        listen_everywhere(other.getsockname()[1])


def test_addresses_are_written_as_zookeeper_does() -> None:
    wildcards = ["", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"]
    assert [host for host in (*wildcards, "::1", "zoo1", "10.0.0.0") if is_everywhere(host)] == wildcards
    assert peer_address(("::ffff:10.0.0.1", 1, 0, 0)) == peer_address(("10.0.0.1", 1)) == "10.0.0.1"
    assert peer_address(("fe80::1%eth0", 1, 0, 2)) == "fe80:0:0:0:0:0:0:1%eth0"
    assert [host_and_port(host, 1) for host in ("zoo1", "0.0.0.0", "::")] == ["zoo1:1", "0.0.0.0:1", "[::]:1"]


def test_a_servers_own_line_overrides_a_wildcard_address() -> None:
    """ZooKeeper does so too."""
    properties = {"dataDir": "/data", "clientPort": "1", "server.1": "localhost:2:3;127.0.0.1:1"}
    for host in ("0.0.0.0", "::"):
        configuration = parse_configuration(properties | {"clientPortAddress": host})
        assert (configuration.host, configuration.port) == ("127.0.0.1", 1)


# If this failed, the admin server and the metrics would take IPv4 alone, or the command would print invalid
# URLs.
@needs_ipv6
@pytest.mark.parametrize(("host", "printed"), [("", "0.0.0.0"), ("::", "[::]")])
def test_the_command_serves_both_families(tmp_path: Path, host: str, printed: str) -> None:
    config = tmp_path / "zoo.cfg"
    names = ("clientPortAddress", "admin.serverAddress", "metricsProvider.httpHost") if host else ()
    config.write_text(
        f"dataDir={tmp_path}/data\nclientPort=0\nadmin.serverPort=0\nmetricsProvider.httpPort=0\n"
        "metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider\n"
        + "".join(f"{name}={host}\n" for name in names)
    )
    command = [sys.executable, "-m", "cluster.cli", "coordinator", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        clients, admin, metrics = [process.stdout.readline().split() for _ in range(4)][1:]
        assert (clients[0], admin[0], metrics[0]) == ("clients", "admin", "metrics")
        assert clients[1].startswith(f"{printed}:")
        for address in ("127.0.0.1", "[::1]"):
            client = RawClient(int(clients[1].rpartition(":")[2]), address.strip("[]"))
            client.connect()
            client.close()
            for url in (admin[1], metrics[1]):
                assert url.startswith(f"http://{printed}:")
                with urllib.request.urlopen(url.replace(printed, address), timeout=WAIT_SECONDS) as response:
                    assert response.status == 200
        process.send_signal(signal.SIGTERM)
        _output, errors = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.skipif(
    int(Path("/proc/sys/net/core/somaxconn").read_text()) < CLIENTS,
    reason=f"net.core.somaxconn is below {CLIENTS}",
)
def test_many_clients_connect_at_once(start_coordinator: StartCoordinator) -> None:
    """If this failed, clients beyond a short listen queue would retry seconds later, after each restart."""
    server = start_coordinator(settings=Settings(max_client_connections=0))
    may_go_on = threading.Event()
    server.thread.loop.call_soon_threadsafe(may_go_on.wait, WAIT_SECONDS)
    try:
        clients = [RawClient(server.port) for _ in range(CLIENTS)]
    finally:
        may_go_on.set()
    for client in clients:
        client.connect()
        client.close()


def test_a_connection_accepted_as_the_port_closes_is_closed() -> None:
    """If this failed, its socket would stay open until the next garbage collection."""

    async def stop_at_once() -> None:
        loop = asyncio.get_running_loop()

        def may_enter(_address: str, _of_it: int, _of_all: int) -> bool:
            loop.call_soon(listener.close)  # before the connection's task begins
            return True

        listener = Listener(asyncio.Protocol, may_enter, lambda _address, _error: None)
        port = await listener.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as peer:
            await listener.wait_closed()
            assert peer.recv(1) == b""
            assert listener.entering == 0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(stop_at_once())
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []
