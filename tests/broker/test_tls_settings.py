"""TLS settings, stores, and the principals of certificates.

If one failed, an operator's file would be read wrongly, a mistake in it would show with the first client, a
password would be in an error, or a client would be taken for another one.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from cluster.broker.config import BrokerConfig, ConfigError
from cluster.broker.dynamic.broker_rules import check_broker_config
from cluster.broker.dynamic.live import LiveConfig
from cluster.broker.errors import BrokerStartError
from cluster.broker.principal_mapping import PrincipalMapper, RuleError
from cluster.broker.tls import open_tls
from cluster.controller import znodes
from cluster.errors import InvalidRequest
from cluster.keystores import KeyStoreError, Store, identity, read_key_store
from cluster.model import BrokerId, BrokerInfo, Endpoint
from cluster.x509 import is_authority
from logcore._native import ListenerTls, tls_cipher_suites
from tests.compat.conftest import missing
from tests.coordinator.certificates import PASSWORD, Authority, encrypted, openssl, pkcs12

BASE = {
    "zookeeper.connect": "localhost:2181",
    "listeners": "PLAINTEXT://localhost:9092,SSL://localhost:9093",
}
STORE = {"ssl.keystore.location": "/keys.pem"}


def parse(settings: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.parse(BASE | settings)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker_pem(authority: Authority) -> Path:
    return authority.issue("broker", "/CN=broker")


def opened(settings: dict[str, str]) -> ListenerTls:
    return open_tls(parse(settings).tls["SSL"])


# ---- settings ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "ssl.keystore.location= is not allowed: listener SSL: .*needs a key"),
        (STORE | {"ssl.client.auth": "required"}, r"ssl.client.auth=required .*set ssl.truststore.location"),
        (STORE | {"ssl.client.auth": "maybe"}, "required, requested or none"),
        (STORE | {"ssl.keystore.type": "BCFKS"}, "ssl.keystore.type=BCFKS .*PKCS12 or PEM is needed"),
        (STORE | {"ssl.truststore.type": "x"}, "ssl.truststore.type=x"),
        (STORE | {"ssl.provider": "BC"}, "ssl.provider=BC .*leave the line out"),
        (STORE | {"ssl.engine.factory.class": "com.example.X"}, "ssl.engine.factory.class=com.example.X"),
        (
            STORE | {"ssl.enabled.protocols": "TLSv1,TLSv1.1"},
            "none of these is supported; TLSv1.2 and TLSv1.3",
        ),
        (STORE | {"ssl.enabled.protocols": "TLSv1.4"}, "TLSv1.4 is unknown"),
        (STORE | {"ssl.protocol": "SSLv2"}, "ssl.protocol=SSLv2"),
        (
            STORE | {"ssl.keystore.key": "secret"},
            r"ssl.keystore.key=\[hidden\] .*ssl.keystore.certificate.chain",
        ),
        (
            STORE | {"ssl.keystore.key": "secret", "ssl.keystore.certificate.chain": "c"},
            r"ssl.keystore.key=\[hidden\] .*only one of it and ssl.keystore.location",
        ),
        (
            STORE | {"ssl.truststore.certificates": "c", "ssl.truststore.location": "/t"},
            "ssl.truststore.certificates=.*only one of it",
        ),
        (
            STORE | {"ssl.principal.mapping.rules": "RULE:("},
            "ssl.principal.mapping.rules=RULE:.*does not begin with a rule",
        ),
        (
            STORE | {"listener.name.ssl.ssl.client.auth": "x"},
            "listener.name.ssl.ssl.client.auth=x is not allowed",
        ),
        (
            {"listeners": "SSL://localhost:1"} | STORE,
            "inter.broker.listener.name=PLAINTEXT .*security.inter.broker",
        ),
        ({"listeners": "SASL_SSL://localhost:1"}, "PLAINTEXT and SSL, not SASL_SSL"),
    ],
)
def test_a_bad_setting_is_one_clear_error(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(settings)
    assert "secret" not in str(caught.value)


def test_a_listeners_own_settings_take_precedence() -> None:
    config = parse(
        {
            "listeners": "PLAINTEXT://h:1,SSL://h:2,Outside://h:3",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,OUTSIDE:SSL",
            "ssl.keystore.location": "/all.pem",
            "ssl.keystore.password": "one",
            "listener.name.outside.ssl.keystore.location": "/own.p12",
            "listener.name.outside.ssl.keystore.password": "other",
            "listener.name.outside.ssl.truststore.location": "/t.p12",
            "listener.name.outside.ssl.truststore.password": "third",
            "listener.name.outside.ssl.client.auth": "required",
            "listener.name.outside.ssl.enabled.protocols": "TLSv1.3,TLSv1.1",
            "listener.name.outside.ssl.keymanager.algorithm": "PKIX",
            "ssl.endpoint.identification.algorithm": "",
            "inter.broker.listener.name": "SSL",
        }
    )
    assert set(config.tls) == {"SSL", "OUTSIDE"}
    plain, own = config.tls["SSL"], config.tls["OUTSIDE"]
    assert (plain.keys.location, plain.client_auth, plain.trust) == ("/all.pem", "none", None)
    assert plain.protocols == ("TLSv1.2", "TLSv1.3")
    assert own.keys.setting == "listener.name.outside.ssl.keystore.location"
    assert own.trust is not None
    assert (own.keys.location, own.trust.location, own.client_auth) == ("/own.p12", "/t.p12", "required")
    assert own.protocols == ("TLSv1.3",)
    assert "TLSv1.1 is not supported" in own.warnings[0]
    assert config.warnings == (
        "settings of Kafka that have no effect here: listener.name.outside.ssl.keymanager.algorithm, "
        "ssl.endpoint.identification.algorithm",
    )
    shown = repr(config.tls) + repr(config.server_settings())
    for password in ("'one'", "'other'", "'third'"):
        assert password not in shown


def test_stores_are_opened_only_at_the_start() -> None:
    live = LiveConfig(parse(STORE))
    check_broker_config(live, {"listener.name.plaintext.ssl.keystore.location": "/x"}, own=True)
    with pytest.raises(InvalidRequest, match="at its start only: change its file"):
        check_broker_config(live, {"listener.name.ssl.ssl.keystore.location": "/x"}, own=True)


def test_registrations_are_kafkas() -> None:
    secure = Endpoint("OUTSIDE", "::1", 9093, "SSL")
    data = znodes.encode_broker(BrokerInfo(BrokerId(1), (secure,)), 7)
    assert data == (
        b'{"features":{},"listener_security_protocol_map":{"OUTSIDE":"SSL"},'
        b'"endpoints":["OUTSIDE://[::1]:9093"],"jmx_port":-1,"port":-1,"host":null,"version":5,"timestamp":"7"}'
    )
    both = znodes.encode_broker(BrokerInfo(BrokerId(1), (secure, Endpoint("IN", "h", 9092))), 7)
    assert b'"port":9092,"host":"h"' in both
    assert znodes.decode_broker(BrokerId(1), data, 3).endpoints == (secure,)


# ---- stores ----


def at_location(path: Path, password: str = "") -> dict[str, str]:
    return {"ssl.keystore.location": str(path), "ssl.keystore.password": password}


def test_stores_of_every_kind_are_opened(authority: Authority, broker_pem: Path, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.p12"
    openssl(
        "pkcs12", "-export", "-nokeys", "-in", authority.certificate, "-out", trusted,
        "-passout", f"pass:{PASSWORD}",
    )  # fmt: skip
    text = broker_pem.read_text()
    at = text.index("-----BEGIN CERTIFICATE")
    key, chain = text[:at], text[at:]
    sealed = encrypted(broker_pem)
    sealed_key = sealed.read_text()[: sealed.read_text().index("-----BEGIN CERTIFICATE")]
    traditional = tmp_path / "traditional.pem"
    openssl("pkey", "-in", broker_pem, "-traditional", "-out", traditional)
    traditional.write_text(traditional.read_text() + chain)
    older = tmp_path / "older.pem"
    cipher = ["-v1", "PBE-SHA1-3DES", "-passout", f"pass:{PASSWORD}"]
    openssl("pkcs8", "-topk8", "-in", broker_pem, "-out", older, *cipher)
    older.write_text(older.read_text() + chain)

    for keys in (
        at_location(broker_pem) | {"ssl.keystore.type": "PEM"},
        at_location(traditional),
        at_location(sealed) | {"ssl.key.password": PASSWORD},
        at_location(sealed, PASSWORD),
        at_location(older, PASSWORD),
        at_location(pkcs12(broker_pem), PASSWORD) | {"ssl.key.password": PASSWORD},
        {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain},
        # As in a properties file without line breaks.
        {
            "ssl.keystore.key": sealed_key.replace("\n", " "),
            "ssl.keystore.certificate.chain": chain.replace("\n", " "),
            "ssl.key.password": PASSWORD,
        },
    ):
        for trust in (
            {"ssl.truststore.location": str(authority.certificate)},
            {"ssl.truststore.location": str(trusted), "ssl.truststore.password": PASSWORD},
            {"ssl.truststore.certificates": authority.certificate.read_text().replace("\n", " ")},
        ):
            assert opened({"ssl.client.auth": "required"} | keys | trust) is not None


@pytest.mark.parametrize("kind", ["RSA", "EC"])
def test_keystores_of_keytool_are_opened(kind: str, tmp_path: Path) -> None:
    if shutil.which("keytool") is None:
        missing("keytool", "apt-get install openjdk-17-jre-headless")
    store = tmp_path / "keys.p12"
    size = ["-keysize", "2048"] if kind == "RSA" else ["-groupname", "secp256r1"]
    subprocess.run(
        [
            "keytool", "-genkeypair", "-alias", "broker", "-keyalg", kind, *size, "-dname", "CN=broker",
            "-ext", "san=dns:localhost", "-keystore", str(store), "-storetype", "PKCS12",
            "-storepass", PASSWORD,
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert opened({"ssl.keystore.location": str(store), "ssl.keystore.password": PASSWORD}) is not None


def test_the_reason_why_a_store_cannot_be_opened_is_reported(
    authority: Authority, broker_pem: Path, tmp_path: Path
) -> None:
    other = authority.issue("other", "/CN=other").read_text()
    at = other.index("-----BEGIN CERTIFICATE")
    text = broker_pem.read_text()
    split = text.index("-----BEGIN CERTIFICATE")
    written = {
        "mismatch.pem": (other[:at] + text[split:], "the private key is not that of the first certificate"),
        "keyless.pem": (text[split:], "has no private keys, and exactly one is needed"),
        "two.pem": (text + other, "has 2 private keys"),
        "bare.pem": (text[:split], "has no certificates in it"),
        "torn.pem": (text.replace("MI", "M!", 1), "is not base64"),
        "short.pem": (
            text[:split] + "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
            "certificate",
        ),
        "keys.jks": (
            "\udcfe\udced\udcfe\udced",
            r"keytool -importkeystore .*keys\.p12 -deststoretype PKCS12",
        ),
    }
    for name, (content, message) in written.items():
        path = tmp_path / name
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(BrokerStartError, match=message) as caught:
            opened({"ssl.keystore.location": str(path)})
        assert f"ssl.keystore.location={path}" in str(caught.value)
    sealed, archive = encrypted(broker_pem), pkcs12(broker_pem)
    for path, password, message in (
        (tmp_path / "none.pem", "", "cannot be read: No such file"),
        (sealed, "", r"has an encrypted private key: set its password in ssl\.key\.password"),
        (sealed, "wr0ng", r"its password, ssl\.keystore\.password, does not open"),
        (archive, "wr0ng", "is not opened by its password: correct the password"),
    ):
        with pytest.raises(BrokerStartError, match=message) as caught:
            opened({"ssl.keystore.location": str(path), "ssl.keystore.password": password})
        assert "wr0ng" not in str(caught.value)
    traditional = tmp_path / "traditional.pem"
    openssl("pkey", "-in", broker_pem, "-traditional", "-aes128", "-passout", "pass:x", "-out", traditional)
    traditional.write_text(traditional.read_text() + text[split:])
    with pytest.raises(BrokerStartError, match="old encrypted form: convert it with openssl pkcs8 -topk8"):
        opened({"ssl.keystore.location": str(traditional)})
    trust = {"ssl.client.auth": "required", "ssl.truststore.location": str(tmp_path / "bare.pem")}
    with pytest.raises(BrokerStartError, match=r"ssl\.truststore\.location=.*no certificates"):
        opened({"ssl.keystore.location": str(broker_pem)} | trust)


def test_a_store_that_pkcs12_cannot_open_names_the_cause(broker_pem: Path) -> None:
    """If this failed, the operator would correct a password that is right."""
    for name, password, arguments, cause in (
        ("cipher", "x", ("-legacy", "-keypbe", "PBE-SHA1-DES"), "its encryption is not supported"),
        ("work", "x", ("-iter", "1000001"), "has more than 1,000,000 iterations"),
        ("emoji", "\N{GRINNING FACE}", (), "passwords cannot have characters beyond U+FFFF"),
    ):
        path, converted = broker_pem.with_suffix(f".{name}.p12"), broker_pem.with_suffix(f".{name}.pem")
        phrase = f"pass:{password}"
        openssl("pkcs12", "-export", "-in", broker_pem, "-out", path, "-passout", phrase, *arguments)
        with pytest.raises(BrokerStartError, match=f"openssl pkcs12 -in {path} -out {converted}") as caught:
            opened(at_location(path, password))
        assert cause in str(caught.value)
        legacy = arguments[:1] if name == "cipher" else ()
        openssl("pkcs12", "-in", path, "-out", converted, "-passin", phrase, "-passout", phrase, *legacy)
        assert opened(at_location(converted, password)) is not None, "the error's instructions are wrong"
    garbage = broker_pem.with_suffix(".garbage.p12")
    garbage.write_bytes(b"0\x03\x02\x01\x03")
    with pytest.raises(BrokerStartError, match="its structure cannot be read"):
        opened(at_location(garbage, "x"))
    for path in (encrypted(broker_pem), pkcs12(broker_pem)):
        with pytest.raises(BrokerStartError, match="half a surrogate pair, which is no character"):
            opened(at_location(path, "\ud800"))


def test_a_store_in_ber_is_opened(broker_pem: Path) -> None:
    """If this failed, stores with indefinite lengths would not be opened, which OpenSSL and Java open."""
    archive = pkcs12(broker_pem)
    der = archive.read_bytes()
    assert der[:2] == b"0\x82"
    archive.write_bytes(b"0\x80" + der[4:] + b"\0\0")
    assert opened(at_location(archive, PASSWORD)) is not None


def test_an_expired_certificate_is_reported(tmp_path: Path) -> None:
    key, request, made = (tmp_path / f"old.{ending}" for ending in ("key", "csr", "pem"))
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key]
    openssl("req", "-new", *new, "-subj", "/CN=old", "-out", request)
    openssl("x509", "-req", "-in", request, "-signkey", key, "-days", "-1", "-out", made)
    made.write_text(key.read_text() + made.read_text())
    with pytest.raises(BrokerStartError, match="the certificate of CN=old, which was valid until 20"):
        opened({"ssl.keystore.location": str(made)})


def test_a_key_without_its_public_key_gets_it(authority: Authority, broker_pem: Path) -> None:
    pem, _ = read_key_store(Store(broker_pem), "keys")
    whole = identity(pem, "", "keys", "").key
    bare = broker_pem.with_suffix(".bare.pem")
    openssl("ec", "-in", broker_pem, "-no_public", "-out", bare)
    openssl("pkcs8", "-topk8", "-nocrypt", "-in", bare, "-out", bare.with_suffix(".p8"))
    chain = pem[pem.index("-----BEGIN CERTIFICATE") :]
    again = identity(bare.with_suffix(".p8").read_text() + chain, "", "keys", "").key
    assert again == whole
    with pytest.raises(KeyStoreError, match="cannot be read"):
        identity("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----" + chain, "", "keys", "")


def test_cipher_suites_have_javas_names(broker_pem: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = {"ssl.keystore.location": str(broker_pem)}
    assert {"TLS_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"} < set(tls_cipher_suites())
    caplog.clear()
    opened(store | {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA"})
    assert [record.getMessage() for record in caplog.records] == [
        "listener SSL: ssl.cipher.suites has suites that are not supported and are left out: "
        "TLS_RSA_WITH_AES_128_CBC_SHA"
    ]
    with pytest.raises(BrokerStartError, match="TLS_RSA_WITH_AES_128_CBC_SHA: none of these is supported"):
        opened(store | {"ssl.cipher.suites": "TLS_RSA_WITH_AES_128_CBC_SHA"})
    with pytest.raises(
        BrokerStartError, match="none of the cipher suites belongs to one of the enabled protocols"
    ):
        opened(store | {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.2"})


# ---- the principals of certificates ----


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=ann,O=x", "CN=ann,O=x"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka1,OU=ServiceUsers,O=x", "kafka1"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L", "CN=Admin,OU=SME,O=x", "admin@sme"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=x,cn=web.1", "WEB.1"),
        ("RULE:^CN=x$/never/ , DEFAULT", "CN=ann", "CN=ann"),
        ("RULE:CN=a/b\\/c/", "CN=a", "b/c"),
        (",,DEFAULT,", "CN=ann", "CN=ann"),
        # Once the whole name matches, all occurrences are replaced, with the empty one at its end.
        ("RULE:.*/x/", "CN=ann", "xx"),
        ("RULE:CN=(?<who>.*)/${who}!/", "CN=ann", "ann!"),
        ("RULE:CN=(.)(.*)/$2$10$3/", "CN=ann", "nna0$3"),
        ("RULE:CN=(a)?.*/[$1]/", "CN=bob", "[]"),
        (f"RULE:CN=(.).*/$1{'0' * 5000}/", "CN=bob", f"b{'0' * 5000}"),
        ("RULE:CN=\\w+/ascii/,DEFAULT", "CN=ärger", "CN=ärger"),
    ],
)
def test_names_are_mapped_as_kafka_maps_them(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapper(rules).name(name) == principal


def test_a_name_that_no_rule_maps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no rule of ssl\.principal\.mapping\.rules applies to CN=ann"):
        PrincipalMapper("RULE:CN=bob/bob/").name("CN=ann")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("DEFAULTS", "does not begin with a rule"),
        ("RULE:a/b", "does not begin with a rule"),
        ("RULE:a/b/X", "does not begin with a rule"),
        ("RULE:(/b/", "cannot be used"),
        ("RULE:[a&&b]/b/", "cannot be used"),
        ("RULE:a/$1/", r"names a group that 'a' does not have: \$1"),
        ("RULE:(a)/$x/", "names a group"),
        ("RULE:(a)/${x}/", "names a group"),
    ],
)
def test_invalid_rules_are_refused(rules: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        PrincipalMapper(rules)


def test_only_authorities_may_sign_others(authority: Authority, tmp_path: Path) -> None:
    """As Java requires of a trust store: an authority that may sign certificates, or a certificate of version
    1.
    """
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", tmp_path / "key")

    def made(*extensions: str) -> bytes:
        options = [word for extension in extensions for word in ("-addext", extension)]
        openssl("req", "-x509", *key, "-out", tmp_path / "crt", "-subj", "/CN=x", *options)
        return ssl.PEM_cert_to_DER_cert((tmp_path / "crt").read_text())

    assert is_authority(ssl.PEM_cert_to_DER_cert(authority.certificate.read_text()))
    assert is_authority(made("basicConstraints=critical,CA:TRUE"))
    assert is_authority(made("basicConstraints=CA:TRUE,pathlen:0", "keyUsage=keyCertSign"))
    assert not is_authority(made("basicConstraints=CA:TRUE", "keyUsage=digitalSignature"))
    assert not is_authority(made("basicConstraints=critical,CA:FALSE"))
    leaf = authority.issue("leaf", "/CN=leaf").read_text()
    assert not is_authority(ssl.PEM_cert_to_DER_cert(leaf[leaf.index("-----BEGIN CERT") :]))
    with pytest.raises(ValueError, match="certificate"):
        is_authority(b"0\x03\x02\x01\x01")


def test_a_trust_store_may_have_a_key_only_if_clients_are_not_asked(authority: Authority) -> None:
    """The file does not say whether the issuers of the key's certificate are to be trusted."""
    path = str(pkcs12(authority.issue("keyed", "/CN=keyed")))
    both = {
        "ssl.keystore.location": path,
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.location": path,
        "ssl.truststore.password": PASSWORD,
    }
    assert opened(both) is not None
    for asked in ("requested", "required"):
        with pytest.raises(
            BrokerStartError, match=r"ssl\.truststore\.location=.*a private key in it"
        ) as caught:
            opened(both | {"ssl.client.auth": asked})
        assert PASSWORD not in str(caught.value)
    with pytest.raises(BrokerStartError, match="is not opened by its password: correct the password"):
        opened(both | {"ssl.truststore.password": "wr0ng"})
