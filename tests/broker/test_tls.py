"""A broker with TLS listeners, as its operator and its clients see it.

If one failed, a client would be sent to a listener that it cannot use or be taken for another client, or an
operator would not learn why the broker does not start or refuses a client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.broker import Broker, BrokerStartError
from cluster.controller import ZooKeeper, znodes
from cluster.model import BrokerId, Milliseconds
from tests.conftest import StartBroker
from tests.coordinator.certificates import Authority, encrypted

from .test_embedded import embedded
from .test_metrics import scrape, value
from .wire import Wire, frame_of

WAIT_SECONDS = 20.0
METRIC = "kafka_server_socket_server_metrics_{}_authentication_total"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def settings(authority: Authority) -> dict[str, str]:
    """SSL serves any client; OUTSIDE serves clients with a certificate, by names of its own."""
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,OUTSIDE:SSL",
        "ssl.keystore.location": str(authority.issue("broker", "/CN=broker")),
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.outside.ssl.client.auth": "required",
        "listener.name.outside.ssl.principal.mapping.rules": "RULE:^CN=(b.*)$/The $1/,DEFAULT",
    }


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "cluster"):
        yield caplog


def address(broker: Broker, listener: str) -> str:
    port = next(each.port for each in broker.endpoints if each.listener == listener)
    return f"127.0.0.1:{port}"


async def refused(at: str, context: ssl.SSLContext | None) -> str:
    """Why the broker or the client ended a connection before a response."""
    try:
        async with asyncio.timeout(WAIT_SECONDS), Wire(at, context) as wire:
            await wire.ask("ApiVersions", 0)
    except (OSError, asyncio.IncompleteReadError) as error:
        return str(error) or type(error).__name__
    raise AssertionError("it was served")


def distrusts(at: str, context: ssl.SSLContext) -> str:
    """Why a client ended the handshake, which it reports to the broker; asyncio's would not."""
    host, _, port = at.rpartition(":")
    with (
        socket.create_connection((host, int(port)), WAIT_SECONDS) as plain,
        pytest.raises(ssl.SSLCertVerificationError) as caught,
    ):
        context.wrap_socket(plain, server_hostname=host)
    return str(caught.value)


async def line(lines: pytest.LogCaptureFixture, part: str) -> str:
    """The first log line with `part`, once there is one."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            for record in lines.records:
                if part in record.getMessage():
                    return record.getMessage()
            await asyncio.sleep(0.01)


def test_clients_get_the_endpoints_of_their_listener(
    tmp_path: Path, authority: Authority, settings: dict[str, str]
) -> None:
    async def run() -> None:
        async with embedded(tmp_path, **settings) as broker:
            ann = authority.client_context(authority.issue("ann", "/CN=ann"))
            for listener, context in (
                ("PLAINTEXT", None),
                ("SSL", authority.client_context()),
                ("OUTSIDE", ann),
            ):
                at = address(broker, listener)
                async with Wire(at, context) as wire:
                    brokers = [
                        *(await wire.ask("Metadata", 9, topics=[]))["brokers"],
                        *(await wire.ask("DescribeCluster", 0))["brokers"],
                        await wire.ask("FindCoordinator", 2, key="g", key_type=0),
                    ]
                assert [f"{each['host']}:{each['port']}" for each in brokers] == [at] * 3
            zk = await ZooKeeper.connect(
                broker.config.zookeeper_connect, Milliseconds(6000), Milliseconds(6000)
            )
            data, _ = await zk.get(znodes.broker_path(0))
            await zk.close()
            assert znodes.decode_broker(BrokerId(0), data, -1).endpoints == broker.endpoints
            assert {each.listener: each.security_protocol for each in broker.endpoints} == {
                "PLAINTEXT": "PLAINTEXT",
                "SSL": "SSL",
                "OUTSIDE": "SSL",
            }

    asyncio.run(run())


def test_certificates_say_who_clients_are(
    tmp_path: Path, authority: Authority, settings: dict[str, str], lines: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        slow = {"slow.request.log.ms": "0", "metrics.listener": "127.0.0.1:0"}
        async with embedded(tmp_path, **settings, **slow) as broker:
            asked: list[tuple[str, str, str, str, dict[str, object]]] = [
                # Each API has one line a minute.
                ("ann", "OUTSIDE", "CN=ann", "ListGroups", {}),
                ("bob", "OUTSIDE", "The bob", "DescribeGroups", {"groups": ["g"]}),
                ("ann", "SSL", "ANONYMOUS", "FindCoordinator", {"key": "g"}),
            ]
            for name, listener, principal, api, body in asked:
                context = authority.client_context(authority.issue(name, f"/CN={name}"))
                async with Wire(address(broker, listener), context) as wire:
                    await wire.ask(api, 0, **body)
                assert f"principal {principal}:" in await line(lines, f"slow request: {api}")
            assert broker.metrics_address is not None
            samples = await asyncio.to_thread(scrape, broker.metrics_address)
            assert value(samples, METRIC.format("successful"), listener="OUTSIDE") == 2
            assert value(samples, METRIC.format("successful"), listener="PLAINTEXT") == 0
            assert value(samples, METRIC.format("failed"), listener="OUTSIDE") == 0

    asyncio.run(run())


def test_the_reasons_of_refused_connections_are_distinguished(
    tmp_path: Path, authority: Authority, settings: dict[str, str], lines: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path / "strangers", "strangers")

    async def run() -> None:
        own = {"listener.name.outside.ssl.principal.mapping.rules": "RULE:^CN=ann$/ann/"}
        metrics = {"metrics.listener": "127.0.0.1:0"}
        async with embedded(tmp_path / "data", **settings | own | metrics) as broker:
            outside, anybody = address(broker, "OUTSIDE"), address(broker, "SSL")
            shown = stranger.issue("ann", "/CN=ann")
            assert "certificate required" in (await refused(outside, authority.client_context())).lower()
            assert "unknown ca" in (await refused(outside, authority.client_context(shown))).lower()
            distrusted = asyncio.to_thread(distrusts, anybody, stranger.client_context())
            assert "verify failed" in await distrusted
            await refused(anybody, None)
            nobody = authority.client_context(authority.issue("bob", "/CN=bob"))
            await refused(outside, nobody)
            for message in (
                "the client needs a certificate of its own (ssl.keystore.location)",
                "no authority in the trust store (ssl.truststore.location) signed the client's certificate",
                "the client does not trust this listener's certificate",
                "the peer does not speak TLS: its security.protocol must be SSL",
                "has no principal: no rule of ssl.principal.mapping.rules applies to CN=bob",
            ):
                assert "connection 127.0.0.1:" in await line(lines, message)
            served = authority.client_context(authority.issue("ann", "/CN=ann"))
            async with Wire(outside, served) as wire:
                await wire.ask("ApiVersions", 0)
            assert broker.metrics_address is not None
            samples = await asyncio.to_thread(scrape, broker.metrics_address)
            assert value(samples, METRIC.format("failed"), listener="OUTSIDE") == 2
            assert value(samples, METRIC.format("failed"), listener="SSL") == 2

    asyncio.run(run())


def test_a_trusted_client_cannot_sign_for_others(
    tmp_path: Path, authority: Authority, settings: dict[str, str]
) -> None:
    """A trust store may have a client's own certificate, which does not make that client an authority."""
    bob = authority.issue("bob-alone", "/CN=bob")
    impostor = authority.issue_by("impostor", "/CN=admin", bob)
    only_bob = settings | {"listener.name.outside.ssl.truststore.location": str(bob)}

    async def run() -> None:
        async with embedded(tmp_path, **only_bob) as broker:
            at = address(broker, "OUTSIDE")
            async with Wire(at, authority.client_context(bob)) as wire:
                await wire.ask("ApiVersions", 0)
            assert "unknown ca" in (await refused(at, authority.client_context(impostor))).lower()

    asyncio.run(run())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_shows_its_certificate_each_time(
    tmp_path: Path,
    authority: Authority,
    settings: dict[str, str],
    lines: pytest.LogCaptureFixture,
    version: ssl.TLSVersion,
) -> None:
    """A resumed session would not be checked again, though its certificate may have expired."""

    async def run() -> None:
        async with embedded(tmp_path, **settings, **{"slow.request.log.ms": "0"}) as broker:
            host, _, port = address(broker, "OUTSIDE").rpartition(":")
            context = authority.client_context(authority.issue("bob", "/CN=bob"))
            context.maximum_version = version
            session: ssl.SSLSession | None = None

            def talk() -> bool:
                nonlocal session
                with (
                    socket.create_connection((host, int(port)), WAIT_SECONDS) as plain,
                    context.wrap_socket(plain, server_hostname=host, session=session) as secure,
                ):
                    secure.sendall(frame_of("ListGroups", 0))
                    assert secure.recv(4)
                    session = secure.session
                    return bool(secure.session_reused)

            assert [await asyncio.to_thread(talk) for _ in range(2)] == [False, False]
            assert "principal The bob:" in await line(lines, "slow request: ListGroups")

    asyncio.run(run())


def test_a_broker_may_have_only_tls_listeners(
    tmp_path: Path, authority: Authority, settings: dict[str, str]
) -> None:
    async def run() -> None:
        only = {
            "listeners": "SSL://127.0.0.1:0",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.location": settings["ssl.keystore.location"],
        }
        async with embedded(tmp_path, **only) as broker:
            async with Wire(broker.bootstrap, authority.client_context()) as wire:
                answer = await wire.ask("Metadata", 9, topics=[])
            assert answer["brokers"][0]["port"] == broker.endpoints[0].port

    asyncio.run(run())


def test_a_store_that_cannot_be_opened_stops_the_start(
    tmp_path: Path, authority: Authority, settings: dict[str, str], start_broker: StartBroker
) -> None:
    sealed = encrypted(authority.issue("sealed", "/CN=sealed"))
    own = settings | {"ssl.keystore.location": str(sealed), "ssl.keystore.password": "wr0ng"}
    words = [word for name, text in own.items() for word in ("--override", f"{name}={text}")]
    broker = start_broker(tmp_path / "data", 0, *words, ready=False)
    assert broker.process.wait(WAIT_SECONDS) == 1
    said = broker.wait_output("does not open")
    assert said.startswith("logcore start: listener SSL: ssl.keystore.location=")
    assert "wr0ng" not in broker.output()
    assert "Traceback" not in broker.output()

    async def run() -> None:
        async with embedded(tmp_path / "other", **own):
            pass

    with pytest.raises(BrokerStartError, match=r"its password, ssl\.keystore\.password, does not open"):
        asyncio.run(run())
