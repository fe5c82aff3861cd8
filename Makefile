# `make serve` runs the server, `make test` runs the tests; each prepares what it needs in .venv and nothing outside it.

PYTHON ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: crash-sweep soak help setup serve test test-spark-versions test-cluster test-deploy wheels check docs bench bench-compare bench-spark demo lock

help:
	@echo "make serve   install what the server needs and run it on 127.0.0.1:4000, data in ./topics-data"
	@echo "make test    install everything and run all tests (ARGS='-k name' for some)"
	@echo "make test-spark-versions   small end-to-end tests on every version of Spark that the source runs on"
	@echo "make test-cluster   Spark on machines of their own (namespaces, as root), killed under load (ROUNDS=3)"
	@echo "make setup   install everything: server, development tools, Spark"
	@echo "make check   format, lint, types, layers, rules and their tests"
	@echo "make bench   measure this machine, about 4 minutes (BENCH_ARGS=--full for the long rows, --help for more)"
	@echo "make bench-compare   the same work on topics, Redis and NATS, and docs/benchmarks.md from it"
	@echo "make bench-spark   measure Spark over topics against Spark over files"
	@echo "make test-deploy   run the steps of the Dockerfile in a bare Debian, as root"
	@echo "make wheels  collect the wheels of the lock in .venv/wheels, for an install without a network"
	@echo "make docs    build the pages in docs/ into site/, and check every link"
	@echo "make demo    run a server, archive, transform and replay, and say where to look"
	@echo "make crash-sweep   a million crash points on a fake disk (ARGS='--seed 7 --points 100000')"
	@echo "make soak    kill a server under load for an hour (ARGS='--hours 8 --seed 7')"
	@echo "make lock    resolve the dependencies of pyproject.toml again into requirements/"

$(BIN)/python:
	@tools/make-venv $(PYTHON)

# PySpark and this package come as source. Their build tools are pinned like everything else and installed first,
# therefore no build fetches any of its own.
.venv/.ready-server: requirements/build.txt requirements/server.txt pyproject.toml | $(BIN)/python
	@echo "installing the server into .venv"
	@$(PIP) --require-hashes -r requirements/build.txt
	@$(PIP) --require-hashes -r requirements/server.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

.venv/.ready-all: .venv/.ready-server requirements/all.txt
	@echo "installing the development tools and Spark into .venv (a few minutes the first time)"
	@$(PIP) --require-hashes --no-build-isolation --use-pep517 -r requirements/all.txt
	@touch $@

# An editable install is not compiled, and where PYTHONDONTWRITEBYTECODE is set every server would start with that.
setup: .venv/.ready-all
	@$(BIN)/python -m compileall -q src

serve: .venv/.ready-server
	@exec $(BIN)/topics serve

# All tests run in two processes; a choice of them (ARGS) in one, where a debugger works.
test: ARGS ?= --numprocesses 2
test: setup
	@tools/ensure-java
	@tools/ensure-chromium
	@tools/ensure-spark 4.1
	@tools/ensure-proxies
	@tools/ensure-wheels
	$(BIN)/python -m pytest $(ARGS)

# The wheels of the lock, for an install without a network.
wheels: setup
	@tools/ensure-wheels

# What the Dockerfile says, in a bare Debian: needs root and debootstrap, and takes two minutes.
test-deploy: wheels
	$(BIN)/python tools/bare_root.py

# Each version of Spark that the source runs on, and one that it refuses; the oldest of them is in `make test` too.
test-spark-versions: setup
	@tools/ensure-java
	@tools/ensure-spark 4.0 4.1 4.2
	TOPICS_SPARK_VERSIONS='4.0 4.1 4.2 4.3' $(BIN)/python -m pytest tests/spark/test_versions.py $(ARGS)

# A standalone cluster, a server and an object store, each in namespaces of its own: needs root, iproute2 and util-linux.
test-cluster: ROUNDS ?= 1
test-cluster: setup
	@tools/ensure-java
	TOPICS_CLUSTER=$(ROUNDS) TOPICS_DRIVER_KILLS=5 $(BIN)/python -m pytest tests/spark/test_fleet.py \
		tests/spark/test_connect.py tests/spark/test_cluster.py \
		tests/spark/test_pipelines.py::test_a_command_whose_spark_has_ended_says_so_at_its_end $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/shape.py
	$(BIN)/python tools/conformance.py

# All of these are in `make test` as short slices.
crash-sweep: setup
	TOPICS_MACHINE_EXAMPLES=5000 $(BIN)/python -m pytest --timeout=0 tests/durability/engine/test_machine.py
	TOPICS_SWEEP_SEEDS=800 $(BIN)/python -m pytest --timeout=0 tests/durability/storage/test_crash.py
	$(BIN)/python -m tools.crash_sweep $(ARGS)
	$(BIN)/python -m tools.vandal

soak: setup
	$(BIN)/python -m tools.soak $(ARGS)

# The tools of the pages have an environment of their own, so that theirs never decide a version of ours.
.venv/docs/.ready: requirements/docs.txt | $(BIN)/python
	@echo "installing mkdocs into .venv/docs"
	@$(BIN)/python -m venv .venv/docs
	@.venv/docs/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/docs.txt
	@touch $@

docs: .venv/docs/.ready
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict --clean
	@if grep -rlE '<(script|link|img)[^>]+(src|href)="?https?://' site --include='*.html'; then \
	    echo "make docs: these pages load something from another host" >&2; exit 1; fi
	@echo "the site is in site/; python3 -m http.server --directory site shows it, with search"

bench: setup
	$(BIN)/python -m bench $(ARGS) $(BENCH_ARGS)

# Writes docs/benchmarks.md and its plots: run it on a machine that does nothing else.
bench-compare: setup
	$(BIN)/python -m bench.compare $(ARGS)

bench-spark: setup
	@tools/ensure-java
	$(BIN)/python -m bench.spark $(ARGS)

demo: setup
	@tools/ensure-java
	$(BIN)/python examples/demo.py $(ARGS)

lock: setup
	tools/lock $(ARGS)
