# Waypoint: everything a newcomer or a CI machine needs to type.
# Targets with `##` are listed by `make help`, which is also the default.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := $(CURDIR)/build/init
FUZZ_SECONDS ?= 30
SOAK_SECONDS ?= 300
PYTEST_ARGS ?=

INIT_SOURCES := $(wildcard native/init/*.c native/init/*.h native/init/Makefile)
STAMP := $(VENV)/.installed
INIT := src/waypoint/_bin/waypoint-init
PRELOAD := src/waypoint/_bin/criu-preload.so

# Debian packages by name: what the product needs, and what only its tests need.
PACKAGES := btrfs-progs gcc make libc6-dev python3-venv util-linux iproute2 ca-certificates debian-archive-keyring libvterm0 fonts-dejavu-core
# What connects sessions to the network, and what builds, fetches and bootstraps bases.
PACKAGES += slirp4netns buildah runc mmdebstrap
TEST_PACKAGES := bash zsh dash busybox tmux vim redis-server postgresql curl python3 clang libclang-rt-14-dev procps nftables qemu-system-x86 lz4 e2fsprogs docker.io podman conmon netavark iptables
ifeq ($(shell command -v node),)
TEST_PACKAGES += nodejs
endif
ifeq ($(shell command -v npm),)
TEST_PACKAGES += npm
endif

# $(call need,packages): install those that are missing; asks apt only then.
define need
if ! command -v dpkg-query >/dev/null; then \
	echo "not a Debian system: please install these yourself: $(1)" >&2; \
else \
	have=" $$(dpkg-query -W -f='$${Package}:$${db:Status-Status} ' $(1) 2>/dev/null || true) "; missing=""; \
	for package in $(1); do [[ "$$have" == *" $$package:installed "* ]] || missing+=" $$package"; done; \
	if [[ -n "$$missing" ]]; then \
		echo "installing Debian packages:$$missing"; \
		apt-get update -q; \
		DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; \
	fi; \
fi
endef

.PHONY: help install demo test test-quick check lint unit kernel e2e bench soak init init-test fuzz clean packages test-packages

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: packages $(STAMP) $(INIT) $(PRELOAD) ## Debian packages, .venv with the waypoint command, CRIU and the storage pool
	@$(BIN)/python -m compileall -q src # also where PYTHONDONTWRITEBYTECODE keeps the first run from doing it
	@$(BIN)/waypoint setup
	@$(BIN)/waypoint pool unmount --if-idle >/dev/null # the next command mounts it again

demo: install ## the main job, checked step by step: a live session is saved, restored and branched
	@$(BIN)/python examples/demo.py

test: export CI := true
test: install test-packages lint init-test ## install everything the tests need and run all of them
	$(MAKE) fuzz FUZZ_SECONDS=5
	$(BIN)/python tests/run_suite.py $(PYTEST_ARGS)

test-quick: install test-packages lint init-test ## in two minutes: lint, unit and C tests, the most telling of the others
	$(BIN)/python tests/run_suite.py -m "quick or not (kernel or e2e)" $(PYTEST_ARGS)

check: lint unit ## format, lint, types, import contracts and unit tests: no root needed, in seconds

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP) ## the tests that need no root
	$(BIN)/pytest -m "not kernel and not e2e" $(PYTEST_ARGS)

kernel: install test-packages ## the tests on the real kernel and CRIU (root)
	$(BIN)/pytest -m kernel $(PYTEST_ARGS)

e2e: install test-packages ## the tests through the command line (root)
	$(BIN)/pytest -m e2e $(PYTEST_ARGS)

bench: install ## measure, and print the table of results
	@$(BIN)/python -m benchmarks.bench

soak: install ## kill the command line at random moments for SOAK_SECONDS (300), and check what is left each time
	@$(BIN)/python -m benchmarks.soak --seconds $(SOAK_SECONDS)

init: packages ## compile the C init
	$(MAKE) -C native/init BUILD=$(BUILD)

init-test: packages
	$(MAKE) -C native/init BUILD=$(BUILD) test

fuzz: test-packages ## fuzz the frame parser of the init for FUZZ_SECONDS (30)
	$(MAKE) -C native/init BUILD=$(BUILD) FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz

clean: ## remove what was built; the state directory and its sessions stay
	rm -rf $(VENV) build dist src/waypoint/_bin .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

packages:
	@$(call need,$(PACKAGES))

test-packages:
	@$(call need,$(TEST_PACKAGES))

# The package's own build (hatch_build.py) makes the init too; this rule is for a change of the C files alone.
$(INIT): $(INIT_SOURCES) | $(STAMP)
	@$(MAKE) -C native/init BUILD=$(BUILD)
	@install -D -m 755 $(BUILD)/waypoint-init $@.new && mv $@.new $@

$(PRELOAD): $(wildcard native/preload/*) | $(STAMP)
	@$(MAKE) -C native/preload BUILD=$(CURDIR)/build/preload
	@install -D -m 755 $(CURDIR)/build/preload/criu-preload.so $@.new && mv $@.new $@

$(STAMP): pyproject.toml constraints.txt hatch_build.py | packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; say which with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@[[ -x $(BIN)/python ]] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,png]'
	@touch $@
