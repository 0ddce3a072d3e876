"""If these fail, a mistyped setting is ignored silently, or a correct one refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from cluster import AdminClient, Consumer, KafkaError, KafkaException, Producer
from cluster.client import _config


def parse(client: str = "p", **overrides: object) -> dict[str, object]:
    return _config.parse(
        [], client, {name.replace("__", "."): value for name, value in overrides.items()}
    ).values


def error_of(config: Mapping[str, object], client: str = "p") -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        _config.parse([config], client, {})
    return caught.value.error


def test_an_unknown_property_is_named() -> None:
    error = error_of({"linger.mss": 1})
    assert error == KafkaError._INVALID_ARG
    assert error.str() == 'No such configuration property: "linger.mss"'


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"linger.ms": "soon"}, "linger.ms"),
        ({"batch.num.messages": 0}, "outside allowed range 1..1000000"),
        ({"compression.type": "rar"}, "compression.type"),
        ({"acks": 7}, "acks"),
        ({"transaction.timeout.ms": 999}, "outside allowed range 1000"),
        ({"enable.idempotence": "maybe"}, "true or false"),
        ({"bootstrap.servers": "localhost:port"}, "host:port"),
        ({"bootstrap.servers": "localhost:²"}, "host:port"),
        ({"bootstrap.servers": "localhost:" + "9" * 5000}, "host:port"),
        ({"bootstrap.servers": " , "}, "host:port"),
        ({"security.protocol": "kerberos"}, "security.protocol"),
    ],
)
def test_a_bad_value_names_its_property(config: Mapping[str, object], words: str) -> None:
    assert words in error_of(config).str()


def test_properties_that_would_be_unsafe_to_ignore_are_refused() -> None:
    assert error_of({"security.protocol": "SSL"}) == KafkaError._NOT_IMPLEMENTED


@pytest.mark.parametrize(
    "name",
    ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy", "group.protocol.type"],
)
def test_settings_of_the_classic_protocol_are_refused_with_the_consumer_protocol(name: str) -> None:
    """They would have no effect, and a program would count on them."""
    values = {"partition.assignment.strategy": "range", "group.protocol.type": "consumer"}
    given = {"group.id": "g", name: values.get(name, 6000)}
    error = error_of({**given, "group.protocol": "consumer"}, "c")
    assert error == KafkaError._INVALID_ARG
    assert f"`{name}`" in error.str()
    config = _config.parse([given], "c", {})
    _config.finish_consumer(config)
    assert config.values["group.protocol"] == "classic"


def test_known_settings_without_effect_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cluster.client"):
        parse(statistics__interval__ms=1000, fetch__min__bytes=5, ssl__ca__location="/ca")
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "statistics.interval.ms" in logged
    assert "fetch.min.bytes is a consumer property" in logged
    assert "ssl.ca.location" in logged


def test_values_come_as_text_or_typed_and_under_either_name() -> None:
    assert parse(linger__ms="5", retries="3", acks="all") == {"linger.ms": 5.0, "retries": 3, "acks": -1}
    aliases = parse(queue__buffering__max__ms=7, message__timeout__ms=9, request__required__acks=1)
    assert aliases == {"linger.ms": 7.0, "delivery.timeout.ms": 9, "acks": 1}
    servers = parse(bootstrap__servers="a:1, b,[::1]:3,PLAINTEXT://c:4")
    assert servers == {"bootstrap.servers": [("a", 1), ("b", 9092), ("::1", 3), ("c", 4)]}


def test_keywords_override_dicts() -> None:
    found = _config.parse([{"linger.ms": 1, "client.id": "a"}], "p", {"linger.ms": 2})
    assert found.values == {"linger.ms": 2.0, "client.id": "a"}


@pytest.mark.parametrize(
    ("given", "idempotent"),
    [
        ({}, True),
        ({"acks": 1}, False),
        ({"retries": 0}, False),
        ({"max.in.flight": 6}, False),
        ({"acks": "all"}, True),
    ],
)
def test_idempotence_is_on_unless_a_setting_makes_it_impossible(
    given: dict[str, object], idempotent: bool
) -> None:
    config = _config.parse([given], "p", {})
    _config.finish_producer(config)
    assert config.values["enable.idempotence"] is idempotent


def test_idempotence_that_is_asked_for_is_not_turned_off_silently() -> None:
    config = _config.parse([{"enable.idempotence": True, "acks": 1}], "p", {})
    with pytest.raises(KafkaException, match="acks is not all"):
        _config.finish_producer(config)


def test_clients_refuse_a_wrong_configuration() -> None:
    with pytest.raises(KafkaException, match="No such configuration property"):
        Producer({"foo": 1})
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        Consumer({"bootstrap.servers": "localhost:1"})
    with pytest.raises(KafkaException, match=r"max\.poll\.interval\.ms"):
        Consumer({"group.id": "g", "max.poll.interval.ms": 10, "session.timeout.ms": 20})
    with pytest.raises(TypeError, match="callable"):
        Producer({"on_delivery": 3})
    with pytest.raises(TypeError, match="configuration dict"):
        AdminClient("localhost:9092")  # type: ignore[arg-type]
