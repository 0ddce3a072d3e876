"""TLS on the client port.

If these fail, a client gets another's identity or is served without a certificate. Or a common key store
cannot be read, or a silent peer delays others.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
from kazoo.client import KazooClient

from cluster.coordinator import CoordinatorError, Settings, parse_configuration
from cluster.coordinator.errors import Code
from cluster.coordinator.ports import renewal
from cluster.coordinator.ports.tls import SecurePort, TlsSettings, server_context, tls_settings
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.settings.authentication import Authentication
from cluster.coordinator.settings.values import Values
from cluster.coordinator.state.acl import Rules
from cluster.keystores import Store
from cluster.x509 import is_name, subject
from tests.ports import free_port

from .certificates import PASSWORD, Authority, encrypted, openssl, pkcs12
from .conftest import StartCoordinator
from .support import WAIT_SECONDS, Coordinator, RawClient

ANN = "CN=ann,O=Example\\, Inc."
SETTINGS = Settings(max_client_connections=0, rules=Rules.X509, words_whitelist=frozenset({"*"}))
Secured = Callable[..., Coordinator]


class Certificates:
    """The certificates of the server and its clients. Another authority has signed ``stranger``."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", "/CN=localhost")
        self.ann = self.authority.issue("ann", "/O=Example, Inc./CN=ann")
        self.bob = self.authority.issue("bob", "/CN=bob")
        self.stranger = Authority(directory / "other").issue("stranger", "/CN=ann")

    def tls(self, client_auth: str = "need") -> TlsSettings:
        return TlsSettings(Store(self.server), Store(self.authority.certificate), client_auth)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secured(start_coordinator: StartCoordinator, certificates: Certificates, tmp_path: Path) -> Secured:
    """A factory of servers with a secure port."""

    def start(client_auth: str = "need", settings: Settings = SETTINGS) -> Coordinator:
        secure = SecurePort("127.0.0.1", 0, certificates.tls(client_auth))
        return start_coordinator(tmp_path / "secure", settings=settings, secure=secure)

    return start


@pytest.fixture
def opened() -> Iterator[list[RawClient]]:
    clients: list[RawClient] = []
    yield clients
    for client in clients:
        client.close()


def over_tls(opened: list[RawClient], port: int, context: ssl.SSLContext) -> RawClient:
    client = RawClient(port)
    opened.append(client)
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    return client


def who(client: RawClient) -> list[Id]:
    return list(Reader(client.request(9, Op.WHO_AM_I)[3]).identities())


def create(path: str, acl: list[Acl]) -> bytes:
    return Writer().string(path).buffer(b"").acls(acl).i32(0).finish()


def read(path: str) -> bytes:
    return Writer().string(path).boolean(False).finish()


def is_refused(port: int, context: ssl.SSLContext, opened: list[RawClient]) -> bool:
    """Whether the server refuses the client. With TLS 1.3 that shows only after the client's handshake."""
    try:
        client = over_tls(opened, port, context)
        client.connect()
    except OSError:
        return True
    return False


def test_a_clients_identity_is_its_certificates_subject(
    secured: Secured, certificates: Certificates, opened: list[RawClient]
) -> None:
    server = secured()
    authority = certificates.authority
    ann = over_tls(opened, server.server.secure_port, authority.client_context(certificates.ann))
    bob = over_tls(opened, server.server.secure_port, authority.client_context(certificates.bob))
    plain = RawClient(server.port)
    opened.append(plain)
    for client in (ann, bob, plain):
        assert client.connect()[1] != 0
    assert who(ann) == [Id("ip", "127.0.0.1"), Id("x509", ANN)]
    assert who(plain) == [Id("ip", "127.0.0.1")]
    assert ann.request(1, Op.CREATE, create("/mine", [Acl(31, Id("auth", ""))]))[2] == 0
    assert ann.request(2, Op.CREATE, create("/bobs", [Acl(31, Id("x509", "CN=bob"))]))[2] == 0
    assert [client.request(3, Op.GET_DATA, read("/mine"))[2] for client in (ann, bob, plain)] == [
        0,
        Code.NO_AUTH,
        Code.NO_AUTH,
    ]
    assert [client.request(4, Op.GET_DATA, read("/bobs"))[2] for client in (ann, bob)] == [Code.NO_AUTH, 0]
    assert ann.request(5, Op.CREATE, create("/none", [Acl(31, Id("x509", "nobody"))]))[2] == Code.INVALID_ACL
    auth = Writer().i32(0).string("x509").buffer(b"").finish()
    assert ann.request(-4, Op.AUTH, auth)[2] == 0
    assert plain.request(-4, Op.AUTH, auth)[2] == Code.AUTH_FAILED


def test_a_certificate_can_be_the_super_user(
    secured: Secured, certificates: Certificates, opened: list[RawClient]
) -> None:
    server = secured(settings=Settings(rules=Rules.X509, authentication=Authentication(x509_super_user=ANN)))
    bob, ann = (
        over_tls(opened, server.server.secure_port, certificates.authority.client_context(each))
        for each in (certificates.bob, certificates.ann)
    )
    bob.connect()
    ann.connect()
    assert bob.request(1, Op.CREATE, create("/bobs", [Acl(31, Id("x509", "CN=bob"))]))[2] == 0
    assert who(ann) == [Id("ip", "127.0.0.1"), Id("super", ANN), Id("x509", ANN)]
    assert ann.request(2, Op.GET_DATA, read("/bobs"))[2] == 0


@pytest.mark.parametrize(
    ("client_auth", "without", "with_strangers"),
    [("need", False, False), ("want", True, False), ("none", True, True)],
)
def test_client_auth_decides_which_certificates_are_required(
    secured: Secured,
    certificates: Certificates,
    opened: list[RawClient],
    client_auth: str,
    without: bool,
    with_strangers: bool,
) -> None:
    server = secured(client_auth)
    port = server.server.secure_port
    authority = certificates.authority
    assert is_refused(port, authority.client_context(), opened) is not without
    assert is_refused(port, authority.client_context(certificates.stranger), opened) is not with_strangers
    assert not is_refused(port, authority.client_context(certificates.ann), opened)
    if client_auth == "none":
        assert who(opened[-1]) == [Id("ip", "127.0.0.1")]
    refused = (not without) + (not with_strangers)
    assert server.thread.call(lambda: server.server.metrics.counters["unsuccessful_handshake"]) == refused


def test_silent_peers_do_not_delay_others(
    secured: Secured, certificates: Certificates, opened: list[RawClient]
) -> None:
    server = secured(settings=Settings(handshake_timeout_ms=8000, max_handshakes=4))
    port = server.server.secure_port
    silent = [socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) for _ in range(3)]
    silent[0].sendall(b"\x16\x03\x01")
    client = over_tls(opened, port, certificates.authority.client_context(certificates.ann))
    assert client.connect()[1] != 0
    more = [socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) for _ in range(4)]
    ended = sum(_ended(each) for each in [*silent, *more])
    assert ended == 7, "a silent peer was not closed"
    while server.thread.call(lambda: server.server.handshakes) > 0:
        pass
    counters = server.thread.call(lambda: dict(server.server.metrics.counters))
    assert counters["tls_handshake_exceeded"] >= 3
    assert client.request(-2, Op.PING)[2] == 0
    for each in [*silent, *more]:
        each.close()


def _ended(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_handshakes_count_as_connections_of_their_address(secured: Secured, opened: list[RawClient]) -> None:
    server = secured(settings=Settings(max_client_connections=2))
    silent = [socket.create_connection(("127.0.0.1", server.server.secure_port)) for _ in range(2)]
    third = socket.create_connection(("127.0.0.1", server.server.secure_port), WAIT_SECONDS)
    assert _ended(third)
    assert server.thread.call(lambda: server.server.metrics.counters["connection_rejected"]) == 1
    for each in (*silent, third):
        each.close()


def test_a_peer_without_tls_gets_no_answer_on_the_secure_port(
    secured: Secured, certificates: Certificates, opened: list[RawClient]
) -> None:
    server = secured()
    port = server.server.secure_port
    for garbage in (b"srvr", b"\0" * 64, b"\x16" + b"\xff" * 600, b"GET / HTTP/1.1\r\n\r\n"):
        received = b""
        with socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as peer:
            peer.sendall(garbage)
            with suppress(OSError):  # the server may have closed it
                peer.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                while part := peer.recv(1000):
                    received += part
        assert received == b"" or received[0] == 0x15, "more than a TLS alert was sent"
    assert not is_refused(port, certificates.authority.client_context(certificates.ann), opened)


def test_words_list_the_connections_of_their_own_port(
    secured: Secured, certificates: Certificates, opened: list[RawClient]
) -> None:
    server = secured()
    context = certificates.authority.client_context(certificates.ann)
    ann = over_tls(opened, server.server.secure_port, context)
    ann.connect()
    plain = RawClient(server.port)
    opened.append(plain)
    plain.socket.sendall(b"stat")
    answer = plain.read_all().decode()
    assert answer.count("/127.0.0.1:") == 1
    assert "Connections: 2\n" in answer
    secure = over_tls(opened, server.server.secure_port, context)
    secure.socket.sendall(b"cons")
    answer = secure.read_all().decode()
    assert answer.count("/127.0.0.1:") == 2
    secure = over_tls(opened, server.server.secure_port, context)
    secure.socket.sendall(b"conf")
    assert f"secureClientPort={server.server.secure_port}\n" in secure.read_all().decode()


def test_a_unified_port_takes_clients_with_and_without_tls(
    start_coordinator: StartCoordinator, certificates: Certificates, tmp_path: Path, opened: list[RawClient]
) -> None:
    server = start_coordinator(tmp_path / "both", settings=SETTINGS, unified=certificates.tls())
    plain = RawClient(server.port)
    opened.append(plain)
    context = certificates.authority.client_context(certificates.ann)
    secure = over_tls(opened, server.port, context)
    for client in (plain, secure):
        assert client.connect()[1] != 0
    assert len(who(plain)) == 1
    assert len(who(secure)) == 2
    word = RawClient(server.port)
    opened.append(word)
    word.socket.sendall(b"ruok")
    assert word.read_all() == b"imok"


def test_a_silent_client_on_a_unified_port_is_cut_off(
    start_coordinator: StartCoordinator, certificates: Certificates, tmp_path: Path
) -> None:
    settings = Settings(handshake_timeout_ms=500)
    server = start_coordinator(tmp_path / "both", settings=settings, unified=certificates.tls())
    for begun in (b"", b"\x16", b"\0\0"):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_SECONDS) as peer:
            peer.sendall(begun)
            assert _ended(peer)


def test_a_secure_port_can_be_the_only_one(
    start_coordinator: StartCoordinator, certificates: Certificates, tmp_path: Path, opened: list[RawClient]
) -> None:
    server = start_coordinator(
        tmp_path / "only", port=-1, settings=SETTINGS, secure=SecurePort("127.0.0.1", 0, certificates.tls())
    )
    assert server.port == server.server.secure_port
    assert not is_refused(server.port, certificates.authority.client_context(certificates.ann), opened)


def test_kazoo_gets_large_answers_over_tls(secured: Secured, certificates: Certificates) -> None:
    server = secured()
    client = KazooClient(
        hosts=f"127.0.0.1:{server.server.secure_port}",
        use_ssl=True,
        ca=str(certificates.authority.certificate),
        certfile=str(certificates.ann),
        keyfile=str(certificates.ann),
    )
    client.start(timeout=WAIT_SECONDS)
    try:
        data = bytes(range(256)) * 3900
        client.create("/large", data)
        assert [client.get_async("/large").get(timeout=WAIT_SECONDS)[0] == data for _ in range(20)] == [
            True
        ] * 20
    finally:
        client.stop()
        client.close()


# ---- stores that change ----


class Stores:
    """The key store and trust store of a server that reloads them, and the server's warnings."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        self.key_store = directory / "key.pem"
        self.trust_store = directory / "trust.pem"
        self.context = certificates.authority.client_context(certificates.ann)
        self.warnings: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self.put(certificates.server.read_text())
        shutil.copy(certificates.authority.certificate, self.trust_store)

    def tls(self, reloads: bool = True) -> TlsSettings:
        return TlsSettings(Store(self.key_store), Store(self.trust_store), reloads=reloads)

    def put(self, text: str) -> None:
        """Replaces the key store atomically."""
        new = self.key_store.with_suffix(".new")
        new.write_text(text)
        new.replace(self.key_store)

    def shown(self, port: int) -> bytes | None:
        """The certificate that the server presents."""
        with (
            socket.create_connection(("127.0.0.1", port), WAIT_SECONDS) as peer,
            self.context.wrap_socket(peer, server_hostname="localhost") as secure,
        ):
            return secure.getpeercert(binary_form=True)

    def wait_until_shown(self, pem: Path, *ports: int) -> None:
        wanted = ssl.PEM_cert_to_DER_cert(pem.with_suffix(".crt").read_text())
        until(lambda: all(self.shown(port) == wanted for port in ports))

    def warning(self) -> str:
        return self.warnings.get(timeout=WAIT_SECONDS).getMessage()


def until(what: Callable[[], bool]) -> None:
    """Polls the condition until it holds."""
    end = monotonic() + WAIT_SECONDS
    while not what():
        assert monotonic() < end


@pytest.fixture
def stores(tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    monkeypatch.setattr(renewal, "LOOK_SECONDS", 0.01)
    found = Stores(tmp_path, certificates)
    handler = logging.Handler(logging.WARNING)
    handler.emit = found.warnings.put  # type: ignore[method-assign]
    logger = logging.getLogger("cluster.coordinator.ports.renewal")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def test_a_renewed_certificate_is_presented_to_new_clients(
    start_coordinator: StartCoordinator,
    certificates: Certificates,
    stores: Stores,
    tmp_path: Path,
    opened: list[RawClient],
) -> None:
    """On both kinds of port. Open connections stay, and a server without the setting does not reload."""
    secure = SecurePort("127.0.0.1", 0, stores.tls())
    server = start_coordinator(
        tmp_path / "follows", settings=SETTINGS, secure=secure, unified=stores.tls()
    ).server
    other = start_coordinator(
        tmp_path / "stays", secure=secure._replace(tls=stores.tls(reloads=False)), settings=SETTINGS
    ).server
    ann = over_tls(opened, server.secure_port, stores.context)
    assert ann.connect()[1] != 0
    renewed = certificates.authority.issue("renewed", "/CN=renewed")
    stores.put(renewed.read_text())
    stores.wait_until_shown(renewed, server.secure_port, server.port)
    stores.wait_until_shown(certificates.server, other.secure_port)
    assert ann.request(1, Op.WHO_AM_I)[2] == 0
    assert not is_refused(server.secure_port, stores.context, opened)


def test_unusable_stores_are_ignored_until_they_change_again(
    start_coordinator: StartCoordinator, certificates: Certificates, stores: Stores, tmp_path: Path
) -> None:
    secure = SecurePort("127.0.0.1", 0, stores.tls())
    server = start_coordinator(tmp_path / "data", settings=SETTINGS, secure=secure, unified=stores.tls())
    port = server.server.secure_port
    renewed = certificates.authority.issue("renewed", "/CN=renewed")
    key = renewed.with_suffix(".key").read_text()
    setting = r"ssl\.keyStore\.location=\S+key\.pem"
    for broken in (key, "", key + certificates.server.with_suffix(".crt").read_text()):
        stores.put(broken)
        assert re.match(
            setting + r" has .*; new connections use the last stores that could be read, until",
            stores.warning(),
        )
        stores.wait_until_shown(certificates.server, port)
    stores.key_store.unlink()
    assert re.match(setting + " cannot be read: No such file", stores.warning())
    # A port that moves meanwhile uses the old stores too.
    moved = free_port()
    server.thread.call(lambda: server.server.listen_at("127.0.0.1", moved))
    server.thread.wait(lambda: is_listened_at(moved))
    stores.wait_until_shown(certificates.server, port, moved)
    stores.put(renewed.read_text())
    stores.wait_until_shown(renewed, port, moved)
    assert stores.warnings.empty(), "a warning was repeated"


def is_listened_at(port: int) -> bool:
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0


def test_an_added_authority_is_trusted(
    start_coordinator: StartCoordinator, certificates: Certificates, stores: Stores, tmp_path: Path
) -> None:
    secure = SecurePort("127.0.0.1", 0, stores.tls())
    port = start_coordinator(tmp_path / "data", settings=SETTINGS, secure=secure).server.secure_port
    opened: list[RawClient] = []
    stranger = certificates.authority.client_context(certificates.stranger)
    assert is_refused(port, stranger, opened)
    with stores.trust_store.open("a") as trusted:
        trusted.write((certificates.stranger.parent / "authority.crt").read_text())
    until(lambda: not is_refused(port, stranger, opened))
    assert not is_refused(port, stores.context, opened)
    for client in opened:
        client.close()


def test_a_defect_does_not_end_the_reloads_and_a_stop_does(
    start_coordinator: StartCoordinator,
    certificates: Certificates,
    stores: Stores,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secure = SecurePort("127.0.0.1", 0, stores.tls())
    coordinator = start_coordinator(tmp_path / "data", settings=SETTINGS, secure=secure)
    renewed = certificates.authority.issue("renewed", "/CN=renewed")
    with monkeypatch.context() as patched:

        def fails(_settings: TlsSettings) -> ssl.SSLContext:
            raise RuntimeError("a defect")

        patched.setattr(renewal, "server_context", fails)
        stores.key_store.touch()
        record = stores.warnings.get(timeout=WAIT_SECONDS)
        assert record.exc_info is not None
        assert record.getMessage().startswith("a defect; new connections")
    stores.put(renewed.read_text())
    stores.wait_until_shown(renewed, coordinator.server.secure_port)

    def reloads() -> bool:
        return any("_follow" in repr(task.get_coro()) for task in asyncio.all_tasks())

    assert coordinator.thread.call(reloads)
    coordinator.stop()
    assert not coordinator.thread.call(reloads)


# ---- stores and settings ----


def test_stores_of_every_kind_are_read(certificates: Certificates, tmp_path: Path) -> None:
    server, authority = certificates.server, certificates.authority.certificate
    trusted = tmp_path / "trusted.p12"
    openssl("pkcs12", "-export", "-nokeys", "-in", authority, "-out", trusted, "-passout", f"pass:{PASSWORD}")
    legacy = tmp_path / "legacy.p12"
    openssl("pkcs12", "-export", "-legacy", "-in", server, "-out", legacy, "-passout", f"pass:{PASSWORD}")
    for store in (
        Store(server),
        Store(encrypted(server), PASSWORD),
        Store(pkcs12(server), PASSWORD),
        Store(legacy, PASSWORD),
    ):
        for trust in (Store(authority), Store(trusted, PASSWORD)):
            context = server_context(TlsSettings(store, trust))
            assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "authority"),),)]


@pytest.mark.parametrize("password", ["", "wrong"])
def test_a_wrong_password_of_a_store_is_refused(certificates: Certificates, password: str) -> None:
    for store in (encrypted(certificates.server), pkcs12(certificates.server)):
        with pytest.raises(CoordinatorError, match=r"ssl\.keyStore\.location=.*password"):
            server_context(TlsSettings(Store(store, password), client_auth="none"))


def test_a_trust_store_with_a_private_key_is_refused(certificates: Certificates) -> None:
    """It would be unclear whether the key's certificates are trusted.

    Without client_auth it does not matter.
    """
    both = Store(pkcs12(certificates.server), PASSWORD)
    assert server_context(TlsSettings(both, both, client_auth="none")).verify_mode == ssl.CERT_NONE
    for client_auth in ("want", "need"):
        with pytest.raises(
            CoordinatorError, match=r"ssl\.trustStore\.location=.*a private key in it"
        ) as caught:
            server_context(TlsSettings(both, both, client_auth=client_auth))
        assert PASSWORD not in str(caught.value)


def test_a_java_key_store_is_refused_with_the_command_to_convert_it(tmp_path: Path) -> None:
    store = tmp_path / "keys.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(CoordinatorError, match=r"keytool -importkeystore .*keys\.p12 -deststoretype PKCS12"):
        server_context(TlsSettings(Store(store), client_auth="none"))


def test_protocols_and_cipher_suites_are_set(certificates: Certificates) -> None:
    def context(**settings: str) -> ssl.SSLContext:
        texts = {"ssl." + name: text for name, text in settings.items()}
        texts |= {"ssl.keyStore.location": str(certificates.server), "ssl.clientAuth": "none"}
        return server_context(tls_settings(Values(texts)))

    defaults = context()
    assert (defaults.minimum_version, defaults.maximum_version) == (
        ssl.TLSVersion.TLSv1_2,
        ssl.TLSVersion.TLSv1_3,
    )
    assert context(enabledProtocols="TLSv1.3").minimum_version is ssl.TLSVersion.TLSv1_3
    assert context(protocol="TLSv1.2").maximum_version is ssl.TLSVersion.TLSv1_2
    older = context(
        ciphersuites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"
    )
    assert older.maximum_version is ssl.TLSVersion.TLSv1_2
    names = {each["name"] for each in older.get_ciphers() if not each["name"].startswith("TLS_")}
    assert names == {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-SHA384"}
    assert context(ciphersuites="TLS_AES_128_GCM_SHA256").minimum_version is ssl.TLSVersion.TLSv1_3
    for settings, message in (
        ({"ciphersuites": "TLS_RSA_WITH_NULL_SHA"}, "TLS_RSA_WITH_NULL_SHA"),
        ({"enabledProtocols": "SSLv3"}, "SSLv3"),
        ({"ciphersuites": "TLS_AES_128_GCM_SHA256", "enabledProtocols": "TLSv1.2"}, "ciphersuites"),
    ):
        with pytest.raises(CoordinatorError, match=message):
            context(**settings)


LEAST = {
    "dataDir": "/data",
    "secureClientPort": "0",
    "ssl.keyStore.location": "/k",
    "ssl.trustStore.location": "/t",
}


def test_settings_of_a_secure_port_are_parsed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")
    configuration = parse_configuration(
        LEAST
        | {
            "secureClientPortAddress": "127.0.0.1",
            "ssl.keyStore.passwordPath": str(secret),
            "ssl.trustStore.password": "p",
            "ssl.clientAuth": "WANT",
            "X509AuthenticationProvider.superUser": "CN=ann",
            "admin.enableServer": "false",
            "zookeeper.ssl.hostnameVerification": "true",
        }
    )
    assert configuration.port == -1
    tls = TlsSettings(Store(Path("/k"), "from a file"), Store(Path("/t"), "p"), "want", reloads=True)
    assert configuration.secure == SecurePort("127.0.0.1", 0, tls)
    assert configuration.unified is None
    assert configuration.settings.rules == Rules.X509
    assert configuration.settings.authentication == Authentication(x509_super_user="CN=ann")
    assert configuration.warnings == ()
    both = {"clientPort": "1", "client.portUnification": "true"}
    unified = parse_configuration(LEAST | both).unified
    assert unified == TlsSettings(Store(Path("/k")), Store(Path("/t")), reloads=True)


def test_client_ports_reload_their_stores_by_default() -> None:
    """The quorum's setting has no effect and gives a warning."""
    both = {"clientPort": "1", "client.portUnification": "true"}
    provider = {"ssl.authProvider": "x509"}
    for changed, reloads in (
        ({}, True),
        (provider, False),
        (provider | {"zookeeper.client.certReload": "True"}, True),
        ({"client.certReload": "false"}, False),
    ):
        configuration = parse_configuration(LEAST | both | changed)
        assert configuration.secure is not None
        assert configuration.unified == configuration.secure.tls
        assert configuration.secure.tls.reloads == reloads
        assert configuration.warnings == ()
    quorum = parse_configuration(LEAST | {"client.certReload": "false", "sslQuorumReloadCertFiles": "true"})
    assert quorum.secure is not None
    assert not quorum.secure.tls.reloads
    assert quorum.warnings == ("sslQuorumReloadCertFiles=true: this setting has no effect",)
    https = {"admin.forceHttps": "true", "ssl.quorum.keyStore.location": "/k"}
    admin = parse_configuration(LEAST | https | {"client.certReload": "true"}).admin
    assert admin is not None
    assert admin.tls is not None
    assert not admin.tls.reloads


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ssl.keyStore.location": ""}, r"ssl\.keyStore\.location is not set"),
        (
            {"ssl.trustStore.location": ""},
            r"ssl\.clientAuth is need and ssl\.trustStore\.location is not set",
        ),
        ({"ssl.clientAuth": "maybe"}, "need, want, none"),
        ({"ssl.keyStore.type": "PK"}, "PEM, PKCS12, JKS, BCFKS"),
        ({"ssl.crl": "true"}, r"ssl\.crl is true, and this server cannot check that"),
        ({"ssl.ocsp": "true"}, r"ssl\.ocsp is true"),
        ({"ssl.clientHostnameVerification": "true"}, r"ssl\.clientHostnameVerification is true"),
        ({"ssl.authProvider": "mine"}, r"ssl\.authProvider is 'mine'"),
        (
            {"authProvider.1": "com.example.Mine"},
            r"authProvider\.1 is 'com\.example\.Mine'.*; leave the line out if no ACL",
        ),
        ({"secureClientPort": "x"}, "secureClientPort is 'x'"),
        ({"client.certReload": "yes"}, r"client\.certReload is 'yes', and has to be true or false"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(CoordinatorError, match=message):
        parse_configuration(LEAST | changed)


def test_a_missing_key_store_stops_the_start(start_coordinator: StartCoordinator, tmp_path: Path) -> None:
    tls = TlsSettings(Store(tmp_path / "none.pem"), client_auth="none")
    with pytest.raises(CoordinatorError, match=r"none\.pem cannot be read: No such file or directory"):
        start_coordinator(tmp_path / "data", secure=SecurePort("127.0.0.1", 0, tls))


# ---- names ----


def test_a_subject_is_written_as_java_writes_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def named(text: str, *options: str) -> str:
        certificate = authority.issue("named", text, *options)
        return subject(ssl.PEM_cert_to_DER_cert(certificate.with_suffix(".crt").read_text()))

    assert named("/C=DE/O=Example, Inc./CN=ann") == "CN=ann,O=Example\\, Inc.,C=DE"
    assert named("/CN=a=b#c;<d>") == "CN=a\\=b\\#c\\;\\<d\\>"
    assert named("/DC=org/UID=u+CN=ä", "-multivalue-rdn") == "CN=ä+UID=u,DC=org"
    assert named("/CN=x/emailAddress=x@y") == "1.2.840.113549.1.9.1=#1603784079,CN=x"


@pytest.mark.parametrize("cut", [0, 1, 5, 100, 250])
def test_a_truncated_certificate_is_refused(cut: int, certificates: Certificates) -> None:
    whole = ssl.PEM_cert_to_DER_cert(certificates.ann.with_suffix(".crt").read_text())
    with pytest.raises(ValueError, match=r"\w"):
        subject(whole[:cut])


def test_names_are_valid_as_in_java() -> None:
    for name in (
        "",
        "CN=a",
        "cn=a, O=b",
        "CN=a+OU=b;C=c",
        "1.2.3=#0401ff",
        'CN="a, b"',
        "CN=a\\,b",
        "CN=",
        "OID.1.2=x",
    ):
        assert is_name(name), name
    for name in ("a", "CN", "XX=a", "CN=a,", "CN=a,b", "=a", 'CN="a', "CN=a+", "CN=#zz", "CN=" + "a" * 5000):
        assert not is_name(name), name
