# Fuzzing of the C core; included by csrc/core.mk, run from the repository's root.
#
#   make cfuzz       build/fuzz/fuzz_conv3d, fuzz_schedule, fuzz_raster, fuzz_program: libFuzzer with
#                    AddressSanitizer and UndefinedBehaviorSanitizer, by clang (FUZZ_CC)
#   make cfuzz-run   runs them, FUZZ_SECONDS each, on FUZZ_JOBS processes (tests/fuzz/run.py)
#   make cfuzz-keep  the same, and keeps what is new: corpora minimised into tests/fuzz/corpus
#
# `make ctest` and `make casan` replay the corpora, with no need of clang or libFuzzer.

FUZZ_CC ?= clang
FUZZ_BUILD := build/fuzz
FUZZ_SECONDS ?= 1800
FUZZ_JOBS ?= 0
FUZZ_TARGETS := conv3d schedule raster program
# Of the C tests: memory that fails, who judges convolutions and programs, and the graphs.
FUZZ_JUDGE := counting reference judge replay replay_layout replay_steps replay_frames \
	replay_rows replay_ranks graphs_random graphs_known
FUZZ_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=undefined -fsanitize=fuzzer-no-link
FUZZ_CFLAGS := -Itests/fuzz -Itests/c -Wno-float-equal
FUZZ_SHARED := $(filter-out tests/fuzz/entry.c tests/fuzz/replay.c,$(sort $(wildcard tests/fuzz/*.c)))
FUZZ_CORPORA := $(sort $(wildcard tests/fuzz/corpus/*.bin))

.PHONY: cfuzz cfuzz-run cfuzz-keep cfuzz-replay

cfuzz: $(FUZZ_TARGETS:%=$(FUZZ_BUILD)/fuzz_%)

cfuzz-run: cfuzz
	python3 tests/fuzz/run.py --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS)

cfuzz-keep: cfuzz
	python3 tests/fuzz/run.py --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS) --keep

$(FUZZ_BUILD)/csrc/%.o: csrc/%.c
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) $(CFLAGS) $(CORE_CFLAGS) -MMD -MP -c -o $@ $<

$(FUZZ_BUILD)/tests/%.o: tests/fuzz/%.c
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) $(CFLAGS) $(CORE_CFLAGS) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<

$(FUZZ_BUILD)/judge/%.o: tests/c/%.c
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) $(CFLAGS) $(CORE_CFLAGS) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<

$(FUZZ_BUILD)/entry_%.o: tests/fuzz/entry.c tests/fuzz/fuzz.h
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_FLAGS) $(CFLAGS) $(CORE_CFLAGS) $(FUZZ_CFLAGS) -DFUZZ_TARGET=fuzz_$* -c -o $@ $<

# libc++'s and the sanitizers' code is in the programs, so that they run where there is no clang.
$(FUZZ_BUILD)/fuzz_%: $(FUZZ_BUILD)/entry_%.o $(FUZZ_SHARED:tests/fuzz/%.c=$(FUZZ_BUILD)/tests/%.o) \
		$(FUZZ_JUDGE:%=$(FUZZ_BUILD)/judge/%.o) $(CORE_SOURCES:%.c=$(FUZZ_BUILD)/%.o)
	$(FUZZ_CC) $(LDFLAGS) $(FUZZ_FLAGS) -fsanitize=fuzzer -static-libsan -o $@ $^ $(CORE_LIBS)

# The replay, once a variant of the core: $(1) its folder, $(2) its flags, $(3) its core. The judges
# are the C tests' objects, which know nothing of Check.
define fuzz_replay
$(1)/fuzz/%.o: tests/fuzz/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $(2) $$(CFLAGS) $$(CORE_CFLAGS) $$(FUZZ_CFLAGS) -MMD -MP -c -o $$@ $$<

$(1)/fuzz/replay: $(FUZZ_JUDGE:%=$(1)/$(CTEST_DIR)/%.o) $(1)/fuzz/replay.o $(FUZZ_SHARED:tests/fuzz/%.c=$(1)/fuzz/%.o) $(3)
	$$(CC) $$(LDFLAGS) $(2) -o $$@ $$^ $$(CORE_LIBS)

-include $(FUZZ_SHARED:tests/fuzz/%.c=$(1)/fuzz/%.d)
endef
$(eval $(call fuzz_replay,$(CORE_BUILD),$(CORE_OPT),$(CORE_BUILD)/libhy3d_core.a))
$(eval $(call fuzz_replay,$(CASAN_BUILD),$(CASAN_FLAGS),$(CORE_SOURCES:%.c=$(CASAN_BUILD)/%.o)))

-include $(FUZZ_SHARED:tests/fuzz/%.c=$(FUZZ_BUILD)/tests/%.d) $(FUZZ_JUDGE:%=$(FUZZ_BUILD)/judge/%.d)
-include $(CORE_SOURCES:%.c=$(FUZZ_BUILD)/%.d)
