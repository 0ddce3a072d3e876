"""`logcore zookeeper-shell` by itself: lines, options, paths, replies and its session. `tests/compat`
compares its text with zkCli's.
"""

from __future__ import annotations

import contextlib
import os
import pty
import queue
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.cli.zookeeper.arguments import Arguments, Options, parse, split
from cluster.cli.zookeeper.commands import parse_acl, version
from cluster.cli.zookeeper.console import Console
from cluster.cli.zookeeper.errors import ServerError, ShellError, check_path, integer
from cluster.cli.zookeeper.printing import Event, event_text, hex_dump, stat_text
from cluster.cli.zookeeper.quotas import Track
from cluster.cli.zookeeper.reconfig import client_addresses, members_of
from cluster.cli.zookeeper.session import Acl, Session
from cluster.cli.zookeeper.shell import decode, usage
from cluster.cli.zookeeper.terminal import Completer
from cluster.cli.zookeeper.watches import EventType, Kind, Watches
from cluster.cli.zookeeper_shell import parse_start
from tests.coordinator.support import WAIT_SECONDS, Coordinator, FakeClock, LoopThread

OPTIONS = Options(frozenset("sw"), frozenset({"v", "members"}))
OPEN = (Acl(31, "world", "anyone"),)


# ---- lines ----


# Broken if it failed: a script for zkCli would give a command other words.
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls /", ["ls", "/"]),
        ("  create  /a   ''  ", ["create", "/a", ""]),
        ("""set /a "two words" 'and "these"'""", ["set", "/a", "two words", 'and "these"']),
        ("""set /a it's""", ["set", "/a", "it's"]),
        ('set /a "open', ["set", "/a", "open"]),
        ("get /a\tb", ["get", "/a", "b"]),
    ],
)
def test_a_line_is_split_as_zkcli_does(line: str, words: list[str]) -> None:
    assert split(line) == words


# Broken if it failed: a line would mean something else than in zkCli.
@pytest.mark.parametrize(
    ("given", "words", "options"),
    [
        (["/a"], ["/a"], {}),
        (["-s", "/a", "-w"], ["/a"], {"s": "", "w": ""}),
        (["-sw", "/a"], ["/a"], {"s": "", "w": ""}),
        (["-v", "-1", "/a"], ["/a"], {"v": "-1"}),
        (["-v3", "/a"], ["/a"], {"v": "3"}),
        (["-v=3", "/a"], ["/a"], {"v": "3"}),
        (["-sv", "3", "/a"], ["/a"], {"s": "", "v": "3"}),
        (["-v", "1", "-v", "2"], [], {"v": "1"}),
        (["-members", "1=a:1:2"], [], {"members": "1=a:1:2"}),
        (["/a", "--", "-s"], ["/a", "-s"], {}),
        (["/a", "-"], ["/a", "-"], {}),
        (["/a", ""], ["/a", ""], {}),
        (["-v", "-q"], [], {"v": "-q"}),
    ],
)
def test_options_may_be_anywhere(given: list[str], words: list[str], options: dict[str, str]) -> None:
    assert parse(given, OPTIONS) == Arguments(words, options)


# Broken if it failed: a misspelt option would be ignored.
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-q"], "UnrecognizedOptionException: Unrecognized option: -q"),
        (["--s"], "UnrecognizedOptionException: Unrecognized option: --s"),
        (["/a", "-1"], "UnrecognizedOptionException: Unrecognized option: -1"),
        (["-sq"], "UnrecognizedOptionException: Unrecognized option: -sq"),
        (["-v"], "MissingArgumentException: Missing argument for option: v"),
        (["-v", "-s"], "MissingArgumentException: Missing argument for option: v"),
    ],
)
def test_wrong_options_are_named(given: list[str], message: str) -> None:
    with pytest.raises(ShellError) as refused:
        parse(given, OPTIONS)
    assert str(refused.value) == f"org.apache.commons.cli.{message}"
    assert refused.value.status == 1


# Broken if it failed: setquota would set another limit than the user meant.
def test_only_one_of_exclusive_options_is_taken() -> None:
    one = Options(valued=frozenset("nb"), exclusive=frozenset("nb"), required="[-n num, -b bytes]")
    assert parse(["-n", "1", "/a"], one).options == {"n": "1"}
    with pytest.raises(ShellError, match="already been selected: 'n'"):
        parse(["-n", "1", "-b", "2"], one)
    with pytest.raises(ShellError, match="Missing required option"):
        parse(["/a"], one)


# Broken if it failed: an option of a command would be taken for one of the shell.
@pytest.mark.parametrize(
    ("arguments", "server", "command"),
    [
        (["host:1"], "host:1", []),
        (["host:1/root", "ls", "-R", "/"], "host:1/root", ["ls", "-R", "/"]),
        (["-server", "host:1", "-timeout", "5", "get", "-timeout"], "host:1", ["get", "-timeout"]),
        (["host:1", "-r", "-unknown", "-waitforconnection", "ls"], "host:1", ["ls"]),
        (["-r"], "localhost:2181", []),
    ],
)
def test_options_end_at_the_command(arguments: list[str], server: str, command: list[str]) -> None:
    start = parse_start(arguments)
    assert (start.server, start.command) == (server, command)


# Broken if it failed: the next argument would be taken for the value, or the error be hidden.
def test_an_option_without_its_value_is_reported() -> None:
    assert parse_start(["host:1", "-timeout"]).complaint == "Error: no argument found for option -timeout"


# Broken if it failed: redo would run another command than in zkCli.
@pytest.mark.parametrize(
    ("text", "number"), [("10", 10), ("0x1f", 31), ("#a", 10), ("010", 8), ("-1", -1), ("0", 0)]
)
def test_numbers_of_history_are_decoded_as_java_does(text: str, number: int) -> None:
    assert decode(text) == number


# Broken if it failed: a line of a script would end the shell with a traceback.
@pytest.mark.parametrize("text", ["", "x", "1_0", "2147483648", "08", "0x", "9" * 5000, "0x" + "f" * 5000])
def test_redo_refuses_text_that_is_not_a_number(text: str) -> None:
    with pytest.raises(ShellError, match="redo takes the number of a command"):
        decode(text)


# Broken if it failed: a node would be changed without the check of its version.
def test_a_version_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ShellError, match="-v takes a version, a whole number or -1 for any, not 'x'"):
        version(Arguments(options={"v": "x"}))


# Broken if it failed: a version of a configuration could not be given.
def test_longs_and_hexadecimal_numbers_are_read() -> None:
    assert integer("-9223372036854775808", bits=64) == -(1 << 63)
    assert integer("1F", bits=64, radix=16) == 31


# Broken if it failed: a line of a script would end the shell, because Python refuses numbers of 4301 digits.
@pytest.mark.parametrize(("bits", "radix"), [(32, 10), (64, 10), (64, 16), (32, 8)])
def test_a_number_of_any_length_is_read_or_refused(bits: int, radix: int) -> None:
    for digits in ("7" * 23, "7" * 5000):
        with pytest.raises(ShellError, match=f'^For input string: "-{digits}"$'):
            integer(f"-{digits}", bits, radix)
    assert integer("0" * 5000 + "7", bits, radix) == 7


# ---- paths ----


# Broken if it failed: the server would end the session for a bad path.
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "Path length must be > 0"),
        ("a", "Path must start with / character"),
        ("/a/", "Path must not end with / character"),
        ("/a//b", 'Invalid path string "/a//b" caused by empty node name specified @3'),
        ("/a/./b", 'Invalid path string "/a/./b" caused by relative paths not allowed @3'),
        ("/a/..", 'Invalid path string "/a/.." caused by relative paths not allowed @4'),
        ("/a\0", 'Invalid path string "/a\0" caused by null character not allowed @2'),
        ("/a\x1f", 'Invalid path string "/a\x1f" caused by invalid character @2'),
        ("/\N{PILE OF POO}", 'Invalid path string "/\N{PILE OF POO}" caused by invalid character @1'),
    ],
)
def test_a_path_that_no_node_can_have_is_refused(path: str, message: str) -> None:
    with pytest.raises(ShellError) as refused:
        check_path(path)
    assert str(refused.value) == message


# Broken if it failed: some nodes could not be reached.
@pytest.mark.parametrize("path", ["/", "/a", "/a/.b", "/a/..b", "/a/b.", "/ä", "/a b"])
def test_paths_that_nodes_can_have_are_taken(path: str) -> None:
    check_path(path)


# Broken if it failed: `create -s /a/` would be refused.
def test_the_path_of_a_sequential_node_may_end_in_a_slash() -> None:
    check_path("/a/", sequential=True)


# ---- what is printed ----


# Broken if it failed: a script that parses a stat would fail.
def test_a_stat_is_printed_as_zkcli_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from kazoo.protocol.states import ZnodeStat

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    printed = stat_text(ZnodeStat(16, -1, 1532765649000, (1 << 63) - 1, 1, 2, 3, -2, 4, 5, 17))
    assert printed.splitlines() == [
        "cZxid = 0x10",
        "ctime = Sat Jul 28 08:14:09 UTC 2018",
        "mZxid = 0xffffffffffffffff",
        "mtime = Sun Aug 17 07:12:55 UTC 292278994",
        "pZxid = 0x11",
        "cversion = 2",
        "dataVersion = 1",
        "aclVersion = 3",
        "ephemeralOwner = 0xfffffffffffffffe",
        "dataLength = 4",
        "numChildren = 5",
    ]


# Broken if it failed: `get -x` would look other than in zkCli.
def test_a_hex_dump_has_rows_of_sixteen_bytes() -> None:
    assert hex_dump(b"Hello,\nZoo\x01Keep!A").splitlines() == [
        "         +-------------------------------------------------+",
        "         |  0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f |",
        "+--------+-------------------------------------------------+----------------+",
        "|00000000| 48 65 6c 6c 6f 2c 0a 5a 6f 6f 01 4b 65 65 70 21 |Hello,.Zoo.Keep!|",
        "|00000010| 41                                              |A               |",
        "+--------+-------------------------------------------------+----------------+",
    ]
    assert hex_dump(b"") == ""


# Broken if it failed: a script that waits for an event would not find it.
def test_an_event_has_blank_lines_around_its_title() -> None:
    text = event_text(Event("SyncConnected", "NodeCreated", "/a", 7))
    assert text == "\nWATCHER::\n\nWatchedEvent state:SyncConnected type:NodeCreated path:/a zxid: 7"
    assert event_text(Event("Closed")).endswith("state:Closed type:None path:null zxid: -1")


# Broken if it failed: a command would be missing.
def test_usage_lists_every_command_of_zookeeper_3_9() -> None:
    names = [line.split()[0] for line in usage().splitlines()[1:]]
    assert names == sorted(names)
    assert " ".join(names) == (
        "addWatch addauth close config connect create delete deleteall delquota get getAcl "
        "getAllChildrenNumber getEphemerals history listquota ls printwatches quit reconfig redo "
        "removewatches set setAcl setquota stat sync version whoami"
    )


# Broken if it failed: a node would get other permissions than in zkCli.
def test_bad_entries_of_an_acl_are_reported_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    read = parse_acl("world:anyone:rx,bad,digest:ann:secret=:cdrwa,auth::r", Console())
    assert read == (Acl(1, "world", "anyone"), Acl(31, "digest", "ann:secret="), Acl(1, "auth", ""))
    assert capsys.readouterr().err == "Unknown perm type: x\nbad does not have the form scheme:id:perm\n"


# Broken if it failed: setquota would delete limits that another version set.
def test_a_quota_keeps_unknown_limits() -> None:
    text = "count=5,bytes=-1=;byteHardLimit=7;countHardLimit=-1"
    assert str(Track(text.encode())) == text
    assert str(Track(b"bytes=4")) == "count=-1,bytes=4"
    with pytest.raises(ShellError, match="invalid string"):
        Track(b"count")


# Broken if it failed: `config -c` would print wrong addresses.
def test_client_addresses_of_a_configuration() -> None:
    text = (
        "server.1=a:2888:3888:participant;0.0.0.0:2181\nserver.2=b:2888:3888:observer\n"
        "server.3=c:1:2;2182\nversion=100000000"
    )
    assert client_addresses(text) == "100000000 0.0.0.0:2181,,0.0.0.0:2182"
    assert client_addresses("") == " "


# Broken if it failed: reconfig would send other members than the file has.
def test_a_dynamic_configuration_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "zoo.cfg.dynamic"
    file.write_text("server.2=B:2888:3888:observer;2181\nserver.1=a:1:2\n")
    assert members_of(str(file)) == (
        "server.1=a:1:2:participant\nserver.2=b:2888:3888:observer;0.0.0.0:2181\nversion=0"
    )
    file.write_text("clientPort=2181\n")
    with pytest.raises(ShellError, match="clientPort=2181 is not a line of a dynamic configuration"):
        members_of(str(file))
    file.write_text(f"server.{'1' * 5000}=a:1:2\n")
    with pytest.raises(ShellError, match="=a:1:2 is not a line of a dynamic configuration"):
        members_of(str(file))


# Broken if it failed: reconfig would send a part of the members.
def test_a_malformed_configuration_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "zoo.cfg.dynamic"
    file.write_text("server.1=\\u12\n")
    with pytest.raises(
        ShellError, match=r"^Error processing .*: line 1: \\u12 of server\.1 is not a character"
    ):
        members_of(str(file))
    with pytest.raises(ShellError, match=r"^The configuration cannot be read: line 1: \\u12 of server\.1"):
        client_addresses(file.read_text())


# Broken if it failed: the tab key would do nothing.
def test_commands_and_paths_are_completed() -> None:
    below = {"/": ["zookeeper", "a"], "/a": ["b", "bc", "d"]}
    completer = Completer(lambda path: below.get(path, []))
    assert completer.completions("getA") == ["getAcl ", "getAllChildrenNumber "]
    assert completer.completions("/") == ["/a", "/zookeeper"]
    assert completer.completions("/a/b") == ["/a/b", "/a/bc"]
    assert completer.completions("/nowhere/b") == []
    assert [completer("/a/b", number) for number in range(3)] == ["/a/b", "/a/bc", None]


# ---- watches ----


# Broken if it failed: an event would be lost or repeated.
def test_a_watch_reports_one_event_and_a_persistent_one_every_event() -> None:
    watches = Watches()
    watches.add(Kind.DATA, "/a")
    assert watches.triggered(EventType.NodeDataChanged, "/a")
    assert not watches.triggered(EventType.NodeDataChanged, "/a")
    watches.add(Kind.PERSISTENT, "/a")
    assert all(watches.triggered(EventType.NodeChildrenChanged, "/a") for _ in range(2))
    assert not watches.triggered(EventType.NodeCreated, "/a/b")


# Broken if it failed: an event would be lost, or reported twice.
def test_a_recursive_watch_reports_descendants_but_no_children_events() -> None:
    watches = Watches()
    watches.add(Kind.RECURSIVE, "/a")
    assert watches.triggered(EventType.NodeCreated, "/a/b/c")
    assert watches.triggered(EventType.NodeDeleted, "/a")
    assert not watches.triggered(EventType.NodeChildrenChanged, "/a")
    assert not watches.triggered(EventType.NodeCreated, "/ab")


# Broken if it failed: removewatches would remove other watches.
def test_watches_are_removed_by_kind_with_one_event_each() -> None:
    watches = Watches()
    for kind in Kind:
        watches.add(kind, "/a")
    assert watches.remove("/a", [Kind.DATA, Kind.EXISTS]) == [EventType.DataWatchRemoved]
    assert watches.remove("/a", list(Kind)) == [
        EventType.ChildWatchRemoved,
        EventType.PersistentWatchRemoved,
    ]
    assert not watches.watched("/a", list(Kind))


# Broken if it failed: watches would be lost on a new connection, or the server would refuse the request.
def test_all_watches_are_set_again_in_parts() -> None:
    watches = Watches()
    paths = {f"/node{number:03}" for number in range(100)}
    for path in paths:
        watches.add(Kind.DATA, path)
    parts = list(watches.batches(120))
    assert len(parts) == 10
    assert {path for part in parts for path in part[Kind.DATA]} == paths


# ---- a session with our coordinator ----


class Events:
    """Receives a session's events."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue()

    def __call__(self, event: Event) -> None:
        self._events.put(event)

    def next(self) -> Event:
        return self._events.get(timeout=WAIT_SECONDS)

    def until(self, state: str) -> None:
        while self.next().state != state:
            pass


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def coordinator(loop: LoopThread, tmp_path: Path) -> Iterator[Coordinator]:
    server = Coordinator(loop, tmp_path / "coordinator")
    yield server
    server.stop()


# Broken if it failed: a user would miss events after a restart of the server.
def test_watches_survive_a_new_connection(loop: LoopThread, tmp_path: Path, coordinator: Coordinator) -> None:
    clock = FakeClock()
    events = Events()
    session = Session(coordinator.hosts, 30_000, events)
    events.until("SyncConnected")
    session.create("/a", b"", OPEN)
    session.create("/b", b"", OPEN)
    session.get("/a", watch=True)
    session.exists("/missing", watch=True)
    session.children("/b", watch=True)
    session.add_watch("/b", recursive=True)
    coordinator.stop()
    events.until("Disconnected")
    with pytest.raises(ServerError, match="ConnectionLoss for /a"):
        session.get("/a")
    again = Coordinator(loop, tmp_path / "coordinator", port=coordinator.port, clock=clock)
    try:
        events.until("SyncConnected")
        other = Session(again.hosts, 30_000, Events())
        other.set("/a", b"1")
        other.create("/missing", None, OPEN)
        other.create("/b/c", None, OPEN)
        other.close()
        found = {(each.type, each.path) for each in (events.next() for _ in range(4))}
        assert found == {
            ("NodeDataChanged", "/a"),
            ("NodeCreated", "/missing"),
            ("NodeCreated", "/b/c"),
            ("NodeChildrenChanged", "/b"),
        }
        session.close()
        assert events.next() == Event("Closed")
    finally:
        again.stop()


# Broken if it failed: a user would not notice that ephemeral nodes are gone.
def test_a_session_that_expires_is_not_replaced(coordinator: Coordinator) -> None:
    events = Events()
    session = Session(coordinator.hosts, 5_000, events)
    events.until("SyncConnected")
    coordinator.pass_time(60_000)
    events.until("Expired")
    assert (session.alive, session.state) == (False, "CLOSED")
    assert session._client._connection.connection_stopped.wait(WAIT_SECONDS), "it must not reconnect"
    session.close()


# Broken if it failed: a command would change nodes outside of the chroot.
def test_paths_and_events_are_below_the_chroot(coordinator: Coordinator) -> None:
    whole = Session(coordinator.hosts, 30_000, Events())
    whole.create("/root", None, OPEN)
    events = Events()
    session = Session(f"{coordinator.hosts}/root", 30_000, events)
    events.until("SyncConnected")
    session.children("/", watch=True)
    session.add_watch("/a", recursive=False)
    assert session.create("/a", b"1", OPEN) == "/a"
    assert {events.next().path, events.next().path} == {"/", "/a"}
    assert whole.get("/root/a")[0] == b"1"
    session.remove_watches("/a", 3, local=False)
    assert events.next() == Event("SyncConnected", "PersistentWatchRemoved", "/a")
    with pytest.raises(ServerError, match="No such watcher for /a"):
        session.remove_watches("/a", 3, local=False)
    session.close()
    whole.close()


# Broken if it failed: deleteall would leave nodes.
@pytest.mark.parametrize("batch", [1000, 2, 0])
def test_a_tree_larger_than_a_batch_is_deleted(coordinator: Coordinator, batch: int) -> None:
    session = Session(coordinator.hosts, 30_000, Events())
    session.create("/t", None, OPEN)
    for number in range(30):
        session.create(f"/t/{number}", None, OPEN)
        session.create(f"/t/{number}/below", None, OPEN)
    assert session.delete_tree("/t", batch)
    assert session.exists("/t") is None
    session.close()


# Broken if it failed: deleteall would report success although nodes are left.
def test_a_tree_that_cannot_be_deleted_is_reported(coordinator: Coordinator) -> None:
    session = Session(coordinator.hosts, 30_000, Events())
    session.create("/t", None, OPEN)
    session.create("/t/a", None, OPEN)
    session.create("/t/a/kept", None, OPEN)
    session.set_acl("/t/a", [Acl(1, "world", "anyone")])
    assert not session.delete_tree("/t", 1)
    assert session.exists("/t/a/kept") is not None
    session.close()


# Broken if it failed: a connect string of zkCli would be refused.
def test_a_connect_string_is_split_as_javas_client_does(coordinator: Coordinator) -> None:
    events = Events()
    session = Session(f" {coordinator.hosts} ,,", 30_000, events)
    events.until("SyncConnected")
    session.close()


# Broken if it failed: a mistake would be a traceback.
@pytest.mark.parametrize("connect", ["", ",", "host:port", "localhost:2181/a//b", ":1"])
def test_a_bad_connect_string_is_one_line(connect: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zookeeper-shell", "-server", connect, "ls", "/"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# ---- malformed replies ----


def serve_replies(listener: socket.socket, replies: Sequence[bytes]) -> None:
    """Accepts connections, opens a session on each, and answers its requests with these frames."""
    with contextlib.suppress(OSError):
        while True:
            client, _address = listener.accept()
            with client, contextlib.suppress(OSError):
                client.settimeout(WAIT_SECONDS)
                client.recv(1 << 16)
                session = struct.pack(">iiqi16sB", 0, 30_000, 1, 16, b"\0" * 16, 0)
                client.sendall(struct.pack(">i", len(session)) + session)
                for reply in replies:
                    if not client.recv(1 << 16):
                        break
                    client.sendall(reply)
                client.recv(1 << 16)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


# Broken if it failed: a faulty server would end the shell.
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (struct.pack(">i", 1 << 30), "ConnectionLoss"),
        (struct.pack(">i", -5), "ConnectionLoss"),
        (frame(b"short"), "ConnectionLoss"),
        (frame(struct.pack(">iqi", 99, 1, 0)), "ConnectionLoss"),
        (frame(struct.pack(">iqi", -1, 1, 0) + b"x"), "ConnectionLoss"),
        (frame(struct.pack(">iqi", 1, 1, -9999)), "SystemError"),
        (frame(struct.pack(">iqi", 1, 1, 0) + struct.pack(">i", 1 << 30)), "MarshallingError"),
    ],
    ids=["long", "negative", "short", "unrequested", "event", "unknown error", "no body"],
)
def test_a_malformed_reply_is_an_error_of_the_command(reply: bytes, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve_replies, args=(listener, [reply]), daemon=True)
        thread.start()
        session = Session(f"127.0.0.1:{listener.getsockname()[1]}", 30_000, Events())
        with pytest.raises(ServerError, match=f"KeeperErrorCode = {message} for /a"):
            session.children("/a")
        assert session.alive
        session.close()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_SECONDS)


# ---- the command ----


def run(port: int, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cluster.cli", "zookeeper-shell", f"127.0.0.1:{port}", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )


# Broken if it failed: a script could not hold a node beyond one command, as with zkCli.
def test_an_ephemeral_node_of_one_command_stays_until_its_session_expires(coordinator: Coordinator) -> None:
    done = run(coordinator.port, "create", "-e", "/kept", "x")
    assert (done.returncode, done.stderr) == (0, "Created /kept\n")
    session = Session(coordinator.hosts, 30_000, Events())
    found = session.exists("/kept")
    assert found is not None
    assert found.ephemeralOwner != 0
    coordinator.pass_time(20_000)
    coordinator.pass_time(20_000)
    fresh = Session(coordinator.hosts, 30_000, Events())
    assert fresh.exists("/kept") is None
    fresh.close()
    session.close()


# Broken if it failed: a line of a script would end the shell.
def test_a_number_of_any_length_is_an_error_of_its_command(coordinator: Coordinator) -> None:
    digits = "9" * 5000
    lines = [
        f"redo {digits}",
        f"set -v {digits} / x",
        f"setquota -n {digits} /",
        f"reconfig -v {digits} -remove 1",
        "ls /",
    ]
    done = run(coordinator.port, stdin="\n".join(lines))
    assert done.stderr.splitlines()[-4:] == [
        f"redo takes the number of a command in the history, not '{digits}'",
        f"-v takes a version, a whole number or -1 for any, not '{digits}'",
        "NumberFormatException happens when parsing the option value",
        "-v must be followed by a long (configuration version)",
    ]
    assert "[zookeeper]" in done.stdout


# Broken if it failed: ephemeral nodes would stay, or a script would not see a failure.
def test_quit_ends_the_session_and_keeps_the_exit_code(coordinator: Coordinator) -> None:
    done = run(coordinator.port, stdin="create -e /kept\nget /missing\nquit\nls /\n")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Created /kept", "Node does not exist: /missing"]
    session = Session(coordinator.hosts, 30_000, Events())
    assert session.exists("/kept") is None
    session.close()


# Broken if it failed: a script would wait for ever.
def test_without_a_server_a_command_ends_with_connection_loss(unused_port: int) -> None:
    done = run(unused_port, "ls", "/")
    assert (done.returncode, done.stderr) == (1, "KeeperErrorCode = ConnectionLoss for /\n")
    assert done.stdout == f"Connecting to 127.0.0.1:{unused_port}\n"


# Broken if it failed: a script would wait for ever.
def test_waiting_for_a_connection_ends_with_the_timeout(unused_port: int) -> None:
    done = run(unused_port, "-timeout", "300", "-waitforconnection", "ls", "/")
    assert (done.returncode, done.stderr) == (1, "KeeperErrorCode = ConnectionLoss\n")


# Broken if it failed: commands would go on without the identity that the user gave.
def test_a_refused_identity_ends_the_session(coordinator: Coordinator) -> None:
    done = run(coordinator.port, stdin="addauth nothing x\nls /\nls /\nls /\n")
    assert "state:AuthFailed" in done.stdout
    assert "Not connected" in done.stdout


# Broken if it failed: a user would connect without TLS and not know it.
def test_bad_client_configurations_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"
    assert main(["zookeeper-shell", "h:1", "-client-configuration", str(file), "ls", "/"]) == 2
    file.write_text("zookeeper.client.secure=true\nzookeeper.ssl.keyStore.location=/keys.jks\n")
    assert main(["zookeeper-shell", "h:1", "-zk-tls-config-file", str(file), "ls", "/"]) == 2
    assert "is of type JKS; convert the keys and certificates to PEM" in capsys.readouterr().err


# Broken if it failed: a user at a terminal could not edit or repeat commands.
def test_a_terminal_has_a_prompt_completion_and_history(coordinator: Coordinator) -> None:
    pytest.importorskip("readline")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.cli", "zookeeper-shell", coordinator.hosts, "-waitforconnection"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "dumb", "INPUTRC": os.devnull},
    )
    os.close(follower)
    seen = ""

    def until(pattern: str) -> None:
        nonlocal seen
        end = time.monotonic() + WAIT_SECONDS
        while not re.search(pattern, seen):
            ready, _, _ = select.select([leader], [], [], max(end - time.monotonic(), 0))
            assert ready, f"no {pattern!r} in {seen!r}"
            seen += os.read(leader, 4096).decode()
        seen = re.split(pattern, seen, maxsplit=1)[1]

    try:
        until("JLine support is enabled")
        until(r"\[zk: 127\.0\.0\.1:\d+\(CONNECTED\) 0\] ")
        os.write(leader, b"getAll\t/zoo\t\n")
        until("getAllChildrenNumber /zookeeper")
        until(r"(?m)^\d+\s")
        until(r"\(CONNECTED\) 1\] ")
        os.write(leader, b"redo 0\n")
        until(r"(?m)^\d+\s")
        until(r"\(CONNECTED\) 2\] ")
        os.write(leader, b"\x04")
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)
