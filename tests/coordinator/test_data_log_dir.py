"""The directories ``dataDir`` and ``dataLogDir``.

If these fail, the operator's log disk is not used. Or a server starts with another server's logs or without
its own, and loses acknowledged transactions.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.coordinator import CoordinatorError, DataDirectoryError, parse_configuration
from cluster.coordinator.durability import directories
from cluster.coordinator.durability.directories import ID_FILE, standalone_files
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.state.machine import Machine
from cluster.coordinator.transfer import load_directory

from .conftest import StartCoordinator
from .ensemble.test_own_data import Servers
from .support import LoopThread
from .test_recovery import append, fingerprint, history, states_after
from .test_words import ask

COUNT = 40
STATES = states_after(history(COUNT))


def live(data: Path, log_dir: Path | None, first: int = 0, last: int = COUNT, retained: int = 2) -> None:
    """Logs transactions ``first`` to ``last``, with a snapshot every ten; keeps the newest ``retained``."""
    log = TransactionLog(data, snapshots_retained=retained, log_dir=log_dir)
    machine, _behind = log.recover()
    for each in history(COUNT)[first:last]:
        append(log, [each.encode()])
        machine.apply(each)
        if machine.last_zxid % 10 == 0:
            log.roll(machine.last_zxid + 1)
            log.save(machine.export())
    log.close()


def recover(data: Path, log_dir: Path | None) -> Machine:
    log = TransactionLog(data, log_dir=log_dir)
    try:
        return log.recover()[0]
    finally:
        log.close()


def refusal(data: Path, log_dir: Path | None) -> str:
    """The error of a start, which gives exit status 3. Neither the start nor an export may change a file."""
    before = contents(data, log_dir)
    with pytest.raises(DataDirectoryError) as exported:
        load_directory(data, log_dir)
    with pytest.raises(DataDirectoryError) as raised:
        recover(data, log_dir)
    assert str(exported.value) == str(raised.value)
    assert contents(data, log_dir) == before
    return str(raised.value)


def contents(*directories: Path | None) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for directory in directories
        if directory is not None
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(f"log.{'?' * 16}"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "logs"


def test_the_logs_are_in_the_data_log_dir_and_are_purged_there(data: Path, logs: Path) -> None:
    live(data, logs)
    assert names(logs) == [f"log.{first:016x}" for first in (31, 41)]
    assert not names(data)
    assert not list(logs.glob("snapshot.*"))
    identity = (data / ID_FILE).read_text()
    assert len(identity) == 33
    assert (logs / ID_FILE).read_text() == identity
    assert fingerprint(recover(data, logs)) == STATES[-1]
    assert load_directory(data, logs).last_zxid == COUNT


def test_a_start_without_the_data_log_dir_is_refused(data: Path, logs: Path) -> None:
    live(data, logs)
    assert f"the logs of {data} are in another directory: name it in dataLogDir" in refusal(data, None)
    for path in logs.glob("log.*"):
        path.rename(data / path.name)
    (data / ID_FILE).unlink()
    assert fingerprint(recover(data, None)) == STATES[-1], "the refusal's instructions are wrong"


def test_a_data_log_dir_for_a_server_that_had_none_is_refused(data: Path, logs: Path) -> None:
    """ZooKeeper refuses it too (``FileTxnSnapLog.checkSnapDir``)."""
    live(data, None)
    assert "move every log from dataDir to the same name in dataLogDir" in refusal(data, logs)
    logs.mkdir(parents=True)
    for path in data.glob("log.*"):
        path.rename(logs / path.name)
    assert fingerprint(recover(data, logs)) == STATES[-1], "the refusal's instructions are wrong"
    assert (data / ID_FILE).read_text() == (logs / ID_FILE).read_text()


def test_a_disk_that_is_not_mounted_stops_the_start(data: Path, logs: Path, tmp_path: Path) -> None:
    live(data, logs)
    logs.rename(tmp_path / "unmounted")
    assert "mount the disk that has the logs, or name their directory" in refusal(data, logs)
    logs.mkdir()
    assert f"has no file {ID_FILE}" in refusal(data, logs)
    assert fingerprint(recover(data, tmp_path / "unmounted")) == STATES[-1]


def test_another_servers_logs_are_refused(data: Path, logs: Path, tmp_path: Path) -> None:
    live(data, logs)
    live(tmp_path / "other", tmp_path / "others", last=15)
    assert "are of different servers" in refusal(data, tmp_path / "others")
    assert "are of different servers" in refusal(tmp_path / "other", logs)
    live(tmp_path / "third", None, last=15)
    for path in (tmp_path / "third").glob("log.*"):
        shutil.rmtree(path)
    assert "name the dataDir of the same server" in refusal(tmp_path / "third", logs)


def test_a_lost_id_file_can_be_copied(data: Path, logs: Path) -> None:
    """If this failed, the refusal would speak of two files where there is one, or its instructions would be
    wrong."""
    live(data, logs)
    (data / ID_FILE).unlink()
    assert f"it has no file {ID_FILE}: name the dataDir of the same server" in refusal(data, logs)
    shutil.copyfile(logs / ID_FILE, data / ID_FILE)
    assert fingerprint(recover(data, logs)) == STATES[-1]


def test_another_servers_data_dir_is_refused_as_data_log_dir(data: Path, tmp_path: Path) -> None:
    live(tmp_path / "other", None, last=5)
    with pytest.raises(DataDirectoryError, match="is the dataDir of another server"):
        recover(data, tmp_path / "other")


def test_a_new_server_refuses_existing_logs(data: Path, logs: Path, tmp_path: Path) -> None:
    live(data, logs)
    with pytest.raises(DataDirectoryError, match="name the dataDir of the same server, or restore it"):
        recover(tmp_path / "new", logs)


def test_a_copy_of_both_directories_is_another_server(data: Path, logs: Path, tmp_path: Path) -> None:
    live(data, logs, last=25)
    shutil.copytree(data, tmp_path / "copy")
    shutil.copytree(logs, tmp_path / "copied")
    live(tmp_path / "copy", tmp_path / "copied", 25, 40)
    assert fingerprint(recover(data, logs)) == STATES[25]
    assert fingerprint(recover(tmp_path / "copy", tmp_path / "copied")) == STATES[40]


def test_a_restored_data_dir_reads_the_newer_logs(data: Path, logs: Path, tmp_path: Path) -> None:
    """The logs are on another disk and complete. ZooKeeper reads them too."""
    live(data, logs, last=25)
    shutil.copytree(data, tmp_path / "backup")
    live(data, logs, 25, 40, retained=9)
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "backup", data)
    assert load_directory(data, logs).last_zxid == 40
    assert fingerprint(recover(data, logs)) == STATES[40]


@pytest.mark.parametrize("had_data", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_a_crash_while_the_ids_are_written_is_repaired(
    data: Path, logs: Path, monkeypatch: pytest.MonkeyPatch, step: int, had_data: bool
) -> None:
    """If this failed, a server with logs from before there were ids would refuse its own logs after a crash
    in its next start."""
    if had_data:
        live(data, logs)
        (data / ID_FILE).unlink()
        (logs / ID_FILE).unlink()
    else:
        data.mkdir()
        logs.mkdir(parents=True)
    calls = 0

    def ends_at_step(call: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls > step:
                raise OSError(errno.EIO, "the machine stops")
            call(*arguments)

        return counted

    with monkeypatch.context() as patched:
        for name in ("_begin_id", "_finish_id"):
            patched.setattr(directories, name, ends_at_step(getattr(directories, name)))
        with pytest.raises(DataDirectoryError, match="the machine stops"):
            recover(data, logs)
    if had_data:
        assert load_directory(data, logs).last_zxid == COUNT
    else:
        live(data, logs)
    assert fingerprint(recover(data, logs)) == STATES[-1]
    assert (data / ID_FILE).read_text() == (logs / ID_FILE).read_text()
    assert not [*data.glob("*.tmp"), *logs.glob("*.tmp")]


def test_an_id_that_was_begun_by_another_server_is_no_pair(data: Path, logs: Path, tmp_path: Path) -> None:
    """If this failed, two servers that were started once with one dataLogDir could get the same id."""
    live(data, logs)
    (logs / ID_FILE).rename(logs / f"{ID_FILE}.tmp")
    for path in logs.glob("log.*"):
        shutil.rmtree(path)
    other = tmp_path / "other"
    live(other, logs)
    assert (other / ID_FILE).read_text() == (logs / ID_FILE).read_text() != (data / ID_FILE).read_text()
    assert "are of different servers" in refusal(data, logs)


def test_damaged_id_files_are_no_pair(data: Path, logs: Path, tmp_path: Path) -> None:
    """If this failed, two servers whose files data.id are empty would count as one, and transactions would be
    lost."""
    live(data, logs)
    live(tmp_path / "other", tmp_path / "others", last=15)
    others = tmp_path / "others"
    for text in ("", "abc", "0" * 31 + "g", "0" * 33):
        (data / ID_FILE).write_text(text)
        (others / ID_FILE).write_text(text)
        assert f"{data / ID_FILE} does not have the 32 hexadecimal digits" in refusal(data, others)
    (data / ID_FILE).unlink()
    (logs / ID_FILE).unlink()
    assert fingerprint(recover(data, logs)) == STATES[-1], "the refusal's instructions are wrong"


def test_a_data_log_dir_that_is_a_link_to_the_data_dir_is_none(data: Path, tmp_path: Path) -> None:
    """If this failed, a server would refuse its own directory as another server's."""
    live(data, None, last=15)
    (tmp_path / "link").symlink_to(data)
    assert fingerprint(recover(data, tmp_path / "link")) == STATES[15]
    assert load_directory(data, tmp_path / "link").last_zxid == 15
    assert not (data / ID_FILE).exists()
    assert fingerprint(recover(data, None)) == STATES[15]


def test_an_export_of_a_data_dir_without_snapshots_names_the_option(data: Path, logs: Path) -> None:
    """If this failed, an export would say that the data directory is not one, and not that --log-dir is
    needed."""
    live(data, logs, last=5)
    assert not standalone_files(data)
    assert "(for an export, with --log-dir)" in refusal(data, None)


def test_a_data_log_dir_that_is_a_file_is_a_clear_error(data: Path, logs: Path) -> None:
    logs.parent.mkdir()
    logs.write_bytes(b"")
    with pytest.raises(DataDirectoryError, match=f"data directory {logs}: it is a file; "):
        recover(data, logs)


def test_a_standalone_server_shows_both_directories(
    tmp_path: Path, start_coordinator: StartCoordinator
) -> None:
    properties = {
        "dataDir": str(tmp_path / "data"),
        "dataLogDir": str(tmp_path / "logs"),
        "clientPort": "2181",
        "4lw.commands.whitelist": "*",
    }
    configuration = parse_configuration(properties)
    assert configuration.warnings == ()
    server = start_coordinator(tmp_path / "data", settings=configuration.settings)
    shown = ask(server, "conf")
    assert f"dataDir={tmp_path / 'data'}\n" in shown
    assert f"dataLogDir={tmp_path / 'logs'}\n" in shown
    assert "logdir_size: 0\n" not in ask(server, "dirs")
    assert names(tmp_path / "logs") == [f"log.{1:016x}"]


def test_an_export_takes_the_data_log_dir(
    data: Path, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live(data, logs)
    assert main(["coordinator", "export", str(data), str(tmp_path / "failed")]) == 1
    assert "(for an export, with --log-dir)" in capsys.readouterr().err
    assert main(["coordinator", "export", "--log-dir", str(logs), str(data), str(tmp_path / "exported")]) == 0
    assert "up to zxid 0x28," in capsys.readouterr().out


def test_a_members_log_is_in_its_data_log_dir(tmp_path: Path, loop_thread: LoopThread) -> None:
    servers, logs = Servers(loop_thread, tmp_path, 1), tmp_path / "logs"
    try:
        servers.start(1, dataLogDir=str(logs))
        servers.create(1, "/a")
        assert list((logs / "quorum" / "log").glob("*.log"))
        assert (servers.data(1) / ID_FILE).read_text() == (logs / ID_FILE).read_text()
        servers.stop()
        with pytest.raises(DataDirectoryError, match="name it in dataLogDir"):
            servers.start(1)
        with pytest.raises(DataDirectoryError, match="mount the disk that has the logs"):
            servers.start(1, dataLogDir=str(tmp_path / "other"))
        # The disk may be mounted elsewhere, and the data can be exported from there.
        moved = logs.rename(tmp_path / "moved")
        assert any(path == "/a" for path, _node in load_directory(servers.data(1), moved).nodes)
        servers.start(1, dataLogDir=str(moved))
        servers.create(1, "/b")
        assert servers.agreed(1).machine.tree.find("/a") is not None
    finally:
        servers.stop()


def test_a_standalone_servers_logs_become_the_ensembles(tmp_path: Path, loop_thread: LoopThread) -> None:
    """If this failed, a server with a log disk would lose its data when it becomes a member."""
    servers, logs = Servers(loop_thread, tmp_path, 1), tmp_path / "logs"
    live(servers.data(1), logs, last=15)
    try:
        with pytest.raises(CoordinatorError, match="name it in dataLogDir"):
            servers.start(1)
        servers.start(1, dataLogDir=str(logs))
        servers.create(1, "/from-the-ensemble")
        loop_thread.wait(lambda: list(servers.data(1).glob("standalone.*[!p]")))
        servers.stop()
        assert not names(logs)
        (kept,) = servers.data(1).glob("standalone.*")
        assert fingerprint(recover(kept, logs / kept.name)) == STATES[15]
    finally:
        servers.stop()
