"""If these fail, a client repeats a request that can never succeed, and reports nothing.

A proxy stands between the clients and their broker; the broker advertises the proxy's address.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import (
    OFFSET_BEGINNING,
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    NewTopic,
    Producer,
    TopicPartition,
)
from cluster.client import _consumer, _faults
from cluster.client._coordinator import find_coordinator
from cluster.client._requests import Requests
from logcore import _native
from tests.client.conftest import WAIT, poll_until, produce, read
from tests.client.proxy import Proxy
from tests.conftest import BrokerProcess
from tests.ports import free_port

_numbers = itertools.count()
MANY = 8
"""Connections that a test has closed before it looks at the reports: more than it takes for one."""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy()
    proxy.broker_port = free_port()
    override = f"advertised.listeners=PLAINTEXT://{proxy.address}"
    data = tmp_path_factory.mktemp("broker") / "data"
    broker = BrokerProcess(data, proxy.broker_port, ("--override", override)).wait_ready()
    yield proxy
    proxy.close()
    assert broker.stop() == 0


@pytest.fixture
def proxy(proxied: Proxy) -> Iterator[Proxy]:
    yield proxied
    proxied.cut()


@pytest.fixture
def topic(proxy: Proxy) -> str:
    name = f"topic-{next(_numbers)}"
    with AdminClient({"bootstrap.servers": proxy.address}) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(WAIT)
    return name


def consumer_of(proxy: Proxy, **settings: object) -> Consumer:
    named = {name if callable(value) else name.replace("_", "."): value for name, value in settings.items()}
    return Consumer(
        {
            "bootstrap.servers": proxy.address,
            "group.id": f"group-{next(_numbers)}",
            "auto.offset.reset": "earliest",
            **named,
        }
    )


def changed(api: str, edit: Callable[[dict[str, Any]], object]) -> Callable[[int, bytes], bytes]:
    """Edits each response of an API."""

    def change(version: int, body: bytes) -> bytes:
        key = _native.api_keys()[api]
        message = _native.decode_response(key, version, body)
        edit(message)
        return _native.encode_response(key, version, message)

    return change


def one_report(errors: list[KafkaError], api: str, proxy: Proxy) -> None:
    """One report: which request fails, of which broker, and why."""
    [error] = errors
    assert error == KafkaError._TRANSPORT
    assert error.retriable()
    for part in (proxy.address, api, "closed the connection", "keeps failing"):
        assert part in error.str()


def test_a_consumer_whose_fetches_fail_reports_it_once_and_goes_on(proxy: Proxy, topic: str) -> None:
    produce(proxy.address, topic, [b"v"], partition=0)
    errors: list[KafkaError] = []
    with consumer_of(proxy, error_cb=errors.append) as consumer:
        proxy.cut("Fetch")
        consumer.assign([TopicPartition(topic, 0, 0)])
        poll_until([consumer], lambda: bool(errors))
        proxy.wait_for_cuts(MANY)
        assert consumer.poll(0.1) is None
        one_report(errors, "Fetch", proxy)
        proxy.cut()
        assert read(consumer, 1)[0].value() == b"v"


def test_a_consumer_without_error_cb_logs_the_failure(
    proxy: Proxy, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with consumer_of(proxy) as consumer, caplog.at_level(logging.WARNING, "cluster.client"):
        proxy.cut("Fetch")
        consumer.assign([TopicPartition(topic, 0, 0)])
        poll_until([consumer], lambda: "Fetch keeps failing" in caplog.text)
        proxy.cut()


def test_a_group_that_cannot_be_joined_is_reported_once_and_joined_later(proxy: Proxy, topic: str) -> None:
    errors: list[KafkaError] = []
    with consumer_of(proxy, error_cb=errors.append) as consumer:
        proxy.cut("JoinGroup")
        consumer.subscribe([topic])
        poll_until([consumer], lambda: bool(errors))
        proxy.wait_for_cuts(MANY)
        assert consumer.poll(0.1) is None
        one_report(errors, "JoinGroup", proxy)
        proxy.cut()
        poll_until([consumer], lambda: len(consumer.assignment()) == 2)


def test_a_group_whose_coordinator_never_loads_is_reported(
    proxy: Proxy, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_faults, "REPORT_AFTER", 0.5)
    loading = KafkaError.COORDINATOR_LOAD_IN_PROGRESS

    errors: list[KafkaError] = []
    with consumer_of(proxy, error_cb=errors.append) as consumer:
        proxy.change("JoinGroup", changed("JoinGroup", lambda message: message.update(error_code=loading)))
        consumer.subscribe([topic])
        poll_until([consumer], lambda: bool(errors))
        proxy.change("JoinGroup", None)
        poll_until([consumer], lambda: len(consumer.assignment()) == 2)
        [error] = errors
        assert error == loading
        assert "is tried again" in error.str()


@pytest.mark.parametrize(
    ("api", "code"),
    [
        ("FindCoordinator", KafkaError.COORDINATOR_NOT_AVAILABLE),
        ("JoinGroup", KafkaError.UNKNOWN_MEMBER_ID),
        ("JoinGroup", KafkaError.ILLEGAL_GENERATION),
        ("SyncGroup", KafkaError.ILLEGAL_GENERATION),
        ("SyncGroup", KafkaError.REBALANCE_IN_PROGRESS),
        ("Heartbeat", KafkaError.UNKNOWN_MEMBER_ID),
        ("Heartbeat", KafkaError.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_group_that_never_takes_the_member_is_asked_slowly_and_reported(
    proxy: Proxy, topic: str, monkeypatch: pytest.MonkeyPatch, api: str, code: int
) -> None:
    monkeypatch.setattr(_faults, "REPORT_AFTER", 0.5)
    answers = itertools.count()

    def refuse(message: dict[str, Any]) -> None:
        next(answers)
        message["error_code"] = code

    errors: list[KafkaError] = []
    # The coordinator waits for a member that it knows and that was told otherwise until its session ends.
    with consumer_of(
        proxy, error_cb=errors.append, session_timeout_ms=6000, heartbeat_interval_ms=100
    ) as consumer:
        proxy.change(api, changed(api, refuse))
        consumer.subscribe([topic])
        poll_until([consumer], lambda: bool(errors))
        assert next(answers) < 50, "a request is repeated without a pause"
        proxy.change(api, None)
        poll_until([consumer], lambda: len(consumer.assignment()) == 2)
        [error] = errors
        assert error == code
        assert "is tried again" in error.str()


@pytest.mark.parametrize("api", ["JoinGroup", "Heartbeat"])
def test_a_group_that_the_consumer_may_not_use_is_an_error_of_poll_at_once(
    proxy: Proxy, topic: str, api: str
) -> None:
    code = KafkaError.GROUP_AUTHORIZATION_FAILED
    with consumer_of(proxy, heartbeat_interval_ms=100) as consumer:
        proxy.change(api, changed(api, lambda message: message.update(error_code=code)))
        consumer.subscribe([topic])
        assert next_error(consumer).error() == code
        proxy.change(api, None)
        poll_until([consumer], lambda: len(consumer.assignment()) == 2)


def test_a_coordinator_that_never_names_the_member_is_reported(proxy: Proxy, topic: str) -> None:
    code = KafkaError.MEMBER_ID_REQUIRED
    with consumer_of(proxy, session_timeout_ms=6000) as consumer:
        proxy.change("JoinGroup", changed("JoinGroup", lambda message: message.update(error_code=code)))
        consumer.subscribe([topic])
        assert next_error(consumer).error() == code
        proxy.change("JoinGroup", None)
        poll_until([consumer], lambda: len(consumer.assignment()) == 2)


@pytest.mark.parametrize("api", ["Produce", "InitProducerId"])
def test_a_producer_whose_requests_fail_reports_it_once_and_delivers_later(
    proxy: Proxy, topic: str, api: str
) -> None:
    errors: list[KafkaError] = []
    delivered: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": proxy.address, "error_cb": errors.append})
    producer.list_topics(topic, WAIT)
    proxy.cut(api)
    for _ in range(3):
        producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: delivered.append(error))

    def reported() -> bool:
        producer.poll(0.05)
        return bool(errors)

    poll_until([], reported)
    proxy.wait_for_cuts(MANY)
    producer.poll(0)
    one_report(errors, api, proxy)
    assert delivered == []
    proxy.cut()
    assert producer.flush(WAIT) == 0
    assert delivered == [None] * 3
    with consumer_of(proxy) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert len(read(consumer, 3)) == 3
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT) == (0, 3)


def test_an_admin_client_whose_requests_fail_reports_it_and_then_fails(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[KafkaError] = []
    with AdminClient({"bootstrap.servers": proxy.address, "error_cb": errors.append}) as admin:
        proxy.cut("CreateTopics")
        future = admin.create_topics([NewTopic("never", 1, 1)], request_timeout=3)["never"]
        assert admin.poll(WAIT) == 1
        one_report(errors, "CreateTopics", proxy)
        with pytest.raises(KafkaException, match="closed the connection"):
            future.result(WAIT)
    with (
        AdminClient({"bootstrap.servers": proxy.address}) as admin,
        caplog.at_level(logging.WARNING, "cluster.client"),
    ):
        future = admin.create_topics([NewTopic("never", 1, 1)], request_timeout=2)["never"]
        with pytest.raises(KafkaException):
            future.result(WAIT)
        assert "CreateTopics keeps failing" in caplog.text


def test_a_coordinator_that_is_never_there_is_logged(
    proxy: Proxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_faults, "REPORT_AFTER", 0.3)

    code = KafkaError.COORDINATOR_NOT_AVAILABLE
    unavailable = changed("FindCoordinator", lambda message: message.update(error_code=code))
    with consumer_of(proxy) as consumer, caplog.at_level(logging.WARNING, "cluster.client"):
        proxy.change("FindCoordinator", unavailable)
        with pytest.raises(KafkaException) as failure:
            find_coordinator(Requests(consumer._network), "g", 1)
        proxy.change("FindCoordinator", None)
    assert failure.value.error == KafkaError.COORDINATOR_NOT_AVAILABLE
    assert caplog.text.count("finding the coordinator of group g fails and is tried again") == 1


def next_error(consumer: Consumer) -> Message:
    """The next message that carries an error."""
    found: list[Message] = []

    def met() -> bool:
        message = consumer.poll(0.05)
        if message is not None and message.error() is not None:
            found.append(message)
        return bool(found)

    poll_until([], met)
    return found[0]


def test_a_record_above_receive_message_max_bytes_is_reported_for_its_partition_only(
    proxy: Proxy, topic: str
) -> None:
    produce(proxy.address, topic, [b"small"] * 3, partition=1)
    produce(proxy.address, topic, [b"before"], partition=0)
    produce(proxy.address, topic, [bytes(200_000)], partition=0)
    produce(proxy.address, topic, [b"behind"], partition=0)
    errors: list[KafkaError] = []
    settings = {"receive_message_max_bytes": 100_000, "fetch_max_bytes": 90_000, "error_cb": errors.append}
    with consumer_of(proxy, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
        values: list[bytes] = []
        failures: list[Message] = []

        def all_met() -> bool:
            message = consumer.poll(0.05)
            if message is not None:
                (values if message.error() is None else failures).append(
                    message.value() if message.error() is None else message
                )
            return len(values) == 4 and bool(failures)

        poll_until([], all_met)
        assert sorted(values) == [b"before", b"small", b"small", b"small"]
        [failure] = failures
        assert (failure.topic(), failure.partition()) == (topic, 0)
        error = failure.error()
        assert error is not None
        assert error == KafkaError.MSG_SIZE_TOO_LARGE
        assert "receive.message.max.bytes (100000)" in error.str()
        assert f"{topic}-0: the batch at offset 1" in error.str()
        # It is reported once, and the others are read on.
        produce(proxy.address, topic, [b"more"], partition=1)
        assert read(consumer, 1)[0].value() == b"more"
        assert errors == []
        consumer.seek(TopicPartition(topic, 0, 2))
        assert read(consumer, 1)[0].value() == b"behind"


def test_a_partition_whose_fetch_is_refused_is_reported_once(proxy: Proxy, topic: str) -> None:
    def refuse(code: int) -> Callable[[int, bytes], bytes]:
        def edit(message: dict[str, Any]) -> None:
            for named in message["responses"]:
                for partition in named["partitions"]:
                    partition.update(error_code=code, records=None)

        return changed("Fetch", edit)

    with consumer_of(proxy, fetch_error_backoff_ms=1) as consumer:
        proxy.change("Fetch", refuse(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        consumer.assign([TopicPartition(topic, 0, 0)])
        failure = next_error(consumer)
        assert failure.error() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert (failure.topic(), failure.partition()) == (topic, 0)
        proxy.change("Fetch", refuse(KafkaError.UNKNOWN))
        # Another failure is reported, too; the first one was not repeated.
        assert next_error(consumer).error() == KafkaError.UNKNOWN
        proxy.change("Fetch", None)
        produce(proxy.address, topic, [b"v"], partition=0)
        assert read(consumer, 1)[0].value() == b"v"


def test_commits_that_keep_failing_are_reported_and_close_tells_the_reason(
    proxy: Proxy, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_faults, "REPORT_AFTER", 0.5)
    monkeypatch.setattr(_consumer, "CLOSE_TIMEOUT", 0.5)
    code = KafkaError.COORDINATOR_NOT_AVAILABLE

    def refuse(message: dict[str, Any]) -> None:
        for named in message["topics"]:
            for partition in named["partitions"]:
                partition["error_code"] = code

    errors: list[KafkaError] = []
    commits: list[KafkaError] = []
    consumer = consumer_of(
        proxy, error_cb=errors.append, on_commit=lambda error, _partitions: commits.append(error)
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    proxy.change("OffsetCommit", changed("OffsetCommit", refuse))
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)])
    poll_until([consumer], lambda: bool(errors))
    consumer.close()
    proxy.change("OffsetCommit", None)
    [error] = errors
    assert error == code
    assert "committing offsets" in error.str()
    [ended] = commits
    assert ended == KafkaError._DESTROY
    assert KafkaError(code).str() in ended.str()


def test_an_offset_that_is_reset_is_logged(
    proxy: Proxy, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    produce(proxy.address, topic, [b"v"], partition=0)
    errors: list[KafkaError] = []
    with (
        consumer_of(proxy, error_cb=errors.append) as consumer,
        caplog.at_level(logging.WARNING, "cluster.client"),
    ):
        consumer.assign([TopicPartition(topic, 0, 1000)])
        assert read(consumer, 1)[0].value() == b"v"
        assert caplog.text.count(f"{topic}-0: offset 1000 is out of range") == 1
        assert errors == []


def test_offsets_that_cannot_be_listed_are_reported(
    proxy: Proxy, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    produce(proxy.address, topic, [b"v"], partition=0)
    errors: list[KafkaError] = []
    with consumer_of(proxy, error_cb=errors.append) as consumer:
        proxy.change("ListOffsets", changed("ListOffsets", lambda message: message.update(topics=[])))
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        poll_until([consumer], lambda: bool(errors))
        proxy.change("ListOffsets", None)
        assert read(consumer, 1)[0].value() == b"v"
        [error] = errors
        assert error == KafkaError._BAD_MSG
        assert f"{topic}-0" in error.str()
        assert "ListOffsets keeps failing" in error.str()
    with consumer_of(proxy) as consumer, caplog.at_level(logging.WARNING, "cluster.client"):
        proxy.change("ListOffsets", changed("ListOffsets", lambda message: message.update(topics=[])))
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(TopicPartition(topic, 0), 1)
        proxy.change("ListOffsets", None)
        assert "ListOffsets keeps failing" in caplog.text


def test_a_producer_whose_answers_lack_the_partition_reports_it_and_delivers_later(
    proxy: Proxy, topic: str
) -> None:
    errors: list[KafkaError] = []
    delivered: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": proxy.address, "error_cb": errors.append})
    proxy.change("Produce", changed("Produce", lambda message: message.update(responses=[])))
    producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: delivered.append(error))

    def reported() -> bool:
        producer.poll(0.05)
        return bool(errors)

    poll_until([], reported)
    proxy.change("Produce", None)
    assert producer.flush(WAIT) == 0
    producer.close()
    assert delivered == [None]
    [error] = errors
    assert error == KafkaError._BAD_MSG
    assert "does not name the partition" in error.str()


def test_a_controller_that_is_never_there_is_logged(
    proxy: Proxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_faults, "REPORT_AFTER", 0.3)

    def refuse(message: dict[str, Any]) -> None:
        for named in message["topics"]:
            named["error_code"] = KafkaError.NOT_CONTROLLER

    with (
        AdminClient({"bootstrap.servers": proxy.address}) as admin,
        caplog.at_level(logging.WARNING, "cluster.client"),
    ):
        proxy.change("CreateTopics", changed("CreateTopics", refuse))
        future = admin.create_topics([NewTopic("never", 1, 1)], request_timeout=1)["never"]
        with pytest.raises(KafkaException):
            future.result(WAIT)
        proxy.change("CreateTopics", None)
        assert caplog.text.count("CreateTopics fails and is tried again") == 1
