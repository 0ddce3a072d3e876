"""The cases of tests/server/test_unknown_versions.py against Apache Kafka 3.9.1.

If one failed, we would treat a request in an unsupported version differently from Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compat.apache import ApacheKafka, apache_kafka
from tests.compat.conftest import KafkaTools
from tests.server.test_unknown_versions import ODD, check


@pytest.fixture(scope="module")
def kafka(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with apache_kafka(tmp_path_factory.mktemp("kafka")) as peer:
        peer.start()
        yield peer


@pytest.mark.compat
@pytest.mark.parametrize("name", ODD)
def test_apache_kafka_does_the_same(kafka: ApacheKafka, name: str) -> None:
    check(int(kafka.bootstrap.rpartition(":")[2]), name)
