# The two that matter: `make demo` and `make test`. Each installs what it needs first.

PYTHON ?= python3
BIN := .venv/bin
PROTOS := .venv-protos/bin
OUT := .
CONTRACT := $(wildcard protos/tensorway/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help install demo test bench lint types format contract protos clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/installed ## Install everything, pinned, into .venv

demo: .venv/installed ## Embed a few sentences with a real model, through everything
	@$(BIN)/tensorway demo

test: .venv/installed .venv-protos/installed ## Check and test everything, as CI does
	@$(BIN)/python scripts/check.py

bench: .venv/installed ## Measure ours against its peers, on this machine
	@$(BIN)/python -m bench run

lint: .venv/installed ## Check style
	@$(BIN)/ruff check && $(BIN)/ruff format --check

types: .venv/installed ## Check types
	@$(BIN)/mypy

format: .venv/installed .venv-protos/installed ## Format code and contract
	@$(BIN)/ruff format && $(BIN)/ruff check --fix && $(PROTOS)/buf format -w

contract: .venv-protos/installed ## Check the contract: lint, format, nothing broken
	@$(PYTHON) scripts/check.py contract

protos: .venv-protos/installed ## Generate tensorway/v1 from the contract
	@PATH=$(PROTOS):$$PATH python -m grpc_tools.protoc -Iprotos --python_out=$(OUT) \
		--grpc_python_out=$(OUT) --mypy_out=quiet:$(OUT) --mypy_grpc_out=quiet:$(OUT) $(CONTRACT)
	@cd $(OUT)/tensorway/v1 && rm -f $$(grep -L Stub *_pb2_grpc.py | sed 'p;s/$$/i/')

clean: ## Remove what was installed and built
	rm -rf .venv .venv-protos build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml constraints.txt scripts/install.py
	@$(PYTHON) scripts/install.py && touch $@

.venv-protos/installed: scripts/protos.txt scripts/install.py
	@$(PYTHON) scripts/install.py --protos && touch $@
