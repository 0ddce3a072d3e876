"""The same requests to the other ports of Apache ZooKeeper 3.9 and of our coordinator.

The admin server's JSON, the metrics for Prometheus, TLS and SASL are compared; Apache's own client logs in to
both. If these fail, a dashboard or a client that works with ZooKeeper does not work with our coordinator.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl
from prometheus_client.parser import text_string_to_metric_families

from cluster.coordinator import CoordinatorError
from cluster.coordinator.ports.tls import TlsSettings, server_context
from cluster.coordinator.protocol.jute import Acl, Id, Reader, Writer
from cluster.coordinator.protocol.requests import Op
from cluster.coordinator.state.acl import digest_identity
from cluster.keystores import Store
from tests.compat.conftest import RUN_TIMEOUT, missing, peer_jars
from tests.compat.zookeeper_peer import apache_zookeeper
from tests.coordinator.certificates import PASSWORD, Authority, pkcs12
from tests.coordinator.support import WAIT_SECONDS, RawClient
from tests.coordinator.test_sasl import response
from tests.ports import free_port

pytestmark = pytest.mark.compat

PEER = "zookeeper-3.9.4-ports"
PROVIDERS = "org.apache.zookeeper.server.auth"
PROMETHEUS = "org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider"
JAAS = f"""
Server {{ {PROVIDERS}.DigestLoginModule required user_super="adminsecret" user_bob="bobsecret"; }};
Client {{ {PROVIDERS}.DigestLoginModule required username="bob" password="bobsecret"; }};
"""
SUBJECT = "/C=DE/ST=x/O=Example, Inc./OU= <a>;b /emailAddress=a@b/CN=änn#1=\\+2"


class Ports(NamedTuple):
    clients: int
    secure: int
    admin: int
    metrics: int


class Pair(NamedTuple):
    theirs: Ports
    ours: Ports


class Identities(NamedTuple):
    """The certificates and the JAAS file of a test run."""

    authority: Authority
    server: Path
    ann: Path
    jaas: Path


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    directory = tmp_path_factory.mktemp("identities")
    authority = Authority(directory)
    jaas = directory / "jaas.conf"
    jaas.write_text(JAAS)
    server = pkcs12(authority.issue("server", "/CN=localhost"))
    return Identities(authority, server, authority.issue("ann", SUBJECT), jaas)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers with their defaults."""
    with _both(tmp_path_factory.mktemp("plain"), {}, {}, False) as pair:
        yield pair


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, identities: Identities) -> Iterator[Pair]:
    """Both servers with TLS, SASL and Prometheus."""
    settings = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(identities.server),
        "ssl.keyStore.password": PASSWORD,
        "ssl.trustStore.location": str(identities.authority.certificate),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "want",
        "authProvider.1": f"{PROVIDERS}.SASLAuthenticationProvider",
        "metricsProvider.className": PROMETHEUS,
        "metricsProvider.httpHost": "127.0.0.1",
    }
    properties = {
        "java.security.auth.login.config": str(identities.jaas),
        "zookeeper.superUser": "bob",
        "zookeeper.fips-mode": "false",
    }
    with _both(tmp_path_factory.mktemp("full"), settings, properties, True) as pair:
        yield pair


@contextlib.contextmanager
def _both(
    directory: Path, settings: dict[str, str], properties: dict[str, str], secure: bool
) -> Iterator[Pair]:
    def ports() -> Ports:
        return Ports(*(free_port() for _ in range(4)))

    def named(ports: Ports) -> dict[str, str]:
        names = {
            "admin.enableServer": "true",
            "admin.serverAddress": "127.0.0.1",
            "admin.serverPort": str(ports.admin),
        }
        if secure:
            names |= {"secureClientPort": str(ports.secure), "metricsProvider.httpPort": str(ports.metrics)}
        return names

    theirs, ours = ports(), ports()
    ours_directory = directory / "ours"
    ours_directory.mkdir()
    config = ours_directory / "zoo.cfg"
    lines = {
        "dataDir": str(ours_directory / "data"),
        "clientPort": str(ours.clients),
        "clientPortAddress": "127.0.0.1",
        "4lw.commands.whitelist": "*",
    }
    config.write_text(
        "".join(f"{name}={text}\n" for name, text in (lines | settings | named(ours) | properties).items())
    )
    with (
        apache_zookeeper(directory, settings | named(theirs), properties, PEER) as port,
        subprocess.Popen(
            [sys.executable, "-m", "cluster.cli", "coordinator", str(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "the coordinator is ready\n", line + process.stdout.read()
            yield Pair(theirs._replace(clients=port), ours)
        finally:
            process.terminate()


def ask(
    port: int, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[int, str]:
    """The status and the body of an HTTP answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# ---- the admin server ----

COMMANDS = [
    "configuration",
    "connections",
    "dirs",
    "dump",
    "environment",
    "get_trace_mask",
    "hash",
    "initial_configuration",
    "is_read_only",
    "last_snapshot",
    "leader",
    "observers",
    "ruok",
    "server_stats",
    "set_trace_mask",
    "stats",
    "voting_view",
    "watch_summary",
    "watches",
    "watches_by_path",
    "zabstate",
    "crst",
    "orst",
    "srst",
    "connection_stat_reset",
    "conf",
    "config",
    "cons",
    "env",
    "envi",
    "gtmk",
    "icfg",
    "isro",
    "lsnp",
    "lead",
    "obsr",
    "srvr",
    "stmk",
    "stmk?traceMask=306",
    "stmk?traceMask=x",
    "stat_reset",
    "stat",
    "wchs",
    "wchc",
    "wchp",
    "what",
    "stat/",
    "mntrs",
]

UNMEASURED = {
    "ack_latency",
    "close_session_prep_time",
    "commit_commit_proc_req_queued",
    "commit_process_time",
    "concurrent_request_processing_in_commit_processor",
    "learner_handler_qp_size",
    "learner_handler_qp_time_ms",
    "local_write_committed_time_ms",
    "netty_queued_buffer_capacity",
    "outstanding_changes_queued",
    "outstanding_changes_removed",
    "pending_session_queue_size",
    "prep_process_time",
    "prep_processor_queue_size",
    "prep_processor_queue_time_ms",
    "proposal_process_time",
    "read_commit_proc_issued",
    "read_commit_proc_req_queued",
    "read_commitproc_time_ms",
    "read_final_proc_time_ms",
    "reads_after_write_in_session_queue",
    "reads_issued_from_session_queue",
    "request_commit_queued",
    "request_throttle_queue_time_ms",
    "requests_in_session_queue",
    "server_write_committed_time_ms",
    "session_queues_drained",
    "socket_closing_time",
    "sync_process_time",
    "sync_processor_queue_and_flush_time_ms",
    "sync_processor_queue_flush_time_ms",
    "sync_processor_queue_size",
    "sync_processor_queue_time_ms",
    "time_waiting_empty_pool_in_commit_processor_read_ms",
    "write_batch_time_in_commit_processor",
    "write_commit_proc_issued",
    "write_commit_proc_req_queued",
    "write_commitproc_time_ms",
    "write_final_proc_time_ms",
}
"""The metrics of queues, learners and Netty, which our coordinator does not have."""


def shape(value: Any) -> Any:
    """The types instead of the values, one element of each list, and ID for each name that is an id."""
    if isinstance(value, dict):
        return {
            "ID" if re.fullmatch(r"-?\d+|/.*", name) else name: shape(each) for name, each in value.items()
        }
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def with_a_client(port: int, path: str) -> RawClient:
    """A client that owns an ephemeral node and has a watch."""
    client = RawClient(port)
    client.connect(timeout_ms=60_000)
    body = Writer().string(path).buffer(b"").acls([Acl(31, Id("world", "anyone"))]).i32(1).finish()
    assert client.request(1, Op.CREATE, body)[2] == 0
    assert client.request(2, Op.EXISTS, Writer().string("/e").boolean(True).finish())[2] != 0
    return client


def test_each_command_has_zookeepers_fields(plain: Pair) -> None:
    clients = [with_a_client(ports.clients, "/fields") for ports in plain]
    for name in COMMANDS:
        answers = [ask(ports.admin, f"/commands/{name}") for ports in plain]
        assert answers[0][0] == answers[1][0], name
        theirs, ours = (json.loads(body) for _status, body in answers)
        assert shape(ours) == shape(theirs), name
        assert (ours["command"], ours["error"]) == (theirs["command"], theirs["error"]), name
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    "path", ["/commands", "/commands/", "/commands/ruok", "/commands/zabstate", "/commands/voting_view"]
)
def test_answers_without_variable_parts_are_identical(plain: Pair, path: str) -> None:
    theirs, ours = (ask(ports.admin, path) for ports in plain)
    assert ours == theirs


@pytest.mark.parametrize("name", ["snapshot", "restore"])
@pytest.mark.parametrize("authorization", ["", "none", "digest", "x509"])
def test_snapshot_and_restore_need_credentials(plain: Pair, name: str, authorization: str) -> None:
    headers = {"Authorization": authorization} if authorization else {}
    body = b"x" if name == "restore" else None
    theirs, ours = (ask(ports.admin, f"/commands/{name}", headers, body) for ports in plain)
    assert ours[0] == theirs[0]
    assert json.loads(ours[1]) == json.loads(theirs[1])


def test_a_snapshot_has_zookeepers_headers(plain: Pair) -> None:
    found = []
    for ports in plain:
        request = urllib.request.Request(
            f"http://127.0.0.1:{ports.admin}/commands/snapshot", headers={"Authorization": "ip"}
        )
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            assert len(answer.read()) == int(answer.headers["snapshot_size"])
            found.append((answer.headers["Content-Type"], answer.headers["last_zxid"][:2]))
    assert found[0] == found[1]


def test_bytes_read_and_written_of_a_namespace_are_counted_alike(plain: Pair) -> None:
    found = []
    for ports in plain:
        client = RawClient(ports.clients)
        client.connect()
        for op, path, more in (
            (Op.CREATE, "/ns", Writer().buffer(b"data").acls([Acl(31, Id("world", "anyone"))]).i32(0)),
            (Op.CREATE, "/ns/child", Writer().buffer(b"").acls([Acl(31, Id("world", "anyone"))]).i32(0)),
            (Op.SET_DATA, "/ns", Writer().buffer(b"other data").i32(-1)),
            (Op.GET_DATA, "/ns", Writer().boolean(False)),
            (Op.EXISTS, "/ns", Writer().boolean(False)),
            (Op.EXISTS, "/ns/none", Writer().boolean(False)),
            (Op.GET_CHILDREN, "/ns", Writer().boolean(False)),
            (Op.GET_CHILDREN2, "/ns", Writer().boolean(False)),
            (Op.DELETE, "/ns/child", Writer().i32(-1)),
        ):
            client.request(1, op, Writer().string(path).finish() + more.finish())
        client.close()
        values = json.loads(ask(ports.admin, "/commands/monitor")[1])
        found.append({name: value for name, value in values.items() if "_ns_" in name})
    assert len(found[0]) == 10
    assert found[1] == found[0]


def test_monitor_has_only_values_that_zookeeper_has(plain: Pair) -> None:
    theirs, ours = (json.loads(ask(ports.admin, "/commands/monitor")[1]) for ports in plain)
    assert {name: shape(value) for name, value in ours.items()} == {
        name: shape(value) for name, value in theirs.items() if name in ours
    }
    left_out = {
        re.sub("^(avg|min|max|cnt|sum|p50|p95|p99|p999)_", "", name) for name in theirs.keys() - ours.keys()
    }
    assert left_out - UNMEASURED == set()


# ---- Prometheus ----


def test_metrics_have_zookeepers_names_and_types(full: Pair) -> None:
    for ports in full:
        with_a_client(ports.clients, "/metrics").close()
    kinds, labels = [], []
    for ports in full:
        families = list(text_string_to_metric_families(ask(ports.metrics, "/metrics")[1]))
        kinds.append({each.name: each.type for each in families})
        labels.append(
            {
                (each.name, tuple(one.labels), *tuple(one.labels.values()))
                for each in families
                for one in each.samples
            }
        )
    theirs, ours = kinds
    process = {name for name in ours if name.startswith("process_")}
    assert {name: kind for name, kind in ours.items() if name not in process} == {
        name: kind for name, kind in theirs.items() if name in ours and name not in process
    }
    assert process <= theirs.keys()
    assert {each for each in labels[1] if each[0] not in process} <= labels[0]
    left_out = {name for name in theirs.keys() - ours.keys() if not name.startswith(("jvm_", "process_"))}
    assert left_out - UNMEASURED == set()


def test_monitor_has_only_zookeepers_names_with_prometheus(full: Pair) -> None:
    theirs, ours = (json.loads(ask(ports.admin, "/commands/monitor")[1]) for ports in full)
    own = {name for name in ours if not name.startswith("process_")}
    assert own <= theirs.keys()


# ---- TLS ----


def over_tls(port: int, context: ssl.SSLContext) -> RawClient:
    client = RawClient(port)
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    return client


def who(client: RawClient) -> list[Id]:
    return sorted(Reader(client.request(9, Op.WHO_AM_I)[3]).identities())


def test_a_certificate_gives_the_same_identities(full: Pair, identities: Identities) -> None:
    found = []
    for ports in full:
        client = over_tls(ports.secure, identities.authority.client_context(identities.ann))
        client.connect()
        found.append(who(client))
        client.close()
    assert len(found[0]) == 2
    assert found[0] == found[1]


NAMES = [
    "", "CN=me", "cn=me, o=you", "CN=a+OU=b;C=c", "1.2.3=#0401ff", 'CN="a, b"', "CN=a\\,b", "CN=",
    "OID.1.2=x", "a", "CN", "XX=a", "CN=a,", "CN=a,b", "=a", 'CN="a', "CN=a+", "CN=#zz", "CN= a ",
    "EMAILADDRESS=a@b", "CN=ä", "1.2=a", "CN=a=b", " CN = a , O = b ",
]  # fmt: skip


def test_acls_accept_the_same_names(full: Pair) -> None:
    found = []
    for ports in full:
        client = RawClient(ports.clients)
        client.connect()
        ids = [Id("x509", name) for name in NAMES]
        ids += [Id("sasl", name) for name in ("bob", "", "a/b@C", "a@b@c", "a/b/c", "@", "a b")]
        codes = {}
        for number, each in enumerate(ids):
            body = Writer().string(f"/acl{number}").buffer(b"").acls([Acl(1, each)]).i32(0).finish()
            codes[each] = client.request(number + 1, Op.CREATE, body)[2]
        found.append(codes)
        client.close()
    assert found[1] == found[0]


def shell(options: dict[str, str], port: int, script: str) -> str:
    """The output of Apache's shell 3.9.4."""
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += [f"-D{name}={value}" for name, value in options.items()]
    command = [
        *java,
        "-cp",
        f"{peer_jars(PEER)}/*",
        "org.apache.zookeeper.ZooKeeperMain",
        "-server",
        f"127.0.0.1:{port}",
    ]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=RUN_TIMEOUT)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_apaches_client_connects_over_tls(full: Pair, identities: Identities) -> None:
    options = {
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.client.secure": "true",
        "zookeeper.ssl.keyStore.location": str(pkcs12(identities.ann)),
        "zookeeper.ssl.keyStore.password": PASSWORD,
        "zookeeper.ssl.trustStore.location": str(identities.authority.certificate),
        "zookeeper.ssl.trustStore.type": "PEM",
    }
    script = "whoami\ncreate /java hello auth::cdrwa\ngetAcl /java\nget /java\nquit\n"
    for port in (full.theirs.secure, full.ours.secure):
        output = shell(options, port, script)
        assert re.search(r"\nx509: CN=.*O=Example\\, Inc\.", output), output
        assert re.search(r"'x509,'CN=.*O=Example\\%2C Inc\..*\n: cdrwa\nhello\n", output), output


def test_keytools_pkcs12_is_read_and_its_jks_is_refused(tmp_path: Path) -> None:
    if shutil.which("keytool") is None:
        missing("keytool", "apt-get install openjdk-17-jre-headless")
    for kind in ("PKCS12", "JKS"):
        store = tmp_path / f"keys.{kind.lower()}"
        command = f"keytool -genkeypair -keystore {store} -storetype {kind} -alias a -keyalg EC -dname CN=a"
        secrets = "-storepass secret -keypass secret"
        made = subprocess.run(
            f"{command} {secrets}".split(), capture_output=True, text=True, timeout=RUN_TIMEOUT
        )
        assert made.returncode == 0, made.stdout + made.stderr
    server_context(TlsSettings(Store(tmp_path / "keys.pkcs12", "secret"), client_auth="none"))
    with pytest.raises(CoordinatorError, match="keytool -importkeystore"):
        server_context(TlsSettings(Store(tmp_path / "keys.jks", "secret"), client_auth="none"))


# ---- SASL ----


def log_in(client: RawClient, **changed: str) -> list[Any]:
    """The answers of a login, without nonces and proofs."""
    _xid, zxid, code, body = client.request(5, Op.SASL, Writer().buffer(b"").finish())
    challenge = Reader(body).buffer() or b""
    answers = [zxid, code, re.sub(rb'nonce="[^"]*"', b"nonce", challenge)]
    user, password = changed.pop("user", "bob"), changed.pop("password", "bobsecret")
    token = response(challenge, user, password, **changed)
    _xid, zxid, code, body = client.request(6, Op.SASL, Writer().buffer(token).finish())
    last = Reader(body).buffer()
    answers += [zxid, code, re.sub(rb"[0-9a-f]{32}", b"proof", last) if last else last]
    if code == 0:
        return [*answers, who(client)]
    return [*answers, client.receive()]


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"user": "super", "password": "adminsecret"}, {"password": "wrong"}, {"user": "nobody"},
        {"nonce": "x"}, {"qop": "auth-int"}, {"digest-uri": "imap/x"},
        {"digest-uri": "ZooKeeper/zk-sasl-md5"}, {"realm": "x"}, {"response": "x"}, {"charset": "latin-1"},
    ],
    ids=str,
)  # fmt: skip
def test_logins_get_zookeepers_answers(full: Pair, changed: dict[str, str]) -> None:
    found = []
    for ports in full:
        client = RawClient(ports.clients)
        client.connect()
        found.append(log_in(client, **changed))
        client.close()
    assert found[1] == found[0]


def test_apaches_client_logs_in(full: Pair, identities: Identities) -> None:
    options = {"java.security.auth.login.config": str(identities.jaas), "zookeeper.fips-mode": "false"}
    script = "whoami\ncreate /sasl hello sasl:bob:cdrwa\ngetAcl /sasl\nget /sasl\nquit\n"
    for port in (full.theirs.clients, full.ours.clients):
        output = shell(options, port, script)
        assert "\nsasl: bob\n" in output, output
        assert "'sasl,'bob\n: cdrwa\nhello\n" in output, output


def test_kazoo_logs_in(full: Pair) -> None:
    client = KazooClient(
        hosts=f"127.0.0.1:{full.ours.clients}",
        sasl_options={"mechanism": "DIGEST-MD5", "username": "bob", "password": "bobsecret"},
    )
    client.start(timeout=WAIT_SECONDS)
    try:
        client.create("/kazoo", b"", acl=[make_acl("sasl", "bob", all=True)])
        assert client.get("/kazoo")[0] == b""
    finally:
        client.stop()
        client.close()


# ---- digests ----

DIGEST = "DigestAuthenticationProvider"


@pytest.mark.parametrize(
    ("settings", "anns"),
    [
        ({f"{DIGEST}.enabled": "false"}, []),
        (
            {f"{DIGEST}.enabled": "false", "authProvider.1": f"{PROVIDERS}.{DIGEST}"},
            [digest_identity(b"ann:secret")],
        ),
        (
            {
                f"{DIGEST}.digestAlg": "sha3-256",
                f"{DIGEST}.superDigest": digest_identity(b"super:secret", "sha3_256").id,
            },
            [digest_identity(b"ann:secret", "sha3_256")],
        ),
    ],
    ids=["off", "by-name", "sha3"],
)
def test_settings_of_digests_work_alike(tmp_path: Path, settings: dict[str, str], anns: list[Id]) -> None:
    """The answers of auth, create, getACL and whoAmI to three clients, and of the admin server."""
    found = []
    with _both(tmp_path, settings, {}, False) as pair:
        for ports in pair:
            answers: list[object] = []
            for number, credentials in enumerate((b"", b"ann:secret", b"super:secret")):
                client = RawClient(ports.clients)
                client.connect()
                body = Writer().i32(0).string("digest").buffer(credentials).finish()
                if credentials and client.request(-4, Op.AUTH, body)[2] != 0:
                    answers.append(client.receive())
                    client.close()
                    continue
                for scheme, name in (("digest", "a:b"), ("auth", ""), ("digest", "a")):
                    path = f"/{scheme}{len(name)}{number}"
                    acl = [Acl(31, Id(scheme, name))]
                    code = client.request(
                        1, Op.CREATE, Writer().string(path).buffer(b"").acls(acl).i32(0).finish()
                    )[2]
                    got = client.request(2, Op.GET_ACL, Writer().string(path).finish())
                    answers += [code, got[2], Reader(got[3]).acls() if got[2] == 0 else None]
                answers.append(who(client))
                client.close()
            headers = {"Authorization": "digest super:secret"}
            answers.append(ask(ports.admin, "/commands/snapshot?streaming=false", headers)[0])
            found.append(answers)
    assert found[1] == found[0]
    assert ([Acl(31, each) for each in anns] in found[0]) == bool(anns)
