# Needs GNU make and Python 3.11 or newer, nothing else. `make PYTHON=python3.12 venv` chooses another one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PUBLISHING := $(VENV)/.publishing
# Each waits for nearly half of its time: for a server, a process or a timeout.
TEST_WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))

# The versions of Python that `make pythons` looks for, and what it makes on each.
PYTHONS ?= 3.11 3.12 3.13 3.14
PYTHONS_RUN ?= test demo

# A caller's own virtual environment or search path must not reach into ours.
unexport PYTHONHOME PYTHONPATH VIRTUAL_ENV
# Thousands of processes import the same modules: compiled once, not by each.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help venv demo test browser pictures collected check lint mypy pyright imports architecture chaos cluster-libraries clusters soak mutants redis-versions postgres-versions pythons bench bench-peers bench-publish docs docs-serve docs-deploy format dist release-check changelog constraints clean

help:
	@echo "make venv         a virtual environment in $(VENV) with what development needs"
	@echo "make demo         the demo on a private Postgres"
	@echo "make test         all tests but those marked chaos"
	@echo "make pictures     a picture of each page of the dashboard in pictures/, to look at"
	@echo "make check        format, lint, types, import contracts, architecture"
	@echo "make chaos        the long tests: of broken processes, servers and networks, of a million rows, of more variants"
	@echo "make clusters     the tests of executors on clusters of Dask and Ray"
	@echo "make soak HOURS=2  a load with a fault every half minute; a plot of what grows"
	@echo "make mutants      mutations that break promises: each must fail an everyday test"
	@echo "make redis-versions  the tests of the Redis plugin on Redis 6.2 and 7.0"
	@echo "make postgres-versions  the tests on Postgres 15 and 18"
	@echo "make pythons      the tests and the demo on Python 3.11 to 3.14, as far as they are installed"
	@echo "make bench        the benchmarks"
	@echo "make bench-publish  the benchmarks with all peers, and their figures and plots into the pages"
	@echo "make bench-peers  other job queues, each apart, for the benchmarks to measure beside ours"
	@echo "make docs         the documentation as a site, in site/"
	@echo "make docs-serve   the same on http://127.0.0.1:8000, built anew with each change"
	@echo "make format       rewrite the code in the house format"
	@echo "make dist         wheel and sdist in dist/"
	@echo "make release-check  the archives: contents, metadata, versions, and the wheel in a clean environment"
	@echo "make changelog    the files in changes/ as a section of CHANGELOG.md, before a release"
	@echo "make constraints  pin what is installed now in constraints.txt"
	@echo "make clean        remove what the others made"

venv: $(STAMP)

# pip would compile on one processor: 15 s. What cannot be compiled, such as a template, is no error.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("chancy needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 venv")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[embedded,bench,dev]'
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true
	@touch $@

# What the site and releases take, and no test.
$(PUBLISHING): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,release]'
	@touch $@

demo: venv
	$(BIN)/chancy demo

test: venv browser
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -m 'not chaos' $(TEST_OPTIONS)

# Fetched once, for the tests of pages.
browser: venv
	$(BIN)/python -m tests.support.chromium

# DOCS=docs/images also writes those of the documentation.
pictures: venv browser
	$(BIN)/python -m tests.plugins.dashboard.pictures --into pictures $(if $(DOCS),--docs $(DOCS))

# Compiles the tests once, which else each process of `make test` does: 14 s of CPU time against 6.
# So too the characters that Hypothesis draws from: 2.8 s against 0.4.
collected: venv
	$(BIN)/python -m pytest -q --collect-only >/dev/null
	$(BIN)/python -c 'from hypothesis import strategies; strategies.text().validate()'

# Pyright takes longer than all others together: they run beside it, on a second processor.
check: venv
	$(MAKE) --no-print-directory -j2 pyright lint mypy imports architecture

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

mypy: venv
	$(BIN)/mypy

# In one thread: it takes 62 s of CPU time, in two 94 s.
pyright: venv
	$(BIN)/pyright

imports: venv
	$(BIN)/lint-imports --no-cache

architecture: venv
	$(BIN)/python -m pytest -q tests/architecture

# In more processes than processors, as most of them wait for something; then those that need the
# machine for themselves.
CHAOS_WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
chaos: cluster-libraries browser
	@failed=; \
	$(BIN)/python -m pytest -n $(CHAOS_WORKERS) --dist loadgroup -m 'chaos and not alone' $(TEST_OPTIONS) || failed=1; \
	$(BIN)/python -m pytest -m 'chaos and alone' $(TEST_OPTIONS) || failed=1; \
	test -z "$$failed"

# Leaves soak/soak.json and soak/soak.svg. RATE=500 jobs a second.
soak: venv
	CHANCY_SOAK_HOURS=$(or $(HOURS),2) CHANCY_SOAK_RATE=$(or $(RATE),500) CHANCY_SOAK_INTO=soak \
	  $(BIN)/python -m pytest -o log_cli=true -o log_cli_level=WARNING tests/faults/test_soak.py

# Dask and Ray, which are large.
cluster-libraries: venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dask,ray]"

clusters: cluster-libraries
	$(BIN)/python -m pytest -m chaos -k "dask or ray or adapts" tests/contract/executor tests/faults/test_clusters.py

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

# What is measured in three rounds, some 50 minutes, and what in one, some 75.
BENCH := limit,clients,push,drain,latency,end_to_end,held,priorities,executors,claims,observability,workflows,workloads
BENCH_LONG := limit,sustained,beside,dashboard,fleet,limits,steady

# On a clean tree, whose commit the pages name; a peer that cannot be installed has a row that says so.
bench-publish: venv
	@test -z "$$(git status --porcelain)" || { echo "commit your changes first"; exit 1; }
	-$(BIN)/python -m benchmarks.peers.installation
	mkdir -p build
	$(BIN)/python -m benchmarks.run --full --cases $(BENCH) --json build/bench.json
	$(BIN)/python -m benchmarks.run --full --repeat 1 --cases $(BENCH_LONG) --json build/long.json
	$(BIN)/python -m benchmarks.peers.current build/bench.json
	$(BIN)/python -m benchmarks.plots build/bench.json --into docs/images
	$(BIN)/python -m benchmarks.pages build/bench.json build/long.json

# Without a warning, or it fails. The variable silences a notice of the theme about another program.
docs: $(PUBLISHING)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# VERSION=1.2.0 ALIAS=latest: commits the site of a version to the branch gh-pages, and pushes it.
docs-deploy: docs
	git config user.name >/dev/null || git config user.name "$${GITHUB_ACTOR:-chancy}"
	git config user.email >/dev/null || git config user.email "$${GITHUB_ACTOR:-chancy}@users.noreply.github.com"
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mike deploy --push --update-aliases $(VERSION) $(ALIAS)
	$(if $(ALIAS),$(BIN)/mike set-default --push $(ALIAS))

docs-serve: $(PUBLISHING)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: $(PUBLISHING)
	rm -rf dist
	$(BIN)/python -m build

# TAG=v1.2.0 also compares the tag; OUT=dist keeps the archives.
release-check: docs
	$(BIN)/python -m tests.support.release $(if $(TAG),--tag $(TAG)) $(if $(OUT),--out $(OUT))

# Moves the files in changes/ to a section of the version in CHANGELOG.md.
changelog: $(PUBLISHING)
	$(BIN)/towncrier build --yes --version "$$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')"

constraints: $(PUBLISHING)
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt
	@touch $(STAMP) $(PUBLISHING)

clean:
	rm -rf $(VENV) .venvs benchmarks/.peers build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
