# The C core and its tests; included by the top Makefile, run from the repository's root.
#
#   make core     build/c/libhy3d_core.a, libhy3d_core.so and the headers' self-compilation
#   make ctest    builds and runs build/c/check_hy3d
#   make build/c/libhy3d_tests.so   what the tests in Python use of them
#   make casan    the same tests with AddressSanitizer and UndefinedBehaviorSanitizer
#   make install  PREFIX (/usr/local) gets include/hy3d, lib/libhy3d_core.a and .so, hy3d_core.pc
#                 for pkg-config; DESTDIR stands before it, for packages. No root, nothing of Python
#   make uninstall
#   make cinstall what is installed is complete, and examples/c builds with it and runs (in ctest)
#   make cclean
#   checks.mk     the tests under other tools: make ctsan, cmsan, cvalgrind, ccov and more
#   windows.mk    the same for Windows, under wine: make cwin, cwintest
#   tests/long/bits/bits.mk, tests/sites/sites.mk   make cbits, cbits-quick, csites
#   tests/long/schedule/schedule.mk   make schedule-million, schedule-time
#
# Variables: WERROR=0 keeps warnings from being errors; HY3D_BLAS_LIBRARY=PATH is the BLAS of the
# tests (else the system's OpenBLAS; without one the tests that need it are skipped and counted);
# CHECK_COMPAT=1 builds the tests with tests/c/check_compat.h in place of the Check library, which
# happens by itself where pkg-config does not know Check; CHECK_ARGS goes to the test program.

CC ?= cc
CXX ?= c++
AR ?= ar
INSTALL ?= install
PKG_CONFIG ?= pkg-config
PREFIX ?= /usr/local
WERROR ?= 1
CORE_OPT ?= -O2 -g

CORE_BUILD := build/c
CASAN_BUILD := build/c-asan

CORE_WARNINGS := -Wall -Wextra -Wcast-qual -Wcast-align -Wshadow -Wstrict-aliasing=1 \
	-Wswitch-enum -Wundef -Wpointer-arith -Wformat=2 -Wfloat-equal -Wstrict-prototypes \
	-Wredundant-decls -Wmissing-prototypes -Wvla -Wconversion
ifeq ($(WERROR),1)
CORE_WARNINGS += -Werror
endif

CORE_CFLAGS := -std=c11 -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude -Icsrc \
	$(CORE_WARNINGS)
CORE_LIBS := -pthread -ldl -lm
# The project's version. Structs may grow from one minor version to the next, so programs ask the
# loader for one of the same.
CORE_VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' hy3d_rocm/__init__.py)
CORE_SONAME := libhy3d_core.so.$(shell echo '$(CORE_VERSION)' | cut -d. -f1,2)
CORE_SO := libhy3d_core.so.$(CORE_VERSION)
CASAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=undefined

CORE_SOURCES := $(sort $(filter-out csrc/python/%,$(wildcard csrc/*/*.c)))
CORE_OBJECTS := $(CORE_SOURCES:%.c=$(CORE_BUILD)/%.o)
CTEST_SOURCES := $(sort $(wildcard tests/c/*.c))
CTEST_SUITES := $(filter-out support,$(patsubst tests/c/test_%.c,%,$(wildcard tests/c/test_*.c)))

ifeq ($(CHECK_COMPAT),)
CHECK_COMPAT := $(if $(shell $(PKG_CONFIG) --modversion check 2>/dev/null),0,1)
endif
ifeq ($(CHECK_COMPAT),1)
# Objects of the two variants must not mix.
CTEST_DIR := tests-compat
CHECK_CFLAGS := -DHY3D_CHECK_COMPAT=1
CHECK_LIBS :=
else
CTEST_DIR := tests-check
CHECK_CFLAGS := -DHY3D_CHECK_COMPAT=0 $(shell $(PKG_CONFIG) --cflags check)
CHECK_LIBS := $(shell $(PKG_CONFIG) --libs check)
endif

# main.c runs the suites whose files are there.
CTEST_HAVE := $(shell echo "$(CTEST_SUITES:%=-DHAVE_TEST_%=1)" | tr a-z A-Z)
# The tests make pthread_create fail through the linker's --wrap.
CTEST_LINK := -Wl,--wrap=pthread_create
CTEST_CFLAGS := $(CHECK_CFLAGS) $(CTEST_HAVE) -Itests/c -Wno-float-equal
CTEST_OBJECTS := $(CTEST_SOURCES:tests/c/%.c=$(CORE_BUILD)/$(CTEST_DIR)/%.o)

# Libraries that the tests of blas.c load: one says what HY3D_TEST_BLAS holds, one says nothing. By
# their place under the repository's root, where the tests run.
TEST_LIBRARIES := $(addprefix build/test-libraries/,told.so libhy3d_told.so silent.so local.so)
build/test-libraries/%.so: tests/c/libraries/blas.c
	@mkdir -p $(@D)
	$(CC) $(CORE_CFLAGS) $(TEST_LIBRARY_FLAGS) -shared -o $@ $<
%/told.so %/libhy3d_told.so: TEST_LIBRARY_FLAGS := -DTEST_CONFIG='getenv("HY3D_TEST_BLAS")'
%/local.so: TEST_LIBRARY_FLAGS := -DTEST_LOCAL=1

CORE_HEADERS := $(sort $(wildcard include/hy3d/*.h))
CORE_HEADER_CHECKS := $(CORE_HEADERS:include/hy3d/%.h=$(CORE_BUILD)/headers/%.c.ok)
ifneq ($(shell command -v $(CXX) 2>/dev/null),)
CORE_HEADER_CHECKS += $(CORE_HEADERS:include/hy3d/%.h=$(CORE_BUILD)/headers/%.cpp.ok)
CXX_SKIPPED :=
else
CXX_SKIPPED := no C++ compiler here: the headers' compilation as C++ is skipped
endif

ifneq ($(HY3D_BLAS_LIBRARY),)
export HY3D_BLAS_LIBRARY
endif

.PHONY: core ctest casan cclean cheaders install uninstall cinstall

core: $(CORE_BUILD)/libhy3d_core.a $(CORE_BUILD)/libhy3d_core.so cheaders

$(CORE_BUILD)/libhy3d_core.a: $(CORE_OBJECTS)
	rm -f $@
	$(AR) rcs $@ $^

# The version and the linker's options are in the two files that are no objects.
$(CORE_BUILD)/libhy3d_core.so: $(CORE_OBJECTS) hy3d_rocm/__init__.py csrc/core.mk
	$(CC) $(LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,$(CORE_SONAME) -o $@ $(CORE_OBJECTS) \
		$(CORE_LIBS)
	@tests/c/check_exports.sh $@ $(CORE_HEADERS) || { rm -f $@; exit 1; }

define PKG_CONFIG_FILE
prefix=$(PREFIX)
includedir=$${prefix}/include
libdir=$${prefix}/lib

Name: hy3d_core
Description: Schedules of video decodes, 3D convolutions and a rasteriser for the CPU
Version: $(CORE_VERSION)
Cflags: -I$${includedir}
Libs: -L$${libdir} -lhy3d_core
Libs.private: $(CORE_LIBS)
endef
export PKG_CONFIG_FILE

install: $(CORE_BUILD)/libhy3d_core.a $(CORE_BUILD)/libhy3d_core.so
	$(INSTALL) -d "$(DESTDIR)$(PREFIX)/include/hy3d" "$(DESTDIR)$(PREFIX)/lib/pkgconfig"
	$(INSTALL) -m 644 $(CORE_HEADERS) "$(DESTDIR)$(PREFIX)/include/hy3d"
	$(INSTALL) -m 644 $(CORE_BUILD)/libhy3d_core.a "$(DESTDIR)$(PREFIX)/lib"
	$(INSTALL) -m 755 $(CORE_BUILD)/libhy3d_core.so "$(DESTDIR)$(PREFIX)/lib/$(CORE_SO)"
	ln -sf $(CORE_SO) "$(DESTDIR)$(PREFIX)/lib/$(CORE_SONAME)"
	ln -sf $(CORE_SONAME) "$(DESTDIR)$(PREFIX)/lib/libhy3d_core.so"
	@echo "$$PKG_CONFIG_FILE" > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/hy3d_core.pc"

uninstall:
	cd "$(DESTDIR)$(PREFIX)" && rm -f lib/libhy3d_core.a lib/libhy3d_core.so lib/$(CORE_SONAME) \
		lib/$(CORE_SO) lib/pkgconfig/hy3d_core.pc $(CORE_HEADERS)
	rmdir "$(DESTDIR)$(PREFIX)/include/hy3d" 2>/dev/null || true

cinstall: $(CORE_BUILD)/libhy3d_core.a $(CORE_BUILD)/libhy3d_core.so
	@MAKE="$(MAKE)" CC="$(CC)" PKG_CONFIG="$(PKG_CONFIG)" FLAGS="-std=c11 $(CORE_WARNINGS)" \
		tests/c/check_install.sh $(CORE_VERSION)

$(CORE_BUILD)/csrc/%.o: csrc/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CORE_OPT) $(CFLAGS) $(CORE_CFLAGS) -MMD -MP -c -o $@ $<

$(CORE_BUILD)/$(CTEST_DIR)/%.o: tests/c/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CORE_OPT) $(CFLAGS) $(CORE_CFLAGS) $(CTEST_CFLAGS) -MMD -MP -c -o $@ $<

# main.o depends on which suites exist: rebuilt when the list changes.
$(CORE_BUILD)/$(CTEST_DIR)/main.o: $(CORE_BUILD)/$(CTEST_DIR)/suites.txt
%/$(CTEST_DIR)/suites.txt: FORCE
	@mkdir -p $(@D)
	@echo "$(CTEST_SUITES)" | cmp -s - $@ || echo "$(CTEST_SUITES)" > $@
FORCE:

# One program a variant, so that changing CHECK_COMPAT never leaves the other one's behind.
$(CORE_BUILD)/$(CTEST_DIR)/check_hy3d: $(CTEST_OBJECTS) $(CORE_BUILD)/libhy3d_core.a | \
		$(TEST_LIBRARIES)
	$(CC) $(LDFLAGS) $(CTEST_LINK) -o $@ $^ $(CHECK_LIBS) $(CORE_LIBS)

# What tests in Python have of the C tests: memory that is counted and fails, the reference. The
# core's objects are what these two need.
$(CORE_BUILD)/libhy3d_tests.so: $(CORE_BUILD)/$(CTEST_DIR)/counting.o \
		$(CORE_BUILD)/$(CTEST_DIR)/reference.o \
		$(patsubst %,$(CORE_BUILD)/csrc/%.o,base/alloc base/os_posix base/tensor base/workspace \
		conv3d/check)
	$(CC) $(LDFLAGS) -shared -Wl,-z,defs -o $@ $^ $(CORE_LIBS)

# $(call sanitized,FOLDER,FLAGS): the core and its tests once more, with a sanitizer.
define sanitized
$(1)/csrc/%.o: csrc/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $(2) $$(CFLAGS) $$(CORE_CFLAGS) -MMD -MP -c -o $$@ $$<

$(1)/$(CTEST_DIR)/%.o: tests/c/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $(2) $$(CFLAGS) $$(CORE_CFLAGS) $$(CTEST_CFLAGS) -MMD -MP -c -o $$@ $$<

$(1)/$(CTEST_DIR)/main.o: $(1)/$(CTEST_DIR)/suites.txt

$(1)/$(CTEST_DIR)/check_hy3d: $(CTEST_SOURCES:tests/c/%.c=$(1)/$(CTEST_DIR)/%.o) \
		$(CORE_SOURCES:%.c=$(1)/%.o) | $(TEST_LIBRARIES)
	$$(CC) $$(LDFLAGS) $(2) $$(CTEST_LINK) -o $$@ $$^ $$(CHECK_LIBS) $$(CORE_LIBS)

-include $(CTEST_SOURCES:tests/c/%.c=$(1)/$(CTEST_DIR)/%.d) $(CORE_SOURCES:%.c=$(1)/%.d)
endef
$(eval $(call sanitized,$(CASAN_BUILD),$(CASAN_FLAGS)))

include tests/fuzz/fuzz.mk

cheaders: $(CORE_HEADER_CHECKS)
	@$(if $(CXX_SKIPPED),echo "$(CXX_SKIPPED)",true)

# Each public header compiles alone, twice in a row (its guard), with no macro defined before it.
$(CORE_BUILD)/headers/%.c.ok: include/hy3d/%.h $(CORE_HEADERS)
	@mkdir -p $(@D)
	@printf '#include "hy3d/%s"\n#include "hy3d/%s"\ntypedef int unit;\n' $*.h $*.h | \
		$(CC) -std=c11 -Iinclude $(CORE_WARNINGS) -Wpedantic -fsyntax-only -x c -
	@touch $@

$(CORE_BUILD)/headers/%.cpp.ok: include/hy3d/%.h $(CORE_HEADERS)
	@mkdir -p $(@D)
	@printf '#include "hy3d/%s"\n#include "hy3d/%s"\ntypedef int unit;\n' $*.h $*.h | \
		$(CXX) -std=c++11 -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ -
	@touch $@

$(CORE_BUILD)/check_hy3d: $(CORE_BUILD)/$(CTEST_DIR)/check_hy3d FORCE
	@ln -f $< $@

ctest: core $(CORE_BUILD)/check_hy3d $(if $(CHECK_ARGS),,$(CORE_BUILD)/fuzz/replay cinstall)
	$(CORE_BUILD)/check_hy3d $(CHECK_ARGS)
	$(if $(CHECK_ARGS),,$(CORE_BUILD)/fuzz/replay $(FUZZ_CORPORA))

# Leak detection needs ptrace, which some containers forbid: detect_leaks=1 only where a one-line
# program gets through.
casan: $(CASAN_BUILD)/$(CTEST_DIR)/check_hy3d $(if $(CHECK_ARGS),,$(CASAN_BUILD)/fuzz/replay)
	@mkdir -p $(CASAN_BUILD)
	@printf 'int main(void) { return 0; }\n' | $(CC) -fsanitize=address -x c -o $(CASAN_BUILD)/leak_probe -
	@leaks=0; ASAN_OPTIONS=detect_leaks=1 $(CASAN_BUILD)/leak_probe 2>/dev/null && leaks=1; \
	echo "casan: detect_leaks=$$leaks"; \
	ASAN_OPTIONS=detect_leaks=$$leaks:allocator_may_return_null=1:abort_on_error=0 \
	HY3D_TESTS=full UBSAN_OPTIONS=print_stacktrace=1 \
	$(CASAN_BUILD)/$(CTEST_DIR)/check_hy3d $(CHECK_ARGS) && \
	$(if $(CHECK_ARGS),true,ASAN_OPTIONS=detect_leaks=$$leaks:allocator_may_return_null=1 \
	UBSAN_OPTIONS=print_stacktrace=1 $(CASAN_BUILD)/fuzz/replay $(FUZZ_CORPORA))

cclean:
	rm -rf $(CORE_BUILD) $(CORE_BUILD)-*

-include $(CORE_OBJECTS:.o=.d) $(CTEST_OBJECTS:.o=.d)

include tests/long/bits/bits.mk
include tests/long/schedule/schedule.mk
include csrc/checks.mk
include csrc/windows.mk
include tests/sites/sites.mk
