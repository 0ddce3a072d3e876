"""The Spark session of a pipeline, and of the demo. What Spark and Java print goes to a log file."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pyspark_logcore.pipeline._model import Pipeline

JAVA_WANTED = 17  # Spark 4 runs on Java 17 and later

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


class NoJava(Exception):
    """There is no Java runtime for Spark; the text says what to install."""


def check_java() -> None:
    """Raises NoJava."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = f"run: sudo apt-get install openjdk-{JAVA_WANTED}-jre-headless"
    if java is None or not os.access(java, os.X_OK):
        raise NoJava(f"Spark needs a Java runtime, {JAVA_WANTED} or newer, and none was found; {install}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < JAVA_WANTED:
        raise NoJava(f"Spark needs Java {JAVA_WANTED} or newer, but {java} is older or unknown; {install}")


@contextmanager
def session(pipeline: Pipeline, log: Path) -> Iterator[SparkSession]:
    """A session with the pipeline's settings. It is stopped at the end. Raises NoJava."""
    formats = {one.format for one in pipeline.sources} | {one.format for one in pipeline.sinks}
    spark = start(pipeline.name, log, pipeline.spark, delta="delta" in formats)
    try:
        with _python_log_to(log):
            yield spark
    finally:
        spark.stop()


def start(name: str, log: Path, given: Mapping[str, str], *, delta: bool = False) -> SparkSession:
    """A session with these settings, by default on all cores of this machine. Raises NoJava."""
    check_java()
    log.parent.mkdir(parents=True, exist_ok=True)
    log4j = log.with_name("log4j2.properties")
    log4j.write_text(_LOG4J.format(log=log), encoding="utf-8")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (log.parent / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        **given,
    }
    if "spark.master" not in settings and "MASTER" not in os.environ:
        settings["spark.master"] = "local[*]"
    if settings.get("spark.master", "").startswith("local"):
        # One machine: nothing needs to listen to others.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            **settings,
        }
    builder = SparkSession.builder.appName(name)
    if delta:
        from delta import configure_spark_with_delta_pip  # type: ignore[import-not-found, unused-ignore]

        settings.setdefault("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        settings.setdefault(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        # A user without a way to Maven Central has the jars on disk.
        if "spark.jars" not in settings:
            others = [one for one in settings.pop("spark.jars.packages", "").split(",") if one]
            builder = configure_spark_with_delta_pip(builder, others)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    with _errors_to(log):
        return builder.getOrCreate()


@contextmanager
def _python_log_to(log: Path) -> Iterator[None]:
    """PySpark logs every SQL error with its stack on standard error."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    logger.propagate = False
    handler = logging.FileHandler(log)
    for other in list(logger.handlers):
        logger.removeHandler(other)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Appends the standard error of processes that are started meanwhile: Java's and its workers'."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
