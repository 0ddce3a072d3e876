"""SASL logins and required authentication.

If these fail, a wrong password logs in, a right one does not, or a client without a login is served where one
is required.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.coordinator import CoordinatorError, Settings, parse_configuration, system_properties
from cluster.coordinator.errors import Code
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.protocol.sasl import DigestMd5, Login, SaslError, proofs
from cluster.coordinator.settings.authentication import Authentication
from cluster.coordinator.settings.jaas import LoginModule, parse
from cluster.coordinator.state.acl import Rules, Subject

from .conftest import OpenRaw, StartCoordinator
from .support import Coordinator, RawClient

LOGIN = Login({"bob": "bobsecret", "super": "adminsecret", "ä€": "ö€"})
JAAS = """
/* of a server */ Server {  // and its users
    org.apache.zookeeper.server.auth.DigestLoginModule required
        user_super="adminsecret"
        user_bob="bob\\"secret";
};
Client { org.apache.zookeeper.server.auth.DigestLoginModule required username="bob" password="x"; };
"""
SASL_PROVIDER = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
OPEN = [Acl(31, Id("world", "anyone"))]
StartWith = Callable[..., RawClient]


def response(challenge: bytes, user: str, password: str, **changed: str) -> bytes:
    """The answer of Java's client to a challenge."""
    found = dict(re.findall(r'([a-z-]+)="?([^",]*)"?', challenge.decode()))
    fields = {
        "charset": "utf-8", "username": user, "realm": found["realm"], "nonce": found["nonce"],
        "nc": "00000001", "cnonce": "abc", "digest-uri": "zookeeper/zk-sasl-md5", "maxbuf": "65536",
        "qop": "auth",
    }  # fmt: skip
    encoded = {name: text.encode() for name, text in fields.items()}
    fields["response"] = proofs(user, fields["realm"], password, encoded)[0].decode()
    fields |= changed
    quoted = ("username", "realm", "nonce", "cnonce", "digest-uri")
    return ",".join(
        f'{name}="{text}"' if name in quoted else f"{name}={text}" for name, text in fields.items()
    ).encode()


def log_in(
    client: RawClient, user: str = "bob", password: str = "bobsecret", **changed: str
) -> tuple[int, bytes | None]:
    """Logs in. Returns the error code and the server's last token."""
    xid, zxid, code, body = client.request(5, Op.SASL, Writer().buffer(b"").finish())
    assert (xid, zxid, code) == (5, 0, 0)
    challenge = Reader(body).buffer() or b""
    token = response(challenge, user, password, **changed)
    _xid, _zxid, code, body = client.request(6, Op.SASL, Writer().buffer(token).finish())
    return code, Reader(body).buffer()


@pytest.fixture
def start_with(start_coordinator: StartCoordinator, tmp_path: Path) -> StartWith:
    """Starts a server with settings of :class:`Authentication`, and connects to it."""

    def start(**settings: object) -> RawClient:
        authentication = Authentication(**({"login": LOGIN} | settings))  # type: ignore[arg-type]
        server = start_coordinator(
            tmp_path / "sasl", settings=Settings(rules=Rules.SASL, authentication=authentication)
        )
        client = RawClient(server.port)
        client.connect()
        return client

    return start


def who(client: RawClient) -> list[Id]:
    return list(Reader(client.request(9, Op.WHO_AM_I)[3]).identities())


def create(path: str, acl: list[Acl]) -> bytes:
    return Writer().string(path).buffer(b"").acls(acl).i32(0).finish()


def read(path: str) -> bytes:
    return Writer().string(path).boolean(False).finish()


def test_the_proofs_are_those_of_the_rfcs_example() -> None:
    fields = {
        "nonce": b"OA6MG9tEQGm2hh", "cnonce": b"OA6MHXh6VqTrRk", "nc": b"00000001", "qop": b"auth",
        "digest-uri": b"imap/elwood.innosoft.com",
    }  # fmt: skip
    assert proofs("chris", "elwood.innosoft.com", "secret", fields) == (
        b"d388dad90d4bbd760a152321f2143af7",
        b"ea40f60335c427b5527b84dbabcdfffd",
    )


def test_a_login_gives_an_identity_for_acls(start_with: StartWith) -> None:
    client = start_with()
    code, token = log_in(client)
    assert code == 0
    assert re.fullmatch(rb"rspauth=[0-9a-f]{32}", token or b"")
    assert who(client) == [Id("ip", "127.0.0.1"), Id("sasl", "bob")]
    for path, name, error in (("/bobs", "bob", 0), ("/anns", "ann", Code.NO_AUTH)):
        assert client.request(1, Op.CREATE, create(path, [Acl(31, Id("sasl", name))]))[2] == 0
        assert client.request(2, Op.GET_DATA, read(path))[2] == error
    client.close()


def test_a_super_user_may_read_everything(start_with: StartWith) -> None:
    client = start_with(sasl_super_users=frozenset({"ä€"}))
    assert client.request(1, Op.CREATE, create("/anns", [Acl(31, Id("sasl", "ann"))]))[2] == 0
    assert client.request(1, Op.CREATE, create("/digest", [Acl(31, Id("digest", "a:b"))]))[2] == 0
    assert client.request(2, Op.GET_DATA, read("/anns"))[2] == Code.NO_AUTH
    assert log_in(client, "ä€", "ö€")[0] == 0
    assert who(client) == [Id("ip", "127.0.0.1"), Id("sasl", "ä€"), Id("super", "")]
    assert client.request(2, Op.GET_DATA, read("/digest"))[2] == 0
    client.close()


def test_the_user_super_matches_every_sasl_entry(start_with: StartWith) -> None:
    client = start_with()
    assert client.request(1, Op.CREATE, create("/anns", [Acl(31, Id("sasl", "ann"))]))[2] == 0
    assert client.request(1, Op.CREATE, create("/digest", [Acl(31, Id("digest", "a:b"))]))[2] == 0
    assert log_in(client, "super", "adminsecret")[0] == 0
    assert client.request(2, Op.GET_DATA, read("/anns"))[2] == 0
    assert client.request(2, Op.GET_DATA, read("/digest"))[2] == Code.NO_AUTH
    client.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": "wrong"},
        {"user": "nobody"},
        {"nonce": "another"},
        {"nc": "00000002"},
        {"response": "0" * 32},
        {"response": ""},
        {"qop": "auth-conf"},
        {"charset": "latin-1"},
        {"digest-uri": "imap/zk-sasl-md5"},
        {"username": "super"},
        {"realm": "elsewhere"},
    ],
)
def test_a_wrong_login_ends_the_connection(start_with: StartWith, wrong: dict[str, str]) -> None:
    client = start_with()
    assert log_in(client, **wrong) == (Code.AUTH_FAILED, None)  # type: ignore[arg-type]
    assert client.receive() == b""
    client.close()


def test_an_acl_of_a_scheme_without_a_provider_grants_nothing() -> None:
    for scheme, rule in (("sasl", Rules.SASL), ("x509", Rules.X509)):
        identity = Id(scheme, "CN=bob")
        for rules in (Rules.NONE, rule):
            assert Subject((identity,), rules).may(1, (Acl(31, identity),)) is (rules is rule)


def test_a_failed_login_can_be_served_without_an_identity(start_with: StartWith) -> None:
    client = start_with(allows_failed_sasl=True)
    assert log_in(client, password="wrong") == (0, None)
    assert who(client) == [Id("ip", "127.0.0.1")]
    assert log_in_again(client) == (0, None), "a second login was tried"
    assert who(client) == [Id("ip", "127.0.0.1")]
    client.close()


def log_in_again(client: RawClient) -> tuple[int, bytes | None]:
    _xid, _zxid, code, body = client.request(5, Op.SASL, Writer().buffer(b"").finish())
    return code, Reader(body).buffer()


@pytest.mark.parametrize("op", [Op.PING, Op.EXISTS, Op.CREATE, Op.CLOSE_SESSION, 999])
def test_a_client_without_a_login_is_refused_where_sasl_is_required(start_with: StartWith, op: int) -> None:
    client = start_with(schemes=frozenset({"sasl"}), allows_failed_sasl=True)
    assert client.request(1, op, create("/a", OPEN))[:3] == (1, 0, Code.SESSION_CLOSED_REQUIRE_AUTH)
    assert client.receive() == b""
    client.close()


def test_a_client_with_a_login_is_served_where_sasl_is_required(start_with: StartWith) -> None:
    client = start_with(schemes=frozenset({"sasl"}))
    assert log_in(client)[0] == 0
    assert client.request(1, Op.CREATE, create("/a", OPEN))[2] == 0
    client.close()


def test_a_failed_login_where_sasl_is_required_has_its_own_code(start_with: StartWith) -> None:
    client = start_with(schemes=frozenset({"sasl"}), allows_failed_sasl=True)
    assert log_in(client, password="wrong") == (Code.SESSION_CLOSED_REQUIRE_AUTH, None)
    assert client.receive() == b""
    client.close()


def test_one_of_the_required_schemes_is_enough(start_with: StartWith) -> None:
    client = start_with(schemes=frozenset({"digest", "sasl"}))
    auth = Writer().i32(0).string("digest").buffer(b"ann:secret").finish()
    assert client.request(-4, Op.AUTH, auth)[2] == 0
    assert client.request(1, Op.CREATE, create("/a", OPEN))[2] == 0
    client.close()


def test_without_users_a_login_gives_no_identity(coordinator: Coordinator, open_raw: OpenRaw) -> None:
    client = open_raw()
    client.connect()
    assert log_in_again(client) == (0, None)
    assert who(client) == [Id("ip", "127.0.0.1")]


@given(
    tokens=st.lists(st.one_of(st.just(b""), st.binary(max_size=100), st.text().map(str.encode)), max_size=4)
)
def test_any_tokens_are_answered_or_refused(tokens: list[bytes]) -> None:
    login = DigestMd5(LOGIN)
    for token in tokens:
        with contextlib.suppress(SaslError):
            login.answer(token)
    assert login.user is None


def test_a_very_long_token_is_refused() -> None:
    login = DigestMd5(LOGIN)
    login.answer(b"")
    with pytest.raises(SaslError, match="5000 bytes"):
        login.answer(b"x" * 5000)


def test_a_response_logs_in_only_once() -> None:
    """If this failed, an eavesdropper could log in with a copied response."""
    first, second = DigestMd5(LOGIN), DigestMd5(LOGIN)
    token = response(first.answer(b""), "bob", "bobsecret")
    first.answer(token)
    assert first.user == "bob"
    second.answer(b"")
    with pytest.raises(SaslError, match="another challenge"):
        second.answer(token)


# ---- settings ----


@pytest.fixture
def jaas(tmp_path: Path) -> Path:
    path = tmp_path / "jaas.conf"
    path.write_text(JAAS)
    return path


def configured(jaas: Path, **settings: str) -> Authentication:
    texts = {"dataDir": "/data", "clientPort": "1", "admin.enableServer": "false"} | SASL_PROVIDER
    texts |= {"java.security.auth.login.config": str(jaas)} | settings
    configuration = parse_configuration(texts)
    assert configuration.warnings == ()
    assert configuration.settings.rules == Rules.SASL
    return configuration.settings.authentication


def test_the_users_are_those_of_the_file(jaas: Path) -> None:
    users = {"super": "adminsecret", "bob": 'bob"secret'}
    assert configured(jaas) == Authentication(login=Login(users))
    changed = configured(
        jaas,
        **{
            "zookeeper.superUser": "ann",
            "superUser.2": "bob",
            "SASLAuthenticationProvider.superPassword": "other",
            "sessionRequireClientSASLAuth": "true",
            "allowSaslFailedClients": "true",
            "kerberos.removeHostFromPrincipal": "true",
            "kerberos.removeRealmFromPrincipal": "true",
        },
    )
    assert changed == Authentication(
        login=Login(users | {"super": "other"}),
        sasl_super_users=frozenset({"ann", "bob"}),
        allows_failed_sasl=True,
        removes_host=True,
        removes_realm=True,
        schemes=frozenset({"sasl"}),
    )
    assert changed.sasl_identities("zk/host@REALM") == (Id("sasl", "zk"),)
    assert configured(jaas).sasl_identities("zk/host@REALM") == (Id("sasl", "zk/host@REALM"),)
    schemes = configured(
        jaas, **{"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl, digest"}
    ).schemes
    assert schemes == {"sasl", "digest"}
    assert configured(jaas, **{"enforce.auth.schemes": "sasl"}).schemes == frozenset()


def test_javas_flags_name_the_file_as_for_zookeeper(jaas: Path) -> None:
    flags = f'-Xmx1g "-Djava.security.auth.login.config={jaas}" -Dzookeeper.superUser=bob -Dother=1'
    environment = {"SERVER_JVMFLAGS": flags, "JVMFLAGS": "-Dzookeeper.superUser=ann"}
    found = system_properties(environment)
    assert found == {"java.security.auth.login.config": str(jaas), "superUser": "ann"}
    with pytest.raises(CoordinatorError, match="JVMFLAGS cannot be parsed"):
        system_properties({"JVMFLAGS": '"'})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"java.security.auth.login.config": "/none"}, "/none cannot be read: No such file or directory"),
        ({"sasl.serverconfig": "Other"}, "has no section Other: it has Server, Client"),
        (
            {"java.security.auth.login.config": "", "sessionRequireClientSASLAuth": "true"},
            "there are no users",
        ),
        ({"java.security.auth.login.config": "", "sasl.serverconfig": "Other"}, "no file is named"),
        (
            {
                "authProvider.1": "org.apache.zookeeper.server.auth.IPAuthenticationProvider",
                "sessionRequireClientSASLAuth": "true",
            },
            "'sasl', which has no provider",
        ),
        ({"enforce.auth.enabled": "true"}, "enforce.auth.schemes is empty"),
        ({"enforce.auth.enabled": "true", "enforce.auth.schemes": "x509"}, "'x509', which has no provider"),
        ({"fips-mode": "true"}, "forbids DIGEST-MD5"),
    ],
)
def test_impossible_settings_are_refused(jaas: Path, changed: dict[str, str], message: str) -> None:
    with pytest.raises(CoordinatorError, match=re.escape(message)):
        configured(jaas, **changed)


def test_kerberos_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jaas.conf"
    path.write_text("Server { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };")
    with pytest.raises(CoordinatorError, match=r"Kerberos is not supported: use .*DigestLoginModule"):
        configured(path)


def test_login_configurations_are_read_as_java_reads_them() -> None:
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    assert parse(JAAS) == {
        "Server": [LoginModule(module, {"user_super": "adminsecret", "user_bob": 'bob"secret'})],
        "Client": [LoginModule(module, {"username": "bob", "password": "x"})],
    }
    assert parse("") == {}
    assert parse("A{a REQUIRED;b optional x=\"1;}\" y='2';};") == {
        "A": [LoginModule("a", {}), LoginModule("b", {"x": "1;}", "y": "'2'"})]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Server", "line 1: '{' is missing after Server"),
        ("Server {", "section Server has no closing brace"),
        ("\nServer { a required; }", "line 2: ';' is missing after Server"),
        ("Server { a; };", "';' in the place of one of optional, required, requisite, sufficient"),
        ("Server { a required x; };", "'=' is missing after x"),
        ("Server { a required x=; };", "x has no value"),
        ("Server { a required x=y", "a has no closing semicolon"),
        ('Server { a required x="y; };', "a quotation mark that is not closed"),
        ("Server { a required x=${y}; };", "'{' in the place of an option or a semicolon"),
        ('Server { a required x="${y}"; };', "x refers to a Java property"),
        ("A { a required; }; A { a required; };", "section A appears twice"),
        ("{ };", "'{' in the place of a section's name"),
    ],
)
def test_a_malformed_login_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)
