# Everything happens in .venv, made from requirements.lock by uv where there is one, else by pip. Needs Python 3.11+.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

export UV_PYTHON_DOWNLOADS := never
export UV_COMPILE_BYTECODE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where a shell forbids compiled files, each of the thousand processes of the tests would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test chaos lint audit mutate bench bench-full bench-scale bench-scale-full bench-pages bench-lock format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.ready ## See tasks flow, retry and finish on an embedded Postgres (15 s)
	@$(BIN)/aaiclick-queue demo

test: lint ## Everything: lint, then all tests, three files at a time
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

chaos: $(VENV)/.ready ## Faults against a working fleet for an hour: CHAOS_SECONDS, CHAOS_SEED, CHAOS_FAULTS
	$(BIN)/python -m tests.chaos

lint: $(VENV)/.ready ## Format, lint, types and import layers, nothing is changed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# AUDIT=--strict: what could not be checked is a failure too.
audit: $(VENV)/.ready ## Lock files, licences, and known vulnerabilities where a service answers
	$(BIN)/python -m tests.project.audit $(AUDIT)

mutate: $(VENV)/.ready ## Plant known faults into the flow, and name the test that catches each
	$(BIN)/pytest tests/mutations -s

# BENCH='--peers none --only drain': whatever `python -m tests.bench --help` and `python -m tests.bench.scale --help` tell.
bench: $(VENV)/.ready ## Figures of this machine, for this product and ten peers (about 20 minutes)
	$(BIN)/python -m tests.bench $(BENCH)

bench-full: $(VENV)/.ready ## The same with five times the tasks and three rounds (about two hours)
	$(BIN)/python -m tests.bench --full $(BENCH)

bench-scale: $(VENV)/.ready ## How cost grows with backlog, history, distance, time; not to 10⁷ tasks or 20 minutes (takes about 10)
	$(BIN)/python -m tests.bench.scale $(BENCH)

bench-scale-full: $(VENV)/.ready ## The same with 10⁷ waiting and finished, a snapshot of 10 minutes, a soak of 20 (about two hours)
	$(BIN)/python -m tests.bench.scale --full $(BENCH)

format: $(VENV)/.ready ## Format and mend what can be mended
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Hashes and no addresses: the same file installs from any index, by pip and by uv.
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
    --custom-compile-command "make lock"

lock: ## Choose the versions of requirements.lock anew, and the image's parts of it (needs uv)
	$(COMPILE) --upgrade --all-extras --group dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --constraints requirements.lock --extra psycopg --output-file workers/run.lock pyproject.toml
	$(COMPILE) --constraints requirements.lock --group build --output-file workers/build.lock

bench-pages: $(VENV)/.ready ## What each page of the dashboard takes with five million tasks (about 5 minutes; BENCH='--tasks 100000')
	$(BIN)/python -m tests.bench.pages $(BENCH)

bench-lock: $(VENV)/.ready ## Choose the versions of the benchmark's peers anew, below what tests/bench/peers.py pins (needs uv)
	$(BIN)/python -m tests.bench.venvs

clean: ## Remove what the other commands made
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@rm -rf $(VENV); set -e; \
	for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11 none; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; \
	done; \
	if [ $$python = none ]; then echo "Python 3.11 or newer is needed: install it, or say where: make PYTHON=/path/to/python3"; exit 1; fi; \
	echo "1/3 making $(VENV) with $$($$python --version)"; \
	if uv --version >/dev/null 2>&1; then uv venv --quiet --python "$$($$python -c 'import sys; print(sys.executable)')" $(VENV); \
	else $$python -m venv $(VENV) || { echo "Python's venv is missing: install it (Debian: apt-get install python3-venv), or install uv"; rm -rf $(VENV); exit 1; }; fi
	@touch $@

$(VENV)/.locked: requirements.lock | $(VENV)/.made
	@echo "2/3 installing the packages of requirements.lock"
	@if uv --version >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock; \
	else $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock; fi
	@touch $@

$(VENV)/.ready: $(VENV)/.locked pyproject.toml
	@echo "3/3 installing aaiclick-queue itself"
	@if uv --version >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .; fi
	@touch $@
