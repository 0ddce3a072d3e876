"""Verifying and repairing directories: the face of the extension's `tools` room."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from logcore._native import Finding, Repaired, repair_directory, verify_directory

Progress: TypeAlias = Callable[[int, int, int, int], object]


def verify(
    path: str | os.PathLike[str], *, threads: int = 0, progress: Progress | None = None
) -> list[Finding]:
    """Reads all of a partition's directory, or of a log directory with partitions in it, and tells what is wrong.

    Checks every batch (checksum, header, records, offsets), that no segment is missing, every index entry, transaction
    index, leader epochs, producer snapshots, checkpoints and names. Changes nothing and takes no lock, so it may run
    beside whoever writes the directory; what is just being written is no fault.

    `threads` is how many partitions are read at a time, 0 for as many as there are cores. `progress` is called now and
    then with bytes read, bytes in all, partitions done, partitions in all; what it raises ends the reading.

    A finding's `severity` is `"damage"` (records, or what says how to read them, are lost or wrong), `"hint"`
    (a file that is made again from the others, or what cannot be judged: offsets missing between segments that compaction
    may have removed) or `"stray"` (nobody's file). A directory is damaged when a finding of the first kind is there.

    Raises LogNotFoundError when there is no log at `path`, LogIOError when the directory cannot be listed.

    >>> import logcore, tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with logcore.open(directory) as log:
    ...     first = log.append(b"departed")
    >>> logcore.verify(directory)
    []
    """
    return verify_directory(path, threads, progress).findings


def repair(
    path: str | os.PathLike[str],
    *,
    apply: bool = False,
    cut_at_corruption: bool = False,
    aside: str | os.PathLike[str] | None = None,
    threads: int = 0,
    progress: Progress | None = None,
) -> Repaired:
    """Plans, and with `apply` carries out, what makes a directory whole; never invents or alters a record.

    A torn tail is cut at the last whole batch. Damage before that is cut too only with `cut_at_corruption`, because
    intact records behind it are lost to the log; until then it is in `refused`. Indexes and producer snapshots are made
    again from the batches, and so are leader epochs that cannot be read or that several batches contradict. What is cut off or replaced is first copied to `aside`, by default
    `<name>.repair-<time>` beside the log directory, with a manifest. Afterwards the directory is verified again.

    Raises LockedError while a broker or a program uses the directory, LogNotFoundError, LogIOError; when copying fails,
    nothing was changed.

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
    return repair_directory(path, apply, cut_at_corruption, aside, threads, progress)
