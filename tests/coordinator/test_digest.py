"""The authentication scheme digest: whether it is enabled, and which algorithm hashes its passwords.

If these fail, clients get in without or stay out with the right password, or a changed setting changes the
replay of logged transactions.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from cluster.coordinator import CoordinatorError, Settings, parse_configuration
from cluster.coordinator.errors import Code, ZooKeeperError
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import Rules, Subject, digest_identity, resolve

from .conftest import StartCoordinator
from .support import Coordinator, RawClient

LEAST = {"dataDir": "/data", "clientPort": "1", "admin.enableServer": "false"}
SUPER_DIGEST, ENABLED, ALGORITHM = (
    f"DigestAuthenticationProvider.{name}" for name in ("superDigest", "enabled", "digestAlg")
)
SUPER = {SUPER_DIGEST: digest_identity(b"super:secret").id}
OFF = {ENABLED: "false"}
DIGEST_PROVIDER = {"authProvider.1": "org.apache.zookeeper.server.auth.DigestAuthenticationProvider"}
OPEN = [Acl(31, Id("world", "anyone"))]
ANNS = [Acl(31, digest_identity(b"ann:secret"))]
AUTH = [Acl(31, Id("auth", ""))]


def configured(**texts: str) -> Settings:
    return parse_configuration(LEAST | texts).settings


def connected(server: Coordinator) -> RawClient:
    client = RawClient(server.port)
    client.connect()
    return client


def add_auth(client: RawClient, credentials: bytes, scheme: str = "digest") -> int:
    return client.request(-4, Op.AUTH, Writer().i32(0).string(scheme).buffer(credentials).finish())[2]


def create(client: RawClient, path: str, acl: list[Acl]) -> int:
    return client.request(1, Op.CREATE, Writer().string(path).buffer(b"").acls(acl).i32(0).finish())[2]


def set_acl(client: RawClient, path: str, acl: list[Acl]) -> int:
    return client.request(1, Op.SET_ACL, Writer().string(path).acls(acl).i32(-1).finish())[2]


def read(client: RawClient, path: str) -> int:
    return client.request(2, Op.GET_DATA, Writer().string(path).boolean(False).finish())[2]


def acl_of(client: RawClient, path: str) -> list[Acl] | None:
    return Reader(client.request(3, Op.GET_ACL, Writer().string(path).finish())[3]).acls()


def test_a_disabled_scheme_authenticates_nobody(start_coordinator: StartCoordinator) -> None:
    server = start_coordinator(settings=configured(**SUPER, **OFF))
    for credentials in (b"ann:secret", b"super:secret"):
        client = connected(server)
        assert add_auth(client, credentials) == Code.AUTH_FAILED
        assert client.receive() == b""
        client.close()
    client = connected(server)
    assert add_auth(client, b"", "ip") == 0
    for acl in (ANNS, AUTH, OPEN + ANNS):
        assert create(client, "/a", acl) == Code.INVALID_ACL
    assert create(client, "/a", OPEN) == 0
    assert set_acl(client, "/a", ANNS) == Code.INVALID_ACL
    client.close()


def test_identities_of_a_disabled_scheme_grant_nothing() -> None:
    ann = (ANNS[0].id,)
    assert Subject(ann).may(1, ANNS)
    assert not Subject(ann, Rules.NO_DIGEST).may(1, ANNS)
    assert resolve(AUTH, Subject(ann), "/a") == tuple(ANNS)
    with pytest.raises(ZooKeeperError):
        resolve(AUTH, Subject(ann, Rules.NO_DIGEST), "/a")
    assert Subject((Id("sasl", "super"),), Rules.NO_DIGEST | Rules.SASL).may(1, [Acl(1, Id("sasl", "bob"))])


def test_disabling_the_scheme_does_not_change_logged_transactions(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    directory = tmp_path / "kept"
    server = start_coordinator(directory)
    client = connected(server)
    assert add_auth(client, b"ann:secret") == 0
    assert [create(client, path, acl) for path, acl in (("/anns", ANNS), ("/auth", AUTH))] == [0, 0]
    client.close()
    server.stop()

    server = start_coordinator(directory, settings=configured(**OFF))
    client = connected(server)
    assert [read(client, path) for path in ("/anns", "/auth")] == [Code.NO_AUTH, Code.NO_AUTH]
    assert create(client, "/refused", ANNS) == Code.INVALID_ACL
    client.close()
    server.stop()

    # There is no snapshot, so the log is applied again.
    assert not list(directory.glob("snapshot.*"))
    server = start_coordinator(directory)
    client = connected(server)
    assert add_auth(client, b"ann:secret") == 0
    found = [read(client, path) for path in ("/anns", "/auth", "/refused")]
    assert found == [0, 0, Code.NO_NODE]
    client.close()


# The hashes of super:test by Java's MessageDigest; its names are case-insensitive.
HASHES = {
    "MD5": "cb385c1a279701ed8d056874667c5ade",
    "SHA": "0ff22720749bef21046eb5b3f1bf65ef54636495",
    "sha1": "0ff22720749bef21046eb5b3f1bf65ef54636495",
    "SHA-1": "0ff22720749bef21046eb5b3f1bf65ef54636495",
    "SHA224": "a29c21dc553fd1652933ef0900e4bdf1bb10142fbcdb792fe37f2622",
    "SHA-256": "c23c92c3183ceb45004c5b5c8ae675969ceb087acf7a8bfa48fbbf643e7aba28",
    "sha256": "c23c92c3183ceb45004c5b5c8ae675969ceb087acf7a8bfa48fbbf643e7aba28",
    "SHA-512/224": "25ba1bf23d9cf6d8a402e2eeab170826bdd31b8692e9f7042d9b221f",
    "SHA512/256": "195e94e386b953b497805652f46916826c2adbe8a6eb8c069585e308789ade6a",
    "SHA3-256": "711cbf28f62e0e95bf76db1ea67893329ba2baea675a0754f6dc65b487efde10",
}


@pytest.mark.parametrize("name", HASHES)
def test_an_algorithm_has_javas_name(name: str) -> None:
    authentication = configured(**{ALGORITHM: name}).authentication
    hashed = base64.b64encode(bytes.fromhex(HASHES[name])).decode()
    expected = Id("digest", f"super:{hashed}")
    assert authentication.identities("digest", b"super:test", "127.0.0.1", None, "") == (expected,)
    found = authentication.identities("digest", b"super:test", "127.0.0.1", None, expected.id)
    assert found == (Id("super", ""), expected)


def test_another_algorithm_gives_other_identities(
    start_coordinator: StartCoordinator, tmp_path: Path
) -> None:
    directory = tmp_path / "kept"
    server = start_coordinator(directory)
    client = connected(server)
    assert add_auth(client, b"ann:secret") == 0
    assert create(client, "/sha1", AUTH) == 0
    client.close()
    server.stop()

    hashed = {
        name: base64.b64encode(hashlib.sha256(f"{name}:secret".encode()).digest()).decode()
        for name in ("ann", "super")
    }
    changed = configured(**{ALGORITHM: "SHA-256", SUPER_DIGEST: f"super:{hashed['super']}"})
    server = start_coordinator(directory, settings=changed)
    client = connected(server)
    assert add_auth(client, b"ann:secret") == 0
    assert read(client, "/sha1") == Code.NO_AUTH
    assert create(client, "/sha256", AUTH) == 0
    assert acl_of(client, "/sha256") == [Acl(31, Id("digest", f"ann:{hashed['ann']}"))]
    assert add_auth(client, b"super:secret") == 0
    assert acl_of(client, "/sha1") == ANNS
    client.close()


def test_settings_of_digest_are_parsed() -> None:
    assert configured() == Settings(tick_time_ms=3000)
    assert configured(**{ENABLED: "TRUE"}) == configured()
    off = configured(**OFF)
    assert (off.rules, off.authentication.digest_algorithm) == (Rules.NO_DIGEST, None)
    # A provider that is named explicitly is enabled, as in ZooKeeper.
    assert configured(**OFF, **DIGEST_PROVIDER, **SUPER) == configured(**SUPER)
    assert configured(**{f"zookeeper.{ALGORITHM}": "SHA-512"}).authentication.digest_algorithm == "sha512"


def test_a_super_user_without_the_scheme_gives_a_warning() -> None:
    configuration = parse_configuration(LEAST | SUPER | OFF)
    assert configuration.settings.super_digest == ""
    assert configuration.warnings == (f"{SUPER_DIGEST}=*****: this setting has no effect",)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({ALGORITHM: "SHA-7"}, f"{ALGORITHM} is 'SHA-7', and has to be one of MD5, SHA-1, SHA-224,"),
        ({ALGORITHM: "sha_256"}, f"{ALGORITHM} is 'sha_256'"),
        ({ALGORITHM: "MD2"}, f"{ALGORITHM} is 'MD2'"),
        ({ALGORITHM: ""}, f"{ALGORITHM} is ''"),
        ({ALGORITHM: "SHA-7"} | OFF, f"{ALGORITHM} is 'SHA-7'"),
        ({ENABLED: "no"}, f"{ENABLED} is 'no', and has to be true or false"),
        (
            OFF | {"enforce.auth.enabled": "true", "enforce.auth.schemes": "ip,digest"},
            "'digest', which has no provider",
        ),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(CoordinatorError, match=re.escape(message)):
        configured(**changed)
