# demo, test, chaos, check, bench: each makes .venv and installs what it needs; a second run finds its stamp and is quick.
# Assumed: Python 3.11 or newer with pip, nothing else.
.DEFAULT_GOAL := help
.PHONY: help demo test chaos check bench clean
.DELETE_ON_ERROR:

# The first interpreter that is new enough and really runs (a version manager's shim may exist and fail).
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
DEMO_EXTRAS := asyncpg,psycopg,trio,embedded,cli
EXTRAS := $(DEMO_EXTRAS),cron,cel,web
PYTEST_ARGS ?= -n 3
CHAOS_ARGS ?=
BENCH_ARGS ?=

help:
	@echo "make demo    the queue at work on an embedded PostgreSQL"
	@echo "make test    all tests, with branch coverage (some twenty minutes); PYTEST_ARGS='-k name' is passed on"
	@echo "             AWA_SIMULATOR_SEEDS=100000 and AWA_MODEL_EXAMPLES=300 look longer for what chance finds"
	@echo "make chaos   workers killed 100 times, servers restarted 20 times, crashed 40 times; CHAOS_ARGS='-k trio' is passed on"
	@echo "make check   lint, format, types, import contracts"
	@echo "make bench   benchmarks; BENCH_ARGS='drain --jobs 20000' is passed on"
	@echo "make clean   removes everything the others made"

demo: .venv/.has-demo
	$(BIN)/awa demo

test: .venv/.has-test
	$(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-3.12 test-3.13

# What each of the four drivers goes through; AWA_CHAOS_SEED=... repeats what chance chose.
chaos: .venv/.has-test
	AWA_CHAOS_SEED=$${AWA_CHAOS_SEED:-$$(date +%s)} AWA_CHAOS_KILLS=25 AWA_CHAOS_RESTARTS=5 AWA_CHAOS_CRASHES=10 \
		$(BIN)/python -m pytest tests/chaos -rP $(CHAOS_ARGS)

# Another Python: what needs no server, with fewer lives of the simulator, and a smoke test of what does. `found` is empty where
# that Python is missing.
test-3.%:
	@found=$$(for p in python3.$* "$$(pyenv root 2>/dev/null)"/versions/3.$*.*/bin/python; do \
		"$$p" -c '' 2>/dev/null && echo "$$p" && break; done); \
	if [ -z "$$found" ]; then echo "Python 3.$* is not on this machine: its tests are left out"; \
	elif [ "$$($(BIN)/python -c 'import sys; print(sys.version_info[1])')" = "$*" ]; then :; \
	else $(MAKE) --no-print-directory .venv-3.$*/.has-test PYTHON="$$found" && \
		echo "Python 3.$*:" && \
		AWA_SIMULATOR_SEEDS=$${AWA_SIMULATOR_SEEDS:-1000} .venv-3.$*/bin/python -m pytest -q $(PYTEST_ARGS) \
			-m "smoke or not (database or slow or chaos)"; fi

check: .venv/.has-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: .venv/.has-bench
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean:
	@for link in .awa/postgres-*; do if [ -L "$$link" ]; then rm -rf "$$(readlink "$$link")"; fi; done
	rm -rf .venv .venv-3.* .awa build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Debian python3 has venv but not ensurepip: then the pip that is there installs one into the new environment.
# pip 25.1 is the first that knows the dependency groups of pyproject.toml.
%/.has-pip:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; say which with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv --clear $* 2>/dev/null || { $(PYTHON) -m venv --clear --without-pip $* && \
		$(PYTHON) -m pip --python $*/bin/python install --quiet pip; }
	$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

%/.has-demo: %/.has-pip pyproject.toml
	$*/bin/python -m pip install --quiet --editable '.[$(DEMO_EXTRAS)]'
	@touch $@

%/.has-test: %/.has-pip pyproject.toml
	$*/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group test
	@touch $@

%/.has-check: %/.has-pip pyproject.toml
	$*/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group check
	@touch $@

%/.has-bench: %/.has-pip pyproject.toml
	$*/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group bench
	@touch $@

.PRECIOUS: %/.has-pip %/.has-demo %/.has-test %/.has-check %/.has-bench
