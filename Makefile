# Every target makes what it needs from nothing but Python, git and make; engines also need java, mvn and go.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := .ci/requirements.lock
INSTALLED := $(VENV)/.installed$(if $(SHH_LOCKED),-by-lock)
# At once, in tests: on two cores four, of which some wait.
JOBS ?= 4
SHH_ENGINES ?= .engines
export SHH_ENGINES := $(abspath $(SHH_ENGINES))
# Python keeps what it compiled, also where an image forbids it: else each process of the tests compiles all modules anew.
export PYTHONDONTWRITEBYTECODE :=
# uv, which installs in a tenth of the time, looks where pip does.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python

.PHONY: install lock demo demo-stream test test-oldest test-engines test-nightly test-wheels lint format docs bench engines clean

install: $(INSTALLED)

# SHH_LOCKED=1: the versions and hashes of the lock alone, as CI has them.
$(INSTALLED): pyproject.toml setup.py $(if $(SHH_LOCKED),$(LOCK))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifdef SHH_LOCKED
	@sed -n '/^uv==/,/[^\\]$$/p' $(LOCK) > $(VENV)/uv.txt
	$(PIP) install --require-hashes --requirement $(VENV)/uv.txt
	$(UV_INSTALL) --require-hashes --requirement $(LOCK) || $(PIP) install --require-hashes --requirement $(LOCK)
	$(PIP) install --no-deps --no-build-isolation --editable .
else
	$(PIP) install uv
	$(UV_INSTALL) --editable '.[dev]' || $(PIP) install --editable '.[dev]'
endif
	@touch $@

# The newest versions that fit, for each Python and system, with the hashes of all their files.
lock: $(INSTALLED)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --custom-compile-command 'make lock' --extra dev --output-file $(LOCK) pyproject.toml >/dev/null

demo: $(INSTALLED)
	@$(BIN)/python -m examples.demos.demo

demo-stream: $(INSTALLED) engines
	@$(BIN)/python -m examples.demos.demo_stream

# All that gates a change but the engines: neither Java nor Go is needed. WITH_ENGINES=1: also the tests on engines that are made.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(if $(WITH_ENGINES),,--ignore=tests/engines)

# With the oldest versions of all that is required; the lock has the newest. Without a network it says so, and passes.
OLDEST_TESTS ?= $(filter-out tests/cli/ tests/engines/,$(wildcard tests/*/))
test-oldest: $(INSTALLED)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-oldest
	@code=0; $(BIN)/uv pip compile --quiet --python .venv-oldest/bin/python --resolution lowest-direct --extra kafka --extra stores \
	  --output-file .venv-oldest/versions.txt pyproject.toml >/dev/null || code=$$?; \
	if test $$code = 2; then echo "test-oldest: NOT DONE, the packages cannot be had here."; exit 0; fi; \
	$(BIN)/uv pip install --quiet --python .venv-oldest/bin/python --requirement .venv-oldest/versions.txt --editable . \
	  dp-accounting hypothesis psutil 'pytest<9.2' pytest-xdist && .venv-oldest/bin/python -m pytest -n $(JOBS) --dist loadgroup $(OLDEST_TESTS)

test-engines: $(INSTALLED) engines
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/engines

# What takes hours, and all of `make test` once more: here hypothesis draws afresh.
test-nightly: $(INSTALLED) engines
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m '' --hypothesis-profile fresh

# The sdist and the wheel, in dist/; the wheel then runs in a clean environment of each Python. A commit gives the same bytes twice.
WHEEL_PYTHONS ?= 3.11 3.12 3.13 3.14
test-wheels: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
test-wheels: $(INSTALLED)
	@rm -rf build dist
	$(BIN)/python -m build --outdir dist
	@for version in $(WHEEL_PYTHONS); do \
	  $(BIN)/uv venv --quiet --clear --seed --python $$version .venv-wheel || { echo "NOT DONE: no Python $$version here"; continue; }; \
	  .venv-wheel/bin/python -m pip --quiet install dist/*.whl || exit 1; \
	  (cd $$(mktemp -d) && $(abspath .venv-wheel)/bin/python $(CURDIR)/tests/local_run.py) | grep 'heavy: a story' || exit 1; \
	done

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site of docs/, in build/docs; a broken link or anchor fails.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "Open build/docs/index.html"

bench: $(INSTALLED) engines
	$(BIN)/python -m benchmarks

# Flink, Kafka and Prism for streams and their tests, in .engines or the folder of SHH_ENGINES: what the machine's tools allow.
engines: $(INSTALLED)
	@$(MAKE) --no-print-directory -C runners PYTHON=$(abspath $(BIN)/python)

clean:
	rm -rf $(VENV) .venv-oldest .venv-wheel .engines build dist demo *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
