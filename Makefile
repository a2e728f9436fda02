# Every target sets up .venv by itself and is quick when nothing changed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test slow lint format type docs bench mutants clean
help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "jurygcn needs Python 3.10 or newer, this is %d.%d: run make PYTHON=/path/to/newer/python" % sys.version_info[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)   ## quantify Cora, print the table, write the page jury-report/demo.html
	$(BIN)/jurygcn demo --report jury-report/demo.html

test: $(READY)   ## all tests, real graphs included; fails if they run less than 92 % of lines and branches
	$(BIN)/python -m pytest -q -n auto --dist worksteal --cov --cov-report= -m "not slow"
	@printf 'lines and branches run, in %%: '; $(BIN)/python -m coverage report --format=total

slow: $(READY)   ## the long tests
	$(BIN)/python -m pytest -q -m slow

lint: $(READY)   ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(READY)   ## mypy, strict
	$(BIN)/mypy

docs: $(READY)   ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)  ## the quick form of every benchmark
	@set -e; for script in $(filter-out benchmarks/harness.py benchmarks/protocol.py,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$script"; $(BIN)/python $$script --quick; done

mutants: $(READY) ## small faults in the core: would the tests notice? (an hour)
	$(BIN)/python tools/mutants.py

clean:           ## remove what make made
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache
