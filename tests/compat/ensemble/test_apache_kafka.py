"""Three Apache Kafka 3.9.1 brokers on an ensemble of three.

Everything that Kafka keeps in ZooKeeper is changed. The ensemble's leader is killed meanwhile, then Kafka's
controller. If this fails, a Kafka cluster in ZooKeeper mode cannot run on our coordinator: it loses a
session, a change or a record.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

from tests.compat.apache import ApacheKafka
from tests.compat.conftest import KafkaTools
from tests.compat.load import PARTITIONS, PATIENCE_SECONDS, Group, Load, done, read_all, until
from tests.coordinator.support import WAIT_SECONDS
from tests.ports import free_port

from .members import MAKERS_OF_ENSEMBLES, Ensemble, Maker, ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

SESSION_MS = 9000
PASSWORD = "ann's secret"


class Cluster:
    """Three brokers, their ensemble, and the test's own session that reads the brokers' nodes."""

    def __init__(self, directory: Path, coordinators: Ensemble) -> None:
        self.coordinators = coordinators
        self.secured: list[str] = []
        """The addresses of the brokers' SASL listeners."""
        self.brokers = [self._broker(directory / f"broker-{number}", number) for number in range(3)]
        retry = KazooRetry(max_tries=-1, deadline=PATIENCE_SECONDS, ignore_expire=False)
        self.znodes = KazooClient(coordinators.hosts, timeout=20.0, command_retry=retry)

    def _broker(self, directory: Path, number: int) -> ApacheKafka:
        directory.mkdir()
        plain, sasl = free_port(), free_port()
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        settings = {
            "broker.id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": scram,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.replication.factor": "3",
            "min.insync.replicas": "2",
        }
        hosts = self.coordinators.hosts_from(number)
        self.secured.append(f"127.0.0.1:{sasl}")
        return ApacheKafka(directory, settings, zookeeper=hosts)

    def start(self) -> None:
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_serving()
        self.znodes.start(WAIT_SECONDS)
        self.until_whole()

    def close(self) -> None:
        self.znodes.stop()
        self.znodes.close()
        for broker in self.brokers:
            broker.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def admin(self) -> AdminClient:
        """A client whose timeout is long enough for operations of up to PATIENCE_SECONDS."""
        timeout_ms = int(2 * PATIENCE_SECONDS * 1000)
        return AdminClient(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": timeout_ms}
        )

    # Every connection breaks when the ensemble's leader is killed, so requests are retried.

    def data(self, path: str) -> bytes:
        data: bytes = self.znodes.retry(self.znodes.get, path)[0]
        return data

    def exists(self, path: str, watch: Callable[[WatchedEvent], None] | None = None) -> ZnodeStat | None:
        return self.znodes.retry(self.znodes.exists, path, watch)

    def children(self, path: str) -> list[str]:
        children: list[str] = self.znodes.retry(self.znodes.get_children, path)
        return children

    def sessions(self) -> dict[int, int]:
        """For each broker id, the session that owns its registration."""
        ids = self.children("/brokers/ids")
        return {int(each): self.exists(f"/brokers/ids/{each}").ephemeralOwner for each in ids}

    def controller(self) -> tuple[int, int]:
        """The controller's broker id, and its epoch."""
        broker = json.loads(self.data("/controller"))["brokerid"]
        return int(broker), int(self.data("/controller_epoch"))

    def is_whole(self) -> bool:
        """Whether each broker's metadata has all brokers, and every replica in sync."""
        for broker in self.brokers:
            topics = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(
                timeout=10
            )
            if len(topics.brokers) != len(self.brokers):
                return False
            partitions = [each for topic in topics.topics.values() for each in topic.partitions.values()]
            if any(each.leader < 0 or sorted(each.isrs) != sorted(each.replicas) for each in partitions):
                return False
        return True

    def until_whole(self) -> None:
        def whole() -> bool:
            with contextlib.suppress(KafkaException):
                return self.is_whole()
            return False

        until(whole, "every broker knows three brokers, and every replica is in sync")


@pytest.fixture(params=MAKERS_OF_ENSEMBLES, ids=lambda maker: maker.name)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    maker: Maker = request.param
    with ensemble(maker, tmp_path, 3, {"tickTime": "1000", "initLimit": "20"}) as coordinators:
        running = Cluster(tmp_path, coordinators)
        try:
            running.start()
            yield running
        finally:
            running.close()


def produce_as_ann(cluster: Cluster, topic: str) -> KafkaError | None:
    """The error of a record that user ann sends to a SASL listener; None if the broker took it."""
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": ",".join(cluster.secured),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "ann",
            "sasl.password": PASSWORD,
            "message.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"hers", on_delivery=lambda error, _message: errors.append(error))
    producer.flush(PATIENCE_SECONDS)
    return errors[0]


def settings_of(admin: AdminClient, resource: ConfigResource) -> dict[str, str]:
    (answer,) = done(admin.describe_configs([resource]))
    return {name: entry.value for name, entry in answer.items()}  # type: ignore[attr-defined]


def change(admin: AdminClient, kind: ConfigResource.Type, name: str, setting: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    done(admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]))


REPLICAS_AT_FIRST = [[0, 1], [1, 2], [2, 0]] * 2
REPLICAS_AT_LAST = [[0, 1, 2], [2, 1, 0], [1, 0, 2]] * 2
MANY = [f"made-{number}" for number in range(20)]


def change_everything(cluster: Cluster, admin: AdminClient, kafka_tools: KafkaTools) -> None:
    """Makes, alters and deletes each kind of data that Kafka keeps in ZooKeeper, except assignments."""
    done(admin.create_partitions([NewPartitions("changed", 4)]))
    done(admin.delete_topics(["deleted"]))
    change(admin, ConfigResource.Type.TOPIC, "changed", "retention.ms", "3600000")
    change(admin, ConfigResource.Type.TOPIC, "changed", "segment.bytes", "1048576")
    change(admin, ConfigResource.Type.TOPIC, "changed", "segment.bytes", None)
    for broker in range(3):
        change(admin, ConfigResource.Type.BROKER, str(broker), "log.retention.ms", f"{broker + 1}00000000")

    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    users = ("ann", "bob")
    done(
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, scram, PASSWORD.encode()) for user in users]
        )
    )
    done(
        admin.alter_user_scram_credentials([UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_256)])
    )
    done(admin.create_acls([may_write("ann", "changed"), may_write("bob", "load"), may_write("ann", "load")]))
    done(admin.delete_acls([filter_of(may_write("bob", "load")), filter_of(may_write("ann", "load"))]))
    quota = ["--add-config", "producer_byte_rate=1000000", "--entity-type", "users", "--entity-name", "ann"]
    kafka_tools.run("kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap, "--alter", *quota)


def check_everything(cluster: Cluster, admin: AdminClient) -> None:
    """Every broker has the result of :func:`change_everything`."""
    topics = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    assert len(topics["changed"].partitions) == 4
    assert "deleted" not in topics
    of_topic = settings_of(admin, ConfigResource(ConfigResource.Type.TOPIC, "changed"))
    assert (of_topic["retention.ms"], of_topic["segment.bytes"]) == ("3600000", "1073741824")

    def brokers_know() -> bool:
        resources = [ConfigResource(ConfigResource.Type.BROKER, str(broker)) for broker in range(3)]
        kept = [settings_of(admin, resource)["log.retention.ms"] for resource in resources]
        return kept == ["100000000", "200000000", "300000000"]

    until(brokers_know, "each broker has its own log.retention.ms")
    credentials = admin.describe_user_scram_credentials().result(PATIENCE_SECONDS)
    assert set(credentials) == {"ann"}
    acls = admin.describe_acls(filter_of(None)).result(PATIENCE_SECONDS)
    assert acls == [may_write("ann", "changed")]
    until(lambda: produce_as_ann(cluster, "changed") is None, "ann may write to changed")
    refusal = produce_as_ann(cluster, "load")
    assert refusal is not None
    assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    quota = json.loads(cluster.data("/config/users/ann"))["config"]
    assert quota["producer_byte_rate"] == "1000000"


def may_write(user: str, topic: str) -> AclBinding:
    literal = ResourcePatternType.LITERAL
    return AclBinding(
        ResourceType.TOPIC, topic, literal, f"User:{user}", "*", AclOperation.WRITE, AclPermissionType.ALLOW
    )


def filter_of(binding: AclBinding | None) -> AclBindingFilter:
    """A filter that matches exactly this binding, or every binding for None."""
    if binding is None:
        anything = ResourcePatternType.ANY
        return AclBindingFilter(
            ResourceType.ANY, None, anything, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def reassign(cluster: Cluster, kafka_tools: KafkaTools, plan: Path) -> None:
    partitions = [
        {"topic": "load", "partition": number, "replicas": replicas}
        for number, replicas in enumerate(REPLICAS_AT_LAST)
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    kafka_tools.run(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *("--bootstrap-server", cluster.bootstrap),
        *("--reassignment-json-file", str(plan), "--execute"),
    )


def is_reassigned(cluster: Cluster) -> bool:
    topic = json.loads(cluster.data("/brokers/topics/load"))
    replicas = [topic["partitions"][str(number)] for number in range(PARTITIONS)]
    return replicas == REPLICAS_AT_LAST and not topic["adding_replicas"] and not topic["removing_replicas"]


def until_made(cluster: Cluster, made: dict[str, Future[None]]) -> bool:
    """Waits until the topics that were being made at the kill exist and have leaders.

    Returns False if it had to make Kafka elect another controller, as an operator would.

    The ensemble's leader may agree on a create and die before it answers. Kafka then repeats the create
    (``ZooKeeperClient``'s callers retry on a lost connection), and the ensemble rightly answers that the node
    exists. Kafka mistakes that answer for a failure:

    - For a topic's node it answers that the topic already exists.
    - For a partition's state the controller counts the state change as failed
      (``PartitionStateMachine.initializeLeaderAndIsrForPartitions``). The partition stays without a leader
      until another controller takes over.

    Only these two are accepted, and only if the node exists and was made in the epoch of the killed leader.
    """
    epoch = epoch_of(cluster, f"/brokers/topics/{MANY[0]}")
    refusals = {name: refusal(future) for name, future in made.items()}
    of_nodes = [
        f"/brokers/topics/{name}"
        for name, code in refusals.items()
        if code == KafkaError.TOPIC_ALREADY_EXISTS
    ]
    assert all(epoch_of(cluster, path) == epoch for path in of_nodes), (refusals, epoch)
    late = [name for name, code in refusals.items() if code == KafkaError.REQUEST_TIMED_OUT]
    if not late:
        return True
    topics = cluster.admin().list_topics(timeout=PATIENCE_SECONDS).topics
    # Brokers do not know a partition that never had a leader.
    known = {name: topics[name].partitions.values() if name in topics else () for name in late}
    led = {(name, each.id) for name, partitions in known.items() for each in partitions if each.leader >= 0}
    without = [(name, number) for name in late for number in range(2) if (name, number) not in led]
    epochs = [epoch_of(cluster, f"/brokers/topics/{name}/partitions/{each}/state") for name, each in without]
    assert epochs, f"{late} are late, and every partition of them has a leader"
    assert set(epochs) == {epoch}, (without, epochs, epoch)
    before = cluster.controller()[1]
    cluster.znodes.delete("/controller")
    until(lambda: cluster.exists("/controller"), "there is a controller again")
    assert cluster.controller()[1] == before + 1
    return False


def refusal(future: Future[None]) -> int | None:
    """The error code of a topic's creation if :func:`until_made` accepts it; None if the topic was made."""
    try:
        future.result(2 * PATIENCE_SECONDS)
    except KafkaException as error:
        code: int = error.args[0].code()
        if code not in (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.REQUEST_TIMED_OUT):
            raise
        return code
    return None


def epoch_of(cluster: Cluster, path: str) -> int:
    """The epoch of the ensemble's leader that made the node."""
    made = cluster.exists(path)
    assert made is not None, path
    return int(made.czxid >> 32)


def test_a_kafka_cluster_runs_on_the_ensemble(
    cluster: Cluster, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    admin = cluster.admin()
    load_topic = NewTopic("load", PARTITIONS, replica_assignment=REPLICAS_AT_FIRST)
    done(admin.create_topics([load_topic, NewTopic("changed", 2, 3), NewTopic("deleted", 2, 3)]))
    cluster.until_whole()
    sessions, controller = cluster.sessions(), cluster.controller()
    load, group = Load(cluster.bootstrap, "load"), Group(cluster.bootstrap, "load")
    try:
        load.until_more()
        change_everything(cluster, admin, kafka_tools)
        check_everything(cluster, admin)

        # The ensemble's leader is killed while Kafka moves replicas and makes topics.
        begun = threading.Event()
        cluster.exists(f"/brokers/topics/{MANY[0]}", watch=lambda _event: begun.set())
        reassign(cluster, kafka_tools, tmp_path / "plan.json")
        made = admin.create_topics(
            [NewTopic(name, 2, 3) for name in MANY], operation_timeout=PATIENCE_SECONDS
        )
        assert begun.wait(PATIENCE_SECONDS)
        cluster.coordinators.leader().kill()
        if not until_made(cluster, made):
            controller = cluster.controller()
        load.until_more()
        until(lambda: is_reassigned(cluster), "the replicas of topic load are moved")
        cluster.until_whole()
        assert cluster.sessions() == sessions, "a broker's session ended with the ensemble's leader"
        assert cluster.controller() == controller, "the controller changed with the ensemble's leader"
        cluster.coordinators.heal()
        check_everything(cluster, admin)

        # The controller is killed: its registration ends with its session, and another broker takes over.
        number, epoch = controller
        gone = threading.Event()
        assert cluster.exists(f"/brokers/ids/{number}", watch=lambda _event: gone.set())
        cluster.brokers[number].stop(signal.SIGKILL)
        load.until_more()
        assert gone.wait(PATIENCE_SECONDS)
        until(lambda: cluster.exists("/controller"), "there is a controller again")
        successor, its_epoch = cluster.controller()
        assert successor != number
        assert its_epoch == epoch + 1
        survivors = {broker: owner for broker, owner in sessions.items() if broker != number}
        assert cluster.sessions() == survivors
        cluster.brokers[number].start()
        cluster.until_whole()

        # A new client, because the old one asks the old controller.
        admin = cluster.admin()
        done(admin.delete_topics(MANY, operation_timeout=PATIENCE_SECONDS))
        until(lambda: not set(cluster.children("/brokers/topics")) & set(MANY), "the topics are gone")
        load.until_more()
        load.stop()
        assert not load.refused, load.refused[0]
        written = {(partition, each[0]) for partition, known in load.acknowledged.items() for each in known}
        group.until_seen(written)
    finally:
        load.stop()
        group.stop()
    assert read_all(cluster.bootstrap, "load") == load.acknowledged
    check_everything(cluster, admin)
