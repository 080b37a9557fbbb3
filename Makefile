# Everything that is run on the project is a target here; CI runs `make test` and nothing else.

# The interpreter for the environment: the first of these that is Python 3.11 or newer.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && echo $$python && break; \
	done)
VENV := .venv
BIN := $(VENV)/bin
# Extra words for the command of a target, as in: make run ARGS="--port 0"
ARGS ?=
# How many tests run at the same time, where they do not mind.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help run test setup lint format unit conformance bench bench-profile docs clean programs bench-programs \
	coordination conformance-coordination bench-zookeeper sim simulation chaos \
	chaos-groups exactly-once spark spark-long spark-kafka exactly-once-spark bench-spark soak

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-25s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup programs ## set up, then three brokers with a live stream through Spark, until Ctrl-C
	@exec $(BIN)/hightide demo $(ARGS)

test: setup programs lint unit simulation coordination conformance spark ## set up, then everything that CI checks

# Compiled here, because an environment may forbid Python to keep byte code, and then the whole
# broker would be compiled at each of its starts.
setup: $(VENV)/.installed ## make the environment in .venv
	@$(BIN)/python -m compileall -q src

# The stamp is newer than what the environment is made from, so that nothing is done twice.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
	  echo "Python 3.11 or newer is needed, and none was found. Set PYTHON=/path/to/python." >&2; \
	  exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make environments; on Debian, install python3-venv." >&2; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Programs of the system and not of the environment: kcat is a client, zookeeper the ensemble that the
# embedded coordinator is compared with, openssl makes the certificates of tests, Java runs Spark.
# The benchmark has its load made by C programs, and Maven bring Apache Kafka. What cannot be installed
# is said, and what needs it is left out.
JAVA_WANTED = command -v java >/dev/null || test -n "$$JAVA_HOME" || wanted="$$wanted default-jre-headless"
define INSTALL
	test -z "$$wanted" && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install --yes --quiet --no-install-recommends"; \
	  $$install $$wanted >/dev/null 2>&1 \
	    || { apt-get update --quiet >/dev/null && $$install $$wanted >/dev/null; } \
	    || echo "Could not install$$wanted: what needs them is left out." >&2; \
	else \
	  echo "Not installed:$$wanted. What needs them is left out." >&2; \
	fi
endef

programs:
	@wanted=; \
	command -v kcat >/dev/null || wanted="$$wanted kcat"; \
	command -v openssl >/dev/null || wanted="$$wanted openssl"; \
	test -e /usr/share/java/zookeeper.jar || wanted="$$wanted zookeeper"; \
	$(JAVA_WANTED); \
	$(INSTALL)

bench-programs:
	@wanted=; \
	command -v cc >/dev/null || wanted="$$wanted gcc libc6-dev"; \
	test -e /usr/include/librdkafka/rdkafka.h || wanted="$$wanted librdkafka-dev"; \
	command -v mvn >/dev/null || wanted="$$wanted maven"; \
	$(JAVA_WANTED); \
	$(INSTALL)

lint: setup ## style, layout, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-logo

format: setup ## lay out the code as ruff does
	$(BIN)/ruff format .

unit: setup ## the tests without sockets and processes
	$(BIN)/pytest -n $(WORKERS) tests/unit $(ARGS)

# Those of a file share a broker, so they stay together.
conformance: setup programs ## real clients against a real broker
	$(BIN)/pytest -n $(WORKERS) --dist loadfile tests/conformance $(ARGS)

simulation: setup
	$(BIN)/pytest tests/simulation $(ARGS)

# SEED replays one cluster and prints its whole history; SEEDS is how many new ones are run. STORY
# takes the shipped broker instead of the machines alone: log, or pipeline with groups and transactions.
sim: setup ## whole clusters on virtual time: make sim SEEDS=2000, or SEED=8123 for one
ifdef SEED
	$(BIN)/python -m tests.simulation.$(if $(STORY),shipped.running,simulation) $(SEED) $(STORY)
else ifdef STORY
	HIGHTIDE_SHIPPED_SEEDS=$(or $(SEEDS),100) $(BIN)/pytest tests/simulation/test_shipped.py -k $(STORY) $(ARGS)
else
	HIGHTIDE_SEEDS=$(or $(SEEDS),1000) $(BIN)/pytest tests/simulation/test_sim.py $(ARGS)
endif

# The workload and the checker are those of the conformance tests.
chaos: setup programs ## real clusters under load and faults: make chaos DURATION=600 SEED=7
	$(BIN)/python -m tests.chaos.run \
	  --duration $(or $(DURATION),120) $(if $(SEED),--seed $(SEED)) $(ARGS)

exactly-once: setup programs ## a topic copied exactly once under faults: make exactly-once MESSAGES=100000 SEED=7
	$(BIN)/python -m tests.chaos.exactly_once \
	  --messages $(or $(MESSAGES),100000) \
	  $(if $(SEED),--seed $(SEED)) $(ARGS)

# Members and coordinators of groups, judged by what members saw and by what was written.
chaos-groups: setup ## groups in a storm, their coordinator killed: make chaos-groups DURATION=600
	$(BIN)/python -m tests.chaos.groups \
	  --duration $(or $(DURATION),120) $(if $(SEED),--seed $(SEED)) $(ARGS)

# In the order of their names: some leave a ZooKeeper that is of no use to others.
coordination: setup programs ## our coordinator beside ZooKeeper, and its clients
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/zookeeper $(ARGS)

# Each worker has a session of Spark, which takes longer to start than most tests to run.
spark: setup programs ## the pipeline: real Spark, real brokers
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not long" tests/spark --ignore tests/spark/kafka $(ARGS)

spark-long: setup programs ## the same on a Spark cluster, with drivers killed, and the demo; minutes
	$(BIN)/pytest -m long tests/spark --ignore tests/spark/kafka $(ARGS)

spark-kafka: setup programs ## source and sink on Apache Kafka, which Maven brings; minutes
	$(BIN)/pytest tests/spark/kafka $(ARGS)

exactly-once-spark: setup programs ## queries of Spark killed again and again: make exactly-once-spark ROUNDS=100
	$(BIN)/python -m tests.chaos.spark_exactly_once \
	  --rounds $(or $(ROUNDS),30) $(if $(SEED),--seed $(SEED)) $(ARGS)

# All of kazoo's own tests, and a long comparison.
conformance-coordination: setup programs ## the same at length; minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --constraint constraints.txt --editable '.[dev,conformance]'
	HIGHTIDE_SUITE=full HIGHTIDE_STEPS=100000 $(BIN)/pytest $(ARGS) \
	  tests/zookeeper/test_kazoo_suite.py tests/zookeeper/test_differential.py

bench: setup bench-programs ## Hightide beside Apache Kafka: ratios, docs/benchmarks.md; an hour
	$(BIN)/python -m bench.run $(ARGS)
	$(BIN)/python -m bench.document bench/.results/*.json

bench-profile: setup bench-programs ## where a broker's time goes, function by function
	$(BIN)/python -m bench.hotspots $(ARGS)

bench-zookeeper: setup programs ## the coordinator's latency, size and start beside ZooKeeper's
	$(BIN)/python -m bench.zookeeper $(ARGS)

bench-spark: setup bench-programs ## source, sink and windows beside Spark's own Kafka connector; minutes
	$(BIN)/python -m bench.spark $(ARGS)

soak: setup bench-programs ## a windowed query for half an hour: make soak MINUTES=30
	$(BIN)/python -m bench.spark --soak $(or $(MINUTES),30) $(ARGS)

docs: setup ## write the generated pages of docs/reference
	@mkdir -p docs/reference
	$(BIN)/python -m hightide.settings > docs/reference/settings.md

clean: ## remove the environment and all caches
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
