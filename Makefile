# hy3d_rocm: build, demo, tests. `make help` lists the targets.
#
# An active virtual environment is used as it is and its torch is never replaced; without one,
# .venv is made. TORCH_SPEC chooses the torch to install there, in pip's words, for example
#   make demo TORCH_SPEC="torch --index-url https://download.pytorch.org/whl/rocm6.4"
TORCH_SPEC ?= torch==2.13.0
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
# What the demo writes.
OUT ?= demo_out
# Processes of pytest: auto is one more than there are cores, or one if there is a GPU, which its
# tests measure.
TEST_JOBS ?= auto
# What `make test-long` runs: all there is, or the files that are named.
LONG_TESTS ?=
# `make quick PKG=conv`: one folder of the package. With none: all of it.
PKG ?=

# What was compiled is kept, whatever the environment says: pip compiles nothing ahead, and without
# it each of some hundred children of the tests would compile torch and the package anew.
export PYTHONDONTWRITEBYTECODE :=

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

ifdef VIRTUAL_ENV
VENV := $(VIRTUAL_ENV)
else
VENV := .venv
endif
PY := $(VENV)/bin/python
# One stamp a virtual environment, so that switching between two is noticed.
STAMP := build/env-$(shell echo '$(abspath $(VENV))' | cksum | cut -d' ' -f1)

# Prints the vendored BLAS library's path; nothing where the system's is used (HY3D_BLAS=system).
# Asked when a recipe runs, since the library is built on the way.
VENDORED_BLAS := ls $(CURDIR)/hy3d_rocm/_vendor/libhy3d_openblas.so 2>/dev/null || true

include csrc/core.mk

.PHONY: help env demo test test-long quick quick-types quick-tests bench lint lint-python lint-types \
	lint-c asan pytest collect site check-library clean
help:
	@echo "make demo   install, build, decode a real clip through failing convolutions, show the result in $(OUT)/"
	@echo "make quick  lint and all tests that are not slow; PKG=conv: of one folder of the package"
	@echo "make test   lint, C tests, Python tests (some 900 s of processor time)"
	@echo "make test-long  C and Python tests with every draw that the gate takes fewer of"
	@echo "make bench  convolution, router and decode measurements"
	@echo "make lint   ruff, mypy, clang-format, clang-tidy, lines of C"
	@echo "make asan   C tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make wheel-windows  the wheel for Windows, by MinGW-w64, into dist/"
	@echo "make install  the C library, its headers and its pkg-config file into PREFIX (/usr/local)"
	@echo "make site   the documentation into build/site, warnings as errors"
	@echo "make clean  remove what was built (not .venv)"

$(VENV)/bin/python:
	@tools/make_venv.sh $(VENV)

# Installed once per change of what it depends on: the sources of the extension and the metadata.
$(STAMP): $(VENV)/bin/python pyproject.toml setup.py tools/install_python_packages.sh $(wildcard csrc/*/*.c csrc/*/*.h csrc/*/*.inc include/hy3d/*.h)
	@mkdir -p build
	@tools/install_python_packages.sh $(PY) $(TORCH_SPEC)
	@touch $@

env: $(STAMP)

demo: $(STAMP)
	@$(PY) -m hy3d_rocm demo --out $(OUT)

check-library:
	@tools/install_check.sh

# Each by itself, so that they run beside each other and beside the C tests.
lint-python: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
lint-types: $(STAMP)
	$(PY) -m mypy
lint-c: $(STAMP)
	@echo "clang-format --dry-run -Werror on csrc, include and examples/c"
	@$(PY) -c 'from clang_format import clang_format; clang_format()' --dry-run -Werror $(wildcard csrc/*/*.[ch] include/hy3d/*.h examples/c/*.c tools/dev/gfx/*.[ch])
	@! grep -nHE '^.{101,}$$' $(wildcard csrc/*/*.[ch] csrc/*/*.inc include/hy3d/*.h examples/c/*.c) || \
		{ echo "lines of C of over 100 columns (above): wrap them" >&2; exit 1; }
LINT := lint-python lint-c lint-types ctidy
lint: $(STAMP)
	@$(MAKE) --no-print-directory -k -Otarget -j$(CORES) $(LINT)
	@echo "clang-tidy on csrc and examples/c: $(words $(CTIDY_SOURCES)) files"

site: $(STAMP)
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q
	@echo "the documentation: build/site/index.html"

# The files in their order: by the number of tests, pytest-xdist's own, the longest come last, and
# one process waits for the other.
PYTEST := $(PY) -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder
pytest: $(STAMP)
	$(PYTEST)

# One process imports all tests first: what pytest makes of their asserts, and what Python compiles
# of torch, the others find on the disk.
collect: $(STAMP)
	@$(PY) -m pytest --collect-only -q > build/collected.txt || { tail -50 build/collected.txt; exit 1; }
	@tail -1 build/collected.txt

# First the C tests are compiled, beside pip, which keeps one core busy. Then they run, and what
# needs no result of theirs, as many at a time as there are cores. The suites come first: they take
# longest. Then pytest, alone, since some of its tests measure; its closing line is the result.
PROGRAMS := core $(CORE_BUILD)/check_hy3d $(CORE_BUILD)/fuzz/replay $(CORE_BUILD)/check_bits \
	$(CSITES_BUILD)/check_sites
GATE := ctest csites $(LINT) collect cbits-quick
# Beside another goal, whose pip would run at the same time, pip comes first.
test: check-library $(if $(filter-out test,$(MAKECMDGOALS)),$(STAMP))
	$(MAKE) --no-print-directory -j$(CORES) $(STAMP) $(PROGRAMS)
	$(MAKE) --no-print-directory -j$(CORES) -Otarget $(GATE) HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))"
	$(MAKE) --no-print-directory pytest

# All that the gate takes fewer draws of; tests/nightly.py runs it.
test-long: check-library $(STAMP)
	$(if $(LONG_TESTS),,HY3D_TESTS=full $(MAKE) --no-print-directory -j$(CORES) -Otarget ctest csites \
		HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))")
	HY3D_TESTS=full $(PYTEST) $(LONG_TESTS)

# What an edit can be tried with: no C test, and no test of tests/slow.txt. Of one folder the types
# are checked beside its tests: the first time, without mypy's cache, they take as long.
quick: $(STAMP)
ifdef PKG
	@$(MAKE) --no-print-directory -k -Otarget -j2 quick-types quick-tests
quick-types: $(STAMP)
	$(PY) -m ruff check $(wildcard hy3d_rocm/$(PKG) hy3d_rocm/$(PKG).py tests/unit/$(PKG))
	$(PY) -m ruff format --check $(wildcard hy3d_rocm/$(PKG) hy3d_rocm/$(PKG).py tests/unit/$(PKG))
	$(PY) -m mypy $(wildcard hy3d_rocm/$(PKG) hy3d_rocm/$(PKG).py)
quick-tests: $(STAMP)
	$(PYTEST) -q -m "not slow" $(or $(wildcard tests/unit/$(PKG)),tests/unit/test_$(PKG).py)
else
	$(MAKE) --no-print-directory lint
	$(PYTEST) -q -m "not slow"
endif

asan: check-library $(STAMP)
	$(MAKE) --no-print-directory casan HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))"

bench: $(STAMP)
	$(PY) tests/bench/bench_conv.py
	$(PY) tests/bench/bench_protect.py

clean:
	rm -rf build dist $(OUT) hy3d_rocm/_core*.so hy3d_rocm/_vendor *.egg-info
