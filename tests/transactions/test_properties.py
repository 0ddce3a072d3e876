"""Random transactions: producers begin, write, end, come back stale and time out; markers are late; the
coordinator moves at any step, and its log loses no record.

If one failed, a partition would see a commit that another one sees as an abort, an epoch would go back, or a
transaction would hang.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from cluster.errors import NONE, CoordinatorNotAvailable
from cluster.model import TopicPartition
from cluster.state_topics import Entry, Producer, Respond
from cluster.transactions import (
    EPOCH_A_TRANSACTION,
    ProducerResult,
    SendMarkers,
    TransactionLimits,
    TransactionState,
)
from cluster.transactions.machine import COMPLETED, TransactionMachine
from cluster.transactions.messages import Write
from cluster.transactions.records import encode_write

NAMES = ("t", "u")
PARTITIONS = [TopicPartition("p", number) for number in range(3)]
TIMEOUT_MS = 1_000
LIMITS = TransactionLimits(expiration_ms=1_000_000)

names = st.sampled_from(NAMES)
partitions = st.sampled_from(PARTITIONS)
versions = st.sampled_from((0, EPOCH_A_TRANSACTION))


class Transactions(RuleBasedStateMachine):
    """A coordinator, its log, and what partitions were told. Writes and markers are carried out later."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1
        self.epoch = 0
        self.ids = 0
        self.log: list[Entry] = []
        self.unsure: set[str] = set()
        """The transactional ids whose last record is in the log, and the coordinator does not know."""
        self.init_tokens: dict[int, str] = {}
        self.writes: list[Write] = []
        self.markers: list[SendMarkers] = []
        self.answers: dict[int, object] = {}
        self.asked: dict[int, tuple[str, Producer, bool, int]] = {}
        """By token: the EndTxn requests that are not answered."""
        self.tokens = 0
        self.producers: dict[str, list[Producer]] = defaultdict(list)
        self.marked: dict[tuple[int, TopicPartition], list[tuple[int, bool]]] = defaultdict(list)
        """By producer id and partition: epochs and outcomes of the markers."""
        self.unmarked: dict[str, set[TopicPartition]] = {}
        """By transactional id: the partitions of its decided transaction that were not reported as marked."""
        self.ended: dict[Producer, list[bool]] = defaultdict(list)
        """What producers were told about the ends of their transactions."""
        self.machine = self.loaded()

    def loaded(self) -> TransactionMachine:
        machine = TransactionMachine(LIMITS, self.epoch)
        assert machine.load(self.log) == 0
        self.carry_out(machine.loaded(self.now))
        return machine

    def carry_out(self, actions: list[object]) -> None:
        for action in actions:
            if isinstance(action, Respond):
                self.answers[action.token] = action.result
                asked = self.asked.pop(action.token, None)
                if asked is not None:
                    self.take_end(action.result, *asked)
            elif isinstance(action, Write):
                if action.stored is not None and action.stored.state in COMPLETED:
                    assert not self.unmarked.get(action.transactional_id), "it ends before it is marked"
                self.writes.append(action)
            else:
                assert isinstance(action, SendMarkers)
                self.markers.append(action)
                self.unmarked[action.transactional_id] = set(action.partitions)

    def take_end(self, result: object, name: str, producer: Producer, committed: bool, version: int) -> None:
        assert isinstance(result, ProducerResult)
        if result.error != NONE:
            return
        marker = producer
        if version == EPOCH_A_TRANSACTION:
            marker = Producer(producer.id, producer.epoch + 1)
            assert result.producer == marker
            self.producers[name].append(result.producer)
        self.ended[marker].append(committed)

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    # ---- clients ----

    @rule(name=names, goes_on=st.booleans())
    def init(self, name: str, goes_on: bool) -> None:
        known = self.producers[name]
        expected = known[-1] if goes_on and known else None
        token = self.token()
        self.ids += 1
        before = len(self.writes)
        self.carry_out(list(self.machine.init(token, name, TIMEOUT_MS, expected, self.ids, self.now)))
        assert len(self.writes) <= before + 1
        self.take_producers(name, token)

    def take_producers(self, name: str, token: int) -> None:
        self.init_tokens[token] = name
        self.take_answers()

    def take_answers(self) -> None:
        for waiting, of in list(self.init_tokens.items()):
            result = self.answers.get(waiting)
            if isinstance(result, ProducerResult):
                del self.init_tokens[waiting]
                if result.error == NONE:
                    for known in self.producers[of]:
                        assert result.producer.id >= known.id, "an id went back"
                        if known.id == result.producer.id:
                            assert result.producer.epoch >= known.epoch, "an epoch went back"
                    self.producers[of].append(result.producer)

    @rule(name=names, stale=st.integers(0, 2), which=st.sets(partitions, min_size=1), version=versions)
    def add(self, name: str, stale: int, which: set[TopicPartition], version: int) -> None:
        producer = self.one_of(name, stale)
        if producer is not None:
            added = self.machine.add_partitions(self.token(), name, producer, which, version, self.now)
            self.carry_out(list(added))

    @rule(name=names, stale=st.integers(0, 2), committed=st.booleans(), version=versions)
    def end(self, name: str, stale: int, committed: bool, version: int) -> None:
        producer = self.one_of(name, stale)
        if producer is not None:
            token = self.token()
            self.asked[token] = name, producer, committed, version
            ended = self.machine.end(token, name, producer, committed, version, None, self.now)
            self.carry_out(list(ended))

    def one_of(self, name: str, stale: int) -> Producer | None:
        known = self.producers[name]
        return known[-1 - stale] if len(known) > stale else None

    # ---- the log and the partitions ----

    @precondition(lambda self: self.writes)
    @rule(fails=st.booleans(), is_there=st.booleans())
    def write(self, fails: bool, is_there: bool) -> None:
        """The next write is carried out. One that fails may be in the log all the same."""
        action = self.writes.pop(0)
        if not fails:
            self.unsure.discard(action.transactional_id)
        elif is_there:
            self.unsure.add(action.transactional_id)
        if not fails or is_there:
            self.append(action)
        error = CoordinatorNotAvailable.code if fails else NONE
        self.carry_out(list(self.machine.stored(action.id, error, self.now)))
        self.take_answers()

    @precondition(lambda self: self.markers)
    @rule(number=st.integers(0, 100), some=st.sets(partitions))
    def mark(self, number: int, some: set[TopicPartition]) -> None:
        sent = self.markers[number % len(self.markers)]
        reached = sorted(sent.partitions & some)
        for partition in reached:
            history = self.marked[sent.producer.id, partition]
            assert not history or history[-1][0] <= sent.producer.epoch, "an epoch went back"
            history.append((sent.producer.epoch, sent.committed))
            self.unmarked[sent.transactional_id].discard(partition)
        self.carry_out(list(self.machine.marked(sent.transactional_id, sent.producer, reached, self.now)))

    # ---- time and moves ----

    @rule(ms=st.integers(1, 2 * TIMEOUT_MS))
    def wait(self, ms: int) -> None:
        self.now += ms
        for name in self.machine.timed_out(self.now):
            self.carry_out(list(self.machine.abort_timed_out(name, self.now)))
        for name in self.machine.lapsed(self.now):
            self.carry_out(list(self.machine.expire(name, self.now)))
        self.advance()

    def advance(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.carry_out(list(self.machine.advance(self.now)))

    @rule(written=st.integers(0, 3))
    def move(self, written: int) -> None:
        """Another broker reads the log. Some of the writes under way are in it, and nobody is told."""
        for action in self.writes[:written]:
            self.append(action)
        self.writes, self.markers = [], []
        self.asked.clear()
        self.init_tokens.clear()
        self.unsure.clear()
        self.epoch += 1
        self.machine = self.loaded()

    def append(self, action: Write) -> None:
        """A record comes into the log."""
        self.log += [Entry(*record) for record in encode_write(action, 0).records]

    def teardown(self) -> None:
        """Once nothing fails any more, every transaction ends, and the next coordinator knows the same."""
        for _ in range(100):
            while self.writes:
                action = self.writes.pop(0)
                self.unsure.discard(action.transactional_id)
                self.append(action)
                self.carry_out(list(self.machine.stored(action.id, NONE, self.now)))
            while self.markers:
                sent = self.markers.pop(0)
                self.unmarked[sent.transactional_id] -= sent.partitions
                self.carry_out(
                    list(self.machine.marked(sent.transactional_id, sent.producer, sent.partitions, self.now))
                )
            self.now += TIMEOUT_MS + 1
            for name in self.machine.timed_out(self.now):
                self.carry_out(list(self.machine.abort_timed_out(name, self.now)))
            self.advance()
            if not self.writes and not self.markers:
                break
        quiet = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        again = TransactionMachine(LIMITS, self.epoch + 1)
        assert again.load(self.log) == 0
        for name in set(NAMES) - self.unsure:
            found, read = self.machine.describe(name), again.describe(name)
            if found is None or read is None:
                assert found is read or (found is not None and found.producer.epoch < 0)
                continue
            assert found.state in quiet, f"{name} hangs in {found.state}"
            assert (read.state, read.producer, read.partitions) == (
                found.state,
                found.producer,
                found.partitions,
            )
        for producer, outcomes in self.ended.items():
            for partition in PARTITIONS:
                markers = {
                    committed
                    for epoch, committed in self.marked[producer.id, partition]
                    if epoch == producer.epoch
                }
                assert markers <= set(outcomes) | {False}, (producer, partition, markers, outcomes)


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
