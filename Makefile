# Everyday commands; `make help` lists them. The first one that needs it sets up .venv, later ones install nothing.
# All paths are relative, so the clone may be anywhere.

# The first of these that is new enough; say `make PYTHON=...` for another.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
READY := .venv/ready
# The variable is emptied because pytest rewrites every test module: 10 s for each of the two workers, unless cached.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test fast-tests test-all lint format bench docs wheel lock clean distclean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 11

setup: $(READY)  ## install dependencies and development tools into .venv, at the versions of constraints.txt
	@echo "opabinia: ready in .venv; next: make demo"

demo: $(READY)  ## train and evaluate all six tasks on handwritten digits; one of them: TASK=classification
	@$(BIN)/opabinia demo $(TASK)

test: $(READY)  ## lint, types and the fast tests
	@$(MAKE) --no-print-directory -j2 lint fast-tests

# What may be skipped needs a GPU, data, a network, root or a program of the system: none needs a light extra.
fast-tests: $(READY)
	$(PYTEST) -m "not slow" --max-skips 75

test-all: lint  ## lint, types and every test
	HYPOTHESIS_PROFILE=thorough $(PYTEST)

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
	@$(BIN)/python -c "import mkdocs, mkdocstrings" 2>/dev/null || { echo "opabinia: installing the extra docs" && \
		$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'; }
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: $(READY)  ## build the wheel into dist/
	@$(BIN)/python -m hatchling build -t wheel

# Only what make installs: extras for users pull in other packages, one a beta version. Keeps the versions that still
# fit; `make lock LOCK=--upgrade` takes the newest.
lock: $(BIN)/uv  ## rewrite constraints.txt from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra docs \
		--no-header --no-annotate --no-emit-index-url $(LOCK) pyproject.toml -o constraints.txt

clean:  ## remove caches and build output; .venv and runs stay
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . \( -name .venv -o -name runs \) -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv
	rm -rf .venv

# From nothing to ready, uv took 93 s with an empty cache, 38 s with a full one; pip 158 s. But uv reads none of pip's
# settings: where those matter (a mirror, a proxy's certificate) it fails, and pip does the same with the same pins. The
# pins are exact (torch==2.15.0), so an older torch that pip may have been pointed at is not taken. UV_TORCH_BACKEND=cpu
# takes PyTorch's CPU builds; pip does not read it.
CUDA_SIZE := 3.2 GB, 6 GB on disk
ifeq ($(UV_TORCH_BACKEND),cpu)
SIZE := 0.4 GB, 1.5 GB on disk
UV_FAILED := uv could not install the CPU builds of PyTorch; pip takes those with CUDA, a download of $(CUDA_SIZE)
else
SIZE := $(CUDA_SIZE) (docs/install.md: CPU only)
UV_FAILED := uv failed; trying pip
endif

$(READY): pyproject.toml constraints.txt | $(BIN)/uv
	@echo "opabinia: installing PyTorch and the other packages of constraints.txt into .venv:" \
		"at first a download of $(SIZE)"
	@$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python -c constraints.txt -b constraints.txt -e '.[dev]' \
		|| { echo "opabinia: $(UV_FAILED)" && \
		$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'; }
	@touch $@

$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "Opabinia needs Python 3.11 or later; name it: make PYTHON=..." >&2; exit 1; }
	@echo "opabinia: creating .venv with $(PYTHON)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
