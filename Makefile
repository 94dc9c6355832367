# `make run` and `make test` start from nothing: they make .venv and install what is missing. With ARGS="--port 8000" the
# lab is started with these options.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: run test test-fast lint format docs clean

run: $(VENV)/.installed
	$(BIN)/python app.py $(ARGS)

# All tests run in three processes, a file at a time (or those that share an app, see tests/conftest.py), two of them with
# an app and a browser of their own: on two cores, one mostly waits. With ARGS, those that it names, in one.
test: $(VENV)/.installed-test lint
	@CHROMIUM="$$($(BIN)/python tests/ensure_chromium.py)" || exit 1; export CHROMIUM; \
	exec $(BIN)/python -m pytest $(or $(ARGS),-n 3 --dist loadfile --no-loadscope-reorder)

# What is compiled is kept, whatever the environment says: compiling costs each process eight seconds.
test test-fast: export PYTHONDONTWRITEBYTECODE =

# The inner loop: no browser, nothing slow, a file at a time on each of two cores.
test-fast: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not browser" --ignore tests/browser $(ARGS)

# Tables and figures of the documentation, from the records in docs/bench.
docs: $(VENV)/.installed
	$(BIN)/python -m docs.generate

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A Mac's own python3, for one, is older.
$(VENV)/bin/python:
	@$(PYTHON) -c "import sys; sys.version_info < (3, 11) and \
	sys.exit('$(PYTHON) is Python %d.%d, and the lab needs 3.11 or newer: make run PYTHON=python3.12' % sys.version_info[:2])"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt -c constraints.txt
	touch $@

$(VENV)/.installed-test: requirements-test.txt $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-test.txt -c constraints.txt
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
