"""Watches, sessions and access control, each alone.

If these fail, events are lost or come twice, sessions end at a wrong time, or a client gets a permission that
it must not have.
"""

from __future__ import annotations

import pytest

from cluster.coordinator.errors import Code, ZooKeeperError
from cluster.coordinator.protocol.jute import Acl, Id
from cluster.coordinator.protocol.replies import Event
from cluster.coordinator.settings.server import Settings
from cluster.coordinator.state import acl as access
from cluster.coordinator.state.sessions import Session, SessionExpiry, SessionTable, first_session_id
from cluster.coordinator.state.tree import Change
from cluster.coordinator.state.watches import Mode, Registry, WatcherType, WatchManager


def change(event: Event, path: str) -> Change:
    return Change(event, path, access.OPEN, access.OPEN)


def fired(watches: WatchManager[str], event: Event, path: str) -> list[tuple[str, Event, str]]:
    return [(watcher, event, path) for watcher, event, path, _acl in watches.fire(change(event, path))]


def test_a_data_watch_fires_once() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add(Registry.DATA, Mode.STANDARD, "/a", "me")
    assert fired(watches, Event.DATA_CHANGED, "/a") == [("me", Event.DATA_CHANGED, "/a")]
    assert fired(watches, Event.DATA_CHANGED, "/a") == []
    assert len(watches) == 0


def test_a_deletion_fires_watches_of_data_children_and_the_parent() -> None:
    watches: WatchManager[str] = WatchManager()
    for registry in Registry:
        watches.add(registry, Mode.STANDARD, "/a/b", "me")
    watches.add(Registry.CHILDREN, Mode.STANDARD, "/a", "you")
    assert fired(watches, Event.DELETED, "/a/b") == [
        ("me", Event.DELETED, "/a/b"),
        ("you", Event.CHILDREN_CHANGED, "/a"),
    ]


def test_persistent_watches_stay_and_recursive_ones_cover_the_subtree() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add_persistent("/a", "p", recursive=False)
    watches.add_persistent("/", "r", recursive=True)
    for _ in range(2):
        assert fired(watches, Event.CREATED, "/a/b") == [
            ("r", Event.CREATED, "/a/b"),
            ("p", Event.CHILDREN_CHANGED, "/a"),
        ]
    assert watches.remove(WatcherType.ANY, "/a", "p")
    assert not watches.remove(WatcherType.ANY, "/a", "p")
    assert watches.has(WatcherType.ANY, "/", "r")


def test_modes_of_one_path_are_added_and_removed_independently() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add(Registry.DATA, Mode.STANDARD, "/a", "me")
    watches.add_persistent("/a", "me", recursive=False)
    watches.add_persistent("/a", "me", recursive=True)
    assert fired(watches, Event.DATA_CHANGED, "/a") == [("me", Event.DATA_CHANGED, "/a")]
    assert not watches.has(WatcherType.DATA, "/a", "me")
    assert watches.remove(WatcherType.PERSISTENT, "/a", "me")
    assert fired(watches, Event.CREATED, "/a/b") == [("me", Event.CREATED, "/a/b")]
    assert watches.remove(WatcherType.RECURSIVE, "/a", "me")
    assert fired(watches, Event.CREATED, "/a/b") == []
    assert len(watches) == 0


def test_a_closed_connections_watches_are_removed() -> None:
    watches: WatchManager[str] = WatchManager()
    watches.add(Registry.DATA, Mode.STANDARD, "/a", "gone")
    watches.add(Registry.DATA, Mode.STANDARD, "/a", "here")
    watches.remove_watcher("gone")
    assert [watcher for watcher, *_ in fired(watches, Event.CREATED, "/a")] == ["here"]


@pytest.mark.parametrize(
    ("requested", "expected"), [(1, 4000), (4000, 4000), (9000, 9000), (100_000, 40_000), (-1, 4000)]
)
def test_timeouts_are_between_2_and_20_ticks(requested: int, expected: int) -> None:
    assert Settings(tick_time_ms=2000).session_timeout_ms(requested) == expected


def test_the_maximum_timeout_overrides_the_minimum() -> None:
    bounds = Settings(min_session_timeout_ms=500, max_session_timeout_ms=300)
    assert [bounds.session_timeout_ms(requested) for requested in (1, 400, 1000)] == [300, 300, 300]


def test_a_silent_session_expires_at_the_tick_after_its_timeout() -> None:
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


def test_after_a_pause_of_the_server_sessions_expire_later() -> None:
    """The server could not hear its clients during the pause."""
    expiry = SessionExpiry(100)
    expiry.track(1, 400, now_ms=50)
    expiry.postpone(200)
    assert expiry.take_expired(500 + 200) == []
    assert expiry.take_expired(800) == [1]


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
    # super:test is the example of ZooKeeper's administrator's guide.
    assert access.digest_identity(b"super:test") == Id("digest", "super:D/InIHSb7yEEbrWz8b9l71RjZJU=")
    # Without a colon, the whole text is the name and is hashed.
    assert access.digest_identity(b"nobody").id.startswith("nobody:")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_addresses_are_written_as_java_does(address: str, shown: str) -> None:
    assert access.address_identity(address) == Id("ip", shown)


def subject(*identities: Id, rules: access.Rules = access.Rules.NONE) -> access.Subject:
    return access.Subject(identities, rules)


def test_permissions_are_per_identity() -> None:
    mine = Id("digest", "me:hash")
    acl = (Acl(access.ALL, mine), Acl(access.READ, Id("ip", "10.0.0.0/8")))
    assert subject(mine).may(access.WRITE, acl)
    assert subject(Id("ip", "10.1.2.3")).may(access.READ, acl)
    assert not subject(Id("ip", "10.1.2.3")).may(access.WRITE, acl)
    assert not subject(Id("ip", "11.1.2.3")).may(access.READ, acl)
    assert subject(access.SUPER).may(access.ADMIN, acl)
    assert subject(rules=access.Rules.SKIP_ACL).may(access.ADMIN, acl)


@pytest.mark.parametrize(
    "entry",
    [
        Acl(31, Id("auth", "")),
        Acl(31, Id("sasl", "x")),
        Acl(31, Id("x509", "CN=x")),
        Acl(31, Id("world", "me")),
        *(Acl(31, Id("digest", text)) for text in ("", "x", "a:", "a:b:c")),
        *(
            Acl(31, Id("ip", text))
            for text in (
                "",
                "x",
                "1.2.3",
                "1.2.3.256",
                "1.2.3.4/33",
                "1.2.3.4/255.0.0.0",
                "::1::",
                "::1.2.3.4",
            )
        ),
        Acl(31, Id("ip", "1:2:3:4:5:6:7:8:9")),
        Acl(31, Id("ip", "::1/129")),
    ],
)
def test_an_invalid_acl_is_refused(entry: Acl) -> None:
    with pytest.raises(ZooKeeperError) as caught:
        access.resolve([entry], subject(Id("ip", "127.0.0.1")), "/a")
    assert caught.value.code is Code.INVALID_ACL


@pytest.mark.parametrize(
    "wanted",
    [
        *(Id("digest", text) for text in ("a:b", ":b", "a:b:", "a:b::")),
        *(Id("ip", text) for text in ("010.0.0.1", "1.2.3.4/0", "::", "::1/128", "1:2:3:4:5:6:7:8", "a::b")),
    ],
)
def test_an_acl_that_zookeeper_accepts_is_accepted(wanted: Id) -> None:
    entry = Acl(access.READ, wanted)
    assert access.resolve([entry], subject(), "/a") == (entry,)


def test_addresses_match_within_their_family_only() -> None:
    everybody = (Acl(access.READ, Id("ip", "0.0.0.0/0")),)
    assert subject(Id("ip", "1.2.3.4")).may(access.READ, everybody)
    assert not subject(Id("ip", "0:0:0:0:0:0:0:1")).may(access.READ, everybody)
    loopback = (Acl(access.READ, Id("ip", "::1")),)
    assert subject(Id("ip", "0:0:0:0:0:0:0:1")).may(access.READ, loopback)


def test_auth_is_replaced_by_the_creators_identities() -> None:
    mine = Id("digest", "me:hash")
    me = subject(Id("ip", "::1"), mine)
    assert access.resolve([Acl(1, Id("auth", ""))] * 2, me, "/a") == (Acl(1, mine),)
    many = [Acl(perms, Id("auth", "")) for perms in range(100)]
    assert len(access.resolve(many, me, "/a")) == 100
    with_many_ids = subject(*(Id("digest", f"{number}:x") for number in range(200)))
    with pytest.raises(ZooKeeperError, match="INVALID_ACL"):
        access.resolve(many, with_many_ids, "/a")
    # Duplicates are removed before the replacement, not after it.
    assert access.resolve([Acl(1, Id("auth", "")), Acl(1, mine)], me, "/a") == (Acl(1, mine), Acl(1, mine))
    with pytest.raises(ZooKeeperError):
        access.resolve([], me, "/a")
