# Everything a person or a machine does with this repository. `make` lists it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Where neither gcc nor clang is, the ziglang wheel compiles.
COMPILER := $(shell command -v gcc >/dev/null 2>&1 || command -v clang >/dev/null 2>&1 || echo "[compiler]")
DEMO_STORE := sqlite:///demo.db

.DEFAULT_GOAL := help
.PHONY: help install demo test lint soak bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 12

install: .venv/installed  ## install kernelbraid into .venv

demo: install  ## search a faster attention kernel, two and a half minutes at most
	$(BIN)/kernelbraid --store $(DEMO_STORE) run attention --audits 18 --wall 140 --seed 0

test: lint  ## run every test that fits in ten minutes on two cores
	$(BIN)/python -m pytest -n 2 -m "not soak and not timing"
	$(BIN)/python -m pytest -m "timing and not soak"

lint: .venv/developing  ## check style, types, room boundaries and generated schemas
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m kernelbraid.events.schemas --check

soak: .venv/developing  ## run the long proofs, up to an hour
	$(BIN)/python -m pytest -m soak

bench: install  ## measure what the engine costs beside the audits
	$(BIN)/kernelbraid bench engine --iterations 1000 --json

clean:  ## remove what the targets above made
	rm -rf .venv build dist *.egg-info demo.db*

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt -e ".$(COMPILER)"
	touch $@

.venv/developing: .venv/installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@
