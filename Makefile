PYTHON ?= python3
INSTALL = .venv/bin/pip install --quiet -c constraints.txt
FRAMEWORKS = -e integrations/langchain-conformal -e integrations/llama-index-postprocessor-conformal
NEEDS = constraints.txt pyproject.toml $(wildcard integrations/*/pyproject.toml)

.PHONY: demo test lint cookbook bench

demo: .venv/demo ## calibrate and filter real text in both frameworks
	.venv/bin/conformal-retrievers demo

test: .venv/dev ## the whole suite
	.venv/bin/pytest

lint: .venv/dev ## ruff and mypy --strict
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

cookbook: .venv/cookbook ## execute the notebooks in place
	.venv/bin/python cookbook/execute.py cookbook/*.ipynb

bench: .venv/dev ## speed, as ratios in one run; with CONFORMAL_DATA=FOLDER what two papers report, too
	.venv/bin/python benchmarks/speed.py
	if [ -n "$$CONFORMAL_DATA" ]; then .venv/bin/python -m benchmarks.reproduction --write && .venv/bin/python -m benchmarks.pictures coverage baselines reranking tables; fi

.venv/demo: $(NEEDS) | .venv
	@echo "Installing into .venv (about a minute the first time)"
	$(INSTALL) -e ".[demo]" $(FRAMEWORKS) && touch $@

.venv/cookbook: $(NEEDS) | .venv
	@echo "Installing the cookbook extras into .venv (a few minutes the first time)"
	$(INSTALL) -e ".[cookbook]" $(FRAMEWORKS) && touch $@

.venv/dev: $(NEEDS) | .venv
	@echo "Installing the test extras into .venv (a few minutes the first time)"
	$(INSTALL) -e ".[dev]" $(FRAMEWORKS) && touch $@ .venv/demo .venv/cookbook

.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
