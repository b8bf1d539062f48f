# Included by csrc/core.mk.
#
#   make csites   every call for memory, threads and libraries fails once, then for ever; with
#                 HY3D_TESTS=full in a new context and in one that has worked, else in one of both

CSITES_BUILD := build/c-sites

.PHONY: csites

# The core once more with tests/sites/sites.h before each source; kernels ask for nothing and are
# taken as they are. alloc.c defines what is a site elsewhere.
CSITES_CFLAGS := -O2 -g -std=c11 -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude \
	-Icsrc -Itests/c -Itests/sites
CSITES_CORE := $(filter-out csrc/kernels/%,$(CORE_SOURCES))
CSITES_OBJECTS := $(CSITES_CORE:%.c=$(CSITES_BUILD)/%.o) $(CSITES_BUILD)/registry.o \
	$(filter $(CORE_BUILD)/csrc/kernels/%,$(CORE_OBJECTS))
# Their helpers with the stand-in for Check: the library's own asserts want a runner. What knows
# nothing of Check is taken from the C tests as it is.
CSITES_HELPERS := support conv3d_support rasterize_support
CSITES_SHARED := counting reference graphs_known graphs_random replay_frames
CSITES_TESTS := $(CSITES_BUILD)/main.o $(CSITES_BUILD)/scenarios.o \
	$(CSITES_HELPERS:%=$(CSITES_BUILD)/helpers/%.o) \
	$(CSITES_SHARED:%=$(CORE_BUILD)/$(CTEST_DIR)/%.o)

$(CSITES_BUILD)/csrc/base/alloc.o: CSITES_CFLAGS += -DTEST_SITES_SYSTEM
$(CSITES_BUILD)/csrc/%.o: csrc/%.c tests/sites/sites.h
	@mkdir -p $(@D)
	$(CC) $(CSITES_CFLAGS) -include tests/sites/sites.h -MMD -MP -c -o $@ $<

$(CSITES_BUILD)/helpers/%.o: tests/c/%.c
	@mkdir -p $(@D)
	$(CC) $(CSITES_CFLAGS) -DHY3D_CHECK_COMPAT=1 -MMD -MP -c -o $@ $<

$(CSITES_BUILD)/%.o: tests/sites/%.c
	@mkdir -p $(@D)
	$(CC) $(CSITES_CFLAGS) $(CORE_WARNINGS) -DHY3D_CHECK_COMPAT=1 -MMD -MP -c -o $@ $<

$(CSITES_BUILD)/check_sites: $(CSITES_TESTS) $(CSITES_OBJECTS)
	$(CC) $(LDFLAGS) $(CTEST_LINK) -o $@ $^ $(CORE_LIBS)

# For tests/long/check_binding_faults.py, which puts the binding on top.
$(CSITES_BUILD)/core.a: $(CSITES_OBJECTS)
	rm -f $@
	$(AR) rcs $@ $^

csites: $(CSITES_BUILD)/check_sites
	$< $(CSITES_ARGS)

-include $(wildcard $(CSITES_BUILD)/*.d $(CSITES_BUILD)/helpers/*.d $(CSITES_BUILD)/csrc/*/*.d)
