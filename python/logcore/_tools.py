"""Verifying and repairing directories. The extension reads and writes; the results' classes are here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from logcore._native import repair_directory, verify_directory
from logcore._paths import existing_log_directory

Progress: TypeAlias = Callable[[int, int, int, int], object]
"""Called with bytes read, bytes in all, partitions read, partitions in all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a directory."""

    severity: str
    """`"damage"`, `"hint"` or `"stray"`; see `logcore.verify`."""
    kind: str
    """What it is about: `torn-tail`, `corrupt-batch`, `offset-index` and so on."""
    path: Path
    position: int | None
    """Where in the file, in bytes."""
    offset: int | None
    """The log's offset at that position."""
    what: str
    """What is wrong, in a sentence."""
    remedy: str
    """What to do about it; empty when nothing can be done."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read of a directory, and what was found."""

    findings: tuple[Finding, ...]
    partitions: int
    segments: int
    batches: int
    records: int
    bytes: int

    @property
    def damaged(self) -> bool:
        return _damaged(self.findings)


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One step of a repair."""

    action: str
    """`"cut"`, `"remove"` or `"rebuild"`."""
    path: Path
    why: str
    position: int | None
    """Of a cut: where in the file, in bytes."""
    offset: int | None
    """Of a cut: where the log ends afterwards."""
    bytes: int
    """Of a cut: the bytes that are removed from the log."""
    records: int
    """Of a cut: the intact records among them."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do."""

    actions: tuple[RepairAction, ...]
    refused: tuple[RepairAction, ...]
    """Cuts that lose intact records, which only `cut_at_corruption` allows."""
    applied: bool
    """Whether the actions were carried out."""
    backup_dir: Path | None
    """Where the copies and `manifest.json` are."""
    findings: tuple[Finding, ...]
    """The findings after the actions were carried out; if they were not, those before."""

    @property
    def damaged(self) -> bool:
        return _damaged(self.findings)


def _damaged(findings: tuple[Finding, ...]) -> bool:
    return any(finding.severity == "damage" for finding in findings)


def verify(
    path: str | os.PathLike[str], *, threads: int = 0, progress: Progress | None = None
) -> list[Finding]:
    """Reads all of a partition's directory or of a log directory, and returns what is wrong with it.

    Checks every batch (checksum, header, records, offsets), every index entry, transaction index, leader
    epochs, producer snapshots, checkpoints, names, and that no segment is missing. Changes nothing and takes
    no lock, so it may run beside a process that writes the directory. A batch that is being written is not a
    finding.

    `path` may be the data directory of `logcore start`. `threads` partitions are read at a time, 0 for as
    many as there are cores. `progress` is called now and then with bytes read, bytes in all, partitions read,
    partitions in all; an exception from it ends the reading.

    A finding's `severity` is one of

    - `"damage"`: records, or the files that say how to read them, are lost or wrong;
    - `"hint"`: a file that is made again from the others, or a gap in the offsets that compaction may have
      made;
    - `"stray"`: a file that belongs to no log.

    Raises LogNotFoundError when there is no log at `path`, LogIOError when the directory cannot be listed.

    >>> import logcore, tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with logcore.open(directory) as log:
    ...     first = log.append(b"departed")
    >>> logcore.verify(directory)
    []
    """
    return list(verify_all(path, threads=threads, progress=progress).findings)


def verify_all(
    path: str | os.PathLike[str], *, threads: int = 0, progress: Progress | None = None
) -> Verified:
    """`verify`, with what was read."""
    findings, *counts = verify_directory(existing_log_directory(path), threads, progress)
    return Verified(tuple(Finding(*finding) for finding in findings), *counts)


def repair(
    path: str | os.PathLike[str],
    *,
    apply: bool = False,
    cut_at_corruption: bool = False,
    backup_dir: str | os.PathLike[str] | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Repaired:
    """Plans how to make a directory whole and, with `apply`, carries the plan out. No record is invented or
    altered.

    A torn tail is cut at the last whole batch. Damage before that is cut only with `cut_at_corruption`,
    because the log loses the intact records behind it; without, the cut is in `refused`. Indexes and producer
    snapshots are made again from the batches, and so are leader epochs that cannot be read or that several
    batches contradict.

    Bytes that are cut off or replaced are first copied to `backup_dir`, with a manifest; the default is
    `<name>.repair-<time>` beside the log directory. Afterwards the directory is verified again. `path`,
    `threads` and `progress` are as in `verify`.

    Raises LockedError while a broker or a program uses the directory, LogNotFoundError, LogIOError. When
    copying fails, nothing was changed.

    >>> import logcore, pathlib, tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with logcore.open(directory) as log:
    ...     first = log.append_records([b"departed", b"arrived"])
    >>> segment = pathlib.Path(directory, "00000000000000000000.log")
    >>> whole = segment.read_bytes()
    >>> written = segment.write_bytes(whole + whole[:40])
    >>> [finding.kind for finding in logcore.verify(directory)]
    ['torn-tail']
    >>> repaired = logcore.repair(directory, apply=True)
    >>> repaired.damaged, segment.read_bytes() == whole
    (False, True)
    """
    actions, refused, applied, copies, findings = repair_directory(
        existing_log_directory(path), apply, cut_at_corruption, backup_dir, threads, progress
    )
    return Repaired(
        tuple(RepairAction(*action) for action in actions),
        tuple(RepairAction(*action) for action in refused),
        applied,
        copies,
        tuple(Finding(*finding) for finding in findings),
    )
