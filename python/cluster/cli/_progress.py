"""Progress bars, drawn only where standard error is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int, int, int], None]
"""Takes bytes done, bytes in all, partitions done, partitions in all."""

StepProgress = Callable[[str, int, int], None]
"""Takes what is being done, how much is done, and how much there is in all (0: unknown)."""


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A bar for `logcore.verify` and `logcore.repair`; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[partitions]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, partitions="")

        def show(done: int, total: int, partitions: int, partitions_total: int) -> None:
            bar.update(
                task,
                completed=done,
                total=max(total, 1),
                partitions=f"{partitions}/{partitions_total} partitions",
            )

        yield show


@contextmanager
def progress_of_steps() -> Iterator[StepProgress]:
    """A bar for work in several steps; its callable does nothing where there is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _doing, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("beginning", total=None, count="")

        def show(doing: str, done: int, total: int) -> None:
            bar.update(
                task,
                description=doing,
                completed=done,
                total=total or None,
                count="" if total else f"{done:,}",
            )

        yield show
