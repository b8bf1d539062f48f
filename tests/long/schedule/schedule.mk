# Included by csrc/core.mk.
#
#   make schedule-million   build/c/check_schedule: a million random graphs, sizes, budgets and
#                           orders, each program replayed (SCHEDULE_ARGS="--count N --first N")
#   make schedule-time      milliseconds of the processor to compile HunyuanVideo's decode under 2 to 62 GiB

.PHONY: schedule-million schedule-time

# The judge, which the C suite and the fuzzer have too; it needs no Check.
SCHEDULE_JUDGE := judge replay replay_layout replay_steps replay_frames \
	replay_rows replay_ranks graphs_random graphs_known
SCHEDULE_ARGS ?= --count 1000000

$(CORE_BUILD)/schedule/%.o: tests/c/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CORE_OPT) $(CFLAGS) $(CORE_CFLAGS) -MMD -MP -c -o $@ $<

$(CORE_BUILD)/schedule/main.o: tests/long/schedule/main.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CORE_OPT) $(CFLAGS) $(CORE_CFLAGS) -Itests/c -MMD -MP -c -o $@ $<

$(CORE_BUILD)/check_schedule: $(CORE_BUILD)/schedule/main.o \
		$(SCHEDULE_JUDGE:%=$(CORE_BUILD)/schedule/%.o) $(CORE_BUILD)/libhy3d_core.a
	$(CC) $(LDFLAGS) -o $@ $^ $(CORE_LIBS)

schedule-million: $(CORE_BUILD)/check_schedule
	$< random $(SCHEDULE_ARGS)

schedule-time: $(CORE_BUILD)/check_schedule
	$< time

-include $(SCHEDULE_JUDGE:%=$(CORE_BUILD)/schedule/%.d) $(CORE_BUILD)/schedule/main.d
