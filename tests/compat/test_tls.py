"""Clients over TLS, unmodified, against our broker, and principals of certificates compared with Apache
Kafka.

If one failed, a program that uses TLS with Apache Kafka would not be served here, would be served though it
must not be, or its user would have another name.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import confluent_kafka as confluent
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaConnectionError as AioConnectionError

from cluster.broker.principal_mapping import PrincipalMapper, RuleError
from tests.compat.conftest import KafkaTools
from tests.conftest import BrokerProcess
from tests.coordinator.certificates import Authority
from tests.ports import free_port

pytestmark = [
    pytest.mark.compat,
    # kafka-python leaves sockets to the garbage collector when it closes.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

COUNT = 2000
VALUES = [b"%d " % number * 100 for number in range(COUNT)]
PATIENCE = 30.0


class Served:
    """A broker with two listeners: any client may use one, clients with a certificate the other."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "certificates")
        self.strangers = Authority(directory / "strangers")
        self.ann = self.authority.issue("ann", "/CN=ann")
        self.stranger = self.strangers.issue("stranger", "/CN=ann")
        ports = [free_port() for _ in range(2)]
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:{ports[0]},OUTSIDE://127.0.0.1:{ports[1]}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,OUTSIDE:SSL",
            "ssl.keystore.location": str(self.authority.issue("broker", "/CN=broker")),
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.outside.ssl.client.auth": "required",
        }
        words = [word for name, text in settings.items() for word in ("--override", f"{name}={text}")]
        self.broker = BrokerProcess(directory / "data", 0, tuple(words))
        self.broker.wait_ready()
        self.anybody, self.outside = (f"127.0.0.1:{port}" for port in ports)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    started = Served(tmp_path_factory.mktemp("tls"))
    yield started
    status = started.broker.stop()
    assert status == 0, f"the broker stopped with status {status}; it said:\n{started.broker.output()}"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """kafka-python leaves connections open; they are closed while warnings about them are ignored."""
    yield
    gc.collect()


def fresh() -> str:
    return f"tls-{uuid.uuid4().hex[:8]}"


# ---- each client: produce and consume; then the reasons for which it is refused ----


def librdkafka(server: str, trusted: Path, own: Path | None, topic: str) -> list[bytes]:
    refusals: list[confluent.KafkaError] = []
    settings: dict[str, object] = {
        "bootstrap.servers": server,
        "security.protocol": "ssl",
        "ssl.ca.location": str(trusted),
        "error_cb": refusals.append,
        "log_level": 0,
    }
    if own is not None:
        settings |= {"ssl.certificate.location": str(own), "ssl.key.location": str(own)}
    producer = confluent.Producer(settings)
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    while producer.flush(0.1) and not refusals:
        pass
    if refusals:
        producer.purge()
        raise Refused(str(refusals[0]))
    consumer = confluent.Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < COUNT:
        messages = consumer.consume(COUNT, PATIENCE)
        assert messages, "no record came"
        found += [message.value() for message in messages if message.error() is None]
    consumer.close()
    return found


def kafka_python(
    server: str, trusted: Path, own: Path | None, topic: str, patience_ms: int = 1000 * int(PATIENCE)
) -> list[bytes]:
    settings = {
        "bootstrap_servers": server,
        "security_protocol": "SSL",
        "ssl_cafile": str(trusted),
        "ssl_certfile": str(own) if own else None,
        "ssl_keyfile": str(own) if own else None,
    }
    producer: kafka.KafkaProducer | None = None
    try:
        producer = kafka.KafkaProducer(**settings, bootstrap_timeout_ms=patience_ms, max_block_ms=patience_ms)
        sent = [producer.send(topic, value, partition=0) for value in VALUES]
        producer.flush(PATIENCE)
        for future in sent:
            future.get(PATIENCE)
    except kafka.errors.KafkaError as error:
        raise Refused(repr(error)) from error
    finally:
        if producer is not None:
            producer.close(PATIENCE)
    consumer = kafka.KafkaConsumer(**settings, auto_offset_reset="earliest", enable_auto_commit=False)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[bytes] = []
    while len(found) < COUNT:
        records = consumer.poll(timeout_ms=int(PATIENCE * 1000))
        assert records, "no record came"
        found += [record.value for record in records[partition]]
    consumer.close()
    return found


def aiokafka_(server: str, trusted: Path, own: Path | None, topic: str) -> list[bytes]:
    context = ssl.create_default_context(cafile=trusted)
    if own is not None:
        context.load_cert_chain(own)

    async def run() -> list[bytes]:
        settings = {"bootstrap_servers": server, "security_protocol": "SSL", "ssl_context": context}
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
            sent = [await producer.send(topic, value, partition=0) for value in VALUES]
            await asyncio.gather(*sent)
        except AioConnectionError as error:
            raise Refused(repr(error)) from error
        finally:
            await producer.stop()
        async with AIOKafkaConsumer(**settings, auto_offset_reset="earliest") as consumer:
            partition = AioTopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            found: list[bytes] = []
            while len(found) < COUNT:
                records = await asyncio.wait_for(consumer.getmany(timeout_ms=1000), PATIENCE)
                found += [record.value for record in records.get(partition, [])]
            return found

    return asyncio.run(run())


class Refused(Exception):
    """The client was refused; the text is its error."""


Program = Callable[..., list[bytes]]


@pytest.mark.parametrize("program", [librdkafka, kafka_python, aiokafka_])
def test_python_clients(served: Served, program: Program) -> None:
    trusted, strange = served.authority.certificate, served.strangers.certificate
    assert program(served.anybody, trusted, None, fresh()) == VALUES
    assert program(served.outside, trusted, served.ann, fresh()) == VALUES
    # A refused kafka-python tries again until its time is over.
    refused = partial(program, patience_ms=2000) if program is kafka_python else program
    for server, trusts, own in (
        (served.anybody, strange, None),
        (served.outside, trusted, None),
        (served.outside, trusted, served.stranger),
    ):
        with pytest.raises(Refused):
            refused(server, trusts, own, fresh())
    if program is not aiokafka_:
        # asyncio closes without a message.
        served.broker.wait_output("does not trust this listener's certificate")


def test_the_java_client(served: Served, kafka_tools: KafkaTools, tmp_path: Path) -> None:
    def properties(name: str, server: str, trusted: Path, own: Path | None) -> str:
        lines = [
            f"bootstrap.servers={server}",
            "security.protocol=SSL",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={trusted}",
            "enable.idempotence=false",
        ]
        if own is not None:
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={own}"]
        path = tmp_path / f"{name}.properties"
        path.write_text("\n".join(lines))
        return str(path)

    trusted, strange = served.authority.certificate, served.strangers.certificate
    program = str(Path(__file__).parent / "kafka" / "OverTls.java")
    said = kafka_tools.run(
        program,
        fresh(),
        str(COUNT),
        properties("anybody", served.anybody, trusted, None),
        properties("ann", served.outside, trusted, served.ann),
        properties("distrust", served.anybody, strange, None),
        properties("without", served.outside, trusted, None),
        properties("stranger", served.outside, trusted, served.stranger),
    )
    came, refused = [f"{COUNT} records"] * 2, ["SslAuthenticationException"] * 3
    assert said.splitlines() == came + refused


# ---- principals of certificates ----

RULES = [
    "DEFAULT",
    "",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L,DEFAULT",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
    "RULE:^CN=nobody$/x/ , RULE:.*/all/",
    "RULE:CN=(?<who>[^,]*).*/${who}/",
    "RULE:CN=(.)([^,]*).*/$2$10$3/",
    "RULE:(CN=)?.*/[$1]/",
    "RULE:CN=ann\\,x.*/a\\/b\\$1/",
    "RULE:CN=(.*),OU=(?!Service).*/$1/",
    "RULE:CN=([a-z]++).*/$1/L",
    "RULE:CN=(\\w+).*/$1/,DEFAULT",
    "RULE:a|CN=.*/x/",
    "RULE:a/b",
    "RULE:a/b/X",
    "DEFAULTS",
    "RULE:(/b/",
    "DEFAULT,RULE",
]
NAMES = [
    "CN=kafka1,OU=ServiceUsers,O=Example",
    "CN=Admin,OU=SME,O=My Company",
    "O=x,cn=web.1",
    "CN=ann\\,x,O=y",
    "CN=Jürgen,OU=Größe",
    "",
]


def test_names_are_mapped_as_kafka_maps_them(kafka_tools: KafkaTools) -> None:
    cases = [(rules, name) for rules in RULES for name in NAMES]
    program = str(Path(__file__).parent / "kafka" / "Principals.java")
    said = kafka_tools.run(program, stdin="".join(f"{rules}\n{name}\n" for rules, name in cases))

    def ours(rules: str, name: str) -> str:
        try:
            mapper = PrincipalMapper(rules)
        except RuleError:
            return "no rule"
        try:
            return "=" + mapper.name(name)
        except ValueError:
            return "nobody"

    assert [(*case, ours(*case)) for case in cases] == [
        (*case, theirs) for case, theirs in zip(cases, said.splitlines(), strict=True)
    ]
