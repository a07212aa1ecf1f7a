# Every target is a few lines that can be run by hand; PYTHON picks the interpreter of the venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test check bench docs clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "warmroute needs Python 3.11 or newer; found %d.%d; set PYTHON=" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --editable '.[demo,test,dev]'
	@touch $@

demo: install
	$(BIN)/warmroute demo

test: install
	$(BIN)/pytest

check: install
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/pytest -n auto --hypothesis-profile fast -m 'not blackbox and not live'

bench: install
	$(BIN)/python -m bench.overhead

docs: install
	$(BIN)/python -m warmroute.pages docs

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
