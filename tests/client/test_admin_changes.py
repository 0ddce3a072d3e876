"""If these fail, settings and credentials cannot be changed from Python in confluent-kafka's shape.

Or a failure is reported for the wrong thing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect

import confluent_kafka
import confluent_kafka.admin
import pytest

import cluster
from cluster import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ElectionType,
    KafkaError,
    KafkaException,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cluster.client import (
    QuotaFilter,
    TopicPartition,
    TopicPartitionReplica,
    alter_client_quotas,
    alter_replica_log_dirs,
    api_versions,
    describe_client_quotas,
    describe_log_dirs,
)
from cluster.client._admin_users import _salted
from tests.client.conftest import WAIT, NewTopicFactory
from tests.conftest import BrokerProcess


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def setting(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def values(admin: AdminClient, resource: ConfigResource) -> dict[str, str | None]:
    """The settings that are not defaults."""
    described = admin.describe_configs([resource])[resource].result(WAIT)
    return {name: entry.value for name, entry in described.items() if "DYNAMIC" in entry.source.name}


def test_settings_are_changed_one_by_one_or_all_at_once(
    admin: AdminClient, new_topic: NewTopicFactory
) -> None:
    good = ConfigResource(
        "topic",
        new_topic(1),
        incremental_configs=[
            setting("retention.ms", "5000", AlterConfigOpType.SET),
            setting("cleanup.policy", "compact", AlterConfigOpType.APPEND),
        ],
    )
    bad = ConfigResource("topic", new_topic(1))
    bad.add_incremental_config(setting("retention.ms", "soon", AlterConfigOpType.SET))
    altered = admin.incremental_alter_configs([good, bad])
    assert altered[good].result(WAIT) is None
    with pytest.raises(KafkaException) as refused:
        altered[bad].result(WAIT)
    assert refused.value.error == KafkaError.INVALID_CONFIG
    assert values(admin, good) == {"retention.ms": "5000", "cleanup.policy": "delete,compact"}

    removal = ConfigResource("topic", good.name)
    removal.add_incremental_config(setting("retention.ms", None, AlterConfigOpType.DELETE))
    admin.incremental_alter_configs([removal], validate_only=True)[removal].result(WAIT)
    assert "retention.ms" in values(admin, good)
    admin.incremental_alter_configs([removal])[removal].result(WAIT)
    assert values(admin, good) == {"cleanup.policy": "delete,compact"}

    replaced = ConfigResource("topic", good.name, set_config={"segment.ms": "7000"})
    replaced.set_config("segment.ms", "8000", overwrite=False)
    admin.alter_configs([replaced])[replaced].result(WAIT)
    assert values(admin, good) == {"segment.ms": "7000"}


def test_a_brokers_settings_are_changed_at_that_broker(admin: AdminClient) -> None:
    [broker] = admin.list_topics(timeout=WAIT).brokers
    own = ConfigResource("broker", str(broker))
    own.add_incremental_config(setting("log.retention.ms", "600000", AlterConfigOpType.SET))
    admin.incremental_alter_configs([own])[own].result(WAIT)
    assert values(admin, own) == {"log.retention.ms": "600000"}
    own.incremental_configs = [setting("log.retention.ms", None, AlterConfigOpType.DELETE)]
    admin.incremental_alter_configs([own])[own].result(WAIT)
    assert values(admin, own) == {}


def test_a_change_without_an_operation_is_refused(admin: AdminClient) -> None:
    resource = ConfigResource("topic", "t", incremental_configs=[ConfigEntry("retention.ms", "1")])
    with pytest.raises(ValueError, match=r"retention\.ms: incremental_operation must be set"):
        admin.incremental_alter_configs([resource])


def test_quotas_are_set_and_removed(admin: AdminClient) -> None:
    entity: dict[str, str | None] = {"user": "quota-user", "client-id": None}
    alter_client_quotas(admin, entity, {"producer_byte_rate": 1024.0})
    asked = [QuotaFilter("user", "quota-user"), QuotaFilter("client-id")]
    [found] = describe_client_quotas(admin, asked)
    assert (found.entity, found.values) == (entity, {"producer_byte_rate": 1024.0})
    alter_client_quotas(admin, entity, {"producer_byte_rate": None})
    assert describe_client_quotas(admin, [QuotaFilter("user", any=True), QuotaFilter("client-id")]) == []


def test_log_directories_list_the_replicas(admin: AdminClient, new_topic: NewTopicFactory) -> None:
    topic = new_topic(2)
    [broker] = admin.list_topics(timeout=WAIT).brokers
    [(path, directory)] = describe_log_dirs(admin, [broker])[broker].items()
    assert directory.error is None
    replica = directory.replicas[TopicPartition(topic, 1)]
    assert (replica.size, replica.offset_lag, replica.is_future) == (0, 0, False)
    there = TopicPartitionReplica(topic, 1, broker)
    assert alter_replica_log_dirs(admin, {there: path}) == {there: None}
    elsewhere = alter_replica_log_dirs(admin, {there: "/no/such/directory"})[there]
    assert elsewhere == KafkaError.LOG_DIR_NOT_FOUND
    assert str(there) == f"{topic}-1-{broker}"


def test_a_broker_lists_its_versions(admin: AdminClient) -> None:
    [broker] = admin.list_topics(timeout=WAIT).brokers
    versions = api_versions(admin, broker)
    assert versions[18] == (0, 4)


# RFC 7677's example, with the stored key that servers keep of it.
def test_a_password_is_salted_as_the_rfc_says() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    sent = _salted(UserScramCredentialUpsertion("user", info, b"pencil", salt))
    client_key = hmac.digest(sent["salted_password"], b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    assert base64.b64encode(stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert sent["salt"] == salt
    assert "pencil" not in repr(UserScramCredentialUpsertion("user", info, b"pencil"))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (AlterConfigOpType, confluent_kafka.admin.AlterConfigOpType),
        (ElectionType, confluent_kafka.ElectionType),
        (ScramMechanism, confluent_kafka.admin.ScramMechanism),
    ],
)
def test_the_enums_are_confluent_kafkas(ours: type, theirs: type) -> None:
    shown = {name: getattr(ours, name).value for name in ours.__members__}  # type: ignore[attr-defined]
    assert shown == {name: getattr(theirs, name).value for name in theirs.__members__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "ScramCredentialInfo",
        "UserScramCredentialDeletion",
        "UserScramCredentialUpsertion",
        "UserScramCredentialsDescription",
    ],
)
def test_the_types_take_confluent_kafkas_arguments(name: str) -> None:
    ours, theirs = getattr(cluster, name), getattr(confluent_kafka.admin, name)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
