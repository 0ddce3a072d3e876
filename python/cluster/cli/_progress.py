"""Progress bars on a terminal; nothing anywhere else."""

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


@contextmanager
def progress_of_steps() -> Iterator[Callable[[str, int, int], None]]:
    """Gives a callable that shows what is being done, how much is and of how much (0: nobody knows), on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _doing, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("beginning", total=None, count="")

        def tell(doing: str, done: int, total: int) -> None:
            progress.update(
                task,
                description=doing,
                completed=done,
                total=total or None,
                count="" if total else f"{done:,}",
            )

        yield tell
