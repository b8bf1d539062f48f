# The C core for 64-bit Windows, by mingw-w64, and its C tests under wine; included by core.mk.
#
#   make cwin       build/c-win: libhy3d_core.a, hy3d_core.dll, its import library, check_hy3d.exe
#   make cwintest   under wine: whether the DLL computes the bits that this system does, and
#                   check_hy3d.exe once for each of CWIN_LEVELS
#   make wheel-windows   dist/hy3d_rocm-VERSION-cp311-abi3-win_amd64.whl, and what it must be looked up
#                 in it; needs Python with its headers and a package index, and no Windows
#   make wheel-windows-test   that wheel in a Python for Windows under wine: installed, and the
#                 tests of the core at each of CWIN_LEVELS (tests/long/check_windows_python.py)
#
# Debian and Ubuntu: apt-get install gcc-mingw-w64-x86-64 wine64. Variables: CWIN_CC; WINE;
# CWIN_LEVELS="ref avx2 avx512": HY3D_CPU of the runs (above the machine's level: the machine's);
# CWIN_BLAS=PATH: a 64-bit OpenBLAS DLL (else that of wheel-windows), without which the tests that
# need one are skipped and counted; CHECK_ARGS as for ctest; CWIN_PREFIX: the folder that wine makes
# its C: drive in.

CWIN_CC ?= x86_64-w64-mingw32-gcc
CWIN_TOOLS ?= x86_64-w64-mingw32-
WINE ?= $(firstword $(shell command -v wine64 wine) $(wildcard /usr/lib/wine/wine64))
CWIN_LEVELS ?= ref avx2 avx512
CWIN_BUILD := build/c-win
CWIN_PREFIX ?= $(CURDIR)/$(CWIN_BUILD)/prefix
CWIN_BLAS ?= $(wildcard build/windows/tools/scipy_openblas32/lib/*.dll)

# gcc puts vectors of 32 and 64 bytes on the stack with instructions that want them aligned, and
# Win64 aligns the stack to 16 (GCC bug 54412): the assembler writes the unaligned form of each,
# which costs nothing where the address is aligned. In isfinite() of mingw-w64 before 11 a double
# meets functions of float that are not called, and gcc warns.
CWIN_CFLAGS := $(filter-out -fPIC -fvisibility=hidden -pthread,$(CORE_CFLAGS)) \
	-Wno-float-conversion -Wa,-muse-unaligned-vector-move -D_WIN32_WINNT=0x0601
CWIN_TEST_CFLAGS := -DHY3D_CHECK_COMPAT=1 $(CTEST_HAVE) -Itests/c -Itests/c/windows \
	-include tests/c/windows/posix.h -Wno-float-equal -pthread
CWIN_TEST_SOURCES := $(CTEST_SOURCES) tests/c/windows/posix.c
CWIN_OBJECTS := $(CORE_SOURCES:%.c=$(CWIN_BUILD)/%.o)
CWIN_TEST_OBJECTS := $(CWIN_TEST_SOURCES:%.c=$(CWIN_BUILD)/%.o)

# As core.mk's: what the tests of blas.c load.
CWIN_LIBRARIES := $(addprefix build/test-libraries/,told.dll libhy3d_told.dll silent.dll local.dll)

.PHONY: cwin cwintest cwin-there

cwin-there:
	@command -v $(CWIN_CC) >/dev/null || \
		{ echo "cwin: there is no $(CWIN_CC):" \
		"install gcc-mingw-w64-x86-64, or name another compiler with CWIN_CC." >&2; exit 1; }

cwin: cwin-there $(CWIN_BUILD)/hy3d_core.dll $(CWIN_BUILD)/check_hy3d.exe $(CWIN_LIBRARIES) \
	$(CWIN_BUILD)/same_bits.exe $(CWIN_BUILD)/moves.ok $(CWIN_BUILD)/exports.ok

$(CWIN_BUILD)/csrc/%.o: csrc/%.c | cwin-there
	@mkdir -p $(@D)
	$(CWIN_CC) $(CORE_OPT) $(CWIN_CFLAGS) -DHY3D_BUILD -MMD -MP -c -o $@ $<

$(CWIN_BUILD)/tests/%.o: tests/%.c | cwin-there
	@mkdir -p $(@D)
	$(CWIN_CC) $(CORE_OPT) $(CWIN_CFLAGS) $(CWIN_TEST_CFLAGS) -MMD -MP -c -o $@ $<

$(CWIN_BUILD)/tests/c/main.o: $(CWIN_BUILD)/$(CTEST_DIR)/suites.txt

$(CWIN_BUILD)/libhy3d_core.a: $(CWIN_OBJECTS)
	rm -f $@
	$(CWIN_TOOLS)ar rcs $@ $^

# What is exported is what the headers declare: HY3D_API.
$(CWIN_BUILD)/hy3d_core.dll: $(CWIN_OBJECTS)
	$(CWIN_CC) -shared -static-libgcc -o $@ $^ -Wl,--out-implib,$(CWIN_BUILD)/libhy3d_core.dll.a

# Static: the program needs no DLL of the compiler's beside it.
$(CWIN_BUILD)/check_hy3d.exe: $(CWIN_TEST_OBJECTS) $(CWIN_BUILD)/libhy3d_core.a
	$(CWIN_CC) -static -pthread -Wl,--wrap=pthread_create,--wrap=hy3d__thread_start -o $@ $^

# As libhy3d_tests.so of core.mk.
$(CWIN_BUILD)/hy3d_tests.dll: $(patsubst %,$(CWIN_BUILD)/%.o,tests/c/counting tests/c/reference \
		$(patsubst %,csrc/%,base/alloc base/os_windows base/tensor base/workspace conv3d/check))
	$(CWIN_CC) -shared -static -Wl,--export-all-symbols -o $@ $^

build/test-libraries/%.dll: tests/c/libraries/blas.c | cwin-there
	@mkdir -p $(@D)
	$(CWIN_CC) $(CWIN_CFLAGS) $(TEST_LIBRARY_FLAGS) -shared -static-libgcc -o $@ $<
%/told.dll %/libhy3d_told.dll: TEST_LIBRARY_FLAGS := -DTEST_CONFIG='getenv("HY3D_TEST_BLAS")'
%/local.dll: TEST_LIBRARY_FLAGS := -DTEST_LOCAL=1

# No aligned move to or from memory is left for a misaligned stack to crash at.
$(CWIN_BUILD)/moves.ok: $(CWIN_BUILD)/hy3d_core.dll
	@$(CWIN_TOOLS)objdump -d --no-show-raw-insn $< > $(CWIN_BUILD)/core.s
	@grep -q 'vmovup[sd].*(%r[sb]p)' $(CWIN_BUILD)/core.s || \
		{ echo "cwin: the disassembly shows no move to the stack at all" >&2; exit 1; }
	@! grep -E 'vmov(ap[sd]|dqa)[0-9]*[[:space:]].*\(' $(CWIN_BUILD)/core.s || \
		{ echo "cwin: aligned vector moves to memory" >&2; exit 1; }
	@touch $@

# The DLL exports what the shared library of Linux does: HY3D_API in the headers, and no more.
$(CWIN_BUILD)/exports.ok: $(CWIN_BUILD)/hy3d_core.dll $(CORE_BUILD)/libhy3d_core.so
	@$(CWIN_TOOLS)nm $(CWIN_BUILD)/libhy3d_core.dll.a | sed -n 's/.* T //p' | sort \
		> $(CWIN_BUILD)/exports.txt
	@nm -D --defined-only $(CORE_BUILD)/libhy3d_core.so | sed -n 's/.* T //p' | sort | \
		diff - $(CWIN_BUILD)/exports.txt || \
		{ echo "cwin: the DLL exports other names than the shared library" >&2; exit 1; }
	@touch $@

# The same program for both systems: on Windows with the DLL, on Linux with the static library.
$(CWIN_BUILD)/same_bits.exe: tests/c/windows/same_bits.c $(CWIN_BUILD)/hy3d_core.dll
	$(CWIN_CC) $(CORE_OPT) $(CWIN_CFLAGS) -o $@ $< $(CWIN_BUILD)/libhy3d_core.dll.a

$(CORE_BUILD)/same_bits: tests/c/windows/same_bits.c $(CORE_BUILD)/libhy3d_core.a
	$(CC) $(CORE_OPT) $(CORE_CFLAGS) -o $@ $^ $(CORE_LIBS)

cwintest: cwin $(CORE_BUILD)/same_bits
	@[ -n "$(WINE)" ] || \
		{ echo "cwintest: there is no wine: install wine64, or name one with WINE." >&2; exit 1; }
	@mkdir -p $(CWIN_PREFIX)
	@export WINEPREFIX=$(CWIN_PREFIX) WINEDEBUG=-all; unset DISPLAY; \
	$(CORE_BUILD)/same_bits > $(CWIN_BUILD)/bits-here.txt && \
	$(WINE) $(CWIN_BUILD)/same_bits.exe | tr -d '\r' > $(CWIN_BUILD)/bits-windows.txt && \
	diff $(CWIN_BUILD)/bits-here.txt $(CWIN_BUILD)/bits-windows.txt || \
		{ echo "cwintest: the DLL computes other bits" >&2; exit 1; }; \
	echo "cwintest: $$(wc -l < $(CWIN_BUILD)/bits-here.txt) digests of real data," \
		"0 differ from this system's"; \
	[ -z "$(CWIN_BLAS)" ] || export HY3D_BLAS_LIBRARY="Z:$(abspath $(CWIN_BLAS))"; \
	[ -n "$(CWIN_BLAS)" ] || unset HY3D_BLAS_LIBRARY; \
	export CK_TIMEOUT_MULTIPLIER=$${CK_TIMEOUT_MULTIPLIER:-6}; \
	failed=0; \
	for level in $(CWIN_LEVELS); do \
		echo "cwintest: HY3D_CPU=$$level"; \
		HY3D_TESTS=full HY3D_CPU=$$level $(WINE) $(CWIN_BUILD)/check_hy3d.exe $(CHECK_ARGS) || failed=1; \
	done; \
	exit $$failed

# The extension and its wheel: setup.py builds for the platform that sysconfig is told of, with the
# tools that Python finds first: those of a release, and of scipy-openblas32 the one for Windows.
WHEEL_BUILD := build/windows
WHEEL_TOOLS = $(shell grep -E '^(setuptools|scipy-openblas32)==' tools/build-requirements.txt)
CWIN_WHEEL = dist/hy3d_rocm-$(CORE_VERSION)-cp311-abi3-win_amd64.whl

.PHONY: wheel-windows wheel-windows-test

wheel-windows: cwin-there $(VENV)/bin/python
	rm -rf $(WHEEL_BUILD)/tools build/lib.win-amd64-* build/temp.win-amd64-* build/bdist.win-amd64
	$(PY) -m pip install -q --no-deps --platform win_amd64 --only-binary :all: \
		--target $(WHEEL_BUILD)/tools $(WHEEL_TOOLS)
	@mkdir -p dist
	_PYTHON_HOST_PLATFORM=win-amd64 CC=$(CWIN_CC) PYTHONPATH=$(CURDIR)/$(WHEEL_BUILD)/tools \
		$(PY) -c 'import setuptools.build_meta as b; b.build_wheel("dist")' \
		> $(WHEEL_BUILD)/log 2>&1 || { tail -n 20 $(WHEEL_BUILD)/log >&2; exit 1; }
	OBJDUMP=$(CWIN_TOOLS)objdump $(PY) tools/check_windows_wheel.py $(CWIN_WHEEL) \
		--objects build/temp.win-amd64-*

wheel-windows-test: $(CWIN_BUILD)/hy3d_tests.dll
	@[ -n "$(WINE)" ] || { echo "wheel-windows-test: there is no wine: install wine64, or name" \
		"one with WINE." >&2; exit 1; }
	CC=$(CWIN_CC) WINE=$(WINE) $(PY) tests/long/check_windows_python.py $(CWIN_WHEEL) \
		--levels $(CWIN_LEVELS)

-include $(CWIN_OBJECTS:.o=.d) $(CWIN_TEST_OBJECTS:.o=.d)
