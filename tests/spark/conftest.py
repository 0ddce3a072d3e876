"""One small Spark session for all tests of the data source: two local threads, on loopback."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.columns.segment_files import sample, write_partition
from tests.spark.jvm import start_quickly

start_quickly()

ROOT = Path(__file__).resolve().parents[2]
SPARK_KAFKA = ROOT / "build" / "peers" / "spark-kafka-4.2.0"
# Records of each partition of the sample directory.
ORDERS = {0: 100, 1: 40, 2: 60}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if os.environ.get("CI") == "true":
            pytest.fail("the tests of the Spark source need a Java runtime: install one")
        pytest.skip("the tests of the Spark source need a Java runtime")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # Spark's own Kafka source, for the tests beside it.
        .config("spark.jars", ",".join(map(str, sorted(SPARK_KAFKA.glob("*.jar")))))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def log_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with the topics orders (3 partitions), refunds (1), and one of the cluster's own."""
    directory = tmp_path_factory.mktemp("logs")
    for partition, count in ORDERS.items():
        write_partition(directory / f"orders-{partition}", sample(count), "lz4" if partition else "none")
    write_partition(directory / "refunds-0", sample(10))
    write_partition(directory / "__consumer_offsets-0", sample(5))
    (directory / "orders-7.0123456789abcdef0123456789abcdef-delete").mkdir()
    (directory / "meta.properties").write_text("version=0\n")
    return directory
