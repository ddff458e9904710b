# `make demo` and `make test` set up everything they need: Python and make are the only requirements.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of processes: each would compile our modules anew where Python is told not to
# keep what it compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup test test-all test-fast lint wheel-check kernels docs docs-check site demo clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Tests of a file share what they plan, so each process gets files that stand together, and takes
# others of the rest when it is done. Lint keeps one core busy, the rest of the checks and compiling
# kernels, which else both processes would do, the other.
PYTEST = $(BIN)/pytest -q -n 2 --dist worksteal

test: $(STAMP)
	+$(MAKE) --no-print-directory -j2 lint wheel-check kernels
	$(PYTEST) -m 'not slow'

test-all: $(STAMP)
	+$(MAKE) --no-print-directory -j2 lint wheel-check kernels
	$(PYTEST)

test-fast: $(STAMP)
	$(PYTEST) -m 'not slow'

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel-check: $(STAMP)  # the wheel works without the checkout; PYTHON_UNDER_TEST=python3.13 tries another Python
	$(BIN)/python -m scripts.wheel_check $(if $(PYTHON_UNDER_TEST),--python $(PYTHON_UNDER_TEST))

kernels: $(STAMP)
	$(BIN)/python -c "from shardopt.passes.kernels import use_all; use_all()"

docs: $(STAMP)
	$(BIN)/python -m scripts.docs

docs-check: $(STAMP)
	$(BIN)/python -m scripts.docs --check

site: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: $(STAMP)
	$(BIN)/python -m examples.gpt_demo

clean:
	rm -rf $(VENV) out build *.egg-info .pytest_cache .mypy_cache .ruff_cache
