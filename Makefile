PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check fmt docs bench bench-gpu fuzz soak results pages identifiability clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "  make %-16s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

setup: $(READY) ## make the virtual environment and install everything, pinned

demo: $(READY) ## generate an epidemic with gaps, fill it in, compare; writes demo/
	rm -rf demo
	$(BIN)/jointensor demo --out demo

test: $(READY) ## the default test suite and the doctests
	$(BIN)/python -m pytest $(WORKERS)

test-all: $(READY) ## the default suite and the long tests, with new random examples
	HYPOTHESIS_PROFILE=default $(BIN)/python -m pytest $(WORKERS) -m ''

check: $(READY) ## format, lint, types, layers, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell src tests docs examples benchmarks README.md CHANGELOG.md CONTRIBUTING.md

fmt: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## build the documentation into site/; open site/index.html
	$(BIN)/python docs/_site/cli_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY) ## ratios against other packages and hand-written PyTorch, on two cores; half an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/cpu.py --threads 2 --end-to-end

bench-gpu: $(READY) ## seconds per pass on an NVIDIA GPU, beside hand-written PyTorch and the memory's limit
	$(BIN)/python benchmarks/gpu.py

fuzz: $(READY) ## hostile files, 200,000 for each reader, and how much of the parsers they reach; an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check coverage
	$(BIN)/python -m tests.fuzz.run

soak: $(READY) ## random tensors and options, each checked by another route; an hour, or SECONDS=60
	$(BIN)/python -m tests.soak.run --seconds $(or $(SECONDS),3600)

DATA ?= data
DEVICE ?= auto
PAPER := benchmarks/results/paper

results: $(READY) ## every experiment of the paper: records and pages; hours: make results DATA=folder DEVICE=cuda
	$(BIN)/jointensor reproduce all --data $(DATA) --out $(PAPER) --pages docs/results --device $(DEVICE) --budget 60 --quiet

pages: $(READY) ## the pages of the paper, and the tables of README and results, again from the records that are there
	$(BIN)/jointensor reproduce all --finished --out $(PAPER) --pages docs/results --quiet
	$(BIN)/python benchmarks/tables.py

identifiability: $(READY) ## the paper's identifiability experiment, ten planted tensors
	$(BIN)/jointensor reproduce figure2 --out $(PAPER) --pages docs/results --device $(DEVICE)

clean: ## remove the environment and what the commands wrote
	rm -rf $(VENV) demo runs dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
