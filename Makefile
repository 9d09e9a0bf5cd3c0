# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: setup run test lint bench bench-steps faults lock clean

run: setup
	$(BIN)/svc up

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock
	@touch $@

test: $(VENV)/.dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: ## needs uv; writes hashes and no addresses
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --extra local --extra speech --group build -o requirements.lock pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --extra local --extra s3 --extra signing --extra speech --extra whisper --group build --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV)

bench-steps: setup ## what each step of the hot path costs
	$(BIN)/python bench/steps.py

faults: $(VENV)/.dev ## docs/faults.md, from the catalogue that the tests hold the gateway to
	$(BIN)/python -m tests.faults.page
