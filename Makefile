# Every command of the project is a target here. CI runs `make test` and then `make test-rest`.

# The interpreter for the environment: the first of these that is Python 3.11 or newer.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && echo $$python && break; \
	done)
VENV := .venv
BIN := $(VENV)/bin
# Extra arguments for the command of a target, as in: make run ARGS="--port 0"
ARGS ?=
# How many tests run at the same time.
export WORKERS ?= 2
# When make began, for the table of times.
export STARTED := $(shell date +%s)

.DEFAULT_GOAL := help
.PHONY: help run test test-rest test-all setup programs chaos-programs bench-programs kazoo-env lint format unit simulation \
	zookeeper conformance console screenshots spark spark-kafka sim chaos chaos-groups fuzz exactly-once exactly-once-spark \
	conformance-zookeeper generate-tools bench bench-bystander bench-profile bench-zookeeper bench-spark soak spark-soak docs site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-25s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: setup programs ## set up, then run three brokers with a live stream through Spark, until Ctrl-C
	@exec $(BIN)/python -m examples.demo $(ARGS)

test: setup programs kazoo-env ## set up, then lint and test; at most 12 minutes on two quiet cores
	@$(BIN)/python -m tests.parts quick

test-rest: setup programs chaos-programs kazoo-env ## the tests that `make test` leaves out
	@$(BIN)/python -m tests.parts rest

test-all: setup programs chaos-programs kazoo-env ## every test: `make test`, then `make test-rest`
	@$(BIN)/python -m tests.parts quick rest

# Byte code is compiled here because an environment may forbid Python to write it, and then every
# start of a broker would compile all of it.
setup: $(VENV)/.installed ## make the environment in .venv
	@$(BIN)/python -m compileall -q src

# The stamp is newer than its sources, so nothing is installed twice.
$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py fetch_libraries.py src/hightide/wire/_record_walk.c
	@test -n "$(PYTHON)" || { \
	  echo "Python 3.11 or newer is needed, and none was found. Set PYTHON=/path/to/python." >&2; \
	  exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make environments; on Debian, install python3-venv." >&2; \
	  exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $@

# kazoo's own tests need an old pyOpenSSL, so they have an environment of their own.
kazoo-env: .venv-kazoo/.installed

.venv-kazoo/.installed: tests/zookeeper/kazoo_requirements.txt | $(VENV)/.installed
	@test -x .venv-kazoo/bin/python || $(PYTHON) -m venv .venv-kazoo
	.venv-kazoo/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --requirement $<
	@touch $@

# System programs: kcat is a client, zookeeper is the ensemble that the embedded ZooKeeper is compared
# with, Java runs Spark. The benchmarks compile C programs, and Maven fetches Apache Kafka for them.
# npm fetches the console's JavaScript libraries, and Chromium shows its pages to tests.
# make says what it is about to install. What cannot be installed is reported, and the tests that
# need it say so and are skipped.
JAVA_WANTED = command -v java >/dev/null || test -n "$$JAVA_HOME" || wanted="$$wanted default-jre-headless"
define INSTALL
	test -z "$$wanted" && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing with apt-get:$$wanted"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  install="apt-get install --yes --quiet --no-install-recommends"; \
	  $$install $$wanted >/dev/null 2>&1 \
	    || { apt-get update --quiet >/dev/null && $$install $$wanted >/dev/null; } \
	    || echo "Could not install$$wanted: tests that need them are skipped." >&2; \
	else \
	  echo "Not installed:$$wanted. Tests that need them are skipped." >&2; \
	fi
endef

programs:
	@wanted=; \
	command -v kcat >/dev/null || wanted="$$wanted kcat"; \
	test -e /usr/share/java/zookeeper.jar || wanted="$$wanted zookeeper"; \
	command -v npm >/dev/null || wanted="$$wanted npm"; \
	command -v chromium >/dev/null || wanted="$$wanted chromium fonts-dejavu-core"; \
	$(JAVA_WANTED); \
	$(INSTALL)
	@test ! -x $(BIN)/python || $(BIN)/python fetch_libraries.py || true

# The machine room has networks, disks and a library of its own; without root it runs with less.
# systemd-analyze reads the units that `hightide generate` writes.
chaos-programs:
	@wanted=; \
	command -v ip >/dev/null || wanted="$$wanted iproute2"; \
	test -e /usr/sbin/iptables-legacy || wanted="$$wanted iptables"; \
	test -e /usr/sbin/mkfs.ext4 || wanted="$$wanted e2fsprogs"; \
	command -v cc >/dev/null || wanted="$$wanted gcc libc6-dev"; \
	command -v systemd-analyze >/dev/null || wanted="$$wanted systemd"; \
	$(INSTALL)

bench-programs:
	@wanted=; \
	command -v cc >/dev/null || wanted="$$wanted gcc libc6-dev"; \
	test -e /usr/include/librdkafka/rdkafka.h || wanted="$$wanted librdkafka-dev"; \
	command -v mvn >/dev/null || wanted="$$wanted maven"; \
	$(JAVA_WANTED); \
	$(INSTALL)

lint: setup ## style, layout, types and the direction of imports
	@$(BIN)/python -m tests.parts lint

format: setup ## lay out the code as ruff does
	$(BIN)/ruff format .

unit: setup ## the tests without sockets and processes
	$(BIN)/pytest -n $(WORKERS) tests/unit $(ARGS)

simulation: setup ## clusters on virtual time, with the seeds of this commit
	$(BIN)/pytest -n $(WORKERS) tests/simulation $(ARGS)

# The order of the names matters: some tests leave a ZooKeeper that others cannot use. Tests of one
# file share brokers, so they stay on one worker.
zookeeper: setup programs kazoo-env ## the embedded ZooKeeper beside Apache ZooKeeper, and brokers on both
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests/zookeeper $(ARGS)

conformance: setup programs ## real clients against real brokers
	$(BIN)/pytest -n $(WORKERS) --dist loadfile tests/conformance $(ARGS)

console: setup programs ## the console: real brokers, a real browser
	$(BIN)/pytest -n $(WORKERS) --dist loadfile tests/console $(ARGS)

screenshots: setup programs ## take the pictures of the console for README and docs again
	$(BIN)/python -m tests.console.screenshots

spark: setup programs ## the pipeline: real Spark, real brokers
	$(BIN)/pytest -n $(WORKERS) --dist loadfile tests/spark --ignore tests/spark/kafka $(ARGS)

spark-kafka: setup programs ## source and sink on Apache Kafka, which Maven fetches; minutes
	$(BIN)/pytest tests/spark/kafka $(ARGS)

# SEED replays one cluster and prints its history; SEEDS is how many new ones run. STORY takes the
# shipped broker instead of the state machines alone: log, or pipeline with groups and transactions.
sim: setup ## whole clusters on virtual time: make sim SEEDS=2000, or SEED=8123 for one
ifdef SEED
	$(BIN)/python -m tests.simulation.$(if $(STORY),shipped.running,simulation) $(SEED) $(STORY)
else ifdef STORY
	HIGHTIDE_SHIPPED_SEEDS=$(or $(SEEDS),100) $(BIN)/pytest tests/simulation/test_shipped.py -k $(STORY) $(ARGS)
else
	HIGHTIDE_SEEDS=$(or $(SEEDS),1000) $(BIN)/pytest tests/simulation/test_sim.py $(ARGS)
endif

chaos: setup programs chaos-programs ## a machine room under faults: make chaos DURATION=600 SEED=7 ARGS="--faults kill,power"
	$(BIN)/python -m tests.chaos.run \
	  --duration $(or $(DURATION),780) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: setup programs chaos-programs ## the machine room for longer: make soak HOURS=8
	$(BIN)/python -m tests.chaos.run \
	  --duration $$(( $(or $(HOURS),1) * 3600 )) $(if $(SEED),--seed $(SEED)) $(ARGS)

exactly-once: setup programs ## a topic copied exactly once under faults: make exactly-once MESSAGES=100000 SEED=7
	$(BIN)/python -m tests.chaos.exactly_once \
	  --messages $(or $(MESSAGES),100000) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: setup ## every decoder and a running broker on any bytes: make fuzz SECONDS=600 TARGET=batch SEED=7
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),60) \
	  $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(ARGS)
	$(if $(TARGET),,$(BIN)/python -m tests.fuzz.live --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)))

chaos-groups: setup ## groups whose members and coordinators are killed: make chaos-groups DURATION=600
	$(BIN)/python -m tests.chaos.groups \
	  --duration $(or $(DURATION),120) $(if $(SEED),--seed $(SEED)) $(ARGS)

exactly-once-spark: setup programs ## Spark queries killed again and again: make exactly-once-spark ROUNDS=100
	$(BIN)/python -m tests.chaos.spark_exactly_once \
	  --rounds $(or $(ROUNDS),30) $(if $(SEED),--seed $(SEED)) $(ARGS)

conformance-zookeeper: setup programs kazoo-env ## all of kazoo's own tests and long random histories; minutes
	HIGHTIDE_SUITE=full HIGHTIDE_STEPS=100000 $(BIN)/pytest $(ARGS) \
	  tests/zookeeper/test_kazoo_suite.py tests/zookeeper/test_differential.py

generate-tools: setup ## promtool, kubeconform and more, built by Go, for the tests of `hightide generate`
	@command -v go >/dev/null || { echo "Go is needed to build promtool and kubeconform." >&2; exit 1; }
	$(BIN)/python -m tests.support.generate_tools

bench: setup bench-programs ## Hightide beside Apache Kafka: ratios, docs/benchmarks.md; an hour
	$(BIN)/python -m bench.run $(ARGS)
	$(BIN)/python -m bench.document bench/.results/*.json

bench-bystander: setup bench-programs ## the worst wait of a client while another abuses the broker; minutes
	$(BIN)/python -m bench.bystander $(ARGS)

bench-profile: setup bench-programs ## where a broker's time goes, function by function
	$(BIN)/python -m bench.hotspots $(ARGS)

bench-zookeeper: setup programs ## latency, size and start of the embedded ZooKeeper beside Apache ZooKeeper
	$(BIN)/python -m bench.zookeeper $(ARGS)

bench-spark: setup bench-programs ## source, sink and windows beside Spark's own Kafka connector; minutes
	$(BIN)/python -m bench.spark $(ARGS)

spark-soak: setup bench-programs ## a windowed query for half an hour: make spark-soak MINUTES=30
	$(BIN)/python -m bench.spark --soak $(or $(MINUTES),30) $(ARGS)

docs: setup ## write the generated pages of docs/reference
	@mkdir -p docs/reference
	$(BIN)/python -m hightide.settings > docs/reference/settings.md
	$(BIN)/python -m hightide.broker.metrics > docs/reference/metrics.md
	$(BIN)/python -m reference

site: docs $(VENV)/.site ## the documents as a site with search, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site is there; read it with: python3 -m http.server --bind 127.0.0.1 --directory build/site"

# Apart from the rest, so that `make test` installs less.
$(VENV)/.site: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	  --constraint constraints.txt --editable '.[docs]'
	@touch $@

clean: ## remove the environments and all caches
	rm -rf $(VENV) .venv-kazoo build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
