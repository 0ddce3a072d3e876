"""The state machine of in-sync replicas, and its requests to the controller.

If one failed, a record would be acknowledged that a member of the ISR does not have, or a slow replica would
stop every producer for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaProtocolError,
    NotController,
    UnknownServerError,
)
from cluster.model import BrokerId, LeaderEpoch, TopicPartition, new_topic_id
from cluster.replication import Replication, ReplicationState
from cluster.replication.state import CAUGHT_UP, FELL_BEHIND, LACKS_SPACE, Answer, GiveUp, Report, SetIsr

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
WHERE, ID, EPOCH = TopicPartition("t", 0), new_topic_id(), LeaderEpoch(7)
WAIT_SECONDS = 30.0


def leading(*isr: BrokerId) -> ReplicationState:
    state = ReplicationState()
    state.leads(WHERE, ID, EPOCH, isr, 3)
    return state


def report(broker: BrokerId, kind: str, epoch: int = EPOCH) -> Report:
    return Report(WHERE, epoch, broker, kind)


def set_isr(isr: tuple[BrokerId, ...], pending: tuple[BrokerId, ...] = (), epoch: int = 3) -> SetIsr:
    return SetIsr(WHERE, EPOCH, isr, pending, epoch)


# If this failed, the high watermark would pass a replica that may already be in the ISR.
def test_a_replica_counts_for_the_high_watermark_from_the_wish_on() -> None:
    state = leading(ONE, TWO)
    assert state.reported([report(THREE, CAUGHT_UP)]) == [set_isr((ONE, TWO), (THREE,))]
    asked = state.wishes()
    assert asked[WHERE].wished == (ONE, TWO, THREE)
    assert state.wishes() == {}
    answer = Answer(0, EPOCH, (ONE, TWO, THREE), 4)
    assert state.answered(asked, {WHERE: answer}) == [set_isr((ONE, TWO, THREE), epoch=4)]
    assert state.wishes() == {}


# If this failed, a replica that the controller still counts would be left out of an acknowledgement.
def test_a_replica_counts_until_the_controller_has_removed_it() -> None:
    state = leading(ONE, TWO, THREE)
    assert state.reported([report(TWO, FELL_BEHIND)]) == [set_isr((ONE, TWO, THREE))]
    asked = state.wishes()
    assert asked[WHERE].wished == (ONE, THREE)
    assert state.answered(asked, {WHERE: Answer(0, EPOCH, (ONE, THREE), 4)}) == [
        set_isr((ONE, THREE), epoch=4)
    ]


def test_reports_of_one_partition_make_one_wish() -> None:
    state = leading(ONE, TWO)
    state.reported([report(TWO, FELL_BEHIND), report(THREE, CAUGHT_UP)])
    assert state.wishes()[WHERE].wished == (ONE, THREE)
    changed_back = leading(ONE, TWO)
    changed_back.reported([report(TWO, FELL_BEHIND), report(TWO, CAUGHT_UP)])
    assert {tuple(sorted(led.wished or ())) for led in changed_back.wishes().values()} <= {(ONE, TWO)}


# If this failed, a leader with a full disk would keep what another replica could write, or give up what no
# other replica has.
def test_a_leader_without_space_gives_up_what_another_in_sync_replica_has() -> None:
    state = leading(ONE, TWO)
    state.reported([report(TWO, FELL_BEHIND)])
    asked = state.wishes()
    assert state.reported([report(ONE, LACKS_SPACE)]) == [GiveUp(WHERE)]
    assert state.reported([report(ONE, LACKS_SPACE, epoch=6)]) == []
    state.answered(asked, {WHERE: Answer(0, EPOCH, (ONE,), 4)})
    assert state.reported([report(ONE, LACKS_SPACE)]) == []


def test_reports_of_another_epoch_or_of_a_partition_led_elsewhere_are_ignored() -> None:
    state = leading(ONE, TWO)
    assert state.reported([report(THREE, CAUGHT_UP, epoch=6)]) == []
    state.follows(WHERE)
    assert state.reported([report(THREE, CAUGHT_UP)]) == []
    assert state.wishes() == {}


# If this failed, a change that the controller made, but whose answer was lost, would be undone or doubled.
def test_a_wish_without_an_answer_is_asked_again() -> None:
    state = leading(ONE, TWO)
    state.reported([report(THREE, CAUGHT_UP)])
    asked = state.wishes()
    # Reports in between change nothing: the first wish may have been granted.
    assert state.reported([report(TWO, FELL_BEHIND)]) == []
    state.unanswered(asked)
    again = state.wishes()
    assert again[WHERE].wished == (ONE, TWO, THREE)
    assert state.answered(again, {}) == []
    assert state.wishes()[WHERE].wished == (ONE, TWO, THREE)


def test_a_refused_wish_is_dropped() -> None:
    state = leading(ONE, TWO)
    state.reported([report(THREE, CAUGHT_UP)])
    answer = Answer(IneligibleReplica.code)
    assert state.answered(state.wishes(), {WHERE: answer}) == [set_isr((ONE, TWO))]
    assert state.wishes() == {}


# If this failed, records would be acknowledged without a replica that an earlier, unanswered request added.
@pytest.mark.parametrize("error", [InvalidUpdateVersion, InvalidRequest])
def test_replicas_of_a_wish_count_when_the_controller_knows_a_newer_isr(
    error: type[KafkaProtocolError],
) -> None:
    state = leading(ONE, TWO)
    state.reported([report(THREE, CAUGHT_UP)])
    assert state.answered(state.wishes(), {WHERE: Answer(error.code)}) == []
    assert state.led[WHERE].wished == (ONE, TWO, THREE)
    assert state.wishes() == {}


# If this failed, the repeated request would be refused for its version, which the first one made old.
def test_a_wish_that_may_be_granted_stays_as_it_is() -> None:
    state = leading(ONE)
    state.reported([report(TWO, CAUGHT_UP)])
    state.unanswered(state.wishes())
    assert state.reported([report(THREE, CAUGHT_UP)]) == []
    again = state.wishes()
    assert again[WHERE].wished == (ONE, TWO)
    state.answered(again, {WHERE: Answer(0, EPOCH, (ONE, TWO), 4)})
    assert state.reported([report(THREE, CAUGHT_UP)]) == [set_isr((ONE, TWO), (THREE,), epoch=4)]


# If this failed, the answer for an earlier epoch would end the loop that asks the controller.
def test_a_wish_of_a_newer_epoch_is_not_taken_for_an_unsettled_one() -> None:
    state = leading(ONE)
    state.reported([report(TWO, CAUGHT_UP)])
    asked = state.wishes()
    state.leads(WHERE, ID, LeaderEpoch(8), (ONE,), 5)
    state.reported([report(TWO, CAUGHT_UP, epoch=8)])
    state.answered(asked, {WHERE: Answer(0, EPOCH, (ONE, TWO), 4)})
    assert state.still_wished(asked) == []
    assert state.wishes()[WHERE].leader_epoch == 8


def test_a_fenced_leader_waits_for_the_controller() -> None:
    state = leading(ONE, TWO)
    state.reported([report(THREE, CAUGHT_UP)])
    assert state.answered(state.wishes(), {WHERE: Answer(FencedLeaderEpoch.code)}) == []
    assert state.reported([report(TWO, FELL_BEHIND)]) == []
    state.leads(WHERE, ID, LeaderEpoch(8), (ONE,), 5)
    assert state.reported([report(TWO, CAUGHT_UP, epoch=8)]) != []


# If this failed, a replica could join the ISR without records that were acknowledged since it caught up.
def test_a_replica_that_fell_behind_again_is_not_wished_for() -> None:
    state = leading(ONE, TWO)
    [action] = state.reported([report(THREE, CAUGHT_UP)])
    state.not_set(action)
    assert state.wishes() == {}
    assert state.reported([report(THREE, CAUGHT_UP)]) == [set_isr((ONE, TWO), (THREE,))]
    assert state.wishes() != {}


def test_an_answer_for_an_earlier_epoch_changes_nothing() -> None:
    state = leading(ONE, TWO)
    state.reported([report(THREE, CAUGHT_UP)])
    asked = state.wishes()
    state.leads(WHERE, ID, LeaderEpoch(8), (ONE,), 5)
    assert state.answered(asked, {WHERE: Answer(0, EPOCH, (ONE, TWO, THREE), 4)}) == []
    assert state.led[WHERE].isr == (ONE,)


class Controller:
    """Fails in given ways, then grants every wish."""

    def __init__(self, *failures: Exception | int) -> None:
        self.failures = list(failures)
        self.asked: list[Any] = []

    async def request(self, _api_key: int, _version: int, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        failure = self.failures.pop(0) if self.failures else 0
        if isinstance(failure, Exception):
            raise failure
        topics = [
            {
                "topic_id": topic["topic_id"],
                "partitions": [
                    {
                        "partition_index": item["partition_index"],
                        "error_code": 0,
                        "leader_epoch": item["leader_epoch"],
                        "isr": [member["broker_id"] for member in item["new_isr_with_epochs"]],
                        "partition_epoch": item["partition_epoch"] + 1,
                    }
                    for item in topic["partitions"]
                ],
            }
            for topic in body["topics"]
        ]
        return {"error_code": failure, "topics": [] if failure else topics}


class Forgetful(Controller):
    """Answers without the partitions that it was asked for, the first times."""

    async def request(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        answer = await super().request(api_key, version, body)
        return answer | {"topics": []} if len(self.asked) < 3 else answer


class DataPlane:
    """Records the ISRs."""

    def __init__(self) -> None:
        self.isr: list[int] = []
        self.granted = asyncio.Event()

    def set_isr(
        self, _topic: str, _partition: int, _epoch: int, isr: list[int], pending: list[int], _: int
    ) -> bool:
        self.isr = isr
        if not pending and len(isr) == 3:
            self.granted.set()
        return True


# If this failed, an answer that settles nothing would be asked for in a busy loop.
def test_a_wish_that_the_answer_does_not_settle_is_asked_for_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = []

    async def main() -> None:
        sleep = asyncio.sleep

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr("cluster.replication.driver.asyncio.sleep", pause)
        controller, data_plane = Forgetful(), DataPlane()
        replication = Replication(ONE, data_plane, controller, lambda: 10)
        replication.leads(WHERE, ID, EPOCH, [ONE, TWO], 3)
        replication.start()
        replication.reported([("t", 0, EPOCH, THREE, CAUGHT_UP)])
        async with asyncio.timeout(WAIT_SECONDS):
            await data_plane.granted.wait()
        await replication.stop()
        assert len(controller.asked) == 3

    asyncio.run(main())
    assert len(pauses) == 2
    assert [record.message for record in caplog.records] == [
        "the in-sync replicas of t-0 are asked for again: it is not in the answer"
    ]


# If this failed, an ISR would stay as it is after one lost connection, or one answer that cannot be read.
def test_the_controller_is_asked_until_it_answers() -> None:
    async def main() -> None:
        controller = Controller(
            ConnectionResetError(), NotController.code, UnknownServerError.code, KeyError()
        )
        data_plane = DataPlane()
        replication = Replication(ONE, data_plane, controller, lambda: 10)
        replication.leads(WHERE, ID, EPOCH, [ONE, TWO], 3)
        replication.start()
        replication.reported([("t", 0, EPOCH, THREE, CAUGHT_UP)])
        async with asyncio.timeout(WAIT_SECONDS):
            await data_plane.granted.wait()
        await replication.stop()
        assert data_plane.isr == [ONE, TWO, THREE]
        assert len(controller.asked) == 5
        assert controller.asked[0]["broker_epoch"] == 10

    asyncio.run(main())
