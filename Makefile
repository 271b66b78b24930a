# make demo, make test and make bench each work as the first command after cloning: they make .venv themselves.

VENV := .venv
BIN := $(VENV)/bin
FIND_PYTHON = for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done
PYTHON ?= $(shell $(FIND_PYTHON))
READ_DEV = import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"]))

.PHONY: help demo test bench bench-schedules docs docs-outputs serve wheel lock clean
help:
	@echo "make demo    install into .venv and show what Shardwise does"
	@echo "make test    install what the tests need and run every check"
	@echo "make serve   install the page's server too and open the page"
	@echo "make bench   run the speed and accuracy benchmarks"
	@echo "make bench-schedules   hold the schedule optimiser against its rivals (some minutes)"
	@echo "make wheel   build wheel and sdist into dist/"
	@echo "make lock    write requirements-dev.lock anew from the newest versions"
	@echo "make docs    write the reference pages anew from the source and build the docs into docs/_build/html"
	@echo "make docs-outputs   also write into the docs what their commands print today"

demo: $(VENV)/.installed
	@sh .ci/demo $(BIN)/shardwise

serve: $(VENV)/.installed-web
	@$(BIN)/shardwise serve

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/pytest -n 2

bench: $(VENV)/.installed-dev
	$(BIN)/pytest -m bench -s benchmarks tests
	$(BIN)/python benchmarks/estimate.py
	$(BIN)/python benchmarks/laws.py
	$(BIN)/python benchmarks/confidence.py
	$(BIN)/python benchmarks/simumax_examples.py
	$(BIN)/python benchmarks/leave_one_out.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/adversary.py
	$(BIN)/python benchmarks/bad_inputs.py
	$(BIN)/shardwise validate
	$(BIN)/shardwise validate --advice --md docs/reference/advice.md

bench-schedules: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/schedules.py
	$(BIN)/python benchmarks/schedules_memory.py
	$(BIN)/python benchmarks/adversary_schedules.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/trees docs docs/_build/html
	@echo "the docs are in docs/_build/html/index.html"

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m hatchling build --directory dist

# In an environment of its own, so that the newest versions are taken; torch without the suffix of the index it came from.
lock: $(BIN)/python
	rm -rf $(VENV)/lock && $(PYTHON) -m venv $(VENV)/lock
	@$(BIN)/python -c '$(READ_DEV)' > $(VENV)/dev-requirements.txt
	$(VENV)/lock/bin/python -m pip install --quiet --requirement $(VENV)/dev-requirements.txt --editable .
	{ sed '/^[^#]/d' requirements-dev.lock; $(VENV)/lock/bin/python -m pip freeze --exclude-editable | sed 's/+.*//'; } \
		> $(VENV)/new.lock
	mv $(VENV)/new.lock requirements-dev.lock && rm -rf $(VENV)/lock

docs-outputs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py --outputs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist src/shardwise/kernels-*

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Shardwise needs Python 3.11 or newer; install it, or say PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# Stamps: install again only when the list of packages or a C source changes.
BUILT_FROM := pyproject.toml hatch_build.py $(wildcard src/shardwise/*/*.c)
$(VENV)/.installed: $(BUILT_FROM) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-web: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[web]'
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(BUILT_FROM) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@
