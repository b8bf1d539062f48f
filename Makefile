# hy3d_rocm: build, demo, tests. `make help` lists the targets.
#
# An active virtual environment is used as it is and its torch is never replaced; without one,
# .venv is made. TORCH_SPEC chooses the torch to install there, in pip's words, for example
#   make demo TORCH_SPEC="torch --index-url https://download.pytorch.org/whl/rocm6.4"
TORCH_SPEC ?= torch==2.13.0
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
# What the demo writes.
OUT ?= demo_out
# Processes of pytest: auto is one a core, or one if there is a GPU, which its tests measure.
TEST_JOBS ?= auto
# Files of tests that do less in the gate than they can.
FULL_TESTS := tests/unit/decode/families/test_changes.py tests/unit/decode/test_decode.py tests/unit/pipeline/test_seed_modes.py

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

.PHONY: help env demo test bench lint asan pytest pytest-full site check-library clean
help:
	@echo "make demo   install, build, decode a real clip through failing convolutions, show the result in $(OUT)/"
	@echo "make test   lint, C tests, Python tests (a quarter of an hour on two cores)"
	@echo "make bench  convolution, router and decode measurements"
	@echo "make lint   ruff, mypy, clang-format, clang-tidy, lines of C"
	@echo "make asan   C tests under AddressSanitizer and UndefinedBehaviorSanitizer"
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

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@echo "clang-format --dry-run -Werror on csrc, include and examples/c"
	@$(PY) -c 'from clang_format import clang_format; clang_format()' --dry-run -Werror $(wildcard csrc/*/*.[ch] include/hy3d/*.h examples/c/*.c)
	@! grep -nHE '^.{101,}$$' $(wildcard csrc/*/*.[ch] csrc/*/*.inc include/hy3d/*.h examples/c/*.c) || \
		{ echo "lines of C of over 100 columns (above): wrap them" >&2; exit 1; }
	@$(MAKE) --no-print-directory -k -j$(CORES) ctidy
	@echo "clang-tidy on csrc and examples/c: $(words $(CTIDY_SOURCES)) files"
	$(PY) -m mypy

site: $(STAMP)
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q
	@echo "the documentation: build/site/index.html"

pytest: $(STAMP)
	$(PY) -m pytest -n $(TEST_JOBS) --dist loadfile

# All that tests do less of in the gate, for want of time; tests/nightly.py runs it.
pytest-full: $(STAMP)
	HY3D_TESTS=full $(PY) -m pytest -n $(TEST_JOBS) --dist loadfile $(FULL_TESTS)

# pytest comes last: its closing line is the result.
test: check-library $(STAMP)
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory -j$(CORES) -Otarget ctest HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))"
	$(MAKE) --no-print-directory -j$(CORES) -Otarget csites HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))"
	$(MAKE) --no-print-directory -j$(CORES) -Otarget cbits-quick HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))"
	$(MAKE) --no-print-directory pytest

asan: check-library $(STAMP)
	$(MAKE) --no-print-directory casan HY3D_BLAS_LIBRARY="$$($(VENDORED_BLAS))"

bench: $(STAMP)
	$(PY) tests/bench/bench_conv.py
	$(PY) tests/bench/bench_protect.py

clean:
	rm -rf build dist $(OUT) hy3d_rocm/_core*.so hy3d_rocm/_vendor *.egg-info
