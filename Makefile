# Every target is a few lines that can be run by hand; PYTHON picks the interpreter of the venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test check bench validate weather record-vllm compose-test docs fuzz fuzz-http chaos soak clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "warmroute needs Python 3.11 or newer; found %d.%d; set PYTHON=" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --editable '.[demo,engines,zmq,test,dev]'
	@touch $@

demo: install
	$(BIN)/warmroute demo

test: install
	$(BIN)/pytest -n auto --dist loadfile

check: install
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/pytest -n auto --hypothesis-profile fast -m 'not blackbox and not live and not long'

bench: install
	$(BIN)/python -m bench.overhead

# Every policy in every weather: about 90 minutes of CPU time, resumed where it stopped.
# Remove build/weather.jsonl after a change of the code.
JOBS ?= 1
weather: install
	$(BIN)/python -m bench.weather --jobs $(JOBS) --write

# The simulator against what is known: about 20 minutes of CPU time. A miss does not end it.
validate: install
	-$(BIN)/warmroute simulate validate --markdown docs/validation.md

# Fresh workloads through the scheduler of an installed vLLM, and the same through this engine:
#   make record-vllm VLLM_PYTHON=.../bin/python SEED=7000 COUNT=40
SEED ?= 1
COUNT ?= 40
record-vllm: install
	@mkdir -p build
	$(VLLM_PYTHON) -m bench.vllm_scheduler record --first-seed $(SEED) --count $(COUNT) build/vllm.jsonl.gz
	$(BIN)/warmroute replay-scheduler build/vllm.jsonl.gz
	$(BIN)/warmroute replay-scheduler --leap build/vllm.jsonl.gz

# Random fleets, workloads and accidents in virtual time, then hostile bytes from both sides of the
# gateway: make fuzz SEEDS=10000 FIRST=200, make fuzz-http SEED=3 INPUTS=1000000
SEEDS ?= 2000
FIRST ?= 200
fuzz: install fuzz-http
	$(BIN)/warmroute simulate fuzz --seeds $(SEEDS) --first $(FIRST)

INPUTS ?= 20000
fuzz-http: install
	$(BIN)/python -m bench.reliability.http_fuzz --seed $(SEED) --count $(INPUTS) $(MARKDOWN)

# A fleet of processes that falls apart while it serves: make chaos SEED=3 FAILOVER=resume. And
# hours of it: make soak MINUTES=30. Results go to the page with MARKDOWN='--markdown docs/reliability.md'
FAILOVER ?= off
MINUTES ?= 30
MARKDOWN ?=
chaos: install
	$(BIN)/python -m bench.reliability.chaos --seed $(SEED) --failover $(FAILOVER) $(MARKDOWN)

soak: install
	$(BIN)/python -m bench.reliability.soak --seed $(SEED) --minutes $(MINUTES) $(MARKDOWN)

compose-test:
	deploy/compose-test/run

docs: install
	$(BIN)/python -m warmroute.pages docs
	$(BIN)/python -m warmroute.dashboard deploy/grafana/warmroute.json

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
