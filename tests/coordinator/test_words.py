"""Four-letter words. If these fail, monitoring tools read a wrong number, or none."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from cluster.coordinator import Settings
from cluster.coordinator.admin.commands import Commands
from cluster.coordinator.admin.view import view
from cluster.coordinator.protocol.requests import Op

from .conftest import Connect, StartCoordinator
from .support import Coordinator, RawClient

Ask = Callable[[str], str]
EVERYTHING = Settings(max_client_connections=0, words_whitelist=frozenset({"*"}))


def ask(coordinator: Coordinator, word: str) -> str:
    raw = RawClient(coordinator.port)
    raw.socket.sendall(word.encode() + b"\n")
    try:
        return raw.read_all().decode()
    finally:
        raw.close()


@pytest.fixture
def open_server(start_coordinator: StartCoordinator, tmp_path: Path) -> Coordinator:
    return start_coordinator(tmp_path / "words", settings=EVERYTHING)


@pytest.fixture
def busy(open_server: Coordinator, connect: Connect) -> KazooClient:
    """A client with an ephemeral node and two watches, one of them for children."""
    client = connect(open_server)
    client.create("/e", b"data", ephemeral=True)
    client.get("/e", watch=print)
    client.get_children("/", watch=print)
    return client


def test_a_word_outside_the_whitelist_is_refused(coordinator: Coordinator) -> None:
    assert ask(coordinator, "ruok") == "ruok is not executed because it is not in the whitelist.\n"
    assert ask(coordinator, "srvr").startswith("Zookeeper version: 3.9.")
    assert ask(coordinator, "what") == ""


def test_short_words_have_zookeepers_answers(open_server: Coordinator) -> None:
    assert ask(open_server, "ruok") == "imok"
    assert ask(open_server, "isro") == "rw"
    assert ask(open_server, "crst") == "Connection stats reset.\n"
    assert ask(open_server, "srst") == "Server stats reset.\n"


def test_srvr_and_stat_have_zookeepers_lines(open_server: Coordinator, busy: KazooClient) -> None:
    summary = (
        r"Latency min/avg/max: \d+/\d+\.\d+/\d+\nReceived: \d+\nSent: \d+\nConnections: 2\n"
        r"Outstanding: 0\n"
        r"Zxid: 0x2\nMode: standalone\nNode count: 6\n"
    )
    version = r"Zookeeper version: 3\.9\.4-logcore, built on \d{4}-\d\d-\d\d \d\d:\d\d UTC\n"
    assert re.fullmatch(version + summary, ask(open_server, "srvr"))
    clients = r"Clients:\n( /127\.0\.0\.1:\d+\[[0-9a-f]\]\(queued=\d+,recved=\d+,sent=\d+\)\n){2}\n"
    assert re.fullmatch(version + clients + summary, ask(open_server, "stat"))
    assert busy.server_version() == (3, 9, 4)


# The patterns that clients and exporters match the version's line with: kazoo, Datadog's check, parsers of
# "srvr" in Java and JavaScript, Telegraf's plugin, and dabealu's exporter.
VERSION_LINES = (
    ("envi", r"zookeeper\.version=([\d.]*).*", "3.9.4"),
    ("stat", r".*?(\d+\.\d+\.\d+).*", "3.9.4"),
    ("srvr", r"Zookeeper version: (.*), built on .*", "3.9.4-logcore"),
    ("stat", r"Zookeeper version: (.*), built on .*", "3.9.4-logcore"),
    ("srvr", r"Zookeeper version: [\d.]+(-[^,]+), built on \d{4}-\d\d-\d\d \d\d:\d\d UTC", "-logcore"),
    ("mntr", r"zk_version\s+([\w.\-]+), built on .*", "3.9.4-logcore"),
)


@pytest.mark.parametrize(("word", "pattern", "version"), VERSION_LINES)
def test_clients_and_exporters_can_parse_the_version(
    open_server: Coordinator, word: str, pattern: str, version: str
) -> None:
    found = [match for line in ask(open_server, word).splitlines() if (match := re.fullmatch(pattern, line))]
    assert [match[1] for match in found][:1] == [version]


@pytest.mark.parametrize(
    ("name", "field"),
    [("srvr", "version"), ("stat", "version"), ("mntr", "version"), ("envi", "zookeeper.version")],
)
def test_the_admin_server_has_the_same_version(open_server: Coordinator, name: str, field: str) -> None:
    line = ask(open_server, "srvr").splitlines()[0]
    command = Commands("", {}).find(name)
    assert command is not None
    answer = open_server.thread.call(lambda: command.run(view(open_server.server), {}))
    assert line == f"Zookeeper version: {answer[field]}"


def test_cons_has_the_state_of_each_connection(open_server: Coordinator, busy: KazooClient) -> None:
    session = busy.client_id[0]
    line = (
        rf"\(queued=0,recved=\d+,sent=\d+,sid={session:#x},lop=GETC,est=\d+,to=10000,lcxid=0x3,lzxid=0x2,"
        r"lresp=\d+,llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+\)\n"
    )
    text = ask(open_server, "cons")
    assert re.search(line, text), text
    assert text.endswith(")\n\n")


def test_watches_are_listed_by_session_and_by_path(open_server: Coordinator, busy: KazooClient) -> None:
    session = busy.client_id[0]
    assert ask(open_server, "wchs") == "1 connections watching 1 paths\nTotal watches:1\n"
    assert ask(open_server, "wchc") == f"{session:#x}\n\t/e\n\n"
    assert ask(open_server, "wchp") == f"/e\n\t{session:#x}\n\n"


def test_dump_lists_sessions_and_ephemerals(open_server: Coordinator, busy: KazooClient) -> None:
    session = busy.client_id[0]
    text = ask(open_server, "dump")
    assert "SessionTracker dump:\nSession Sets (1)/(1):\n1 expire at " in text
    assert f"ephemeral nodes dump:\nSessions with Ephemerals (1):\n{session:#x}:\n\t/e\n" in text


def test_dump_has_the_time_at_which_each_connection_expires(open_server: Coordinator) -> None:
    """A connection expires with its session, or when the handshake's timeout is over.

    Times are whole ticks.
    """
    clock, tick_ms = open_server.clock, open_server.server.settings.tick_time_ms
    began = clock.now_ms // tick_ms * tick_ms
    open_server.thread.call(lambda: setattr(clock, "now_ms", began))
    first, patient, late, silent, asks = (RawClient(open_server.port) for _ in range(5))
    ids = {
        first: first.connect(2 * tick_ms)[1],
        patient: patient.connect(10 * tick_ms)[1],
        silent: 0,
        asks: 0,
    }
    open_server.thread.wait(lambda: len(open_server.server.connections) == 5)
    open_server.thread.call(lambda: setattr(clock, "now_ms", began + tick_ms))
    ids[late] = late.connect(2 * tick_ms)[1]
    assert patient.request(-2, Op.PING)[2] == 0
    asks.socket.sendall(b"dump")
    _before, _title, text = asks.read_all().decode().partition("Connections dump:\n")
    expected = "Connections Sets (4)/(5):\n"
    without = open_server.server.settings.handshake_timeout_ms // tick_ms + 1
    for ticks, ended in ((3, [first]), (4, [late]), (without, [silent, asks]), (12, [patient])):
        when = datetime.fromtimestamp((began + ticks * tick_ms) / 1000).astimezone()
        expected += f"{len(ended)} expire at {when:%a %b %d %H:%M:%S %Z %Y}:\n"
        for each in ended:
            port = each.socket.getsockname()[1]
            expected += f"\tip: /127.0.0.1:{port} sessionId: {ids[each]:#x}\n"
    assert text == expected
    for each in (first, patient, late, silent, asks):
        each.close()


def test_conf_dirs_and_envi_have_their_values(open_server: Coordinator, busy: KazooClient) -> None:
    conf = dict(line.split("=", 1) for line in ask(open_server, "conf").splitlines())
    assert conf["clientPort"] == str(open_server.port)
    assert conf["dataDir"] == str(open_server.directory)
    assert (conf["minSessionTimeout"], conf["maxSessionTimeout"]) == ("4000", "40000")
    assert int(conf["dataLogSize"]) > 0
    assert re.fullmatch(r"datadir_size: 0\nlogdir_size: [1-9]\d*\n", ask(open_server, "dirs"))
    assert ask(open_server, "envi").startswith("Environment:\nzookeeper.version=3.9.")


def test_mntr_has_the_numbers_that_other_tools_read(open_server: Coordinator, busy: KazooClient) -> None:
    lines = [line.split("\t") for line in ask(open_server, "mntr").splitlines()]
    values = dict(lines)
    assert values["zk_server_state"] == "standalone"
    assert values["zk_znode_count"] == "6"
    assert values["zk_ephemerals_count"] == "1"
    assert values["zk_watch_count"] == "2"
    assert values["zk_num_alive_connections"] == "2"
    assert values["zk_global_sessions"] == "1"
    assert int(values["zk_approximate_data_size"]) > 0
    assert all(re.fullmatch(r"[0-9.-]+", value) for name, value in lines[2:]), lines
