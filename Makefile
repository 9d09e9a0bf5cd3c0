# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# On a bare Debian, as root: what is missing there comes from its packages. Debian has Python's venv in one of its own.
APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq
# What the embedded model's wheel leaves to the system: GNU's OpenMP.
OPENMP := "import ctypes; ctypes.CDLL('libgomp.so.1')"

.PHONY: setup run test test-general lint docs native pure conformance conformance-lock ratchet bench bench-steps mutation faces ledger faults reference soak soak-starts lock clean compare compare-lock audit audit-lock

run: setup
	$(BIN)/svc up

setup: $(VENV)/.ready native

native: $(VENV)/.ready ## the hot path as extension modules, where there is a C compiler
	@$(BIN)/python native/compile.py || echo "compiling failed: the gateway runs from source, at about half its speed"

pure: $(VENV)/.ready ## back to the plain source
	@$(BIN)/python native/compile.py clean

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "svc needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(APT) python3-venv && $(PYTHON) -m venv $(VENV); } \
		|| { rm -rf $(VENV); echo "Python's venv is missing; install it, for example with: apt-get install python3-venv"; exit 1; }
	@echo "setting up in $(VENV); this takes a minute the first time"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.lock
	@# An environment from before the distribution was named svc-gateway: two of them would own bin/svc.
	@$(BIN)/pip uninstall --quiet --yes svc 2>/dev/null || true
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c $(OPENMP) 2>/dev/null || { $(APT) libgomp1 && $(BIN)/python -c $(OPENMP); } \
		|| echo "the embedded model will not start: libgomp is missing; install it, for example with: apt-get install libgomp1"
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock
	@command -v curl >/dev/null || { $(APT) curl; } || echo "a test pastes a line of curl's; install it, for example with: apt-get install curl"
	@touch $@

# Unlike `native`: where there is a compiler the hot path has to compile.
test: $(VENV)/.dev lint
	@$(BIN)/python native/compile.py
	$(BIN)/python -m pytest -n 3  # on two cores: they wait for half of their time

test-general: $(VENV)/.dev ## the tests with every fast path turned off
	SVC_FASTPATH=0 $(BIN)/python -m pytest -n 3

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.documentation.prose
	$(MKDOCS) --quiet --site-dir .cache/site

# The theme announces its successor at every build; docs/adr/0001-documentation-site.md has the date.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
docs: $(VENV)/.dev ## the documentation site, in site/
	$(MKDOCS)

mutation: $(VENV)/.dev ## 500 mutants of the modules without I/O: at least 85 % have to be killed by the tests that cover them
	$(BIN)/python -m tests.mutation

lock: ## needs uv; writes hashes and no addresses
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --extra local --extra speech --extra voice --group build -o requirements.lock pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --extra local --extra s3 --extra signing --extra speech --extra voice --extra whisper --extra onnx --extra ray --extra postgres --group build --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

AUDIT      := .audit
AUDIT_LOCK := tests/audit/pip-audit
audit: $(VENV)/.dev $(AUDIT)/.ready ## known vulnerabilities of what is locked; fails, too, where the advisory data cannot be reached
	@$(BIN)/python -m tests.audit $(AUDIT)/bin/pip-audit

$(AUDIT)/.ready: $(AUDIT_LOCK).lock
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	@touch $@

audit-lock: ## needs uv; writes hashes and no addresses
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url -o $(AUDIT_LOCK).lock $(AUDIT_LOCK).in

clean:
	rm -rf $(VENV) $(AUDIT)

bench: setup ## CPU of each step of a request and of each dialect
	$(BIN)/python -m bench.steps
	$(BIN)/python -m bench.dialects

bench-steps: setup ## what each step of the hot path costs
	$(BIN)/python -m bench.steps

faces: $(VENV)/.dev ## the SDK for programs that wait, out of the one for event loops
	$(BIN)/python -m tests.unit.client.generate_client

ledger: $(VENV)/.dev ## generates entry, record, sums, schema and page from the table of ledger fields
	$(BIN)/python -m tests.unit.gateway.accounting.generate_ledger

faults: $(VENV)/.dev ## writes docs/reference/faults.md from the catalogue of faults
	$(BIN)/python -m tests.faults.page

reference: $(VENV)/.dev ## writes the generated tables of docs/reference/
	$(BIN)/python -m tests.documentation.reference

ratchet: setup ## bench/ratchet.json: calls and instructions for each request and piece, modules, memory; the tests hold the gateway to it
	$(BIN)/python -m bench.ratchet

COMPARE       := .compare
COMPARE_LOCKS := bench/compare/locks
compare: setup $(COMPARE)/.ready ## writes docs/explanation/compare.md: nginx, LiteLLM, Portkey and this gateway on the same work
	$(BIN)/python -m bench.compare --write

$(COMPARE)/.ready: $(COMPARE_LOCKS)/litellm.lock $(COMPARE_LOCKS)/package-lock.json
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || echo "without nginx there is nothing to compare with: apt-get install nginx-light"
	$(PYTHON) -m venv $(COMPARE)/litellm && $(COMPARE)/litellm/bin/pip install --quiet --disable-pip-version-check \
		--require-hashes --only-binary :all: -r $(COMPARE_LOCKS)/litellm.lock
	mkdir -p $(COMPARE)/node && cp $(COMPARE_LOCKS)/package.json $(COMPARE_LOCKS)/package-lock.json $(COMPARE)/node/
	if command -v npm >/dev/null; then cd $(COMPARE)/node && npm ci --ignore-scripts --no-audit --no-fund; fi
	@touch $@

compare-lock: ## needs uv and npm
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
		-o $(COMPARE_LOCKS)/litellm.lock $(COMPARE_LOCKS)/litellm.in
	cd $(COMPARE_LOCKS) && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund

CONFORMANCE := .conformance
LOCKS       := tests/conformance/locks
conformance: $(VENV)/.dev $(CONFORMANCE)/.ready ## runs client libraries of other projects and writes docs/reference/conformance.md
	$(BIN)/python -m tests.conformance

$(CONFORMANCE)/.ready: $(wildcard $(LOCKS)/*.lock) $(LOCKS)/package-lock.json
	for name in clients llamaindex; do \
		$(PYTHON) -m venv $(CONFORMANCE)/$$name && $(CONFORMANCE)/$$name/bin/pip install --quiet --disable-pip-version-check \
			--require-hashes --only-binary :all: -r $(LOCKS)/$$name.lock || exit 1; done
	mkdir -p $(CONFORMANCE)/node && cp $(LOCKS)/package.json $(LOCKS)/package-lock.json $(CONFORMANCE)/node/
	if command -v npm >/dev/null; then cd $(CONFORMANCE)/node && npm ci --ignore-scripts --no-audit --no-fund; fi
	@touch $@

conformance-lock: ## needs uv and npm; writes hashes and no addresses
	for name in clients llamaindex; do uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras \
		--no-header --no-emit-index-url -o $(LOCKS)/$$name.lock $(LOCKS)/$$name.in || exit 1; done
	cd $(LOCKS) && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund

soak: $(VENV)/.dev ## ten minutes at 300 requests a second, one in twenty to a provider that fails
	$(BIN)/python -m tests.soak

soak-starts: $(VENV)/.dev ## 100 supervisors die at random moments of their start, under load: no answer may be missing in the ledger
	$(BIN)/python -m tests.soak.starts --deaths 100
