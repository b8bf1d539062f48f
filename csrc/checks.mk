# The C tests under tools that look on; included by core.mk. Nothing here installs anything: what is
# missing is said in a sentence.
#
#   make ctsan      the suites that start threads, with ThreadSanitizer
#   make cmsan      all suites with MemorySanitizer (clang): portable kernels, a BLAS of our own
#   make cvalgrind  all suites under valgrind's memcheck
#   make chelgrind  the suites of the thread pool under valgrind's helgrind and drd
#   make cinteger   all suites with clang's checks of conversions, shifts and bounds
#   make ccov       lines and branches that the tests reach (gcc and gcov), the extension's too
#   make cguards    every kernel between guard pages, all lengths and offsets
#   make ctidy      clang-tidy's quick checks (.clang-tidy) over csrc and examples/c; in make lint
#   make canalyze   gcc's -fanalyzer and clang-tidy's analyzer over csrc, every finding an error
#
# QUICK=1: about three minutes on two cores, a share of the long suites. JOBS=N programs at a time.
# All of it is built with the stand-in for Check: the library is not instrumented, and only the
# stand-in shares a suite among programs. What is silenced stands in tests/c/
# valgrind.supp with its reasons.

CLANG ?= clang
VALGRIND ?= valgrind
JOBS ?= $(shell nproc)
QUICK ?=
RUN_SUITES := HY3D_TESTS=full JOBS=$(JOBS) CK_TIMEOUT_MULTIPLIER=100 tests/c/run_suites.sh

# $(call shares,SUITES,N,MOST): the suites in N shares each; with QUICK only MOST of them.
shares = $(foreach suite,$(1),$(suite):$(2)$(if $(QUICK),:$(3)))
# The suites that take longest, each cut for as many processors as there may be.
LONG_SUITES := conv3d winograd winograd_kernels schedule tiles
SHORT_SUITES := $(filter-out $(LONG_SUITES),$(CTEST_SUITES))

# What it says of itself: as a build of OpenBLAS for eight threads would.
TEST_BLAS := -DTEST_CONFIG='"Loops for tests, MAX_THREADS=8"'

# $(call instrumented,FOLDER,FLAGS,CC): the tests with the stand-in, and the BLAS of our own.
define instrumented
$(eval $(call sanitized,$(1),$(2)))
$(1)/libraries/blas.so: tests/c/libraries/blas.c
	@mkdir -p $$(@D)
	$$(CC) $(2) $$(CORE_CFLAGS) $$(TEST_BLAS) -shared -o $$@ $$<
endef

CTSAN_BUILD := build/c-tsan
CTSAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
CMSAN_BUILD := build/c-msan
CMSAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=memory -fsanitize-memory-track-origins
CINTEGER_BUILD := build/c-integer
# Of -fsanitize=integer the conversions alone: unsigned overflow and shifts are defined, and what
# generators of numbers mean.
CINTEGER_FLAGS := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all \
	-fsanitize=undefined,local-bounds,implicit-conversion

$(eval $(call instrumented,$(CTSAN_BUILD),$(CTSAN_FLAGS)))
$(eval $(call instrumented,$(CMSAN_BUILD),$(CMSAN_FLAGS)))
$(eval $(call instrumented,$(CINTEGER_BUILD),$(CINTEGER_FLAGS)))

# $(call program,FOLDER,CC): makes the tests and the BLAS in FOLDER.
program = $(MAKE) --no-print-directory -j$(JOBS) CC=$(2) CHECK_COMPAT=1 \
	$(1)/tests-compat/check_hy3d $(1)/libraries/blas.so
uninstrumented = $(MAKE) --no-print-directory -j$(JOBS) CHECK_COMPAT=1 \
	$(CORE_BUILD)/tests-compat/check_hy3d
# $(call needs,COMMAND,SENTENCE): ends with the sentence where the command is not there.
needs = @command -v $(1) >/dev/null 2>&1 || { echo "$@: $(2)" >&2; exit 1; }

cguards: $(CORE_BUILD)/check_hy3d
	python3 tests/long/check_guards.py --jobs $(JOBS) $(CGUARDS_ARGS)

.PHONY: cguards ctsan cmsan cvalgrind chelgrind cinteger ctidy canalyze

# Eight threads whatever the machine has (HY3D_TEST_THREADS), but in the suites of the pool itself,
# which count threads. Suites that start none are left out: there is nothing to race with; so is
# fork, since ThreadSanitizer cannot follow threads that start after a fork with threads.
CTSAN_POOL := base allocator fingerprint workspace parallel blas gemm peak
CTSAN_RACES := conv_memory moments rasterize rasterize_runs raster_mesh
CTSAN_OPTIONS := die_after_fork=0:allocator_may_return_null=1:exitcode=66
ctsan:
	$(call program,$(CTSAN_BUILD),$(CC))
	TSAN_OPTIONS=$(CTSAN_OPTIONS) $(RUN_SUITES) ctsan-pool \
	$(CTSAN_BUILD)/tests-compat/check_hy3d $(CTSAN_POOL)
	TSAN_OPTIONS=$(CTSAN_OPTIONS) HY3D_TEST_THREADS=8 $(RUN_SUITES) ctsan \
	$(CTSAN_BUILD)/tests-compat/check_hy3d $(CTSAN_RACES) $(call shares,conv3d winograd,32,1)

cmsan:
	$(call needs,$(CLANG),MemorySanitizer needs clang (apt-get install clang); not run)
	$(call program,$(CMSAN_BUILD),$(CLANG))
	HY3D_CPU=ref HY3D_BLAS_LIBRARY=$(CURDIR)/$(CMSAN_BUILD)/libraries/blas.so \
	MSAN_OPTIONS=allocator_may_return_null=1 $(RUN_SUITES) cmsan \
	$(CMSAN_BUILD)/tests-compat/check_hy3d $(SHORT_SUITES) $(call shares,$(LONG_SUITES),16,2)

# The core as it is built, under valgrind, whose cpuid offers AVX2 at most (3.19): the kernels for
# AVX-512 are not run.
CVALGRIND := $(VALGRIND) -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
	--show-leak-kinds=definite --track-origins=yes --suppressions=$(CURDIR)/tests/c/valgrind.supp
cvalgrind:
	$(call needs,$(VALGRIND),valgrind is not installed (apt-get install valgrind); not run)
	$(call uninstrumented)
	$(RUN_SUITES) cvalgrind $(CORE_BUILD)/tests-compat/check_hy3d \
	$(SHORT_SUITES) $(call shares,$(LONG_SUITES),32,1) -- $(CVALGRIND)

chelgrind:
	$(call needs,$(VALGRIND),valgrind is not installed (apt-get install valgrind); not run)
	$(call uninstrumented)
	for tool in helgrind drd; do \
		$(RUN_SUITES) c$$tool $(CORE_BUILD)/tests-compat/check_hy3d base parallel fingerprint -- \
		$(VALGRIND) -q --tool=$$tool --error-exitcode=99 \
		--suppressions=$(CURDIR)/tests/c/valgrind.supp || exit 1; \
	done

cinteger:
	$(call needs,$(CLANG),these checks need clang (apt-get install clang); not run)
	$(call program,$(CINTEGER_BUILD),$(CLANG))
	UBSAN_OPTIONS=print_stacktrace=1 $(RUN_SUITES) cinteger \
	$(CINTEGER_BUILD)/tests-compat/check_hy3d $(SHORT_SUITES) $(call shares,$(LONG_SUITES),16,2)

# Findings are errors. clang-tidy is the wheel's (the test extra). A stamp a file: what did not change
# is not looked at again, but any header that did has all of it looked at.
CTIDY_BUILD := build/tidy
CTIDY_SOURCES := $(sort $(wildcard csrc/*/*.c examples/c/*.c))
CTIDY = $(eval CTIDY := $(shell $(CHECK_PYTHON) -c \
	'import clang_tidy; print(clang_tidy.get_executable("clang-tidy"))'))$(CTIDY)
CTIDY_FLAGS = $(CORE_CFLAGS) -Wno-error -D_GNU_SOURCE -DPy_LIMITED_API=0x030B0000 $(PYTHON_INCLUDE)
$(CTIDY_BUILD)/%.ok: %.c .clang-tidy csrc/checks.mk \
		$(wildcard csrc/*/*.h csrc/*/*.inc include/hy3d/*.h)
	@mkdir -p $(@D)
	@$(CTIDY) --quiet $(CTIDY_CHECKS) $< -- $(CTIDY_FLAGS) 2>$@.log || { cat $@.log; exit 1; }
	@touch $@
ctidy: $(CTIDY_SOURCES:%.c=$(CTIDY_BUILD)/%.ok)

# gcc's analyzer is run without the kernels, which own no memory and call nothing. Of clang's, left
# out: memcpy and snprintf are no faults, nor are strcpy and strcat of what was measured before; a
# brush is padded to the vectors in it.
CANALYZE_BUILD := build/c-analyze
CANALYZE_SOURCES := $(sort $(wildcard csrc/*/*.c))
CANALYZE_GCC := $(patsubst %.c,$(CANALYZE_BUILD)/%.gcc,$(filter-out csrc/kernels/%,$(CANALYZE_SOURCES)))
CANALYZE_CHECKS := -*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafe*,$\
	-clang-analyzer-security.insecureAPI.strcpy,-clang-analyzer-optin.performance.Padding
PYTHON_INCLUDE = $(eval PYTHON_INCLUDE := -isystem $(shell $(CHECK_PYTHON) -c \
	'import sysconfig; print(sysconfig.get_path("include"))'))$(PYTHON_INCLUDE)
# The top Makefile's virtual environment, where it is made.
CHECK_PYTHON ?= $(or $(wildcard $(PY)),python3)

# Headers are not followed: make canalyze begins afresh each time.
$(CANALYZE_BUILD)/%.gcc: %.c
	@mkdir -p $(@D)
	$(CC) $(CTIDY_FLAGS) -O1 -fanalyzer -Werror -c -o $@ $<
canalyze:
	rm -rf $(CANALYZE_BUILD)
	$(MAKE) --no-print-directory -s -k -j$(JOBS) $(CANALYZE_GCC)
	@echo "canalyze: $(words $(CANALYZE_GCC)) files, 0 findings of gcc"
	$(MAKE) --no-print-directory -s -k -j$(JOBS) ctidy CTIDY_BUILD=$(CANALYZE_BUILD)/tidy \
		CTIDY_CHECKS='--checks=$(CANALYZE_CHECKS)'
	@echo "canalyze: $(words $(CTIDY_SOURCES)) files, 0 findings of clang"

# Coverage: the suites at every CPU level, failing calls of the system (csites), the checks of bits,
# and the tests of the binding against an extension built in the same way. Without inlining, which
# makes one line many; otherwise optimised a little, since the suites take ten times as long
# without. Of the two longest suites parts are run: the checks of bits go the same ways, with an
# oracle that takes less time.
CCOV_BUILD := build/c-cov
CCOV_FLAGS := -O1 -fno-inline -g --coverage -fprofile-update=atomic
CCOV_LEVELS ?= avx512 avx2 ref
CCOV_SUITES = $(SHORT_SUITES) winograd_kernels schedule tiles $(foreach suite,conv3d winograd,$(suite):16:2)
CCOV_TESTS ?= _core/test_[adfmopr] raster/test_ _fallback/test_s decoding/test_plan.py decoding/backends/test_native_moments.py \
	conv/test_functional.py conv/test_prepared test_device
# Behind "python": of a line that is compiled twice the first build counts the branches.
CCOV_FAULTS := $(CCOV_BUILD)/sites-python/csrc
CCOV_EXTENSION := $(CCOV_BUILD)/package/hy3d_rocm/_core.abi3.so
CCOV_OBJECTS := $(patsubst %.c,$(CCOV_BUILD)/python/%.o,$(sort $(wildcard csrc/*/*.c)))
$(eval $(call instrumented,$(CCOV_BUILD),$(CCOV_FLAGS)))
# The tests themselves and their oracle are where the time goes.
$(CCOV_BUILD)/tests-compat/%.o: CFLAGS += -O2 -fno-profile-arcs -fno-test-coverage -DTEST_COVERAGE=1

$(CCOV_BUILD)/check_bits: $(CBITS_OBJECTS) $(CBITS_REFERENCE) $(CORE_SOURCES:%.c=$(CCOV_BUILD)/%.o)
	$(CC) $(CCOV_FLAGS) -o $@ $^ $(CORE_LIBS)

$(CCOV_BUILD)/python/csrc/%.o: csrc/%.c
	@mkdir -p $(@D)
	$(CC) $(CORE_CFLAGS) $(CCOV_FLAGS) -D_GNU_SOURCE -DPy_LIMITED_API=0x030B0000 \
		$(PYTHON_INCLUDE) -MMD -MP -c -o $@ $<
$(CCOV_EXTENSION): $(CCOV_OBJECTS) FORCE
	@rm -rf $(CCOV_BUILD)/package && mkdir -p $(CCOV_BUILD)/package
	@cp -r hy3d_rocm tests tools pyproject.toml setup.py $(CCOV_BUILD)/package/ && rm -f $(@D)/_core*.so
	$(CC) --coverage -shared -o $@ $(CCOV_OBJECTS) $(CORE_LIBS)
-include $(CCOV_OBJECTS:.o=.d)

.PHONY: ccov
ccov:
	$(call needs,gcov,gcov is not installed (it comes with gcc); not run)
	$(call program,$(CCOV_BUILD),$(CC))
	$(MAKE) --no-print-directory -j$(JOBS) $(CCOV_EXTENSION) $(CCOV_BUILD)/check_bits \
	$(CORE_BUILD)/libhy3d_tests.so
	find $(CCOV_BUILD) -name '*.gcda' -delete
	for level in $(CCOV_LEVELS); do \
		HY3D_CPU=$$level $(RUN_SUITES) ccov-$$level $(CCOV_BUILD)/tests-compat/check_hy3d \
		$(CCOV_SUITES) || exit 1; \
	done
	for case in thin conv3d fused; do \
		HY3D_TESTS=full CK_RUN_CASE=$$case $(CCOV_BUILD)/tests-compat/check_hy3d conv3d || exit 1; \
	done
	$(CCOV_BUILD)/check_bits exact --count 3000 --jobs $(JOBS)
	$(CCOV_BUILD)/check_bits stable --count 4 --jobs $(JOBS)
	$(CCOV_BUILD)/check_bits others --count 24 --jobs $(JOBS)
	$(MAKE) --no-print-directory -s -j$(JOBS) csites HY3D_TESTS=full CSITES_BUILD=$(CCOV_BUILD)/sites \
		CC="$(CC) --coverage -fno-inline -fprofile-update=atomic"
	$(CHECK_PYTHON) tests/long/check_binding_faults.py --count 2 --jobs $(JOBS) \
		--folder $(CCOV_FAULTS) --cflags="--coverage -fno-inline -fprofile-update=atomic"
	$(CHECK_PYTHON) $(CCOV_BUILD)/package/tests/long/check_binding_faults.py --way interpreter \
		--library $(CURDIR)/$(CCOV_FAULTS)/no_memory.so --count 2 >$(CCOV_FAULTS)/interpreter.json
	cd $(CCOV_BUILD)/package && PYTHONPATH=. HY3D_TESTS_LIBRARY=$(CURDIR)/$(CORE_BUILD)/libhy3d_tests.so \
	$(CHECK_PYTHON) -m pytest -q -p no:cacheprovider $(patsubst %,tests/unit/%*,$(CCOV_TESTS))
	$(CHECK_PYTHON) tests/long/check_c_coverage.py --build $(CCOV_BUILD) $(CCOV_ARGS)
