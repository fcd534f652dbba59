# make help | test | slow | quickstart | lint | format | clean
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -qq install
# torch is installed first and alone, so that no later resolver fetches a CUDA build of several GB by itself. On a
# machine whose default index serves CUDA builds and that has no GPU:
#   make test TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH  ?= torch==2.13.0
TORCH_INDEX := $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))

.DEFAULT_GOAL := help
.PHONY: help test slow quickstart lint format clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# Each stamp is older than pyproject.toml exactly when the environment has to be brought up to date.
$(VENV)/.torch: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing $(TORCH) into $(VENV)'
	@$(PIP) '$(TORCH)' $(TORCH_INDEX)
	@touch $@

$(VENV)/.train: $(VENV)/.torch
	@echo 'installing agentic[train] (minutes the first time)'
	@$(PIP) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch
	@echo 'installing agentic[train,plot,sql,dev] (minutes the first time)'
	@$(PIP) -e '.[train,plot,sql,dev]'
	@touch $@ $(VENV)/.train

test: lint  ## install into .venv if needed, lint, type-check, run the tests
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

slow: $(VENV)/.dev  ## the tests that take longer: every hostile cell, also as another user, and the soak
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

lint: $(VENV)/.dev  ## ruff and mypy only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy agentic

format: $(VENV)/.dev  ## let ruff format the code and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

quickstart: $(VENV)/.train  ## install, fetch the base model, build data, train minutes, evaluate, ask
	$(BIN)/agentic quickstart

clean:  ## remove the environment and caches (not dataset/ and runs/)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
