# One door: `make demo` to see it work, `make test` to know that it does. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
WANTED := $(shell $(PYTHON) -c '$(VERSION)')
# Each lock that is installed in .venv leaves a stamp there, one for each version of Python.
DEV := .venv/.dev-$(WANTED)
LOCAL := $(or $(wildcard $(DEV)),.venv/.local-$(WANTED))
# A venv without a pip of its own is made four seconds sooner.
HAS_PIP = $(shell $(PYTHON) -m pip --version >/dev/null 2>&1 && echo yes)
PIP = $(if $(HAS_PIP),$(PYTHON) -m pip --python $(BIN)/python,$(BIN)/python -m pip) install --quiet --disable-pip-version-check
# uv installs in a sixth of pip's time. It knows nothing of pip's settings: where it finds no index, pip does it.
UV := UV_SYSTEM_CERTS=1 $(BIN)/python -m uv pip install --quiet --python $(BIN)/python
OURSELVES := --no-deps --no-build-isolation --editable .
COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q

ROOMY := $(shell test -w /dev/shm && test "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 2000000 && echo yes)

# Tests of the scripts and of what RQ finds in Redis.
ON_SERVERS := $(addprefix tests/integration/,store worker/queue worker/attempt)

.PHONY: help demo up test lint types suite model soak servers bench browser debian reference lock release audit clean
.DEFAULT_GOAL := help

help: ## list the targets; PYTHON=python3.12 chooses another Python
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.venv/.%-$(WANTED): deploy/requirements-%.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("credhook needs Python 3.11 or newer, this is %s: run make PYTHON=python3.11" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "installing $< into .venv"
	@test "$$($(BIN)/python -c '$(VERSION)' 2>/dev/null)" = $(WANTED) || $(PYTHON) -m venv $(if $(HAS_PIP),--without-pip) --clear .venv
	@sed -n '/^uv==/,/[^\\]$$/p' $< | $(PIP) --require-hashes -r /dev/stdin
	@$(UV) --require-hashes -r $< 2>/dev/null || $(PIP) --require-hashes -r $<
	@$(UV) $(OURSELVES) 2>/dev/null || $(PIP) $(OURSELVES)
	@touch $@

demo: $(LOCAL) ## run every part on this machine, one event of each type, and show what became of it
	@$(BIN)/credhook demo

up: $(LOCAL) ## the same parts around your handlers, until Ctrl-C: credhook dev
	@$(BIN)/credhook dev

# mypy has one core, and the tests begin on the other.
test: lint ## all that must hold before a change lands
	@$(MAKE) --no-print-directory --jobs 2 types suite

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(DEV)
	@$(BIN)/mypy

# In memory where there are two gigabytes of it: every write of the tests' Redis is fsynced, a seventh of the time.
# More processes than cores, for many tests wait. Each more of them reads all tests, for five seconds of a core.
suite: $(DEV)
	@folder=$$(mktemp -d $(if $(ROOMY),/dev/shm,$${TMPDIR:-/tmp})/credhook.XXXXXX); \
	TMPDIR=$$folder $(BIN)/pytest --numprocesses 5 --dist worksteal -m "not soak" && rm -rf "$$folder" \
	|| { echo "what the tests have left is in $$folder"; exit 1; }

model: $(DEV) ## look for histories that break the store's promises, on all cores, until stopped
	@PYTHONPATH=tests $(BIN)/python -m model.explore

soak: $(DEV) ## the long forms: thousands of deliveries, hundreds of kills; prints the counts; then `servers`
	@$(BIN)/pytest -m soak -s
	@$(MAKE) --no-print-directory servers

servers: $(DEV) ## the tests that depend on Redis's version, with the server in each folder of SERVERS="FOLDER ..."
	@for folder in $(SERVERS); do \
		ls -d $$folder/*-server && PATH=$$folder:$$PATH $(BIN)/pytest -q --numprocesses 2 -m "not soak" $(ON_SERVERS) || exit 1; \
	done

# ARGS goes to those that measure: --rounds, --small. One alone: PYTHONPATH=tests .venv/bin/python -m bench.work --help
bench: $(DEV) ## measure receiver and worker beside their peers (half an hour; says what is missing, wrk or Node)
	@PYTHONPATH=tests $(BIN)/python -m bench.ingest $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.work $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.growth $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.start $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.sizing
	@echo "python -m bench.report puts these figures and their plots into tests/bench/README.md"

browser: $(DEV) ## the console in a real browser, which Debian brings (as root); pictures of its pages and for README.md
	apt-get update -q && apt-get install -y -q --no-install-recommends chromium chromium-driver
	@CREDHOOK_BROWSER=1 CREDHOOK_PICTURES=dist/pictures $(BIN)/pytest tests/integration/console/test_browser.py
	@cp dist/pictures/console.png dist/pictures/dev.png deploy/pictures/
	@echo "pictures of all pages are in dist/pictures, the two of README.md in deploy/pictures"

debian: ## what some tests want from Debian: proxies, a browser, a load generator, a database, promtool (as root)
	apt-get update -q && apt-get install -y -q haproxy nginx-light caddy chromium chromium-driver wrk postgresql prometheus

reference: $(DEV) ## write worker/API.md anew from the docstrings
	@PYTHONPATH=tests $(BIN)/python -m support.project.api_reference > worker/API.md.new && mv worker/API.md.new worker/API.md

# All locks hold the versions of the largest one, with which the tests run.
lock: $(DEV) ## compile deploy/requirements*.txt anew from pyproject.toml
	@PATH=$(BIN):$$PATH $(COMPILE) pyproject.toml --all-extras --group dev -o deploy/requirements-dev.txt
	@PATH=$(BIN):$$PATH $(COMPILE) pyproject.toml --extra local --extra testing --group local -c deploy/requirements-dev.txt -o deploy/requirements-local.txt
	@PATH=$(BIN):$$PATH $(COMPILE) pyproject.toml --extra otel -c deploy/requirements-dev.txt -o deploy/requirements.txt
	@PATH=$(BIN):$$PATH $(COMPILE) tests/bench/programs/dramatiq_actors.in -o tests/bench/programs/dramatiq_actors.txt

release: $(DEV) ## build the commit into dist/ twice, install each archive alone and run it; locks, SBOM, checksums
	@PYTHONPATH=tests $(BIN)/python -m support.project.release

# --strict: where no service answers, pip-audit would say that nothing is known, and exit with 0.
audit: $(DEV) ## ask a vulnerability service about every locked package
	@UV_SYSTEM_CERTS=1 $(BIN)/python -m uv tool run --quiet pip-audit@2.10.1 --strict --disable-pip --require-hashes --requirement deploy/requirements-dev.txt

clean: ## remove what make has made
	rm -rf .venv .credhook .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
