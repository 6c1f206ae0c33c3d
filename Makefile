# One door: `make demo` to see it work, `make test` to know that it does. `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
WANTED := $(shell $(PYTHON) -c '$(VERSION)')
# One for each version of Python, so that another PYTHON= makes the environment anew.
STAMP := .venv/.installed-$(WANTED)
# And one for the little that the demo needs, in the same environment.
DEMO := .venv/.demo-$(WANTED)
# And one for what builds a release and checks it.
RELEASE := .venv/.release-$(WANTED)
COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q
# uv installs in a sixth of pip's time. It knows nothing of pip's settings: where it finds no index, pip does it.
# pip of PYTHON installs uv, and uv pip: with a pip from venv, the environment takes five seconds longer.
PIP = $(if $(shell $(PYTHON) -c 'import pip' 2>/dev/null || echo none),$(BIN)/python -m pip,$(PYTHON) -m pip --python $(BIN)/python) install --quiet --disable-pip-version-check
UV := UV_SYSTEM_CERTS=1 $(BIN)/python -m uv pip install --quiet --python $(BIN)/python
OURSELVES := --no-deps --no-build-isolation --editable .
LOCK := $(COMPILE) pyproject.toml
LOCK_DEMO := $(LOCK) --extra local --extra testing --group demo --constraint deploy/requirements-dev.txt
LOCK_BUILD := $(COMPILE) --group build
LOCK_RELEASE := $(COMPILE) --group release --constraint deploy/requirements-dev.txt

ROOMY := $(shell test -w /dev/shm && test "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 2000000 && echo yes)

.PHONY: help demo up test lint types suite soak bench browser debian reference lock release audit clean
.DEFAULT_GOAL := help

help: ## list the targets; PYTHON=python3.12 chooses another Python
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# All stamps come from one recipe, which installs from the first prerequisite.
$(STAMP): deploy/requirements-dev.txt deploy/requirements-uv.txt pyproject.toml
$(DEMO): deploy/requirements-demo.txt deploy/requirements-uv.txt pyproject.toml
$(RELEASE): deploy/requirements-release.txt deploy/requirements-uv.txt pyproject.toml
$(STAMP) $(DEMO) $(RELEASE):
	@$(PYTHON) -c 'import sys; sys.exit("credhook needs Python 3.11 or newer, this is %s: run make PYTHON=python3.11" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@found=$$(test ! -e .venv || $(BIN)/python -c '$(VERSION)' 2>/dev/null || echo broken); \
	case "$$found" in \
	"") echo "installing into .venv (once)"; $(PYTHON) -m venv --without-pip .venv ;; \
	$(WANTED)) echo "upgrading in .venv; whatever else is installed there stays" ;; \
	*) echo "making .venv anew for Python $(WANTED), it was $$found; whatever else was installed there is gone"; \
	$(PYTHON) -m venv --without-pip --clear .venv ;; esac
	@$(PYTHON) -c 'import pip' 2>/dev/null || $(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip >/dev/null
	@$(PIP) --require-hashes -r deploy/requirements-uv.txt
	@$(UV) --require-hashes -r $< 2>/dev/null || $(PIP) --require-hashes -r $<
	@$(UV) $(OURSELVES) 2>/dev/null || $(PIP) $(OURSELVES)
	@touch $@

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO)) ## run every part on this machine, one event of each type, and show what became of it
	@$(BIN)/credhook demo

up: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO)) ## the same parts around your handlers, until Ctrl-C: credhook dev
	@$(BIN)/credhook dev

# mypy has one core, and the tests begin on the other.
test: lint ## all that must hold before a change lands
	@$(MAKE) --no-print-directory --jobs 2 types suite

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

# In memory where there are two gigabytes of it: every write of the tests' Redis is fsynced, a seventh of the time.
# More processes than cores, for many tests wait. Each more of them reads all tests, for five seconds of a core.
suite: $(STAMP)
	@folder=$$(mktemp -d $(if $(ROOMY),/dev/shm,$${TMPDIR:-/tmp})/credhook.XXXXXX); \
	TMPDIR=$$folder $(BIN)/pytest --numprocesses 5 --dist worksteal -m "not soak" && rm -rf "$$folder" \
	|| { echo "what the tests have left is in $$folder"; exit 1; }

soak: $(STAMP) ## the long forms: thousands of deliveries, hundreds of kills; prints the counts
	@$(BIN)/pytest -m soak -s

# ARGS goes to each of the two that measure: --rounds, --small. One alone: PYTHONPATH=tests .venv/bin/python -m bench.work --help
bench: $(STAMP) ## measure receiver and worker beside their peers (half an hour; says what is missing, wrk or Node)
	@PYTHONPATH=tests $(BIN)/python -m bench.ingest $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.work $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m bench.sizing
	@echo "python -m bench.report puts these figures into tests/bench/README.md"

browser: $(STAMP) ## the pages of the console in a real browser, which Debian brings (as root)
	apt-get update -q && apt-get install -y -q --no-install-recommends chromium chromium-driver
	@CREDHOOK_BROWSER=1 $(BIN)/pytest tests/integration/console/test_browser.py

debian: ## what some tests want from Debian: proxies, a browser, a load generator, a database, promtool (as root)
	apt-get update -q && apt-get install -y -q haproxy nginx-light caddy chromium chromium-driver wrk postgresql prometheus

reference: $(STAMP) ## write worker/API.md anew from the docstrings
	@PYTHONPATH=tests $(BIN)/python -m support.project.api_reference > worker/API.md.new && mv worker/API.md.new worker/API.md

lock: $(STAMP) ## compile deploy/requirements*.txt anew from pyproject.toml
	@PATH=$(BIN):$$PATH $(LOCK) -o deploy/requirements.txt
	@PATH=$(BIN):$$PATH $(LOCK) --extra otel --constraint deploy/requirements.txt -o deploy/requirements-otel.txt
	@PATH=$(BIN):$$PATH $(LOCK) --all-extras --group dev -o deploy/requirements-dev.txt
	@PATH=$(BIN):$$PATH $(LOCK_DEMO) -o deploy/requirements-demo.txt
	@PATH=$(BIN):$$PATH $(LOCK_BUILD) -o deploy/requirements-build.txt
	@PATH=$(BIN):$$PATH $(LOCK_RELEASE) -o deploy/requirements-release.txt
	@echo uv | PATH=$(BIN):$$PATH $(COMPILE) - -o deploy/requirements-uv.txt
	@PATH=$(BIN):$$PATH $(COMPILE) tests/bench/programs/dramatiq_actors.in -o tests/bench/programs/dramatiq_actors.txt

release: $(RELEASE) ## build the commit into dist/ twice, install each archive alone and run it; locks, SBOM, checksums
	@PYTHONPATH=tests $(BIN)/python -m support.project.release

# --strict: where no service answers, pip-audit would say that nothing is known, and exit with 0.
audit: $(RELEASE) ## ask a vulnerability service about every locked package
	@set -e; for lock in deploy/requirements*.txt; do echo "$$lock"; \
	$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement $$lock; done

clean: ## remove what make has made
	rm -rf .venv .credhook .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
