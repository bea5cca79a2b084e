# Needs GNU make and Python 3.11 or newer, nothing else. `make PYTHON=python3.12 venv` chooses another one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests that break servers on purpose stay out of the everyday run.
TEST_WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))

# The versions of Python that `make pythons` looks for, and what it makes on each.
PYTHONS ?= 3.11 3.12 3.13 3.14
PYTHONS_RUN ?= test demo

# A caller's own virtual environment or search path must not reach into ours.
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV
# Thousands of processes import the same modules: compiled once, not by each.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help venv demo test check mypy pyright chaos mutants redis-versions postgres-versions pythons bench bench-peers format dist constraints clean

help:
	@echo "make venv         a virtual environment in $(VENV) with everything installed"
	@echo "make demo         the demo on a private Postgres"
	@echo "make test         all tests but those marked chaos"
	@echo "make check        format, lint, types, import contracts, architecture"
	@echo "make chaos        the long tests: of broken processes, servers and networks, of a million rows, of more variants"
	@echo "make mutants      mutations that break promises: each must fail an everyday test"
	@echo "make redis-versions  the tests of the Redis plugin on Redis 6.2 and 7.0"
	@echo "make postgres-versions  the tests on Postgres 15 and 18"
	@echo "make pythons      the tests and the demo on Python 3.11 to 3.14, as far as they are installed"
	@echo "make bench        the benchmarks"
	@echo "make bench-peers  other job queues, each apart, for the benchmarks to measure beside ours"
	@echo "make format       rewrite the code in the house format"
	@echo "make dist         wheel and sdist in dist/"
	@echo "make constraints  pin what is installed now in constraints.txt"
	@echo "make clean        remove what the others made"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("chancy needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 venv")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,bench,dev]'
	@touch $@

demo: venv
	$(BIN)/chancy demo

test: venv
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -m 'not chaos'

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory -j2 mypy pyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/architecture

# Beside each other: a quarter of the time of one after the other is saved on two processors.
mypy: venv
	$(BIN)/mypy

pyright: venv
	$(BIN)/pyright --threads $$(getconf _NPROCESSORS_ONLN)

chaos: venv
	$(BIN)/python -m pytest -m chaos

mutants: venv
	$(BIN)/python -u -m tests.support.mutants

redis-versions: venv
	$(BIN)/python -m tests.support.versions redis -- -n $(TEST_WORKERS) -m 'not chaos' tests/plugins/redis

postgres-versions: venv
	$(BIN)/python -m tests.support.versions postgres -- -n $(TEST_WORKERS) -m 'not chaos'

# Each has a virtual environment of its own. A version may be on the path or one of pyenv's.
pythons:
	@failed=; for version in $(PYTHONS); do \
	  found=; for python in $$(command -v python$$version) $$HOME/.pyenv/versions/$$version.*/bin/python; do \
	    if $$python -c 'import venv' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo "== Python $$version was not found"; continue; fi; \
	  echo "== $$found"; \
	  $(MAKE) --no-print-directory PYTHON=$$found VENV=.venvs/$$version $(PYTHONS_RUN) || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed on$$failed"; exit 1; fi

bench: venv
	$(BIN)/python -m benchmarks.run

bench-peers: venv
	$(BIN)/python -m benchmarks.peers.installation

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: venv
	rm -rf dist
	$(BIN)/python -m build

constraints: venv
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venvs benchmarks/.peers build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
