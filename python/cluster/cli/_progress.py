"""A progress bar over the bytes of a directory, on a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[int, int, int, int], None]


@contextmanager
def progress_bar(what: str) -> Iterator[Tell | None]:
    """Gives a callable for `logcore`'s progress, or None when standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[partitions]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None, partitions="")

        def tell(done: int, total: int, partitions: int, partitions_total: int) -> None:
            progress.update(
                task,
                completed=done,
                total=max(total, 1),
                partitions=f"{partitions}/{partitions_total} partitions",
            )

        yield tell
