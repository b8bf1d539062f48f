# Included by csrc/core.mk.
#
#   make cbits    build/c/check_bits: long checks of bits against an oracle (main.c)
#   make cbits-quick   a few seconds of each of them
#   make cbits-exact, cbits-stable, cbits-others   one of them, with CBITS_ARGS="--count N --jobs N"

.PHONY: cbits cbits-quick cbits-exact cbits-stable cbits-others

CBITS_SOURCES := $(sort $(wildcard tests/long/bits/*.c))
CBITS_OBJECTS := $(CBITS_SOURCES:tests/long/bits/%.c=$(CORE_BUILD)/bits/%.o)
CBITS_REFERENCE := $(CORE_BUILD)/$(CTEST_DIR)/reference.o

$(CORE_BUILD)/bits/%.o: tests/long/bits/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CORE_OPT) $(CFLAGS) $(CORE_CFLAGS) -Itests/c -MMD -MP -c -o $@ $<

$(CORE_BUILD)/check_bits: $(CBITS_OBJECTS) $(CBITS_REFERENCE) $(CORE_BUILD)/libhy3d_core.a
	$(CC) $(LDFLAGS) -o $@ $^ $(CORE_LIBS)

cbits: $(CORE_BUILD)/check_bits

cbits-quick: $(CORE_BUILD)/check_bits
	$< exact --count 1200
	$< stable --count 6
	$< others --count 12

cbits-exact cbits-stable cbits-others: cbits-%: $(CORE_BUILD)/check_bits
	$< $* $(CBITS_ARGS)

-include $(CBITS_OBJECTS:.o=.d)
