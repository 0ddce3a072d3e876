"""Logs in `dataLogDir`. If these fail, an operator's log disk is not used, a start with another setting begins behind what was
answered, or logs are removed that somebody needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cluster.coordinator import CoordinatorError, parse_configuration
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.errors import DiskFullError
from cluster.coordinator.transfer import load_directory

from .conftest import StartCoordinator
from .ensemble.test_own_data import Servers
from .support import LoopThread
from .test_recovery import append, fingerprint, history, recover, states_after
from .test_words import ask

COUNT = 40


def live(data: Path, log_dir: Path | None, first: int = 0, last: int = COUNT, retained: int = 2) -> None:
    """A server's life from one transaction to another, with a snapshot every ten and the newest two kept."""
    log = TransactionLog(data, snapshots_retained=retained, log_dir=log_dir)
    machine, _behind = log.recover()
    for each in history(COUNT)[first:last]:
        append(log, [each.encode()])
        machine.apply(each)
        if machine.last_zxid % 10 == 0:
            log.roll(machine.last_zxid + 1)
            log.save(machine.export())
    log.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(f"log.{'?' * 16}"))


def test_logs_are_there_and_what_is_purged_goes_there(tmp_path: Path) -> None:
    data, logs = tmp_path / "data", tmp_path / "disk" / "logs"
    live(data, logs)
    kept = [f"log.{first:016x}" for first in (31, 41)]
    assert names(data) == names(logs) == kept
    assert all((data / name).is_symlink() and not (logs / name).is_symlink() for name in kept)
    assert not list(logs.glob("snapshot.*"))
    assert fingerprint(recover(data)) == states_after(history(COUNT))[-1]
    assert load_directory(data).last_zxid == COUNT


@pytest.mark.parametrize("names_it", [True, False])
def test_another_setting_loses_nothing(tmp_path: Path, names_it: bool) -> None:
    data, logs, other = tmp_path / "data", tmp_path / "logs", tmp_path / "other"
    live(data, None, last=5)
    live(data, logs, 5, 15)
    live(data, other if names_it else None, 15, 25)
    assert fingerprint(recover(data)) == states_after(history(COUNT))[25]
    assert [(data / name).parent / os.readlink(data / name) for name in names(data) if (data / name).is_symlink()] == [
        logs / f"log.{11:016x}", *([other / f"log.{21:016x}"] if names_it else [])
    ]  # fmt: skip


def test_a_disk_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    data, logs = tmp_path / "data", tmp_path / "logs"
    live(data, logs)
    logs.rename(tmp_path / "unmounted")
    log = TransactionLog(data, log_dir=logs)
    with pytest.raises(CoordinatorError, match=r"which is not there: mount that disk"):
        log.recover()
    log.close()
    assert not logs.exists()
    (tmp_path / "unmounted").rename(logs)
    assert fingerprint(recover(data)) == states_after(history(COUNT))[-1]


def test_another_servers_logs_are_left_alone(tmp_path: Path) -> None:
    live(tmp_path / "one", tmp_path / "logs", last=5)
    log = TransactionLog(tmp_path / "two", log_dir=tmp_path / "logs")
    with pytest.raises(CoordinatorError, match=r"has a log that .*two does not know"):
        log.recover()
    log.close()
    assert fingerprint(recover(tmp_path / "one")) == states_after(history(COUNT))[5]


def test_a_place_that_a_crash_left_empty_is_taken(tmp_path: Path) -> None:
    (tmp_path / "logs" / f"log.{1:016x}").mkdir(parents=True)
    live(tmp_path / "data", tmp_path / "logs", last=5)
    assert fingerprint(recover(tmp_path / "data")) == states_after(history(COUNT))[5]


def test_a_place_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_bytes(b"")
    log = TransactionLog(tmp_path / "data", log_dir=tmp_path / "logs")
    with pytest.raises(CoordinatorError, match=r"a log cannot be made in .*logs/log\.") as raised:
        log.recover()
    assert not isinstance(raised.value, DiskFullError)
    log.close()


def test_a_server_by_itself_says_where_they_are(tmp_path: Path, start_coordinator: StartCoordinator) -> None:
    properties = {
        "dataDir": str(tmp_path / "data"),
        "dataLogDir": str(tmp_path / "logs"),
        "clientPort": "2181",
        "4lw.commands.whitelist": "*",
    }
    configuration = parse_configuration(properties)
    assert configuration.warnings == ()
    server = start_coordinator(tmp_path / "data", settings=configuration.settings)
    told = ask(server, "conf")
    assert f"dataDir={tmp_path / 'data'}\n" in told
    assert f"dataLogDir={tmp_path / 'logs'}\n" in told
    assert names(tmp_path / "logs") == [f"log.{1:016x}"]


def test_a_member_of_an_ensemble_has_its_log_there(tmp_path: Path, loop_thread: LoopThread) -> None:
    servers = Servers(loop_thread, tmp_path, 1)
    try:
        logs = tmp_path / "logs"
        servers.start(1, dataLogDir=str(logs))
        servers.create(1, "/a")
        assert (servers.data(1) / "quorum" / "log").is_symlink()
        assert list((logs / "quorum" / "log").glob("*.log"))
        servers.stop()
        # Whatever is said later, it is there.
        servers.start(1)
        servers.create(1, "/b")
        assert servers.agreed(1).machine.tree.find("/a") is not None
        servers.stop()
        shutil.move(logs, tmp_path / "unmounted")
        with pytest.raises(CoordinatorError, match="which is not there: mount that disk"):
            servers.start(1, dataLogDir=str(logs))
    finally:
        servers.stop()
