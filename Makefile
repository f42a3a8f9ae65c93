# Every target sets up what it needs: a bare clone with Python 3.11 is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO := runs/demo

.PHONY: demo test test-slow fuzz bench lint docs clean

# torch is installed by its pinned version first: with it in place nothing later asks for another build.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(PIP) -e ".[test]"
	touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP) -e ".[lint]"
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) -e ".[docs]"
	touch $@

demo: $(VENV)/.installed
	rm -rf $(DEMO)
	$(BIN)/normae train toy-quick -o $(DEMO)
	$(BIN)/normae evaluate $(DEMO)
	$(BIN)/normae report $(DEMO)

# One process for each of two cores; every test takes one thread.
test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# Property tests at examples that nobody has seen: may find what `make test`, always at the same ones, does not.
fuzz: $(VENV)/.test
	EXAMPLES=new $(BIN)/python -m pytest -n 2 --dist worksteal -m hypothesis

bench: $(VENV)/.test
	$(BIN)/normae bench -o runs/bench

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build
