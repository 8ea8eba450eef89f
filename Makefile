# Everything from a fresh clone in one command each. `make test` is what CI runs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The many processes of a run share the bytecode of what they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo docs test lint types kernels unit slow format reference constraints wheel bench bench-product clean

help:
	@echo "make demo           try the package on the Debian data set: fit, compare, recommend, explain"
	@echo "make test           lint, type-check and run the tests"
	@echo "make slow           run the tests that need floods, kills, fresh environments or minutes"
	@echo "make docs           build the documentation into site/"
	@echo "make format         format the code"
	@echo "make reference      regenerate docs/reference/cli.md from the help texts"
	@echo "make constraints    list the libraries of production with versions and hashes in constraints.txt"
	@echo "make wheel          build the archives of a release into dist/, and try them in an empty environment"
	@echo "make bench          time and peak memory of the fits in docs/explanation/performance.md (ten minutes; GROUPS=dense for the dense one)"
	@echo "make bench-product  time and memory of reading, recommending and answering"
	@echo "make clean          remove environments, caches and build results"

# uv installs in seconds what takes pip minutes. It does not read pip's configuration, which may point to a build of
# torch without CUDA, so pip installs that one; nothing is compiled to bytecode that is never imported.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python

# One process more than cores: tests of servers and databases often wait.
PROCESSES := $(shell $(PYTHON) -c "import os; print(min(os.cpu_count() + 1, 8))")
PYTEST := $(BIN)/pytest -q --numprocesses=$(PROCESSES) --dist=worksteal

# The demo needs the package, its dependencies and those of the service; everything else the development tools.
install: $(VENV)/dev

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv

$(VENV)/base: pyproject.toml | $(BIN)/uv
	$(UV) --editable ".[serve]"
	touch $@

# Everything but torch, which is unpacked meanwhile.
$(VENV)/tools: pyproject.toml lab/pyproject.toml | $(BIN)/uv
	$(UV) --editable ".[tools]" --editable "lab[dev]"
	touch $(VENV)/base $@

$(VENV)/torch: tests/constraints.txt | $(BIN)/uv
	$(PIP) --requirement $<
	touch $@

$(VENV)/dev: $(VENV)/tools $(VENV)/torch
	$(UV) --requirement tests/constraints.txt
	touch $@

demo: $(VENV)/base
	$(BIN)/mrfrec demo

docs: install
	$(BIN)/python tools/build_site.py

# All at once: compiling leaves a core idle, and torch and the type checker need one.
test:
	$(MAKE) --jobs=4 lint types unit

lint: $(VENV)/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Kernels are compiled once, for all processes that the tests run in.
kernels: $(VENV)/tools
	$(BIN)/mrfrec doctor --compile both

unit: install kernels
	$(PYTEST) -m "not slow"

# What needs floods, kills, fresh environments or minutes.
slow: install kernels
	$(PYTEST) -m slow

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reference: install
	$(BIN)/python tools/cli_reference.py

# What production installs, for this version of Python and this kind of machine; a list that exists keeps its versions.
EXTRAS := serve sql
FILE := constraints.txt
constraints: | $(BIN)/uv
	$(BIN)/uv pip compile --quiet --no-header --generate-hashes --python $(BIN)/python $(EXTRAS:%=--extra=%) \
		pyproject.toml --output-file $(FILE)

# The index refuses a description that it cannot show: twine says so before.
DIST := dist
wheel: $(VENV)/tools
	rm -rf $(DIST)
	$(BIN)/uv build --quiet --out-dir $(DIST)
	$(BIN)/twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz
	$(BIN)/python tools/try_wheel.py $(DIST)/*.whl

bench: install
	$(BIN)/python -m benchmarks.bench $(GROUPS)

bench-product: install
	$(BIN)/python -m benchmarks.product $(GROUPS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site dist benchmarks/cache lab/cache debian.mrf
	find . -name __pycache__ -prune -exec rm -rf {} +
