"""`logcore pipeline`: runs or checks a pipeline on Spark. The work is in the package pyspark_logcore."""

from __future__ import annotations

import importlib
from pathlib import Path

from cluster.cli._common import CommandError, Parser


def parser() -> Parser:
    options = Parser(
        "pipeline",
        "Runs a pipeline on Spark: sources, SQL tables, sinks and a report, as a TOML file says. "
        "The README of pyspark-logcore describes the file. Exit status: 0 done, or stopped while it waited "
        "for more; 1 a query or a check failed; 2 wrong arguments; 130 stopped before the end.",
    )
    options.add_argument(
        "action",
        choices=("run", "check"),
        help="run: run it, from its checkpoints on; check: check the file, its SQL and its sinks' columns",
    )
    options.add_argument("config", type=Path, metavar="CONFIG", help="the pipeline's TOML file")
    return options


def run(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        # Imported by name: the package has a distribution of its own, which needs Spark.
        pipeline = importlib.import_module("pyspark_logcore.pipeline")
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark_logcore", "pyspark", "pyarrow"):
            raise
        raise CommandError(f"the package {error.name} is missing; run: pip install pyspark-logcore") from None
    try:
        if options.action == "check":
            pipeline.check(options.config)
            return 0
        return int(pipeline.run(options.config))
    except pipeline.PipelineError as error:
        raise CommandError(str(error)) from None
