# Everything a newcomer needs: `make serve` and `make test`, on a machine with Python 3.11 or newer and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

.PHONY: help install serve test lint format types contracts unit unit-covered compose-check chaos gpu-check options boards models constraints clean

help:
	@echo "make serve [ARGS=\"...\"]   install, then serve the default model at http://127.0.0.1:8000"
	@echo "make test                 install, then run lint, types, import contracts and all tests"
	@echo "make install              create $(VENV) with everything, versions pinned in constraints.txt"
	@echo "make unit                 the tests that need neither torch nor processes, nor time to simulate machines (seconds)"
	@echo "make chaos [FAULTS=40]    kill, stop and slow processes under load at random moments, for an hour or so"
	@echo "make gpu-check            on a machine with a CUDA device: identity and speed, written to docs/gpu.md (minutes)"
	@echo "make compose-check        build the container images, start them, chat, kill some, where Docker or Podman is"
	@echo "make format               format the code and mend what the linter can mend"
	@echo "make options              write docs/options.md from the declarations"
	@echo "make boards               write Grafana's dashboards from their declarations"
	@echo "make models               write docs/models.md from the tables that decide what is served"
	@echo "make constraints          pin what is installed now"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into $(VENV); the first time takes some minutes"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[engine,bench,otel,dev]'
	@touch $@

serve: $(INSTALLED)
	@exec $(BIN)/echelon serve $(ARGS)

# Two files at a time, since most tests wait for processes, in the order of the tree, which has the longest first; one
# thread each, since two that share the cores wait for each other. Bytecode is kept even where Python was told not to: of
# the hundreds of processes that are started each would compile everything anew, a second or two of a core.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --dist loadfile --no-loadscope-reorder

# A third process works while tests of hosts and links wait. A plugin that only the end-to-end tests use takes a second in
# each.
UNIT := $(PYTEST) -n 3 tests/unit -p no:schemathesis

# Coverage is of the unit tests alone: counting lines would slow down what computes, simulates or starts processes. Types
# are checked beside them, by a process that has one thread.
test: lint contracts
	@$(MAKE) --no-print-directory --jobs 2 types unit-covered
	$(PYTEST) -n 2 --ignore tests/unit --durations 15

unit-covered: $(INSTALLED)
	$(UNIT) --cov --cov-report term:skip-covered

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	$(BIN)/mypy server workers speculation tests/harness.py

contracts: $(INSTALLED)
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(UNIT)

compose-check: $(INSTALLED)
	@$(BIN)/python -m tests.e2e.compose_check

FAULTS ?= 40

chaos: $(INSTALLED)
	ECHELON_CHAOS=$(FAULTS) $(BIN)/pytest -s tests/e2e/test_chaos.py tests/e2e/test_soak.py

gpu-check: $(INSTALLED)
	$(BIN)/python -m tests.gpu.check

options: $(INSTALLED)
	$(BIN)/python -m tests.options_page > docs/options.md

boards: $(INSTALLED)
	$(BIN)/python -m tests.boards

models: $(INSTALLED)
	$(BIN)/python -m tests.models_page > docs/models.md

constraints: $(INSTALLED)
	{ head -n 1 constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
