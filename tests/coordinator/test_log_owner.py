"""Whose the logs in `dataLogDir` are. If these fail, a copy of a server writes to the original's logs, which loses what the original
had answered; or a server whose directories were moved or copied as a whole does not start on them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cluster.cli import main
from cluster.coordinator import CoordinatorError, DataDirectoryError
from cluster.coordinator.durability import log_place
from cluster.coordinator.durability.engine import open_engine_log
from cluster.coordinator.durability.log import TransactionLog
from cluster.coordinator.durability.snapshot import sync_directory
from cluster.coordinator.ensemble.own_data import OwnData
from cluster.coordinator.state.machine import Machine
from cluster.coordinator.transfer import load_directory

from .ensemble.test_own_data import MEMBERS, Servers, has, put_aside
from .support import LoopThread
from .test_log_place import live
from .test_recovery import fingerprint, history, recover, states_after

FIRST = f"log.{1:016x}"
STATES = states_after(history(40))


def copy(one: Path, other: Path) -> None:
    """As `cp -a` does."""
    shutil.copytree(one, other, symlinks=True)


def contents(*directories: Path) -> dict[Path, bytes]:
    """What every file has, and where every link leads."""
    return {
        path: os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def refusal(data: Path, log_dir: Path | None) -> str:
    """Why a server does not start, which is ZooKeeper's status 3."""
    log = TransactionLog(data, log_dir=log_dir)
    try:
        with pytest.raises(DataDirectoryError) as raised:
            log.recover()
    finally:
        log.close()
    return str(raised.value)


class Pair:
    """A server's directories, and what it is called with. Its logs are several, each with ten transactions."""

    def __init__(self, directory: Path) -> None:
        self.data, self.logs = directory / "data", directory / "logs"

    def live(self, first: int, last: int) -> None:
        live(self.data, self.logs, first, last)

    def copied(self, directory: Path) -> Pair:
        directory.mkdir()
        other = Pair(directory)
        copy(self.data, other.data)
        copy(self.logs, other.logs)
        return other

    def forget(self) -> None:
        """As it was before there were notes."""
        for note in self.logs.glob("*.of"):
            note.unlink()

    @property
    def links(self) -> list[Path]:
        return sorted(path for path in self.data.glob(f"log.{'?' * 16}") if path.is_symlink())

    def require_own(self) -> None:
        """Every log is in its own directory, and is noted to be its."""
        assert len(self.links) > 1
        for link in self.links:
            assert Path(os.readlink(link)) == self.logs / link.name
            note = self.logs / f"{link.name}.of"
            assert note.read_text() == f"{self.data.resolve() / link.name}\n"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path / "server")
    made.live(0, 25)
    made.require_own()
    return made


# ---- a dataDir from a backup beside its logs ----


def test_what_was_answered_after_a_backup_of_data_dir_is_there(pair: Pair, tmp_path: Path) -> None:
    """Its logs were on another disk, and are whole, as ZooKeeper would read them."""
    backup = tmp_path / "backup"
    copy(pair.data, backup)
    live(pair.data, pair.logs, 25, 40, retained=9)
    shutil.rmtree(pair.data)
    copy(backup, pair.data)
    links = pair.links
    assert load_directory(pair.data, pair.logs).last_zxid == 40
    assert pair.links == links
    log = TransactionLog(pair.data, log_dir=pair.logs)
    machine, _behind = log.recover()
    log.close()
    assert fingerprint(machine) == STATES[40]
    assert len(pair.links) > len(links)
    pair.require_own()


@pytest.mark.parametrize("has_snapshots", [False, True])
def test_a_data_dir_without_logs_does_not_begin_with_those_of_before(pair: Pair, has_snapshots: bool) -> None:
    """It may have begun anew, by an import for example: what logs of before have is not its."""
    for path in list(pair.data.iterdir()):
        if path.name.startswith("log.") or (path.name.startswith("snapshot.") and not has_snapshots):
            path.unlink()
    first = min(pair.logs.glob("log.*[0-9a-f]"))
    before = contents(pair.data, pair.logs)
    told = refusal(pair.data, pair.logs)
    assert told.startswith(f"{pair.data} has no logs, and {first} is noted to be one of it: restore")
    assert contents(pair.data, pair.logs) == before | {pair.data / ".lock": b""}


def test_a_log_of_another_life_is_not_gone_on_with(pair: Pair) -> None:
    """Which has transactions with the next ids among its own."""
    last = pair.links[-1]
    stale = pair.logs / f"log.{24:016x}"
    copy(pair.logs / last.name, stale)
    stale.with_name(f"{stale.name}.of").write_bytes(os.fsencode(pair.data.resolve() / stale.name) + b"\n")
    links = pair.links
    told = refusal(pair.data, pair.logs)
    assert told.startswith(
        f"{stale} is noted to be a log of {pair.data}, and does not go on where that ends, at 0x19: "
    )
    assert pair.links == links


# ---- directories that are copied, or moved ----


@pytest.mark.parametrize("noted", [True, False])
def test_a_copy_of_both_is_a_server_of_its_own(pair: Pair, tmp_path: Path, noted: bool) -> None:
    if not noted:
        pair.forget()
    staging = pair.copied(tmp_path / "staging")
    before = contents(pair.data, pair.logs)
    staging.live(25, 28)
    staging.require_own()
    assert contents(pair.data, pair.logs) == before
    pair.live(25, 27)
    pair.require_own()
    assert fingerprint(recover(pair.data)) == STATES[27]
    assert fingerprint(recover(staging.data)) == STATES[28]
    staging.live(28, 40)
    assert fingerprint(recover(staging.data)) == STATES[40]


def test_a_copy_starts_where_the_original_has_gone_on(pair: Pair, tmp_path: Path) -> None:
    staging = pair.copied(tmp_path / "staging")
    pair.live(25, 29)
    staging.live(25, 26)
    assert fingerprint(recover(pair.data)) == STATES[29]
    assert fingerprint(recover(staging.data)) == STATES[26]


def test_logs_that_were_moved_are_where_the_setting_says(pair: Pair, tmp_path: Path) -> None:
    moved = tmp_path / "other-disk"
    pair.logs.rename(moved)
    told = refusal(pair.data, pair.logs)
    assert told.startswith(f"the log {pair.data / pair.links[0].name} is in {pair.logs}/")
    assert "which is not there: mount that disk, restore the directory, or name in dataLogDir" in told
    told = refusal(pair.data, tmp_path / "a-third")
    assert f"which is not there, and {tmp_path}/a-third/log." in told
    pair.logs = moved
    pair.live(25, 27)
    pair.require_own()
    assert fingerprint(recover(pair.data)) == STATES[27]


@pytest.mark.parametrize("which", ["data", "logs", "both"])
def test_directories_that_were_moved_are_the_servers(pair: Pair, tmp_path: Path, which: str) -> None:
    moved = Pair(tmp_path / "moved")
    moved.data.parent.mkdir()
    if which == "logs":
        moved.data = pair.data
    else:
        pair.data.rename(moved.data)
    if which == "data":
        moved.logs = pair.logs
    else:
        pair.logs.rename(moved.logs)
    moved.live(25, 27)
    moved.require_own()
    assert fingerprint(recover(moved.data)) == STATES[27]


@pytest.mark.parametrize("named", [True, False])
def test_a_copy_without_its_logs_is_refused(pair: Pair, tmp_path: Path, named: bool) -> None:
    copy(pair.data, tmp_path / "copy")
    before = contents(pair.data, pair.logs, tmp_path / "copy")
    told = refusal(tmp_path / "copy", pair.logs if named else None)
    (link, *_others) = pair.links
    assert f"is in {pair.logs / link.name}, and that is the log of {link}, of which this is a copy: " in told
    assert "name in dataLogDir" in told
    assert f"if {pair.data} is not used any more, remove its link" in told
    with pytest.raises(DataDirectoryError, match="of which this is a copy"):
        load_directory(tmp_path / "copy", pair.logs if named else None)
    after = contents(pair.data, pair.logs, tmp_path / "copy")
    assert after == before | {tmp_path / "copy" / ".lock": b""}
    # It is the server's now.
    for each in pair.links:
        each.unlink()
    pair.data = tmp_path / "copy"
    pair.live(25, 27)
    pair.require_own()
    assert fingerprint(recover(pair.data)) == STATES[27]


def test_an_owner_that_cannot_be_looked_for_is_told_how_to_be_forgotten(pair: Pair, tmp_path: Path) -> None:
    """Its directory is one that this user may not search, and the advice must not be to change something there. A loop of links is what
    root cannot search either."""
    moved = tmp_path / "private"
    pair.data.rename(tmp_path / "data")
    pair.data = tmp_path / "data"
    moved.symlink_to(moved)
    for link in pair.links:
        note = pair.logs / f"{link.name}.of"
        note.write_text(f"{moved}/{link.name}\n")
        told = refusal(pair.data, pair.logs)
        assert f"that is the log of {moved}/{link.name}, of which this is a copy: " in told
        assert "where this process cannot look (Too many levels of symbolic links)" in told
        assert told.endswith(f", remove {note}")
        note.unlink()
    pair.live(25, 27)
    pair.require_own()


def test_logs_that_were_copied_are_used_where_the_setting_says(pair: Pair, tmp_path: Path) -> None:
    copy(pair.logs, tmp_path / "copied")
    before = contents(pair.logs)
    pair.logs = tmp_path / "copied"
    pair.live(25, 27)
    pair.require_own()
    assert contents(tmp_path / "server" / "logs") == before
    assert fingerprint(recover(pair.data)) == STATES[27]


def test_two_logs_of_which_either_may_count_are_refused(pair: Pair, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    copy(pair.logs, copied)
    pair.live(25, 26)
    name = f"log.{21:016x}"
    before = contents(pair.data, pair.logs, copied)
    told = refusal(pair.data, copied)
    assert f"is in {pair.logs / name}, and dataLogDir has another one, {copied / name}: " in told
    assert "which of the two is this server's cannot be told; " in told
    assert (
        f"if {pair.data} is a copy of another server's, have the link {pair.data / name} lead to {copied / name}"
        in told
    )
    assert "otherwise move the one away that is not to count, and is no other server's" in told
    with pytest.raises(DataDirectoryError, match="has another one"):
        load_directory(pair.data, copied)
    assert contents(pair.data, pair.logs, copied) == before, "of none of its logs"
    (copied / name).rename(tmp_path / "away")
    live(pair.data, copied, 26, 27)
    assert Path(os.readlink(pair.data / name)) == pair.logs / name
    assert fingerprint(recover(pair.data)) == STATES[27]


def test_a_log_of_the_same_size_is_another_one(pair: Pair, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    copy(pair.logs, copied)
    (segment,) = (copied / pair.links[-1].name).glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-1] + b"\xff")
    assert "dataLogDir has another one" in refusal(pair.data, copied)


@pytest.mark.parametrize("left", ["shorter", "none", "two"])
def test_a_log_that_lacks_something_is_another_one(pair: Pair, tmp_path: Path, left: str) -> None:
    copied = tmp_path / "copied"
    copy(pair.logs, copied)
    (segment,) = (copied / pair.links[-1].name).glob("*.log")
    if left == "shorter":
        os.truncate(segment, segment.stat().st_size - 1)
    elif left == "none":
        segment.unlink()
    else:
        (segment.parent / f"{1:020}.log").write_bytes(b"")
    before = contents(pair.data, pair.logs, copied)
    assert "dataLogDir has another one" in refusal(pair.data, copied)
    assert contents(pair.data, pair.logs, copied) == before


def test_a_copy_that_was_read_is_the_same(pair: Pair, tmp_path: Path) -> None:
    """Opening a log that was not closed makes all but its segments anew."""
    killed = tmp_path / "killed"
    log = TransactionLog(pair.data, log_dir=pair.logs)
    log.recover()
    copy(pair.logs, killed)
    log.close()
    shutil.rmtree(pair.logs)
    copy(killed, pair.logs)
    copied = tmp_path / "copied"
    copy(killed, copied)
    assert load_directory(pair.data, copied).last_zxid == 25
    assert contents(copied).keys() != {copied / path.relative_to(killed) for path in contents(killed)}
    pair.logs = copied
    pair.live(25, 27)
    pair.require_own()
    assert fingerprint(recover(pair.data)) == STATES[27]


def test_a_torn_tail_that_a_read_cut_is_not_missed(pair: Pair, tmp_path: Path) -> None:
    """What is read is what `dataLogDir` has, so it may lack nothing; the other way round only what nobody was answered is gone."""
    copied = tmp_path / "copied"
    log = TransactionLog(pair.data, log_dir=pair.logs)
    log.recover()
    copy(pair.logs, copied)
    log.close()
    (segment,) = (copied / pair.links[-1].name).glob("*.log")
    with segment.open("ab") as file:
        file.write(b"\0" * 7)
    pair.logs = copied
    pair.live(25, 27)
    pair.require_own()
    assert fingerprint(recover(pair.data)) == STATES[27]


def test_another_servers_logs_are_no_copy(pair: Pair, tmp_path: Path) -> None:
    """Neither where this server's are there, nor where they are gone."""
    other = Pair(tmp_path / "other")
    other.live(0, 25)
    before = contents(other.data, other.logs)
    told = refusal(pair.data, other.logs)
    assert f"and the one in {other.links[0].resolve()} is that of {other.links[0]}: name another" in told
    shutil.rmtree(pair.logs)
    assert f"is that of {other.links[0]}: name another" in refusal(pair.data, other.logs)
    assert contents(other.data, other.logs) == before


def test_where_another_server_has_its_logs_is_no_data_directory(pair: Pair) -> None:
    """No link leads there from this one: the log is in its own directory."""
    before = contents(pair.data, pair.logs)
    (link, *_others) = pair.links
    told = refusal(pair.logs, None)
    assert (
        f"the log {pair.logs / link.name} is that of {link}, which has it in its dataLogDir: name another dataDir"
        in told
    )
    with pytest.raises(DataDirectoryError, match="name another dataDir"):
        load_directory(pair.logs)
    assert contents(pair.data, pair.logs) == before | {pair.logs / ".lock": b""}
    pair.live(25, 27)
    assert fingerprint(recover(pair.data)) == STATES[27]
    # What nobody links to any more is whose directory it is in.
    shutil.rmtree(pair.data)
    assert log_place.find(pair.logs / link.name, None) == pair.logs / link.name


def test_a_log_that_somebody_writes_to_is_left_alone(pair: Pair, tmp_path: Path) -> None:
    """A server from before there were notes, of whose `dataDir` there is a copy."""
    log = TransactionLog(pair.data, log_dir=pair.logs)
    log.recover()
    copy(pair.data, tmp_path / "copy")
    pair.forget()
    other = TransactionLog(tmp_path / "copy", log_dir=pair.logs)
    try:
        with pytest.raises(CoordinatorError, match=r"the log .* is in use by another process"):
            log_place.settle([tmp_path / "copy" / pair.links[-1].name], pair.logs)
    finally:
        other.close()
        log.close()
    assert not list(pair.logs.glob("*.of"))


@pytest.mark.parametrize("differ", [True, False])
def test_a_copy_starts_while_the_original_runs(pair: Pair, tmp_path: Path, differ: bool) -> None:
    """The original is a server from before there were notes."""
    pair.forget()
    staging = pair.copied(tmp_path / "staging")
    if differ:
        pair.live(25, 26)
        pair.forget()
    log = TransactionLog(pair.data, log_dir=pair.logs)
    log.recover()
    pair.forget()
    before = contents(pair.data, pair.logs)
    try:
        staging.live(25, 28)
        staging.require_own()
        assert contents(pair.data, pair.logs) == before
    finally:
        log.close()
    assert fingerprint(recover(staging.data)) == STATES[28]


def test_a_log_of_ones_own_that_somebody_writes_to_is_told(pair: Pair, tmp_path: Path) -> None:
    """It is noted to be this server's."""
    copied = tmp_path / "copied"
    copy(pair.logs, copied)
    (link, *_others) = pair.links
    log = open_engine_log(pair.logs / link.name)
    other = TransactionLog(pair.data, log_dir=copied)
    try:
        with pytest.raises(
            CoordinatorError, match="which is in use by another process, and dataLogDir has one"
        ) as raised:
            other.recover()
        told = f"a copy of another server's, have the link {link} lead to {copied / link.name}; otherwise stop that process"
        assert told in str(raised.value)
    finally:
        other.close()
        log.close()


# ---- what reads without a server ----


def test_an_export_of_a_copy_reads_the_copy(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staging = pair.copied(tmp_path / "staging")
    pair.live(25, 29)
    before = contents(pair.data, pair.logs, staging.data, staging.logs)
    export = ["coordinator", "export"]
    assert main([*export, str(staging.data), str(tmp_path / "none")]) == 1
    assert (
        "of which this is a copy: name in dataLogDir (for an export with --log-dir)"
        in capsys.readouterr().err
    )
    assert main([*export, str(staging.data), str(tmp_path / "one"), "--log-dir", str(staging.logs)]) == 0
    assert f"up to zxid {25:#x}, into" in capsys.readouterr().out
    config = tmp_path / "zoo.cfg"
    config.write_text(f"dataDir={staging.data}\ndataLogDir={staging.logs}\nclientPort=0\n")
    assert main([*export, str(config), str(tmp_path / "two")]) == 0
    assert f"up to zxid {25:#x}, into" in capsys.readouterr().out
    assert contents(pair.data, pair.logs, staging.data, staging.logs) == before | {
        staging.data / ".lock": b""
    }


# ---- paths, and crashes ----


def test_paths_need_not_be_whole_or_the_same(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative `dataLogDir` is one of the working directory, and a `dataDir` may be reached by a link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "by-link").symlink_to(pair.data)
    (tmp_path / "logs-by-link").symlink_to(pair.logs)
    live(tmp_path / "by-link", Path("server/logs"), 25, 27)
    pair.require_own()
    live(tmp_path / "by-link", Path("logs-by-link"), 27, 29)
    pair.require_own()
    Path("server/logs").rename("moved")
    live(Path("server/data"), Path("moved"), 29, 30)
    pair.logs = tmp_path / "moved"
    pair.require_own()
    # The logs are to be where they are.
    (tmp_path / "same").symlink_to(tmp_path / "alone")
    live(tmp_path / "alone", tmp_path / "same", 0, 15)
    assert fingerprint(recover(tmp_path / "alone")) == STATES[15]
    assert not list((tmp_path / "alone").glob("*.of"))


class Crash(BaseException):
    pass


def crash_before(step: int, monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> bool:
    """Whether it ended at one of the steps that change something, and not by itself."""
    left = step

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def or_crash(*arguments: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return change(*arguments, **named)

        return or_crash

    with monkeypatch.context() as patch:
        for name in ("replace", "rename", "hardlink_to", "symlink_to", "mkdir"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        patch.setattr("cluster.coordinator.durability.log_place.sync_directory", counted(sync_directory))
        try:
            call()
        except Crash:
            return True
    return False


def test_a_crash_leaves_the_old_link_or_the_new_one(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        staging = pair.copied(tmp_path / f"staging-{step}")
        before = contents(pair.data, pair.logs)
        crashed = crash_before(step, monkeypatch, partial(log_place.settle, staging.links, staging.logs))
        for link in staging.links:
            assert link.resolve() in (pair.logs / link.name, staging.logs / link.name)
            note = staging.logs / f"{link.name}.of"
            assert link.resolve() == pair.logs / link.name or note.read_text() == f"{link}\n"
        staging.live(25, 27)
        staging.require_own()
        assert fingerprint(recover(staging.data)) == STATES[27]
        assert contents(pair.data, pair.logs) == before
        if not crashed:
            break
        step += 1
    assert step == 6 * len(pair.links)


def test_a_crash_leaves_a_log_that_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = 0
    while True:
        new = Pair(tmp_path / f"new-{step}")
        new.data.mkdir(parents=True)
        crashed = crash_before(step, monkeypatch, partial(log_place.prepare, new.data / FIRST, new.logs))
        new.live(0, 15)
        new.require_own()
        assert fingerprint(recover(new.data)) == STATES[15]
        if not crashed:
            break
        step += 1
    assert step > 3


def test_an_empty_directory_of_another_server_is_not_taken(tmp_path: Path) -> None:
    """It made it, and crashed before it opened its log there."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    log_place.prepare(tmp_path / "one" / FIRST, tmp_path / "logs")
    told = refusal(tmp_path / "two", tmp_path / "logs")
    assert f"has a log that {tmp_path / 'two'} does not know, that of {tmp_path / 'one' / FIRST}: " in told
    assert not (tmp_path / "two" / FIRST).exists()
    # A copy of both has an empty one of its own.
    copy(tmp_path / "one", tmp_path / "copy")
    copy(tmp_path / "logs", tmp_path / "copied")
    live(tmp_path / "copy", tmp_path / "copied", 0, 5)
    assert not list((tmp_path / "logs" / FIRST).iterdir())
    live(tmp_path / "one", tmp_path / "logs", 0, 6)
    assert fingerprint(recover(tmp_path / "one")) == STATES[6]


def test_a_log_goes_with_its_note(pair: Pair) -> None:
    assert len(list(pair.logs.glob("*.of"))) == len(pair.links) > 1
    pair.live(25, 40)
    pair.require_own()
    assert sorted(path.name for path in pair.logs.iterdir()) == sorted(
        name for link in pair.links for name in (link.name, f"{link.name}.of")
    )


def test_a_note_that_cannot_be_written_stops_nothing(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was linked to by hand may be where the server may write nothing else."""
    pair.forget()

    def refused(*_arguments: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("cluster.coordinator.durability.log_place._write", refused)
    log = TransactionLog(pair.data, log_dir=pair.logs)
    try:
        assert fingerprint(log.recover()[0]) == STATES[25]
    finally:
        log.close()
    assert caplog.text.count("could write to it: ") == len(pair.links)


def test_a_note_that_is_none_says_nothing(pair: Pair) -> None:
    for number, text in enumerate((b"", b"data/log.1\n", b"/\0\n", b"/proc/no/log.1\n")):
        for link in pair.links:
            (pair.logs / f"{link.name}.of").write_bytes(text)
        pair.live(25 + number, 26 + number)
        pair.require_own()


# ---- two that start at the same time ----


class Meanwhile:
    """Does something once, before a step of the other server's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> None:
        self.left, self.act, self.is_done = step, act, False
        for name in ("replace", "rename", "hardlink_to", "symlink_to", "mkdir", "iterdir"):
            monkeypatch.setattr(Path, name, self.counted(getattr(Path, name)))
        monkeypatch.setattr("cluster.coordinator.durability.log_place._write", self.counted(log_place._write))

    def counted(self, change: Callable[..., object]) -> Callable[..., object]:
        def or_after(*arguments: object, **named: object) -> object:
            if not self.is_done:
                self.left -= 1
                if self.left < 0:
                    self.is_done = True
                    self.act()
            return change(*arguments, **named)

        return or_after


def taken(call: Callable[[], None]) -> bool:
    try:
        call()
    except DataDirectoryError:
        return False
    return True


@pytest.mark.parametrize("case", ["new", "stale", "copies", "stale copies"])
def test_of_two_that_start_at_the_same_time_one_has_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The other one starts before each step of the one."""
    step, is_done = 0, True
    while is_done:
        logs, (one, other) = (
            tmp_path / f"logs-{step}",
            (tmp_path / f"{name}-{step}" for name in ("one", "other")),
        )
        for data in (one, other):
            data.mkdir()
        log = logs / FIRST
        log.mkdir(parents=True)
        if case.startswith("stale"):
            (logs / f"{FIRST}.of").write_text(f"{tmp_path / 'gone' / FIRST}\n")
        if case.endswith("copies"):
            (log / "0.log").write_bytes(b"something")
            for data in (one, other):
                (data / FIRST).symlink_to(log)
        results: list[bool] = []
        take = partial(log_place.prepare, other / FIRST, logs)
        with monkeypatch.context() as patch:
            meanwhile = Meanwhile(patch, step, lambda take=take, to=results: to.append(taken(take)))
            results.append(taken(partial(log_place.prepare, one / FIRST, logs)))
            is_done = meanwhile.is_done
        if not is_done:
            assert results == [True]
            assert not taken(take)
            results.insert(0, False)
        assert results.count(True) == 1
        owner = other if results[0] else one
        assert (logs / f"{FIRST}.of").read_text() == f"{owner / FIRST}\n"
        assert (owner / FIRST).resolve() == log
        assert not list(logs.glob("*.tmp"))
        assert not taken(partial(log_place.prepare, (one if results[0] else other) / FIRST, logs))
        step += 1
    assert step > 3


def test_one_that_is_between_its_note_and_its_link_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds a note whose link is not there, and the first has made it when the second has noted that it is its."""
    one, other, logs = tmp_path / "one", tmp_path / "other", tmp_path / "logs"
    for directory in (one, other, logs / FIRST):
        directory.mkdir(parents=True)
    (logs / f"{FIRST}.of").write_text(f"{one / FIRST}\n")
    with monkeypatch.context() as patch:
        Meanwhile(patch, 4, lambda: os.symlink(logs / FIRST, one / FIRST))
        with pytest.raises(
            DataDirectoryError, match=r"was taken by another server at the same time, for .*one/log"
        ):
            log_place.prepare(other / FIRST, logs)
    assert (logs / f"{FIRST}.of").read_text() == f"{one / FIRST}\n"
    assert not (other / FIRST).is_symlink()
    log_place.prepare(one / FIRST, logs)


def test_a_note_is_made_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refused)
    made = Pair(tmp_path)
    made.live(0, 25)
    made.require_own()
    assert fingerprint(recover(made.data)) == STATES[25]


# ---- members ----


def start_member(servers: Servers, log_dir: Path, path: str) -> None:
    """A member's life: a node more than it had."""
    servers.start(1, dataLogDir=str(log_dir))
    servers.create(1, path)
    servers.stop()


def copied(servers: Servers, directory: Path) -> Servers:
    """The same member, with a copy of its `dataDir`."""
    other = Servers(servers.thread, directory, 1)
    other.lines = servers.lines
    directory.mkdir()
    copy(servers.data(1), other.data(1))
    return other


@pytest.fixture
def member(tmp_path: Path, loop_thread: LoopThread) -> Servers:
    servers = Servers(loop_thread, tmp_path, 1)
    start_member(servers, tmp_path / "logs", "/first")
    return servers


def has_nodes(servers: Servers, log_dir: Path, *paths: str) -> bool:
    tree = dict(load_directory(servers.data(1), log_dir).nodes)
    return all(path in tree for path in paths)


@pytest.mark.parametrize("noted", [True, False])
def test_a_copy_of_a_member_has_a_log_of_its_own(member: Servers, tmp_path: Path, noted: bool) -> None:
    logs, other_logs = tmp_path / "logs", tmp_path / "other-logs"
    if not noted:
        (logs / "quorum" / "log.of").unlink()
    other = copied(member, tmp_path / "other")
    copy(logs, other_logs)
    before = contents(member.data(1), logs)
    start_member(other, other_logs, "/staging")
    assert contents(member.data(1), logs) == before
    start_member(member, logs, "/production")
    assert has_nodes(member, logs, "/first", "/production")
    assert not has_nodes(member, logs, "/staging")
    assert has_nodes(other, other_logs, "/first", "/staging")
    assert not has_nodes(other, other_logs, "/production")


def test_an_export_of_a_members_copy_reads_the_copy(member: Servers, tmp_path: Path) -> None:
    logs, other_logs = tmp_path / "logs", tmp_path / "other-logs"
    other = copied(member, tmp_path / "other")
    copy(logs, other_logs)
    start_member(member, logs, "/later")
    before = contents(member.data(1), logs, other.data(1), other_logs)
    with pytest.raises(DataDirectoryError, match="of which this is a copy"):
        load_directory(other.data(1))
    assert has_nodes(other, other_logs, "/first")
    assert not has_nodes(other, other_logs, "/later")
    assert contents(member.data(1), logs, other.data(1), other_logs) == before
    assert has_nodes(member, logs, "/first", "/later")
    # What is wrong with it is told of where it is.
    (segment,) = (other_logs / "quorum" / "log").glob("*.log")
    segment.unlink()
    with pytest.raises(CoordinatorError, match=f"{other_logs}/quorum/log: it is gone or empty"):
        load_directory(other.data(1), other_logs)
    (other.data(1) / "quorum" / "identity").write_bytes(b"x")
    with pytest.raises(CoordinatorError, match=f"{other.data(1)}/quorum/identity: "):
        load_directory(other.data(1), other_logs)


def test_a_members_directories_can_be_moved_and_not_shared(member: Servers, tmp_path: Path) -> None:
    logs, moved = tmp_path / "logs", tmp_path / "moved"
    logs.rename(moved)
    start_member(member, moved, "/logs-moved")
    other = copied(member, tmp_path / "other")
    before = contents(member.data(1), moved)
    with pytest.raises(DataDirectoryError, match="of which this is a copy"):
        other.start(1, dataLogDir=str(moved))
    with pytest.raises(DataDirectoryError, match="of which this is a copy"):
        other.start(1)
    assert contents(member.data(1), moved) == before
    shutil.rmtree(other.data(1))
    member.data(1).rename(other.data(1))
    moved.rename(logs)
    start_member(other, logs, "/both-moved")
    assert has_nodes(other, logs, "/first", "/logs-moved", "/both-moved")


def test_a_members_log_that_somebody_writes_to_is_left_alone(member: Servers, tmp_path: Path) -> None:
    """It may be the member itself, which has no other lock."""
    logs, other_logs = tmp_path / "logs", tmp_path / "other-logs"
    copy(logs, other_logs)
    (logs / "quorum" / "log.of").unlink()
    log = open_engine_log(logs / "quorum" / "log")
    before = contents(member.data(1), other_logs)
    try:
        with pytest.raises(CoordinatorError, match="which is in use by another process"):
            member.start(1, dataLogDir=str(other_logs))
        with pytest.raises(CoordinatorError, match="which is in use by another process"):
            load_directory(member.data(1), other_logs)
    finally:
        log.close()
    assert contents(member.data(1), other_logs) == before


def test_where_a_member_has_its_log_is_no_data_directory(member: Servers, tmp_path: Path) -> None:
    other = Servers(member.thread, tmp_path / "other", 1)
    other.directory.mkdir()
    other.data(1).symlink_to(tmp_path / "logs")
    with pytest.raises(DataDirectoryError, match="which has it in its dataLogDir: name another dataDir"):
        other.start(1)
    start_member(member, tmp_path / "logs", "/later")


def test_a_members_logs_that_are_both_there(member: Servers, tmp_path: Path) -> None:
    logs, other_logs = tmp_path / "logs", tmp_path / "other-logs"
    copy(logs, other_logs)
    start_member(member, other_logs, "/there")
    assert (member.data(1) / "quorum" / "log").resolve() == other_logs / "quorum" / "log"
    with pytest.raises(DataDirectoryError, match="move the one away that is not to count"):
        member.start(1, dataLogDir=str(logs))
    assert has_nodes(member, other_logs, "/first", "/there")


def test_an_ensemble_begins_with_a_copy(pair: Pair, tmp_path: Path, loop_thread: LoopThread) -> None:
    """Of what a server by itself had; and what is put away keeps its owner."""
    staging = pair.copied(tmp_path / "staging")
    pair.live(25, 29)
    before = contents(pair.data, pair.logs)
    servers = Servers(loop_thread, tmp_path / "ensemble", 1)
    servers.directory.mkdir()
    staging.data.rename(servers.data(1))
    try:
        servers.start(1, dataLogDir=str(staging.logs))
        servers.create(1, "/of-the-ensemble")
        assert has(servers.agreed(1), "/of-the-ensemble")
        assert servers.agreed(1).machine.last_zxid >> 32 == 1
    finally:
        servers.stop()
    assert contents(pair.data, pair.logs) == before
    (kept,) = put_aside(servers.data(1))
    assert fingerprint(Machine(load_directory(kept))) == STATES[25], "it is whole without the setting"


def test_what_is_put_away_keeps_its_owner(pair: Pair, tmp_path: Path) -> None:
    copy(pair.data, tmp_path / "copy")
    own = OwnData(pair.data, MEMBERS, pair.logs)
    assert own.take()
    own.put_away()
    (pair.data,) = put_aside(pair.data)
    pair.require_own()
    assert "of which this is a copy" in refusal(tmp_path / "copy", pair.logs)
