"""The snapshots that administrators ask a member for.

If these fail, a new one is deleted, or they fill the disk.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cluster.coordinator.durability.snapshot import snapshot_path
from cluster.coordinator.ensemble.exports import Exports


def make(exports: Exports, zxid: int) -> Path:
    file = exports.begin(zxid)
    file.write(b"what it has")
    return exports.keep(file)


def set_time(path: Path, seconds: float) -> None:
    os.utime(path, (seconds, seconds))


def test_only_the_newest_exports_are_kept(tmp_path: Path) -> None:
    exports = Exports(tmp_path / "exports", 3)
    exports.clean()
    made = []
    for zxid in (1 << 33, 1 << 32, 5, 7, 6, 8, 8):
        # The newest may have a smaller zxid: a new ensemble begins with small ones.
        made = [each for each in made if each != snapshot_path(tmp_path / "exports", zxid)]
        made.append(make(exports, zxid))
        for age, path in enumerate(reversed(made[-3:])):
            set_time(path, 1_000_000 - age)
        assert set((tmp_path / "exports").iterdir()) == set(made[-3:])


def test_a_new_export_is_kept_when_the_clock_went_back(tmp_path: Path) -> None:
    exports = Exports(tmp_path, 3)
    made = [make(exports, zxid) for zxid in (1, 2, 3)]
    for number, path in enumerate(made):
        set_time(path, time.time() + 3600 + number)
    with made[0].open("rb") as sent:
        last = make(exports, 4)
        assert set(tmp_path.iterdir()) == {made[1], made[2], last}
        assert sent.read(4) == b"what", "an export that is being sent was lost"


def test_other_files_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exports = Exports(tmp_path, 1)
    others = [tmp_path / name for name in ("notes", "snapshot.1", "snapshot.00000000000000zz")]
    for path in others:
        path.write_bytes(b"")
    leftover = tmp_path / "snapshot.0000000000000007.tmp"
    leftover.write_bytes(b"")
    cannot_be_removed = snapshot_path(tmp_path, 3)
    cannot_be_removed.mkdir()
    exports.clean()
    assert not leftover.exists()
    for zxid in (1, 2):
        last = make(exports, zxid)
    assert set(tmp_path.iterdir()) == {*others, cannot_be_removed, last}
    assert caplog.text.count(f"{cannot_be_removed} is not needed any more, and cannot be removed: ") == 2
