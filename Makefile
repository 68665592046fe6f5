# `make demo` and `make test` need Python 3.11 or newer and make; they set up the rest in .venv.

.DEFAULT_GOAL := test
.PHONY: env demo test test-slow test-spark test-chaos test-schemas test-all lint docs bench chaos chaos-spark histories kills registrations model mutants drawings recording screenshots simulate simulate-replication simulate-blackouts zookeeper-wheel clean requirements
.DELETE_ON_ERROR:

# Every broker, member and Spark worker is a process of its own: without bytecode each compiles all that it
# imports, which costs it two seconds.
unexport PYTHONDONTWRITEBYTECODE

PYTHONS ?= python3 python3.11 python3.12 python3.13 python3.14
BIN := .venv/bin
READY := .venv/ready

# A Python counts when it is new enough and can make an environment that has pip.
PROBE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

env: $(READY)

# An editable install builds the compiled modules in place; a change of one builds it anew.
$(READY): requirements-dev.txt pyproject.toml setup.py $(wildcard */*.pyx */*/*.pyx)
	@if ! $(BIN)/python -c '$(PROBE)' 2>/dev/null; then \
	    for python in $(PYTHONS); do \
	        if $$python -c '$(PROBE)' 2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "folkmoot needs Python 3.11 or newer with its venv module; tried: $(PYTHONS)." >&2; \
	        echo "Install one (Debian, Ubuntu: apt install python3-venv), or name it: make PYTHONS=/path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    echo "making .venv with $$found ($$($$found --version))"; \
	    $$found -m venv --clear .venv; \
	fi
	@echo "installing requirements-dev.txt into .venv, which takes minutes the first time"
	@awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements-dev.txt > .venv/uv.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	@# pip is slower, and knows of indexes and certificates that only its own settings name.
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements-dev.txt || { \
	    echo "uv could not install them; trying with pip"; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements-dev.txt; \
	}
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo ".venv is ready; . .venv/bin/activate makes its commands known to a terminal"

demo: env
	$(BIN)/folkmoot demo $(DEMO_ARGS)

# Spark sessions, processes that are killed again and again, wheels, whole benchmark commands and large
# numbers of random tries are slow by their nature: they have targets of their own, all in `test-all`.
# What is compiled in producers/ and protocol/ has a twin in plain Python, which passes the same tests.
# Tests wait for processes and deadlines more than they compute: two files are at work at a time.
BY_FILE := -n 2 --dist loadfile
FAST := $(BY_FILE) -m "not slow and not spark and not chaos and not schemas"
# Left out there: what tries both twins by itself, and what has nothing compiled below it.
UNLIKE := $(addprefix --ignore=tests/,producers/test_appender.py protocol/test_compression.py protocol/test_wire.py)
test: env
	$(BIN)/python -m pytest $(FAST) $(TEST_ARGS)
	FOLKMOOT_PURE=1 $(BIN)/python -m pytest $(FAST) $(UNLIKE) tests/producers tests/protocol \
	    tests/consumers/test_batch_cursor.py tests/consumers/test_columns.py

test-slow: env
	$(BIN)/python -m pytest $(BY_FILE) -m slow $(TEST_ARGS)

test-spark: env
	$(BIN)/python -m pytest $(BY_FILE) -m spark tests $(TEST_ARGS)

# Most of these are simulated, in one file, and compute; the others wait, each for processes of its own.
test-chaos: env
	$(BIN)/python -m pytest -n 2 --dist worksteal -m chaos $(TEST_ARGS)

# Clients of schema registries that others wrote, and other readers of Avro. Some need node, Maven or Go; with
# FOLKMOOT_REQUIRE_FOREIGN=1 none is left out.
test-schemas: env
	$(BIN)/python -m tests.foreign.environments
	$(BIN)/python -m pytest $(BY_FILE) -m schemas $(TEST_ARGS)

test-all: test test-slow test-spark test-chaos test-schemas

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The site, in site/, with a reference made of the docstrings. A link that leads nowhere ends it.
docs: env
	$(BIN)/python -m tests.reference
	$(BIN)/zensical build --strict --clean

# The terminal of the README, by running its commands.
recording: env
	$(BIN)/python -m tests.recording

# The drawings of the docs, by Graphviz (Debian's package graphviz).
DRAWINGS := $(patsubst docs/drawings/%.dot,docs/assets/%.svg,$(wildcard docs/drawings/*.dot))
drawings: $(DRAWINGS)
docs/assets/%.svg: docs/drawings/%.dot
	dot -Tsvg $< | sed '/^<!--/d;/^ -->/d' > $@

# Pictures of the README and of the docs' home, by Chromium (Debian's package chromium).
screenshots: docs
	$(BIN)/python -m tests.screenshots

# The protocols' models in sizes that take minutes; the tests explore the small ones.
model: env
	FOLKMOOT_WHOLE_MODEL=1 $(BIN)/python -m pytest tests/models -s

# Histories of groups by the hundred thousand; goes on where it was ended, as long as the code is the same.
# SEEDS=1..10000 are those, SEEDS=10000 so many from a seed on that follows from the code.
SEEDS ?= 1..10000
STATE ?= .simulated
simulate: env
	$(BIN)/python -m tests.simulation $(SEEDS) --state $(STATE)

# Whole clusters with their clients, the same way; and those whose machines all lose their power, ten times each.
simulate-replication: env
	$(BIN)/python -m tests.simulation $(SEEDS) --of replication --state $(STATE)
simulate-blackouts: env
	$(BIN)/python -m tests.simulation $(SEEDS) --of blackouts --state $(STATE)

# Controllers and registrars of schemas, in memory: make histories HISTORIES=20000.
HISTORIES ?= 2000
histories: env
	FOLKMOOT_HISTORIES=$(HISTORIES) $(BIN)/python -m pytest $(BY_FILE) -k "no_two_lead or random_histories" \
	    tests/brokers/controller/test_histories.py tests/coordination/schemas/test_histories.py

# Broker processes killed under load: make kills KILLS=2000. Goes on where it was ended.
KILLS ?= 2000
kills: env
	$(BIN)/python -m tests.kills --kills $(KILLS)

# Registrars of schemas in several processes on one counter, killed and cut off: make registrations COUNT=10000.
COUNT ?= 10000
registrations: env
	$(BIN)/python -m tests.registrations --count $(COUNT) $(if $(SEED),--seed $(SEED))

# Groups of real processes under faults: make chaos EVENTS=1000 SEED=7. CHAOS_DIRECTORY remembers all runs.
EVENTS ?= 300
AT_ONCE ?= 2
CHAOS_DIRECTORY ?= .chaos
chaos: env
	$(BIN)/python -m tests.chaos --events $(EVENTS) --at-once $(AT_ONCE) --directory $(CHAOS_DIRECTORY) $(if $(SEED),--seed $(SEED))

# Spark applications and plain members of one group under faults: make chaos-spark ROUNDS=100 SEED=7.
ROUNDS ?= 10
chaos-spark: env
	$(BIN)/python -m tests.chaos.spark --rounds $(ROUNDS) --directory $(CHAOS_DIRECTORY)-spark $(if $(SEED),--seed $(SEED))

# Whether the tests see small changes of the code: make mutants N=200 SEED=7. Takes hours, goes on where it was ended.
# FOLDERS="brokers consumers" draws from the code of these alone.
N ?= 100
SEED_OF_MUTANTS = $(or $(SEED),1)
mutants: env
	$(BIN)/python -m tests.mutants --count $(N) --seed $(SEED_OF_MUTANTS) --at-once $(AT_ONCE) $(if $(FOLDERS),--folders $(FOLDERS))

bench: env
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# ZooKeeper's jars as a wheel of 8 MB in dist/, with which `folkmoot dev` needs no PySpark.
zookeeper-wheel: env
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist ./wheels/zookeeper

clean:
	rm -rf .venv .bench .cache build wheels/*/build dist site docs/reference.md *.egg-info wheels/*/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -path ./.venv -prune -o -name '*.so' -exec rm -f {} +

# Run by hand after a change of the dependencies; what is installed changes only when somebody means it.
requirements:
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --quiet \
	    --custom-compile-command 'make requirements' --output-file requirements-dev.txt
	$(BIN)/uv pip compile benchmarks/requirements.in --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-emit-find-links --quiet \
	    --custom-compile-command 'make requirements' --output-file benchmarks/requirements.txt
