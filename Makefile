# make demo             train a GPT on 4 CPU devices with the plan of DejavuStageOption
# make demo COMPARE=1   the same, and beside it with the plan of Alpa's AutoStageOption
# make test             ruff, mypy, pylint, import-linter, pytest; 16 minutes on 2 cores
# make test-all         the same with the tests that are marked as slow
# make torch            install PyTorch and transformers into .venv, without which the tests that need them are skipped
# make test-current     the tests less Alpa's with the newest jax, in .venv-current; TESTS="tests/layers ..." runs some
# make pictures         draw the pictures of slicers (their seconds are this machine's) and of a report in docs/ again
# make docs             build the site of docs/ into site/, strictly
# make pages            write the tables and figures of README.md and docs/ again, from the files of their runs
# make guides           run the blocks of the guides, and write what they print today; 8 minutes
# make schemas         write the JSON Schemas of files again, from their declared types
# make figures          fit the figures of kernels, collectives and runtimes again, to ../shared/data; 6 minutes
# PYTHON_CURRENT=python3.13  choose that of test-current (3.12 or later)
# PYTHON=python3.12     choose the interpreter (3.10, 3.11 or 3.12); without it the first that fits on PATH
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help install torch demo test test-all test-current check pictures report-picture docs pages guides schemas figures clean

STAMP := .venv/installed
CURRENT := .venv-current/installed
TESTS ?=
CHROMIUM ?= chromium
AVX512 := AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR
# A virtual environment knows its own path: in a checkout that was moved it has to be made again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -rf .venv/bin/python $(STAMP))
endif
ifneq ($(shell cat $(CURRENT) 2>/dev/null),$(CURDIR))
$(shell rm -f $(CURRENT))
endif

help:
	@sed -n 's/^# //p' Makefile

install: $(STAMP)

$(STAMP): requirements.txt setup.py $(wildcard patches/setup.py) patches/alpa_stock_jax.pth tools/install.sh
	@PYTHON="$(PYTHON)" sh tools/install.sh

torch: $(STAMP)
	@.venv/bin/python -m pip install --constraint requirements.txt torch==2.13.0 transformers==5.24.0

demo: $(STAMP)
	@.venv/bin/python examples/001_train_gpt.py --json demo.json $(if $(filter-out 0,$(COMPARE)),--compare)

check: $(STAMP)
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/pylint --score=n alpa_dejavu
	.venv/bin/lint-imports --no-cache

test: check
	.venv/bin/python -m pytest --numprocesses 2 --dist loadgroup

$(CURRENT): requirements-current.txt setup.py tools/install_current.sh
	@PYTHON="$(PYTHON_CURRENT)" sh tools/install_current.sh

test-current: $(CURRENT)
	.venv-current/bin/python -m pytest --numprocesses 2 --dist loadgroup $(TESTS)

test-all: export ALPA_DEJAVU_SLOW = 1
test-all: test

pictures: $(STAMP) report-picture
	@.venv/bin/python examples/004_slicers.py --plots docs

report-picture: $(STAMP)
	@.venv/bin/python -m alpa_dejavu plan --model gpt-39b --cluster p3.16xlarge --hosts 8 --batch 1024 --html report.html
	@$(CHROMIUM) --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=20000 \
		--window-size=1480,2130 --screenshot=docs/report.png "file://$(CURDIR)/report.html"
	@rm report.html

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

pages: $(STAMP)
	@.venv/bin/python benchmarks/page.py

guides: $(STAMP)
	@.venv/bin/python tools/guides.py

schemas: $(STAMP)
	@.venv/bin/python -m alpa_dejavu.cli._schemas

# One thread, and instructions that every processor of the last ten years has: sums come out the same, to the last bit.
figures: $(STAMP)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="$(AVX512)" \
		sh -ec 'for each in kernels nccl runtimes; do .venv/bin/python benchmarks/build_$$each.py; done'

clean:
	rm -rf .venv .venv-current build dist site *.egg-info patches/build patches/*.egg-info .pytest_cache .mypy_cache .ruff_cache demo.json
