"""Watches, sessions and access control by themselves. If these fail, events are lost or come twice,
sessions live too short or too long, or a client may what it must not."""

from __future__ import annotations

import pytest

from cluster.coordinator import acl as access
from cluster.coordinator.errors import Code, ZooKeeperError
from cluster.coordinator.jute import Acl, Id
from cluster.coordinator.sessions import (
    Session,
    SessionExpiry,
    SessionTable,
    first_session_id,
    negotiate_timeout,
)
from cluster.coordinator.tree import Event
from cluster.coordinator.watches import Kind, Notification, WatchManager


def test_a_data_watch_fires_once() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add(Kind.DATA, "/a", "me")
    assert watches.fire(Event.DATA_CHANGED, "/a") == [Notification("me", Event.DATA_CHANGED, "/a")]
    assert watches.fire(Event.DATA_CHANGED, "/a") == []
    assert len(watches) == 0


def test_a_deletion_is_told_once_to_who_watches_both_ways_and_to_the_parent() -> None:
    watches: WatchManager[str] = WatchManager()
    for kind in (Kind.DATA, Kind.CHILD):
        watches.add(kind, "/a/b", "me")
    watches.add(Kind.CHILD, "/a", "you")
    assert watches.fire(Event.DELETED, "/a/b") == [
        Notification("me", Event.DELETED, "/a/b"),
        Notification("you", Event.CHILDREN_CHANGED, "/a"),
    ]


def test_persistent_watches_stay_and_recursive_ones_see_everything_below() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add(Kind.PERSISTENT, "/a", "p")
    watches.add(Kind.RECURSIVE, "/", "r")
    for _ in range(2):
        assert watches.fire(Event.CREATED, "/a/b") == [
            Notification("r", Event.CREATED, "/a/b"),
            Notification("p", Event.CHILDREN_CHANGED, "/a"),
        ]
    assert watches.remove(Kind.ANY, "/a", "p")
    assert not watches.remove(Kind.ANY, "/a", "p")
    assert watches.has(Kind.ANY, "/", "r")


def test_a_connection_takes_its_watches_with_it() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add(Kind.DATA, "/a", "gone")
    watches.add(Kind.DATA, "/a", "here")
    watches.remove_watcher("gone")
    assert [told.watcher for told in watches.fire(Event.CREATED, "/a")] == ["here"]


@pytest.mark.parametrize(
    ("asked", "given"), [(1, 4000), (4000, 4000), (9000, 9000), (100_000, 40_000), (-1, 4000)]
)
def test_timeouts_are_between_2_and_20_ticks(asked: int, given: int) -> None:
    assert negotiate_timeout(asked, 2000) == given


def test_a_session_expires_at_the_tick_after_its_timeout_unless_heard_from() -> None:
    expiry = SessionExpiry(100)
    expiry.track(1, 400, now_ms=50)
    expiry.track(2, 400, now_ms=50)
    assert expiry.next_deadline() == 500
    expiry.touch(2, 320)
    assert expiry.take_expired(499) == []
    assert expiry.take_expired(500) == [1]
    assert expiry.take_expired(500) == []
    assert expiry.next_deadline() == 800
    expiry.postpone(150)
    assert expiry.take_expired(900) == []
    assert expiry.take_expired(1000) == [2]
    assert expiry.next_deadline() is None


def test_a_touch_does_not_revive_an_expired_session() -> None:
    expiry = SessionExpiry(100)
    expiry.track(1, 400, 0)
    assert expiry.take_expired(10_000) == [1]
    expiry.touch(1, 10_000)
    assert expiry.next_deadline() is None


def test_only_the_password_proves_a_session() -> None:
    table = SessionTable()
    table.open(Session(5, 4000, b"secret"))
    assert table.proves(5, b"secret")
    assert not table.proves(5, b"guess!")
    assert not table.proves(6, b"secret")


def test_session_ids_grow_with_time_and_stay_positive() -> None:
    early, late = first_session_id(1_700_000_000_000, 255), first_session_id(1_700_000_000_001, 255)
    assert 0 < early < late < 2**63


def test_digest_identities_are_zookeepers() -> None:
    # The example of ZooKeeper's administrator's guide: super:test.
    assert access.digest_identity(b"super:test") == Id("digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU=")
    assert access.digest_identity(b"nobody") is None


def test_permissions_are_per_identity() -> None:
    mine = Id("digest", "me:hash")
    acl = (Acl(access.ALL, mine), Acl(access.READ, Id("ip", "10.0.0.0/8")))
    assert access.allowed(acl, access.WRITE, [mine])
    assert access.allowed(acl, access.READ, [Id("ip", "10.1.2.3")])
    assert not access.allowed(acl, access.WRITE, [Id("ip", "10.1.2.3")])
    assert not access.allowed(acl, access.READ, [Id("ip", "11.1.2.3")])


@pytest.mark.parametrize(
    "entry",
    [Acl(31, Id("auth", "")), Acl(31, Id("sasl", "x")), Acl(31, Id("digest", "x")), Acl(31, Id("ip", "x"))],
)
def test_an_acl_nobody_can_have_is_refused(entry: Acl) -> None:
    with pytest.raises(ZooKeeperError) as caught:
        access.resolve([entry], [Id("ip", "127.0.0.1")], "/a")
    assert caught.value.code is Code.INVALID_ACL


def test_auth_stands_for_the_creators_identities() -> None:
    mine = Id("digest", "me:hash")
    assert access.resolve([Acl(1, Id("auth", ""))] * 2, [Id("ip", "::1"), mine], "/a") == (Acl(1, mine),)
    with pytest.raises(ZooKeeperError):
        access.resolve([], [mine], "/a")
