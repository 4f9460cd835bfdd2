# Everything sets itself up: `make demo` and `make test` work in a fresh clone with Python 3.11 or newer.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
ARGS ?=
WORKERS ?= 2  # processes that run tests side by side, a thread of computing each

.PHONY: help setup demo test test-slow lint format bench docs clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP)  ## a .venv with the locked dependencies

$(STAMP): requirements.lock requirements-demo.lock requirements-lm-eval.lock pyproject.toml
	@python=""; \
	for name in python3.13 python3.12 python3.11 python3 python; do \
	  if "$$name" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python="$$name"; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "paretune needs Python 3.11 or newer, and none is on the PATH." >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ]; then echo "Making $(VENV) with $$("$$python" --version)"; "$$python" -m venv $(VENV); fi
	@echo "Installing the locked dependencies into $(VENV) (minutes, once)"
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-demo.lock -r requirements-lm-eval.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP)  ## the whole loop on the embedded model; ARGS=--fast for a look
	$(BIN)/paretune demo $(ARGS)

test: $(STAMP)  ## the tests that take seconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile $(ARGS)

test-slow: $(STAMP)  ## those that train or load a real model
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

format: $(STAMP)  ## let ruff put the code in form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## what a training step costs here, against TRL's; ARGS="--json --dtype float32"
	$(BIN)/python benchmarks/training_step.py $(ARGS)

docs: $(STAMP)  ## write docs/cli.md anew from --help
	$(BIN)/python docs/make_cli.py

clean:  ## remove what tools left, but no runs and no .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests docs -name __pycache__ -prune -exec rm -rf {} +
