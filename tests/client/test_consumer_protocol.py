"""If these fail, a member with group.protocol=consumer (KIP-848) reads a partition that another one reads,
does not join again after the group removed it, or goes on in vain where it must stop.

A proxy stands between the clients and their broker; the broker advertises the proxy's address.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from cluster import (
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    NewPartitions,
    NewTopic,
    Producer,
    TopicPartition,
)
from cluster.client import ConsumerGroupType
from cluster.client._coordinator import Coordinator
from cluster.client._group import Event, GenerationEnded
from cluster.client._group_consumer import ConsumerGroup
from cluster.client._group_consumer_protocol import ConsumerProtocol
from tests.client.conftest import WAIT, poll_until, produce, read
from tests.client.proxy import Proxy
from tests.client.test_faults import MANY, changed
from tests.conftest import BrokerProcess, StartBroker
from tests.ports import free_port

_numbers = itertools.count()
SETTINGS = [
    "group.consumer.heartbeat.interval.ms=50",
    "group.consumer.min.heartbeat.interval.ms=10",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.session.timeout.ms=1000",
]
HEARTBEAT = "ConsumerGroupHeartbeat"

# ---- what a heartbeat says ----


class Recorder:
    """A coordinator that notes requests and answers with what a test gave it."""

    group = "g"

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.next: dict[str, Any] | KafkaException | None = None

    def call(self, _api: str, message: dict[str, Any], **_where: Any) -> dict[str, Any]:
        self.requests.append(message)
        answer, self.next = self.next, None
        if isinstance(answer, KafkaException):
            raise answer
        ok = {"error_code": 0, "error_message": None, "member_epoch": 3, "heartbeat_interval_ms": 50}
        return {**ok, "assignment": None, **(answer or {})}

    def said(self) -> dict[str, Any]:
        """The fields of the last heartbeat that are not null."""
        always = ("group_id", "member_id", "member_epoch")
        request = {name: value for name, value in self.requests[-1].items() if name not in always}
        return {name: value for name, value in request.items() if value not in (None, -1)}


TOPIC_ID = bytes(range(16))
EVERYTHING = {
    "instance_id": "i",
    "rack_id": "r",
    "rebalance_timeout_ms": 300_000,
    "subscribed_topic_names": ["t"],
    "server_assignor": "range",
    "topic_partitions": [],
}


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def protocol(recorder: Recorder) -> ConsumerProtocol:
    settings = {
        "max.poll.interval.ms": 300_000,
        "group.remote.assignor": "range",
        "client.rack": "r",
        "group.instance.id": "i",
    }
    return ConsumerProtocol(cast(Coordinator, recorder), settings)


def test_a_heartbeat_says_what_has_changed(recorder: Recorder, protocol: ConsumerProtocol) -> None:
    protocol.heartbeat("m", 0, ["t"], {})
    assert recorder.said() == EVERYTHING
    protocol.heartbeat("m", 3, ["t"], {})
    assert recorder.said() == {"instance_id": "i"}
    owned = [{"topic_id": TOPIC_ID, "partitions": [1, 2]}]
    protocol.heartbeat("m", 3, ["t"], {TOPIC_ID: (1, 2)})
    assert recorder.said() == {"instance_id": "i", "topic_partitions": owned}
    protocol.heartbeat("m", 3, ["t", "u"], {TOPIC_ID: (1, 2)})
    assert recorder.said() == {"instance_id": "i", "subscribed_topic_names": ["t", "u"]}
    # An assignment is acknowledged although it changed nothing: the coordinator waits for it.
    protocol.acknowledge()
    protocol.heartbeat("m", 3, ["t", "u"], {TOPIC_ID: (1, 2)})
    assert recorder.said() == {"instance_id": "i", "topic_partitions": owned}
    protocol.leave("m", WAIT)
    assert (recorder.requests[-1]["member_epoch"], recorder.said()) == (-2, {"instance_id": "i"})


@pytest.mark.parametrize(
    "failure",
    [
        KafkaException(KafkaError(KafkaError._TRANSPORT, retriable=True)),
        {"error_code": KafkaError.COORDINATOR_LOAD_IN_PROGRESS},
        {"error_code": KafkaError.FENCED_MEMBER_EPOCH},
    ],
    ids=["connection", "loading", "fenced"],
)
def test_a_heartbeat_after_a_failure_says_everything(
    recorder: Recorder, protocol: ConsumerProtocol, failure: dict[str, Any] | KafkaException
) -> None:
    """The coordinator may have taken the failed one, or be another one."""
    protocol.heartbeat("m", 0, ["t"], {})
    recorder.next = failure
    with pytest.raises((KafkaException, GenerationEnded)):
        protocol.heartbeat("m", 3, ["t"], {TOPIC_ID: (0,)})
    protocol.heartbeat("m", 3, ["t"], {TOPIC_ID: (0,)})
    assert recorder.said() == {
        **EVERYTHING,
        "topic_partitions": [{"topic_id": TOPIC_ID, "partitions": [0]}],
    }


# ---- with a broker ----


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    proxy = Proxy()
    proxy.broker_port = free_port()
    settings = [*SETTINGS, f"advertised.listeners=PLAINTEXT://{proxy.address}"]
    overrides = [word for setting in settings for word in ("--override", setting)]
    data = tmp_path_factory.mktemp("broker") / "data"
    broker = BrokerProcess(data, proxy.broker_port, tuple(overrides)).wait_ready()
    yield proxy
    proxy.close()
    assert broker.stop() == 0


@pytest.fixture
def proxy(proxied: Proxy) -> Iterator[Proxy]:
    yield proxied
    proxied.cut()


class Reader:
    """A consumer, with the calls of its callbacks as words with partitions."""

    def __init__(self, address: str, group: str, **settings: object) -> None:
        self.changes: list[tuple[str, set[int]]] = []
        named = {
            name if callable(value) else name.replace("_", "."): value for name, value in settings.items()
        }
        self.consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                **named,
            }
        )

    def _note(self, what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, found: self.changes.append((what, {partition.partition for partition in found}))

    def subscribe(self, *topics: str) -> None:
        self.consumer.subscribe(
            list(topics),
            on_assign=self._note("assigned"),
            on_revoke=self._note("revoked"),
            on_lost=self._note("lost"),
        )

    @property
    def owned(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    @property
    def group(self) -> ConsumerGroup:
        group = self.consumer._group
        assert isinstance(group, ConsumerGroup)
        return group

    def next_error(self) -> KafkaError:
        """The next error that poll returns."""
        message = self.consumer.poll(WAIT)
        assert message is not None
        error = message.error()
        assert error is not None, "a record"
        return error


NewReader = Callable[..., Reader]


@pytest.fixture
def new_reader(proxy: Proxy) -> Iterator[NewReader]:
    """Makes readers of one group, which is the test's own."""
    group, made = uuid.uuid4().hex, list[Reader]()

    def make(**settings: object) -> Reader:
        reader = Reader(proxy.address, group, **settings)
        made.append(reader)
        return reader

    yield make
    for reader in made:
        reader.consumer.close()


@pytest.fixture
def topic(proxy: Proxy) -> str:
    return new_topic(proxy, 4)


def new_topic(proxy: Proxy, partitions: int) -> str:
    name = f"topic-{next(_numbers)}"
    with AdminClient({"bootstrap.servers": proxy.address}) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT)
    return name


def poll(readers: list[Reader], done: Callable[[], bool]) -> None:
    for message in poll_until([reader.consumer for reader in readers], done):
        assert message.error() is None, message.error()


ALL = {0, 1, 2, 3}


def test_a_second_member_takes_half_and_the_first_reads_on(
    proxy: Proxy, topic: str, new_reader: NewReader
) -> None:
    first = new_reader(auto_commit_interval_ms=0)
    first.subscribe(topic)
    poll([first], lambda: first.owned == ALL)
    for partition in range(4):
        produce(proxy.address, topic, [b"v"], partition=partition)
    read(first.consumer, 4)
    second = new_reader()
    second.subscribe(topic)
    poll([first, second], lambda: len(first.owned) == len(second.owned) == 2)
    [change, (word, moved)] = first.changes
    assert (change, word, moved) == (("assigned", ALL), "revoked", second.owned)
    assert first.owned | second.owned == ALL
    # The consumer commits its position when it gives a partition up.
    offsets = second.consumer.committed([TopicPartition(topic, partition) for partition in moved], WAIT)
    assert [found.offset for found in offsets] == [1, 1]
    # The partitions that were kept are committed for in the new epoch.
    kept = [TopicPartition(topic, partition, 1) for partition in first.owned]
    committed = first.consumer.commit(offsets=kept, asynchronous=False)
    assert committed is not None
    assert [found.error for found in committed] == [None, None]
    assert first.consumer.memberid() != second.consumer.memberid()
    with AdminClient({"bootstrap.servers": proxy.address}) as admin:
        group = first.consumer.consumer_group_metadata().group_id
        described = admin.describe_consumer_groups([group])[group].result(WAIT)
    assert described.type is ConsumerGroupType.CONSUMER
    assert described.partition_assignor == "uniform"
    members = {member.member_id: member for member in described.members}
    for reader in (first, second):
        member = members.pop(reader.consumer.memberid())
        assert set(member.assignment.topic_partitions) == set(reader.consumer.assignment())
        assert member.target_assignment == member.assignment
    assert members == {}
    second.consumer.close()
    poll([first], lambda: first.owned == ALL)
    assert first.changes[2:] == [("assigned", moved)]


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.UNRELEASED_INSTANCE_ID,
        KafkaError.UNSUPPORTED_ASSIGNOR,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INVALID_REGULAR_EXPRESSION,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_REQUEST,
        KafkaError.FENCED_INSTANCE_ID,
    ],
)
def test_an_error_that_does_not_pass_ends_the_membership(
    proxy: Proxy, topic: str, new_reader: NewReader, code: int
) -> None:
    reader = new_reader()
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    answers = itertools.count()

    def refuse(message: dict[str, Any]) -> None:
        next(answers)
        message.update(error_code=code, error_message="the reason")

    proxy.change(HEARTBEAT, changed(HEARTBEAT, refuse))
    error = reader.next_error()
    assert error == code
    assert error.fatal()
    assert "the reason" in error.str()
    poll([reader], lambda: reader.owned == set())
    assert reader.changes[1:] == [("lost", ALL)]
    with pytest.raises(KafkaException) as refused:
        reader.consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert refused.value.error == code
    assert next(answers) == 1, "a request that is refused for good is repeated"
    proxy.change(HEARTBEAT, None)
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)


@pytest.mark.parametrize(
    "code", [KafkaError.FENCED_MEMBER_EPOCH, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.GROUP_ID_NOT_FOUND]
)
def test_a_removed_member_loses_its_partitions_and_joins_again(
    proxy: Proxy, topic: str, new_reader: NewReader, code: int
) -> None:
    produce(proxy.address, topic, [b"v"], partition=0)
    reader = new_reader(enable_auto_commit=False)
    reader.subscribe(topic)
    [message] = read(reader.consumer, 1)
    member = reader.consumer.memberid()
    before = reader.consumer.consumer_group_metadata()
    proxy.change(HEARTBEAT, changed(HEARTBEAT, lambda answer: answer.update(error_code=code)))
    poll_until([], lambda: reader.group.lost)
    with pytest.raises(KafkaException) as refused:
        reader.consumer.commit(message, asynchronous=False)
    assert refused.value.error == KafkaError.STALE_MEMBER_EPOCH
    proxy.change(HEARTBEAT, None)
    poll([reader], lambda: reader.changes[1:] == [("lost", ALL), ("assigned", ALL)])
    assert reader.consumer.memberid() == member
    # What is read now is committed in the new epoch.
    [result] = reader.consumer.commit(message, asynchronous=False) or []
    assert result.error is None
    assert reader.consumer.consumer_group_metadata().generation >= before.generation


def test_commits_of_a_removed_member_are_not_sent_after_it_has_joined_again(
    proxy: Proxy, topic: str, new_reader: NewReader
) -> None:
    """The member keeps its id, so the coordinator would take them."""
    reader = new_reader(enable_auto_commit=False)
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    poll([reader], lambda: reader.group.identity().member != "")
    old = reader.group.identity()
    assert reader.group.renew(old) is not None
    fenced = changed(HEARTBEAT, lambda answer: answer.update(error_code=KafkaError.FENCED_MEMBER_EPOCH))
    proxy.change(HEARTBEAT, fenced)
    poll_until([], lambda: reader.group.lost)
    assert reader.group.renew(old) is None
    proxy.change(HEARTBEAT, None)
    poll([reader], lambda: reader.changes[1:] == [("lost", ALL), ("assigned", ALL)])
    assert reader.group.identity().member == old.member
    assert reader.group.renew(old) is None


def test_a_connection_that_is_lost_costs_no_partition(
    proxy: Proxy, topic: str, new_reader: NewReader
) -> None:
    reader = new_reader(error_cb=lambda _error: None)
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    member = reader.consumer.consumer_group_metadata()
    proxy.cut(HEARTBEAT)
    proxy.wait_for_cuts(MANY)
    answered, fresh = threading.Event(), changed(HEARTBEAT, lambda _answer: answered.set())
    proxy.change(HEARTBEAT, fresh)
    proxy.cut()
    poll([reader], answered.is_set)
    proxy.change(HEARTBEAT, None)
    assert reader.changes == [("assigned", ALL)]
    assert reader.consumer.consumer_group_metadata() == member


def test_a_group_that_cannot_be_converted_is_a_fatal_error(
    proxy: Proxy, topic: str, new_reader: NewReader
) -> None:
    """A member that joins again and again would never get a partition, and nothing would tell why."""
    code = KafkaError.GROUP_ID_NOT_FOUND
    refused = changed(HEARTBEAT, lambda answer: answer.update(error_code=code, error_message="why"))
    proxy.change(HEARTBEAT, refused)
    reader = new_reader()
    reader.subscribe(topic)
    error = reader.next_error()
    proxy.change(HEARTBEAT, None)
    assert (error, error.fatal()) == (code, True)
    assert "why" in error.str()


def test_a_topic_that_may_not_be_read_is_reported_once_and_costs_no_partition(
    proxy: Proxy, topic: str, new_reader: NewReader
) -> None:
    reader = new_reader()
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    code, answered = KafkaError.TOPIC_AUTHORIZATION_FAILED, threading.Semaphore(0)

    def refuse(message: dict[str, Any]) -> None:
        message.update(error_code=code)
        answered.release()

    proxy.change(HEARTBEAT, changed(HEARTBEAT, refuse))
    error = reader.next_error()
    assert (error, error.fatal()) == (code, False)
    for _ in range(2):
        assert answered.acquire(timeout=WAIT)
    assert reader.consumer.poll(0.1) is None
    proxy.change(HEARTBEAT, None)
    assert reader.changes == [("assigned", ALL)]


@pytest.mark.parametrize("api", ["OffsetCommit", "OffsetFetch"])
def test_a_request_with_an_old_epoch_is_sent_again(
    proxy: Proxy, topic: str, new_reader: NewReader, api: str
) -> None:
    reader = new_reader(enable_auto_commit=False)
    produce(proxy.address, topic, [b"v"], partition=0)
    reader.subscribe(topic)
    # The consumer's own OffsetFetch has been answered once it reads.
    read(reader.consumer, 1)
    poll([reader], lambda: reader.owned == ALL)
    answers = itertools.count()

    def stale_at_first(message: dict[str, Any]) -> None:
        if next(answers) > 1:
            return
        if api == "OffsetFetch":
            message["groups"][0].update(error_code=KafkaError.STALE_MEMBER_EPOCH, topics=[])
        else:
            for answer in message["topics"][0]["partitions"]:
                answer["error_code"] = KafkaError.STALE_MEMBER_EPOCH

    proxy.change(api, changed(api, stale_at_first))
    [result] = reader.consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False) or []
    assert (result.offset, result.error) == (5, None)
    [found] = reader.consumer.committed([TopicPartition(topic, 0)], WAIT)
    assert found.offset == 5
    proxy.change(api, None)
    assert next(answers) == 3


def test_a_topic_whose_id_is_not_known_yet_is_read_later(
    topic: str, new_reader: NewReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker learns of a new topic later than the coordinator."""
    reader = new_reader()
    names = reader.group._ids
    ask, asked = names._ask, itertools.count()

    def late(ids: list[bytes]) -> None:
        if next(asked) >= 2:
            ask(ids)

    monkeypatch.setattr(names, "_ask", late)
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    assert next(asked) == 3
    assert [change for change in reader.changes if change[1]] == [("assigned", ALL)]


def test_a_member_whose_application_does_not_poll_leaves_and_joins_again(
    topic: str, new_reader: NewReader
) -> None:
    reader = new_reader(max_poll_interval_ms=6000)
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    posted, post = threading.Event(), reader.group._post

    def signal(event: Event) -> None:
        post(event)
        posted.set()

    reader.group._post = signal
    # As if the last poll had been seven seconds ago.
    reader.group.last_poll -= 7
    assert posted.wait(WAIT)
    assert reader.next_error() == KafkaError._MAX_POLL_EXCEEDED
    poll([reader], lambda: reader.changes[1:] == [("lost", ALL), ("assigned", ALL)])


def test_a_static_member_comes_back_and_no_other_has_its_place(topic: str, new_reader: NewReader) -> None:
    other = new_reader(group_instance_id="other")
    first = new_reader(group_instance_id="one")
    for reader in (other, first):
        reader.subscribe(topic)
    poll([other, first], lambda: len(other.owned) == len(first.owned) == 2)
    kept, seen = first.owned, list(other.changes)
    thief = new_reader(group_instance_id="one")
    thief.subscribe(topic)
    error = thief.next_error()
    assert error == KafkaError.UNRELEASED_INSTANCE_ID
    assert error.fatal()
    first.consumer.close()
    again = new_reader(group_instance_id="one")
    again.subscribe(topic)
    poll([other, again], lambda: again.owned == kept)
    assert other.changes == seen


def test_a_subscription_is_changed_without_leaving(proxy: Proxy, topic: str, new_reader: NewReader) -> None:
    another = new_topic(proxy, 2)
    reader = new_reader()
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    epoch = reader.consumer.consumer_group_metadata().generation
    reader.subscribe(another)

    def moved() -> bool:
        return {found.topic for found in reader.consumer.assignment()} == {another}

    poll([reader], moved)
    assert [word for word, _ in reader.changes] == ["assigned", "revoked", "assigned"]
    assert reader.consumer.consumer_group_metadata().generation > epoch
    member = reader.consumer.memberid()
    reader.consumer.unsubscribe()
    assert reader.changes[-1] == ("revoked", {0, 1})
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    assert reader.consumer.memberid() != member


def test_a_pattern_finds_topics_and_new_partitions(proxy: Proxy, new_reader: NewReader) -> None:
    topic = new_topic(proxy, 1)
    reader = new_reader(topic_metadata_refresh_interval_ms=100)
    reader.subscribe(f"^{topic}$|^more-{topic}")
    poll([reader], lambda: reader.owned == {0})
    with AdminClient({"bootstrap.servers": proxy.address}) as admin:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT)
        poll([reader], lambda: reader.owned == {0, 1})
        admin.create_topics([NewTopic(f"more-{topic}", 1, 1)])[f"more-{topic}"].result(WAIT)
    poll([reader], lambda: len(reader.consumer.assignment()) == 3)


def test_an_assignor_that_the_broker_lacks_is_a_fatal_error(topic: str, new_reader: NewReader) -> None:
    ranged = new_reader(group_remote_assignor="range")
    ranged.subscribe(topic)
    poll([ranged], lambda: ranged.owned == ALL)
    reader = new_reader(group_remote_assignor="mine")
    reader.subscribe(topic)
    error = reader.next_error()
    assert (error, error.fatal()) == (KafkaError.UNSUPPORTED_ASSIGNOR, True)
    assert "uniform" in error.str()


def test_a_transaction_commits_offsets_in_the_members_epoch(
    proxy: Proxy, topic: str, new_reader: NewReader
) -> None:
    reader = new_reader(enable_auto_commit=False)
    reader.subscribe(topic)
    poll([reader], lambda: reader.owned == ALL)
    second = new_reader()
    second.subscribe(topic)
    former = reader.consumer.consumer_group_metadata()
    # The partitions that the first member keeps are its own in a later epoch.
    poll([reader, second], lambda: len(reader.owned) == len(second.owned) == 2)
    producer = Producer({"bootstrap.servers": proxy.address, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(WAIT)
    position = TopicPartition(topic, min(reader.owned), 3)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([position], former, WAIT)
    assert refused.value.error.txn_requires_abort()
    producer.abort_transaction(WAIT)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([position], reader.consumer.consumer_group_metadata(), WAIT)
    producer.commit_transaction(WAIT)
    producer.close()
    [found] = reader.consumer.committed([position], WAIT)
    assert found.offset == 3


def test_a_broker_without_the_protocol_is_a_clear_error(start_broker: StartBroker) -> None:
    broker = start_broker(None, None, "--override", "group.coordinator.rebalance.protocols=classic")
    produce(broker.bootstrap, "t", [b"v"], partition=0)
    reader = Reader(broker.bootstrap, "g")
    reader.subscribe("t")
    error = reader.next_error()
    assert error in (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)
    assert error.fatal()
    assert "group.protocol=classic" in error.str()
    reader.consumer.close()
