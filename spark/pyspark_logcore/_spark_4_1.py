"""Stands for `pyspark.sql.streaming.datasource`, which Spark 4.1 does not have: how much a micro-batch reads.

Spark 4.1 asks a stream's reader for all that there is, and does not say what it has read. So a reader has
none of the options that limit a micro-batch there.
"""

from __future__ import annotations

from dataclasses import dataclass


class ReadLimit:
    pass


class ReadAllAvailable(ReadLimit):
    pass


@dataclass
class ReadMinRows(ReadLimit):
    min_rows: int


@dataclass
class ReadMaxRows(ReadLimit):
    max_rows: int


@dataclass
class ReadMaxBytes(ReadLimit):
    max_bytes: int


class SupportsTriggerAvailableNow:
    pass
