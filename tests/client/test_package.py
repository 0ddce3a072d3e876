"""If these fail, importing the broker imports the client, too, or a name that scripts import is gone."""

from __future__ import annotations

import re
import subprocess
import sys

import confluent_kafka
import confluent_kafka.admin
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster
import cluster.client
from logcore._native import client_partition


def test_the_clients_are_imported_on_first_use() -> None:
    code = (
        "import sys, cluster, cluster.model\n"
        "assert 'cluster.client' not in sys.modules and 'logcore' not in sys.modules\n"
        "import cluster.errors\n"
        "assert 'cluster.client' not in sys.modules\n"
        "cluster.Producer\n"
        "assert 'cluster.client' in sys.modules\n"
        "heavy = {'pyarrow', 'pyspark', 'kazoo', 'rich', 'asyncio'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_every_public_name_is_there() -> None:
    for module in (cluster, cluster.client):
        for name in module.__all__:
            assert hasattr(module, name)
    assert set(cluster.__all__) <= set(cluster.client.__all__) <= set(dir(cluster.client))
    with pytest.raises(AttributeError, match="no attribute 'Produzer'"):
        _ = cluster.Produzer


# Were this broken, a script would miss something that the docs do not list as missing.
def test_each_name_of_confluent_kafka_is_there_or_listed_as_missing() -> None:
    documented = set(re.findall(r"\w+", cluster.__doc__ or ""))
    missing = set()
    for theirs, ours in (
        (confluent_kafka.Producer, cluster.Producer),
        (confluent_kafka.Consumer, cluster.Consumer),
        (confluent_kafka.admin.AdminClient, cluster.AdminClient),
        (confluent_kafka.TopicPartition, cluster.TopicPartition),
    ):
        missing |= {name for name in set(dir(theirs)) - set(dir(ours)) if not name.startswith("_")}
    assert missing <= documented, missing - documented
    for name in ("Node", "Uuid", "TopicPartitionInfo", "ConsumerGroupState", "TopicCollection"):
        assert hasattr(confluent_kafka, name)
        assert hasattr(cluster, name)


def test_the_constants_are_confluent_kafkas() -> None:
    for name in cluster.__all__:
        if name.startswith(("OFFSET_", "TIMESTAMP_")):
            assert getattr(cluster, name) == getattr(confluent_kafka, name)


@given(st.binary(max_size=40), st.integers(1, 2**31 - 1))
def test_keys_go_where_librdkafka_sends_them(key: bytes, count: int) -> None:
    assert client_partition("consistent", key, count) == confluent_kafka.consistent(key, count)
    assert client_partition("murmur2", key, count) == confluent_kafka.murmur2(key, count)
    assert client_partition("fnv1a", key, count) == confluent_kafka.fnv1a(key, count)
    if key:
        assert client_partition("consistent_random", key, count) == confluent_kafka.consistent(key, count)
    else:
        assert client_partition("consistent_random", key, count) is None


def test_topic_partitions_compare_by_topic_and_number() -> None:
    one, other = cluster.TopicPartition("t", 1, 5), cluster.TopicPartition("t", 1, 9)
    assert one == other
    assert hash(one) == hash(other)
    assert sorted([cluster.TopicPartition("t", 2), one]) == [one, cluster.TopicPartition("t", 2)]
    assert "offset=BEGINNING" in str(cluster.TopicPartition("t", 0, cluster.OFFSET_BEGINNING))
