# Everything from a fresh clone in one command each. `make test` is what CI runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install demo test lint types unit format reference bench bench-product experiment table1 clean

help:
	@echo "make demo     fit, compare, recommend and explain on data that comes with the package"
	@echo "make test     virtual environment, lint, types and tests"
	@echo "make bench    time and peak memory of the fits in the README (about ten minutes; GROUPS=dense for the dense one)"
	@echo "make bench-product  time and memory of reading, recommending and answering"
	@echo "make experiment DATA=folder NAME=mtg-players  the paper's tables on real data, into experiments/results"
	@echo "make table1 DATA=folder NAME=mtg-players  every model of the paper's Table 1 on real data"
	@echo "make format   rewrite the code in the project's format"
	@echo "make reference  docs/cli.md from the help texts"
	@echo "make clean    remove what the other commands made"

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt

# The demo needs the package and its dependencies; everything else the development tools too.
install: $(VENV)/dev

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/base: pyproject.toml tests/constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/dev: pyproject.toml tests/constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable ".[dev]"
	touch $(VENV)/base $@

demo: $(VENV)/base
	$(BIN)/mrfrec demo

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	$(BIN)/pytest -q

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: install
	$(BIN)/python tools/cli_reference.py

bench: install
	$(BIN)/python -m benchmarks.bench $(GROUPS)

bench-product: install
	$(BIN)/python -m benchmarks.product $(GROUPS)

experiment: install
	$(BIN)/python -m experiments.run $(DATA) $(NAME)

table1: install
	$(BIN)/python -m experiments.table1 $(DATA) $(NAME)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis benchmarks/cache experiments/cache debian.mrf
	find . -name __pycache__ -prune -exec rm -rf {} +
