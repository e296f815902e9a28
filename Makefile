# `make demo` and `make test` work on a fresh clone with only Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
QUICK := tests/ir tests/lowering tests/propagation tests/reported tests/test_api.py \
	tests/test_bad_input.py tests/test_effects.py tests/test_layers.py tests/test_manual_regions.py \
	tests/test_microbatch.py tests/test_properties.py tests/test_structures.py tests/test_trace.py

.PHONY: help demo test test-long quick lint types unit install-demo install-test clean

help:
	@echo "make demo   set up $(VENV) and train a small transformer, partitioned and not"
	@echo "make test   set up $(VENV), then ruff, mypy and pytest"
	@echo "PYTHON=python3.12 make test   the same with another Python"
	@echo "make quick  lint, types and a subset of the tests"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

# Python compiles what is imported; pip would compile all of it, which takes half a minute.
$(VENV)/.demo: $(BIN)/python pyproject.toml setup.cfg
	$(BIN)/python -m pip install -q --no-compile -e '.[demo]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml setup.cfg
	$(BIN)/python -m pip install -q --no-compile -e '.[test]'
	@touch $@

install-demo: $(VENV)/.demo
install-test: $(VENV)/.test

demo: install-demo
	$(BIN)/python -m experiments.transformer

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install-test
	$(BIN)/mypy

unit: install-test
	NPROC=16 JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint types unit

# Lint, types and the tests that another version of jax is most likely to break: reading programs,
# rules, lowering, calls. A few minutes: CI runs it with the newest Python and jax.
quick: lint types
	NPROC=16 JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n 2 --dist worksteal $(QUICK)

# What `make test` leaves out as well: more models, train steps and plans of the same kinds (an hour).
test-long: install-test
	NPROC=16 JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n 2 --dist worksteal --long --plans=1

clean:
	rm -rf $(VENV) .venv-newest build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
