# Two commands are all a newcomer needs: `make demo` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Clients of other servers, which do not go together with what we need: an environment of their own, for tests.
CLIENTS ?= .venv-clients
export TESTS_CLIENTS := $(abspath $(CLIENTS))

# Tests start hundreds of processes: let none of them compile our code anew.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test soak cluster check format bench settings protos constraints clean

help:         ## show this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

$(READY): pyproject.toml constraints.txt
	@echo "== setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit("Pilotlight needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip setuptools wheel
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[tensorflow,batch,dev]'
	@# On all cores, which pip does on one. Some files of others are no Python 3: they do not matter.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

$(CLIENTS)/.ready: tests/clients/requirements.txt
	@echo "== setting up $(CLIENTS) (a minute the first time)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

demo: $(READY)   ## train as a job, deploy one model of each kind, predict with them, run a batch job
	@$(BIN)/pilotlight demo

test: $(READY) $(CLIENTS)/.ready ## run the tests (minutes)
	@echo "== tests"
	@$(PYTEST) -m 'not soak and not alone and not cluster' --numprocesses auto
	@echo "== tests that need the machine for themselves"
	@$(PYTEST) -m 'alone and not soak'

soak: $(READY)   ## run the long forms of the tests, an hour of random faults among them (three to four hours)
	@echo "== long tests"
	@$(PYTEST) -m soak -v --durations 0 --durations-min 1

cluster: $(READY) ## run the tests on a Kubernetes control plane, which is built the first time (half an hour)
	@echo "== tests on Kubernetes"
	@$(PYTEST) -m cluster tests/cluster -v

bench: $(READY)  ## fail if serving became slower; measure parsing and batch beside references
	@echo "== serving"
	@$(BIN)/python -m loadtests.bench.regression_gate
	@echo "== parsing"
	@$(BIN)/python -m loadtests.bench.parsing
	@echo "== batch"
	@$(BIN)/python -m loadtests.bench.batch

check: $(READY)  ## formatting, lint and types
	@echo "== format and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy --num-workers auto

format: $(READY) ## format the code and mend what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

settings: $(READY) ## write docs/settings.md anew from serving/config.py
	@$(BIN)/python -m serving.cli.flags.settings_reference > $(VENV)/settings.md
	@cp $(VENV)/settings.md docs/settings.md

PROTOS := serving/protocols/protos
protos: $(READY) ## compile the messages of other protocols anew from their .proto files
	@$(BIN)/python -m grpc_tools.protoc --proto_path $(PROTOS) --descriptor_set_out $(PROTOS)/protos.binpb $(PROTOS)/*.proto

constraints: $(READY) ## compile constraints.txt anew from pyproject.toml, without index addresses
	@$(BIN)/pip-compile --quiet --upgrade --extra all --extra dev --strip-extras --allow-unsafe --no-annotate --no-header \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file $(VENV)/constraints.txt pyproject.toml
	@grep -E '^[A-Za-z0-9._-]+==' $(VENV)/constraints.txt > constraints.txt

clean:        ## remove the virtual environments and caches
	@rm -rf $(VENV) .venv-clients .mypy_cache .ruff_cache .pytest_cache build *.egg-info
