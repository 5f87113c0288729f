# Everyday commands; `make help` lists them. The first one that needs it sets up .venv, later ones install nothing.
# All paths are relative, so the clone may be anywhere.

# The first of these that is new enough; say `make PYTHON=...` for another.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format bench docs lock clean distclean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 11

setup: $(READY)  ## install the dependencies into .venv, at the versions of constraints.txt

demo: $(READY)  ## train and evaluate all five tasks on handwritten digits; one of them: TASK=classification
	@$(BIN)/opabinia demo $(TASK)

test: lint  ## lint, types and the fast tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: lint  ## lint, types and every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)  ## ruff and mypy, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## run all benchmarks (benchmarks/RESULTS.md)
	@$(BIN)/python benchmarks/all.py

docs: $(READY)  ## build the documentation as a site in build/site (installs the extra `docs`)
	@$(BIN)/python -c "import mkdocs, mkdocstrings" 2>/dev/null || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Keeps the versions that still fit; `make lock LOCK=--upgrade` takes the newest.
lock: $(BIN)/uv  ## rewrite constraints.txt from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras \
		--no-header --no-annotate --no-emit-index-url $(LOCK) pyproject.toml -o constraints.txt

clean:  ## remove caches and build output; .venv and runs stay
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . \( -name .venv -o -name runs \) -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf .venv

# From nothing to ready, uv took 43 s and pip 158 s. But uv reads none of pip's settings: where those matter (a mirror, a
# proxy's certificate) it fails, and pip does the same with the same pins. The pins are exact (torch==2.15.0), so an older
# or CPU-only torch that pip may have been pointed at is not taken.
$(READY): pyproject.toml constraints.txt | $(BIN)/uv
	$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -b constraints.txt -e '.[dev]' \
		|| $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "Opabinia needs Python 3.11 or later; name it: make PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
