# Every target sets up what it needs: a bare clone with Python 3.11 is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Byte code is written for what is imported, when it is: far less than all that is installed. Where an environment
# forbids that, every process of a test would compile what it imports again.
export PYTHONDONTWRITEBYTECODE =
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
DEMO := runs/demo

.PHONY: setup demo test test-slow test-gpu mutants wheel-test dist fuzz soak bench lint docs clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

# What tests and lint need, in one call: versions are chosen and the package is built once.
$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[lint,test]"
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	touch $@

setup: $(VENV)/.test

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

# For whoever has a card: the kernels themselves, which `make test` sees in emulation only, and what is only for a card.
test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow" tests/networks/test_conv_cuda.py tests/networks/test_mlp_chain.py
	$(BIN)/python -m pytest -m gpu tests/runs tests/training

# Break the package on purpose, line by line: a fast test must notice each of the changes in tests/mutants/mutants.toml.
mutants: $(VENV)/.test
	$(BIN)/python tests/mutants/run.py

# The rooms that lean on other packages, with the lowest versions of these (torch 2.6: some gigabytes), or with another
# Python and the newest: `make lowest PYTHON=python3.13 VERSIONS=/dev/null`.
VERSIONS := lowest.txt
EDGES := tests/data tests/coordinates/test_coordinates.py tests/statistics tests/report tests/estimator/test_estimator.py \
	tests/cli/test_boundary.py tests/scoring/test_names.py tests/runs/test_run.py tests/runs/test_fuzzed_folders.py \
	tests/export/test_onnx.py tests/search tests/scoring/test_cluster.py tests/estimator/test_pyod.py
lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --no-compile -c $(VERSIONS) \
		-e ".[blosc,cluster,export,pyod,root,search,trigger]" pytest hypothesis pandas polars
	.venv-lowest/bin/python -m pytest -o filterwarnings=default $(EDGES)

# Property tests at examples that nobody has seen: may find what `make test`, always at the same ones, does not.
fuzz: $(VENV)/.test
	EXAMPLES=new $(BIN)/python -m pytest -n 2 --dist worksteal -m hypothesis

# Thirty minutes of random commands, kills and corruptions on one tree. `bench/soak.py --kills 200` kills every command.
soak: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python bench/soak.py --minutes 30

bench: $(VENV)/.test
	$(BIN)/normae bench -o runs/bench --force

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Source archive and wheel in dist/.
dist: | $(BIN)/python
	rm -rf dist
	$(PIP) build
	$(BIN)/python -m build --outdir dist .

# The wheel in bare environments: import, zoo, a training, and every extra by itself.
wheel-test: dist
	$(PYTHON) .ci/wheel.py dist/*.whl

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W -b html docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build
