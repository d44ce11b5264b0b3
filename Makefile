# The two commands: `make demo` and `make test`. Both set up .venv themselves. `make docs` builds the documentation.
PYTHON ?= python3
PIP := .venv/bin/python -m pip --disable-pip-version-check -q

.PHONY: demo test test-slow test-gpu verdicts lint docs bench mutate clean

demo: .venv/.demo
	.venv/bin/margaux demo

test: .venv/.test
	.venv/bin/python -m pytest -n 2 --dist loadfile tests
	PYTHONPATH=tests .venv/bin/python -m pytest -p conftest -p no:cacheprovider -n 2 --doctest-modules src/margaux

test-slow: .venv/.test
	.venv/bin/python -m pytest -n 2 -m slow -rP tests

# Tests of numerics on a GPU; without one it says so and is done. The CPU is there to compare with.
test-gpu: .venv/.test
	JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false .venv/bin/python -m pytest -n 0 -m "gpu and not slow" tests

# As PROBLEMS=60 (600 by default), SEED=1, ONLY='core nlme/emax'.
verdicts: .venv/.test
	.venv/bin/python tests/contract/verdicts.py $(if $(PROBLEMS),--problems $(PROBLEMS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY))

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports
	.venv/bin/pyright

docs: .venv/.docs
	rm -rf build/docs build/doctrees
	.venv/bin/python -m sphinx -b html -W --keep-going -n -j 2 -d build/doctrees docs build/docs
	.venv/bin/python docs/check_links.py build/docs

bench: .venv/.test
	.venv/bin/python benchmarks/engine.py

# As SAMPLE=100 (all by default), SEED=1, ONLY='kernels/*', JOBS=2.
mutate: .venv/.dev
	.venv/bin/python tests/mutation.py $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only '$(ONLY)') $(if $(JOBS),--jobs $(JOBS))

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	touch $@

.venv/.test: .venv/.demo
	$(PIP) install -c constraints.txt -e '.[test]'
	touch $@

.venv/.docs: .venv/.demo
	$(PIP) install -c constraints.txt -e '.[docs]'
	touch $@

.venv/.dev: .venv/.test
	$(PIP) install -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv
