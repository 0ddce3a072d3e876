"""A table by key: the latest row of each key of a stream, as a Parquet snapshot for each micro-batch.

Layout of the directory:

    batch-0000000012/   the snapshot after micro-batch 12: Parquet files
    current             a symbolic link to the newest snapshot
    query               the id of the query that writes the table

A micro-batch reads the current snapshot, merges its own rows, writes a new directory and then renames a new
link over `current`. So a reader of `current` sees a whole snapshot or the one before. The snapshot before the
current one stays for readers that are at work; older ones are deleted. All columns are kept, those of the
keys, the order and the deletion included.

Exactly once: a micro-batch whose snapshot is current, or older, is written already and is skipped. A crash
leaves at most a directory that no link names, which the repeated micro-batch overwrites. A micro-batch of
another query is refused, because its numbers say nothing about this table.

The cost of a micro-batch is that of the whole table. The directory must be one where renaming is atomic and
links exist: a local or a network file system, and on a cluster one that every node has.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_logcore._sink import QUERY_ID

_CURRENT = "current"
_QUERY = "query"
_PREFIX = "batch-"


@dataclass(frozen=True)
class TableByKey:
    """Takes micro-batches, for `foreachBatch`.

    `order` is an SQL expression: of several rows of a key, the one with the greatest value counts. Without
    it, a key may be in a micro-batch once, and the newest micro-batch counts. `deleted` is an SQL condition:
    a row that fulfils it deletes its key.
    """

    path: Path
    keys: tuple[str, ...]
    order: str | None
    deleted: str | None

    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        self.path.mkdir(parents=True, exist_ok=True)
        self._claim(spark.sparkContext.getLocalProperty(QUERY_ID) or "")
        before = current(self.path)
        if before is not None and _number(before) > number:
            raise ValueError(
                f"{self.path} has micro-batch {_number(before)} already, and is to get {number}: the "
                "checkpoint is older than the table. Go on with the newest checkpoint, or with another path"
            )
        if before is not None and _number(before) == number:
            return
        after = self.path / f"{_PREFIX}{number:010d}"
        merged = self.merge(None if before is None else spark.read.parquet(before.as_uri()), batch)
        merged.write.mode("overwrite").parquet(after.as_uri())
        self._point_to(after)
        for old in self.path.glob(f"{_PREFIX}*"):
            if old not in (before, after):
                shutil.rmtree(old)

    def merge(self, before: DataFrame | None, batch: DataFrame) -> DataFrame:
        """The table after a micro-batch: rows of the snapshot before, and the batch's."""
        columns = [F.col(name) for name in batch.columns]
        rows = batch.select(F.struct(*columns).alias("row"), F.lit(True).alias("new"), *self._order())
        if before is not None:
            old = before.select(F.struct(*columns).alias("row"), F.lit(False).alias("new"), *self._order())
            rows = old.unionByName(rows)
        by = F.col("new") if self.order is None else F.struct("order", "new")
        grouped = rows.groupBy(*(F.col(f"row.{name}").alias(f"key_{name}") for name in self.keys))
        latest = grouped.agg(F.max_by("row", by).alias("row"), F.count_if("new").alias("times"))
        if self.order is None:
            once = F.raise_error(F.lit("a key is in one micro-batch more than once: set order"))
            latest = latest.where(F.when(F.col("times") > 1, once.cast("boolean")).otherwise(True))
        table = latest.select("row.*")
        if self.deleted is not None:
            table = table.where(~F.coalesce(F.expr(self.deleted), F.lit(False)))
        return table

    def _order(self) -> list[Column]:
        return [] if self.order is None else [F.expr(self.order).alias("order")]

    def _claim(self, query: str) -> None:
        """Notes whose table this is. Raises ValueError if it is another query's."""
        owner = self.path / _QUERY
        if not owner.exists():
            new = owner.with_suffix(".new")
            new.write_text(query)
            new.replace(owner)
        elif owner.read_text() != query:
            raise ValueError(
                f"the table {self.path} was written by a query with another checkpoint: "
                "bring the checkpoint back, or delete the table"
            )

    def _point_to(self, snapshot: Path) -> None:
        link = self.path / f"{_CURRENT}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(snapshot.name)
        os.replace(link, self.path / _CURRENT)


def current(path: Path) -> Path | None:
    """The newest snapshot's directory; None before the first."""
    link = path / _CURRENT
    return path / os.readlink(link) if link.is_symlink() else None


def read_table(spark: SparkSession, path: str | Path) -> DataFrame:
    """The newest snapshot of a table by key. Raises FileNotFoundError before the first."""
    snapshot = current(Path(path))
    if snapshot is None:
        raise FileNotFoundError(f"the table {path} has no snapshot yet")
    return spark.read.parquet(snapshot.absolute().as_uri())


def _number(snapshot: Path) -> int:
    return int(snapshot.name.removeprefix(_PREFIX))
