# Two commands matter: `make train` and `make test`. Everything lives in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# cpu or cuda: which build of fbgemm-gpu goes with torch (docs/install.md).
DEVICE ?= cpu
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup setup-test data train test test-slow lint docs

setup: .venv/.setup-$(DEVICE)
setup-test: .venv/.setup-test

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.setup-$(DEVICE): requirements/lock.txt requirements/$(DEVICE).txt pyproject.toml | .venv/bin/python
	$(PIP) -r requirements/lock.txt
	$(PIP) --no-deps -r requirements/$(DEVICE).txt
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

.venv/.setup-test: requirements/test.txt requirements/tune.txt requirements/serve.txt .venv/.setup-$(DEVICE)
	$(PIP) -r requirements/test.txt
	touch $@

data: setup
	$(BIN)/python data/ecommerce/prepare.py

train: data
	$(BIN)/python train.py --config ecommerce.yaml

test: setup-test
	$(BIN)/python -m pytest -m "not slow" -n 2

test-slow: setup-test
	$(BIN)/python -m pytest -m slow

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Pages that are generated from the code.
docs: setup
	$(BIN)/python -m edorec.config_docs
