# Every target makes what it needs from nothing but Python, git and make; the engines also need java, mvn and go.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed$(if $(SHH_LOCKED),-by-lock)
LOCK := .ci/requirements.lock
# At once, in tests: on two cores a third one works while others wait.
JOBS ?= 3
# What `make test-oldest` and `make test-newest` run, and which extras they install for it. Left out: what makes environments.
VERSION_TESTS ?= tests/beam tests/conformance tests/core tests/neighbours tests/plan tests/unit tests/ledger tests/test_packaging.py::test_every_module_can_be_imported
VERSION_EXTRAS := kafka stores
# Python keeps what it compiled, also where an image forbids it: else each process of the tests compiles all modules anew.
export PYTHONDONTWRITEBYTECODE :=

# Real engines, for streams. MVNFLAGS, GOFLAGS, GOPROXY, PIP_INDEX_URL and the like are honoured.
MVN ?= mvn
MVNFLAGS ?=
GO ?= go
NPM ?= npm
SHH_ENGINES ?= .engines
export SHH_ENGINES := $(abspath $(SHH_ENGINES))
FLINK_VERSION := 1.19.3
PRISM_VERSION := v2.77.0
FLINK_JOB_SERVER := $(SHH_ENGINES)/flink-job-server.jar
FLINK_LIBRARIES := $(SHH_ENGINES)/flink-$(FLINK_VERSION)/.made
KAFKA_LIBRARIES := $(SHH_ENGINES)/kafka/.made
AZURITE_VERSION := 3.35.0
AZURITE_MADE := $(SHH_ENGINES)/azurite/.made-$(AZURITE_VERSION)
PRISM_MADE := $(SHH_ENGINES)/.prism-$(PRISM_VERSION)-on-loopback
PRISM_SOURCE := $(SHH_ENGINES)/.prism-source
PRISM_SERVER := $(PRISM_SOURCE)/go/pkg/beam/runners/prism/internal/jobservices/server.go

.PHONY: install lock demo test test-versions test-oldest test-newest test-nightly test-engines lint format bench clean test-stores engines flink kafka prism \
  azurite demo-stream mutants planted fuzz docs test-wheels

install: $(INSTALLED)

# By uv, which takes a tenth of the time of pip; where it finds no index, pip may.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
# SHH_LOCKED=1: the versions and hashes of the lock alone, as CI has them.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python
$(INSTALLED): pyproject.toml setup.py $(if $(SHH_LOCKED),$(LOCK))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifdef SHH_LOCKED
	@sed -n '/^uv==/,/[^\\]$$/p' $(LOCK) > $(VENV)/uv.txt
	$(PIP_INSTALL) --require-hashes --requirement $(VENV)/uv.txt
	$(UV_INSTALL) --require-hashes --requirement $(LOCK) || $(PIP_INSTALL) --require-hashes --requirement $(LOCK)
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
else
	$(PIP_INSTALL) uv
	$(UV_INSTALL) --editable '.[dev]' || $(PIP_INSTALL) --editable '.[dev]'
endif
	@touch $@

# The newest versions that fit, for each Python and system, with the hashes of all their files.
lock: $(INSTALLED)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --custom-compile-command 'make lock' --extra dev --output-file $(LOCK) pyproject.toml >/dev/null

demo: $(INSTALLED)
	@$(BIN)/python -m examples.demos.demo

demo-stream: $(INSTALLED) flink kafka
	@$(BIN)/python -m examples.demos.demo_stream

# All that gates a change but the engines: neither Java nor Go is needed. WITH_ENGINES=1: also the tests on engines that are
# made; what waits for one leaves the cores to others.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(if $(WITH_ENGINES),,--ignore=tests/engines)

# With the oldest and with the newest versions of all that the package and these extras require, each in an environment of its own.
# uv finds the oldest; its index is UV_DEFAULT_INDEX. Without a network it says so, and passes.
test-versions: test-oldest test-newest

test-oldest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-oldest test-newest: test-%: $(INSTALLED)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-$*
	@code=0; $(BIN)/uv pip compile --quiet --python .venv-$*/bin/python --resolution $(RESOLUTION) $(VERSION_EXTRAS:%=--extra %) \
	  --output-file .venv-$*/versions.txt pyproject.toml >/dev/null \
	  && $(BIN)/uv pip install --quiet --python .venv-$*/bin/python --requirement .venv-$*/versions.txt --editable . \
	  dp-accounting hypothesis psutil 'pytest<9.2' pytest-xdist || code=$$?; \
	if test $$code = 2; then echo "test-$*: NOT DONE, the packages cannot be had here."; exit 0; \
	elif test $$code != 0; then exit $$code; fi; \
	$(BIN)/uv pip list --quiet --python .venv-$*/bin/python | grep -E '^(apache-beam|numpy|pyarrow) ' ; \
	.venv-$*/bin/python -m pytest -n $(JOBS) --dist loadgroup $(VERSION_TESTS)

# The sdist and the wheel, in dist/; the wheel then runs in a clean environment of each Python that it is for, and of the
# next one, which pyproject.toml does not allow before this was seen there. Two builds of a commit are the same bytes.
WHEEL_PYTHONS ?= 3.11 3.12 3.13 3.14
test-wheels: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
test-wheels: $(INSTALLED)
	@rm -rf build dist
	$(BIN)/python -m build --outdir dist
	@for version in $(WHEEL_PYTHONS); do \
	  if ! $(BIN)/uv venv --quiet --clear --seed --python $$version .venv-wheel; then echo "NOT DONE: no Python $$version here"; continue; fi; \
	  .venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --ignore-requires-python dist/*.whl || exit 1; \
	  folder=$$(mktemp -d) && cp tests/helpers/local_run.py $$folder && cd $$folder || exit 1; \
	  $(abspath .venv-wheel)/bin/python local_run.py >output 2>&1 || { tail output; exit 1; }; \
	  grep -q 'heavy: a story' output || exit 1; \
	  cd $(CURDIR) && rm -r $$folder; echo "Python $$version: the wheel runs."; \
	done

# What takes hours: the ledger's kills, crowds and steps beside a model, the script for cron over thirty nights, kills of workers and
# task managers, demos, several clusters. And what `make test` runs, once more: here hypothesis draws afresh.
test-nightly: $(INSTALLED) engines
	SHH_NIGHTS=30 $(BIN)/python -m pytest -n0 -m nightly tests/cli/test_script_for_cron.py
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m '' --hypothesis-profile fresh --ignore=tests/engines --ignore=tests/fuzz
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m nightly tests/engines
	$(MAKE) --no-print-directory planted

# A million mutated inputs over all readers, and the bombs of gigabytes; `make test` has a short form of both.
fuzz: $(INSTALLED)
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m pytest -n0 -m nightly tests/fuzz

# Tests on the engines that this machine has the tools for; the others are skipped with a reason.
test-engines: $(INSTALLED) engines
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/engines

# A real server of Azure's storage. The other stores have theirs from a package, in `make test`.
test-stores: $(INSTALLED) azurite
	$(BIN)/python -m pytest -n0 -k 'azfs or azure' tests/unit/test_stores.py

# Mutants of the code that the tests should notice (hours): SCOPE=mechanisms or accounting/composition for a part,
# SAMPLE=200 for so many at random. Goes on where it stopped; what it found before stays in mutants/.
mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants run $(SCOPE) $(if $(SAMPLE),--sample $(SAMPLE)) --jobs $(JOBS)
	$(BIN)/python -m tests.mutants report $(SCOPE) $(if $(SAMPLE),--sample $(SAMPLE))

# Each fault of tests/planted.toml, put into a copy of the code: the tests that it names must fail.
planted: $(INSTALLED)
	$(BIN)/python -m tests.planted --jobs $(JOBS)

# What this machine's tools allow; tests of the others are skipped with a reason. SHH_LOCKED=1: what cannot be made with
# the tools that are there is an error, since CI would pass without its tests.
engines: $(INSTALLED)
	@failed=; for engine in flink:java:$(MVN) kafka:java:$(MVN) prism:$(GO):$(GO); do \
	  name=$${engine%%:*}; tools=$${engine#*:}; missing=; \
	  for tool in "$${tools%%:*}" "$${tools#*:}"; do command -v $$tool >/dev/null 2>&1 || missing=$$tool; done; \
	  if test -n "$$missing"; then echo "no $$name: this machine has no $$missing"; \
	  elif ! $(MAKE) --no-print-directory $$name; then failed="$$failed $$name"; echo "no $$name: make $$name failed, see above"; fi; \
	done; \
	if test -n "$$failed" && test -n "$(SHH_LOCKED)"; then echo "engines that could not be made:$$failed"; exit 1; fi

flink: $(FLINK_JOB_SERVER) $(FLINK_LIBRARIES)

$(FLINK_JOB_SERVER): runners/flink/pom.xml $(shell find runners/flink/src -name '*.java')
	@mkdir -p $(SHH_ENGINES)
	$(MVN) -B -ntp -q -Dstyle.color=never $(MVNFLAGS) -f $< -Dbuild.folder=$(SHH_ENGINES)/.build package
	@mv $(SHH_ENGINES)/.build/flink-job-server.jar $@
	@touch $@
	@rm -rf $(SHH_ENGINES)/.build

# The libraries are in the source distribution of a Python package; nothing of it is installed.
$(FLINK_LIBRARIES): | $(INSTALLED)
	@rm -rf $(@D)
	@mkdir -p $(@D)/lib $(@D)/download
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
	  --dest $(@D)/download apache-flink-libraries==$(FLINK_VERSION)
	@tar -xzf $(@D)/download/*.tar.gz -C $(@D)/download
	@mv $(@D)/download/*/deps/lib/flink-dist-*.jar $(@D)/download/*/deps/lib/log4j-*.jar \
	  $(@D)/download/*/deps/plugins/metrics-prometheus/*.jar $(@D)/lib
	@rm -rf $(@D)/download
	@touch $@

kafka: $(KAFKA_LIBRARIES)

$(KAFKA_LIBRARIES): runners/kafka/pom.xml
	@rm -rf $(@D)
	@mkdir -p $(@D)
	$(MVN) -B -ntp -q -Dstyle.color=never $(MVNFLAGS) -f $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(@D)
	@touch $@

# The emulator of Azure Blob Storage, for tests alone.
azurite: $(AZURITE_MADE)

$(AZURITE_MADE):
	@rm -rf $(@D)
	@mkdir -p $(@D)
	$(NPM) install --silent --no-audit --no-fund --ignore-scripts --prefix $(@D) azurite@$(AZURITE_VERSION)
	@touch $@

prism: $(PRISM_MADE)

# Prism listens on all addresses, has no option for another, and runs any command that it is sent: one line is changed.
$(PRISM_MADE):
	@rm -rf $(PRISM_SOURCE)
	@mkdir -p $(PRISM_SOURCE)
	@folder=$$($(GO) mod download -json github.com/apache/beam/sdks/v2@$(PRISM_VERSION) | sed -n 's/^.*"Dir": "\(.*\)".*$$/\1/p') \
	  && cp -R "$$folder/go" "$$folder/go.mod" "$$folder/go.sum" $(PRISM_SOURCE) && chmod -R u+w $(PRISM_SOURCE)
	@sed 's/net.Listen("tcp", fmt.Sprintf(":%d", port))/net.Listen("tcp", fmt.Sprintf("localhost:%d", port))/' \
	  $(PRISM_SERVER) > $(PRISM_SOURCE)/server.go
	@if cmp -s $(PRISM_SOURCE)/server.go $(PRISM_SERVER); then \
	  echo "Prism $(PRISM_VERSION) listens elsewhere than the line that is changed here says"; exit 1; fi
	@mv $(PRISM_SOURCE)/server.go $(PRISM_SERVER)
	cd $(PRISM_SOURCE) && $(GO) build -o $(SHH_ENGINES)/prism ./go/cmd/prism
	@rm -rf $(PRISM_SOURCE)
	@touch $@

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

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-wheel .engines build dist demo mutants *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
