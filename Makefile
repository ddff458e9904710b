# `make demo` and `make test` set up everything they need: Python and make are the only requirements.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup test test-fast lint wheel-check docs docs-check site demo clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Fast and slow tests in one run: to collect them takes each process 13 s, and tests of a file share
# what they plan.
test: lint wheel-check
	$(BIN)/pytest -q -n 2

test-fast: $(STAMP)
	$(BIN)/pytest -q -m 'not slow' -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel-check: $(STAMP)  # the wheel works without the checkout; PYTHON_UNDER_TEST=python3.13 tries another Python
	$(BIN)/python -m scripts.wheel_check $(if $(PYTHON_UNDER_TEST),--python $(PYTHON_UNDER_TEST))

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
