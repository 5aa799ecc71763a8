# Every target does its own set-up: a machine needs python3 (3.11 or newer, with venv), make and a package registry.
# The environment lives in .venv and is brought up to date only when pyproject.toml or constraints.txt have changed.
# It is made from the first Python that fits, or from the one named by `make PYTHON=… demo`.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
COVERAGE := $(VENV)/coverage
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PARALLEL := --numprocesses auto --dist worksteal
BENCHES := $(filter-out bench/record.py bench/cpu_maxtext.py bench/gpu_train.py bench/plan_compile.py,$(wildcard bench/*.py))

# A marker per extra, so that `make demo` waits for jax only, and not for what the tests need.
INSTALLED := $(VENV)/.installed-

# Tests start thousands of processes, which read bytecode faster than sources.
unexport PYTHONDONTWRITEBYTECODE

ifdef CLUSTER
export SEATRIAL_REQUIRE_CLUSTER := 1
endif

.PHONY: help demo test test-slow test-gpu-plan test-maxtext test-megatron test-package package check docs golden bench

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED)train ## Rehearse a 70B configuration on this machine; ends in a verdict and a report.
	$(BIN)/seatrial run configs/cvs/mi300x_singlenode_llama3_1_70b.json config.nnodes=1 --rehearse --text

test: $(INSTALLED)test ## Run the tests, except the slow ones, and print their coverage; with CLUSTER=1 fail where those of clusters cannot run.
	@rm -rf $(COVERAGE) && mkdir $(COVERAGE)
	@SEATRIAL_COVERAGE="$(CURDIR)/$(COVERAGE)" $(BIN)/python -W "ignore:Unable to activate pytest" \
	  -m slipcover --fail-under 0 --json --out $(COVERAGE).json -m pytest -m "not slow" $(PARALLEL)
	@$(BIN)/python -m slipcover --merge $(COVERAGE).json $$(find $(COVERAGE) -name "*.json") --out $(COVERAGE).json \
	  >$(COVERAGE).txt; status=$$?; \
	  sed -n '2,3p;$$p' $(COVERAGE).txt; echo "By file: $(COVERAGE).txt"; \
	  [ $$status -ne 2 ] || echo "The coverage is below fail-under in pyproject.toml."; exit $$status

# Most of them wait rather than compute: a worker more than there are cores.
test-slow: $(INSTALLED)test $(INSTALLED)test-publish ## Run the slow tests.
	$(BIN)/python -m pytest -m slow --numprocesses $$(($$(nproc) + 1)) --dist worksteal || [ $$? -eq 5 ]  # 5: no test is marked slow

test-gpu-plan: $(INSTALLED)test $(VENV)/plan-gpu ## Compile the step for a GPU without one; fetches 450 MB.
	PYTHONPATH="$(CURDIR)/$(VENV)/plan-gpu" $(BIN)/python -m pytest tests/train/test_deviceless.py tests/commands/test_compiled_step.py $(PARALLEL)

# One after the other: MaxText's virtual devices abort where another run keeps them waiting.
test-maxtext: $(INSTALLED)test $(VENV)/maxtext/made.txt ## Run the real MaxText, and load with it what convert writes; fetches 600 MB, and another Debian if there is no Python 3.12.
	SEATRIAL_MAXTEXT=$(VENV)/maxtext/bin $(BIN)/python -m pytest tests/engines/test_maxtext.py tests/engines/test_written.py

test-megatron: $(INSTALLED)test $(VENV)/megatron ## Parse with Megatron-LM's own parser what is written for it; fetches 3 MB.
	SEATRIAL_MEGATRON=$(VENV)/megatron $(BIN)/python -m pytest tests/engines/test_written_megatron.py

test-package: $(INSTALLED)test $(VENV)/wheels/made ## Install the wheel in an empty Debian, build the container image; needs root, podman; fetches 240 MB.
	SEATRIAL_WHEELS="$(CURDIR)/$(VENV)/wheels" $(BIN)/python -m pytest tests/packaging -m package \
	  --numprocesses 2 --dist loadfile

# What these tests need beside .venv's packages; each can be fetched beside the others.

# The plugin stands apart: every process that finds it beside jax would load its 380 MB.
$(VENV)/plan-gpu: | $(BIN)/python
	@rm -rf $(VENV)/.plan-gpu
	$(PIP_INSTALL) --no-deps --target $(VENV)/.plan-gpu jax-cuda13-plugin jax-cuda13-pjrt nvidia-cudnn-cu13 \
	  'nvidia-cuda-nvcc; python_version >= "3.12"' 'nvidia-nvvm; python_version >= "3.12"'
	@mv $(VENV)/.plan-gpu $@

$(VENV)/maxtext/made.txt: tests/engines/maxtext.txt tests/engines/maxtext.sh
	tests/engines/maxtext.sh $(@D)
	@touch $@

# The package asks for Python 3.12; its parser runs with that of .venv.
$(VENV)/megatron: | $(BIN)/python
	@rm -rf $(VENV)/.megatron
	$(PIP_INSTALL) --no-deps --target $(VENV)/.megatron --only-binary :all: --ignore-requires-python --python-version 3.12 \
	  --implementation cp --platform manylinux_2_28_x86_64 megatron-core
	@mv $(VENV)/.megatron $@

# The wheels are those for Debian's Python, which is what the image of the tests has.
$(VENV)/wheels/made: pyproject.toml constraints.txt | $(BIN)/python
	@rm -rf $(@D) && /usr/bin/python3 -m venv $(VENV)/debian && mkdir $(@D)
	@$(VENV)/debian/bin/python -m pip download --quiet --disable-pip-version-check --constraint constraints.txt \
	  --dest $(@D) '.[train,serve,publish-prometheus]' hatchling
	@$(VENV)/debian/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  check-jsonschema pre-commit twine
	@rm -f $(@D)/seatrial* && touch $@

package: $(INSTALLED)test ## Build the wheel and the sdist into dist/.
	$(BIN)/python -m hatchling build

check: $(INSTALLED)lint ## Lint, formatting, complexity, types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/complexipy
	$(BIN)/mypy

docs: $(INSTALLED)docs ## Build the documentation site into site/; a broken link fails.
	$(BIN)/sphinx-build -W --keep-going --nitpicky --quiet --fresh-env -b html docs site
	@echo "site/index.html"

golden: $(INSTALLED)test ## Rewrite the golden files from what the code does now; read the diff.
	SEATRIAL_GOLDEN=1 $(BIN)/python -m pytest -k golden
	@git --no-pager diff --stat -- tests

bench: $(INSTALLED)train ## Measure what we claim; writes bench/results/.
	@for bench in $(BENCHES); do echo "$$bench" && $(BIN)/python "$$bench" || exit 1; done

$(INSTALLED)%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing seatrial[$*] into $(VENV); once, unless its requirements change."
	@$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@for candidate in $${PYTHON:-python3.13 python3.12 python3.11 python3}; do \
	  "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  echo "Making $(VENV) with $$("$$candidate" --version)."; \
	  "$$candidate" -m venv $(VENV) && exit 0 || { rm -f $@; exit 1; }; \
	done; \
	echo "seatrial needs Python 3.11 or newer with the venv module; none of these is: $${PYTHON:-python3.13 python3.12 python3.11 python3}" >&2; \
	echo "Debian, Ubuntu: apt-get install python3 python3-venv. Elsewhere: make PYTHON=/path/to/python3 …" >&2; \
	exit 1
