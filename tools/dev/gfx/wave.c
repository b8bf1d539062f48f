/* Waves of AMD machine code, executed one instruction after the other on the CPU.
 *
 * A workgroup's waves take turns at barriers only. What a real machine does later is done at once,
 * but marked: a register whose load was not waited for may not be touched, bytes of LDS that two
 * waves touch need a barrier between them. Every global access must lie in what the launch was
 * given. Sources: AMD, "RDNA3", "RDNA4" and "AMD Instinct MI300" Instruction Set Architecture.
 */
#include "wave.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { LDS_LIMIT = 160 * 1024, MOST_WAVES = 64 };

struct wave {
    uint32_t scalar[REG_SCALARS];
    uint32_t vector[REG_END - REG_VECTOR][MOST_LANES];
    uint64_t pending[REG_END]; /* the number of the load that fills it, << 2 | its counter; 0 */
    uint64_t issued[COUNTERS], done[COUNTERS];
    uint64_t last_scalar; /* of COUNT_LDS's numbers, before RDNA4: that of the last scalar load */
    /* CDNA: wait states so far (one an instruction, more for s_nop), and of each register when a
     * matrix product began to write it and how many passes of its unit that takes. */
    uint64_t states, product_at[REG_END];
    uint16_t product_first[REG_END];
    uint8_t passes[REG_END], is_slow[REG_END];
    uint32_t scc;
    uint32_t at;
    uint32_t number;
    int ended, waiting, signalled;
};

/* Who touched a byte of LDS since when: the barrier's number, and the wave or SEVERAL. */
struct touch {
    uint32_t written_at, read_at;
    uint8_t writer, reader;
};

enum { SEVERAL = 255, NOISE_BYTES = 256 * 1024 };

struct machine {
    const struct launch *launch;
    struct report *report;
    struct wave *waves;
    uint32_t wave_count;
    uint32_t epoch; /* barriers so far, of all groups */
    uint32_t group[3];
    uint8_t *lds;
    uint8_t *noise; /* what registers and LDS begin as: NaN as floats */
    struct touch *touched;
    const struct range *last_range;
    jmp_buf failed;
};

static _Noreturn void fail(struct machine *m, const struct wave *w, enum fault fault,
                           const char *format, ...)
{
    struct report *r = m->report;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->text, sizeof r->text, format, arguments);
    va_end(arguments);
    r->fault = fault;
    r->step = w->at;
    r->wave = w->number;
    memcpy(r->group, m->group, sizeof r->group);
    longjmp(m->failed, 1);
}

static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Registers ---------------------------------------------------------------------------------- */

static const char *register_name(uint32_t code, char text[16])
{
    if (code >= REG_ACC)
        snprintf(text, 16, "a%u", code - REG_ACC);
    else if (code >= REG_VECTOR)
        snprintf(text, 16, "v%u", code - REG_VECTOR);
    else
        snprintf(text, 16, "s%u", code);
    return text;
}

/* A register that is read or written must not be one that a load still fills. */
static void loaded(struct machine *m, const struct wave *w, uint32_t code, uint32_t count)
{
    if (code >= REG_SCALARS && code < REG_VECTOR)
        return;
    for (uint32_t k = 0; k < count; k++) {
        if (code + k >= REG_END)
            fail(m, w, FAULT_UNSUPPORTED, "a register beyond the last");
        uint64_t pending = w->pending[code + k];
        if (pending && pending >> 2 > w->done[pending & 3]) {
            char name[16];
            fail(m, w, FAULT_HAZARD, "hazard: %s is used before its load was waited for",
                 register_name(code + k, name));
        }
    }
}

/* CDNA does not wait for a matrix product by itself: so many wait states must lie between it and
 * what touches its result. (LLVM, GCNHazardRecognizer, gfx940: passes and 3, or 2 after a product
 * of binary32.) */
static void await_product(struct machine *m, const struct wave *w, uint32_t code, uint32_t count,
                          uint32_t beyond)
{
    if (m->launch->generation != 9 || code < REG_VECTOR)
        return;
    for (uint32_t k = code; k < code + count && k < REG_END; k++) {
        if (!w->passes[k])
            continue;
        uint64_t between = w->states - w->product_at[k] - 1;
        uint64_t needed = (uint64_t)w->passes[k] + beyond - w->is_slow[k];
        if (between < needed) {
            char name[16];
            fail(m, w, FAULT_HAZARD,
                 "hazard: %s is used %llu wait states after a matrix product that needs %llu",
                 register_name(k, name), (unsigned long long)between, (unsigned long long)needed);
        }
    }
}

static void touch(struct machine *m, const struct wave *w, uint32_t code, uint32_t count)
{
    loaded(m, w, code, count);
    await_product(m, w, code, count, 3);
}

static uint64_t exec_of(const struct machine *m, const struct wave *w)
{
    uint64_t low = w->scalar[REG_EXEC];
    return m->launch->wave_size == 32 ? low : low | (uint64_t)w->scalar[REG_EXEC + 1] << 32;
}

static uint64_t mask_of(struct machine *m, const struct wave *w, uint32_t code)
{
    uint32_t words = m->launch->wave_size / 32;
    if (code >= REG_SCALARS) {
        if (code >= 128 && code <= 192)
            return code - 128;
        if (code >= 193 && code <= 208)
            return (uint64_t)-(int64_t)(code - 192);
        fail(m, w, FAULT_UNSUPPORTED, "a mask from operand %u", code);
    }
    touch(m, w, code, words);
    uint64_t low = w->scalar[code];
    return words == 1 ? low : low | (uint64_t)w->scalar[code + 1] << 32;
}

static int is_null(const struct machine *m, uint32_t code)
{
    return code == 124 && m->launch->generation > 9;
}

static void set_scalar(struct machine *m, struct wave *w, uint32_t code, uint32_t words,
                       uint64_t value)
{
    if (is_null(m, code))
        return;
    if (code >= REG_SCALARS)
        fail(m, w, FAULT_UNSUPPORTED, "a result to operand %u", code);
    touch(m, w, code, words);
    w->scalar[code] = (uint32_t)value;
    if (words > 1)
        w->scalar[code + 1] = (uint32_t)(value >> 32);
}

static void set_mask(struct machine *m, struct wave *w, uint32_t code, uint64_t value)
{
    set_scalar(m, w, code, m->launch->wave_size / 32, value);
}

static uint64_t inline_float(uint32_t code, uint32_t bits)
{
    static const float values[] = {0.5f, -0.5f, 1, -1, 2, -2, 4, -4};
    if (bits == 64) {
        return code == 248 ? 0x3fc45f306dc9c882ull : f64_bits((double)values[code - 240]);
    }
    if (bits == 16)
        return code == 248 ? 0x3118u : f16_bits(values[code - 240]);
    return code == 248 ? 0x3e22f983u : f32_bits(values[code - 240]);
}

/* A source that is the same for all lanes. */
static uint64_t scalar_source(struct machine *m, struct wave *w, const struct step *s, int k)
{
    uint32_t code = s->source[k], words = s->words[k], bits = s->bits[k];
    if (code < REG_SCALARS) {
        if (is_null(m, code))
            return 0;
        touch(m, w, code, words);
        uint64_t low = w->scalar[code];
        return words < 2 ? low : low | (uint64_t)w->scalar[code + 1] << 32;
    }
    uint64_t value;
    if (code <= 192)
        value = code - 128;
    else if (code <= 208)
        value = (uint64_t)-(int64_t)(code - 192);
    else if (code >= 240 && code <= 248)
        value = inline_float(code, s->forms[k] == FORM_PACKED_FLOAT ? 32 : bits);
    else if (code == REG_SCC)
        value = w->scc;
    else if (code == REG_LITERAL)
        value = s->literal;
    else if (code == 251)
        value = mask_of(m, w, REG_VCC) == 0;
    else if (code == 252)
        value = exec_of(m, w) == 0;
    else
        fail(m, w, FAULT_UNSUPPORTED, "unsupported source %u", code);
    if (code == REG_LITERAL && bits == 64 && s->is_float[k])
        return value << 32;
    if (s->forms[k] == FORM_PACKED_FLOAT)
        return (value & 0xffffffffu) | value << 32;
    return words < 2 ? value & 0xffffffffu : value;
}

/* Source 0 of each lane by data parallel primitives: which lane it comes from, or -1. */
static int dpp_lane(struct machine *m, struct wave *w, const struct step *s, int lane)
{
    uint32_t control = s->dpp;
    int row = lane & ~15, in_row = lane & 15, n = (int)(control & 15);
    if (control < 0x100)
        return (lane & ~3) + (int)(control >> 2 * (lane & 3) & 3);
    switch (control & 0x1f0) {
    case 0x100:
        return in_row + n < 16 ? lane + n : -1;
    case 0x110:
        return in_row - n >= 0 ? lane - n : -1;
    case 0x120:
        return row + ((in_row - n) & 15);
    case 0x150:
        return row + n;
    case 0x160:
        return row + (in_row ^ n);
    default:
        break;
    }
    if (control == 0x140)
        return row + 15 - in_row;
    if (control == 0x141)
        return (lane & ~7) + 7 - (lane & 7);
    if (control == 0x142 && m->launch->generation == 9)
        return row >= 16 ? row - 1 : -1;
    if (control == 0x143 && m->launch->generation == 9)
        return lane >= 32 ? 31 : -1;
    if (control == 0x138 && m->launch->generation == 9)
        return lane - 1;
    if (control == 0x130 && m->launch->generation == 9) {
        return lane + 1 < MOST_LANES ? lane + 1 : -1;
    }
    fail(m, w, FAULT_UNSUPPORTED, "unsupported DPP control %#x", control);
}

static uint64_t part_of(uint64_t value, uint32_t selected, int extended)
{
    if (selected == 6)
        return value & 0xffffffffu;
    uint32_t bits = selected < 4 ? 8 : 16, at = selected < 4 ? 8 * selected : 16 * (selected - 4);
    uint64_t part = value >> at & ((1u << bits) - 1);
    return extended ? (uint32_t)sign_extend(part, bits) : part;
}

/* Sign, absolute value and halves of a source, as the encoding asks. */
static void modify(struct lanes *L, const struct step *s, int k)
{
    if (s->forms[k] == FORM_AS_IT_IS)
        return; /* its function does */
    uint64_t *value = L->s[k];
    uint32_t bit = 1u << k, n = L->count;
    if (s->forms[k] == FORM_PACKED_HALF || s->forms[k] == FORM_PACKED_FLOAT) {
        uint32_t half = s->forms[k] == FORM_PACKED_HALF ? 16 : 32;
        uint64_t ones = (1ull << half) - 1;
        for (uint32_t l = 0; l < n; l++) {
            uint64_t low = s->select & bit ? value[l] >> half : value[l];
            uint64_t high = s->select_high & bit ? value[l] >> half : value[l];
            low &= ones, high &= ones;
            if (s->negate & bit)
                low ^= 1ull << (half - 1);
            if (s->negate_high & bit)
                high ^= 1ull << (half - 1);
            value[l] = low | high << half;
        }
        return;
    }
    if (s->forms[k] == FORM_HALF && s->select & bit) {
        for (uint32_t l = 0; l < n; l++)
            value[l] = value[l] >> 16 & 0xffff;
    }
    uint64_t sign = 1ull << (s->bits[k] - 1);
    if (s->absolute & bit) {
        for (uint32_t l = 0; l < n; l++)
            value[l] &= ~sign;
    }
    if (s->negate & bit) {
        for (uint32_t l = 0; l < n; l++)
            value[l] ^= sign;
    }
}

/* Reads source k of every lane. Returns the lanes that have one. */
static uint64_t read_lanes(struct machine *m, struct wave *w, const struct step *s, int k,
                           struct lanes *L)
{
    uint32_t code = s->source[k], n = L->count;
    uint64_t *to = L->s[k], valid = ~0ull;
    if (code < REG_VECTOR) {
        uint64_t value = scalar_source(m, w, s, k);
        for (uint32_t l = 0; l < n; l++)
            to[l] = value;
    } else {
        touch(m, w, code, s->words[k]);
        const uint32_t *low = w->vector[code - REG_VECTOR];
        if (s->words[k] < 2) {
            for (uint32_t l = 0; l < n; l++)
                to[l] = low[l];
        } else {
            const uint32_t *high = w->vector[code - REG_VECTOR + 1];
            for (uint32_t l = 0; l < n; l++)
                to[l] = low[l] | (uint64_t)high[l] << 32;
        }
    }
    if (s->flags & STEP_DPP && k == 0) {
        uint64_t from[MOST_LANES];
        memcpy(from, to, sizeof from);
        for (uint32_t l = 0; l < n; l++) {
            int lane = dpp_lane(m, w, s, (int)l);
            int has = lane >= 0 && (s->inactive || L->exec >> lane & 1);
            int masked = !(s->row_mask >> (l >> 4) & 1) || !(s->bank_mask >> (l >> 2 & 3) & 1);
            if (masked || (!has && !s->bound))
                valid &= ~(1ull << l);
            to[l] = has ? from[lane] : 0;
        }
    }
    if (s->flags & STEP_SDWA && k < 2) {
        for (uint32_t l = 0; l < n; l++) {
            to[l] = part_of(to[l], s->selected[k], s->extended >> k & 1);
        }
    }
    if (s->negate | s->absolute | s->select | s->forms[k])
        modify(L, s, k);
    return valid;
}

/* Results of the active lanes into the target. */
static void write_lanes(struct machine *m, struct wave *w, const struct step *s, struct lanes *L,
                        uint64_t lanes)
{
    uint32_t code = s->target, n = L->count;
    if (code < REG_VECTOR)
        fail(m, w, FAULT_UNSUPPORTED, "lanes into a scalar register");
    touch(m, w, code, s->target_words);
    uint32_t *low = w->vector[code - REG_VECTOR];
    if (s->flags & STEP_SDWA && s->target_selected != 6) {
        uint32_t sel = s->target_selected, bits = sel < 4 ? 8 : 16;
        uint32_t at = sel < 4 ? 8 * sel : 16 * (sel - 4), ones = ((1u << bits) - 1) << at;
        for (uint32_t l = 0; l < n; l++) {
            uint32_t part = (uint32_t)L->d[l] << at & ones;
            uint32_t rest = s->target_unused == 2 ? low[l] & ~ones : 0;
            if (s->target_unused == 1)
                fail(m, w, FAULT_UNSUPPORTED, "SDWA that extends a result");
            if (lanes >> l & 1)
                low[l] = part | rest;
        }
        return;
    }
    if (s->target_bits == 16) {
        int high = s->select >> 3 & 1;
        for (uint32_t l = 0; l < n; l++) {
            if (!(lanes >> l & 1))
                continue;
            uint32_t half = (uint32_t)L->d[l] & 0xffff;
            if (high)
                low[l] = (low[l] & 0xffff) | half << 16;
            else
                low[l] = (s->flags & STEP_ZERO_HIGH ? 0 : low[l] & 0xffff0000u) | half;
        }
        return;
    }
    for (uint32_t l = 0; l < n; l++) {
        low[l] = lanes >> l & 1 ? (uint32_t)L->d[l] : low[l];
    }
    if (s->target_words > 1) {
        uint32_t *high = w->vector[code - REG_VECTOR + 1];
        for (uint32_t l = 0; l < n; l++) {
            high[l] = lanes >> l & 1 ? (uint32_t)(L->d[l] >> 32) : high[l];
        }
    }
}

/* Arithmetic --------------------------------------------------------------------------------- */

/* Results between 0 and 1; NaN becomes 0. */
static void clamp(const struct step *s, struct lanes *L)
{
    for (uint32_t l = 0; l < L->count; l++) {
        if (s->target_words > 1) {
            double x = f64_of(L->d[l]);
            L->d[l] = f64_bits(x > 1 ? 1 : x > 0 ? x : 0);
        } else if (s->target_bits == 16) {
            float x = f16_of((uint32_t)L->d[l] & 0xffff);
            L->d[l] = f16_bits(x > 1 ? 1 : x > 0 ? x : 0);
        } else {
            float x = f32_of((uint32_t)L->d[l]);
            L->d[l] = f32_bits(x > 1 ? 1 : x > 0 ? x : 0);
        }
    }
}

/* Reads and computes; what is to be written is in L. Returns the lanes that get a result. */
static uint64_t compute(struct machine *m, struct wave *w, const struct step *s, struct lanes *L)
{
    L->count = m->launch->wave_size;
    L->exec = exec_of(m, w);
    L->scc = w->scc;
    L->ieee = m->launch->ieee;
    L->negate = s->negate, L->absolute = s->absolute;
    L->select = s->select, L->select_high = s->select_high;
    uint64_t lanes = L->exec;
    for (int k = 0; k < 3; k++) {
        if (s->source[k] != REG_NONE)
            lanes &= read_lanes(m, w, s, k, L);
    }
    L->vcc = s->mask_in == REG_NONE ? 0 : mask_of(m, w, s->mask_in);
    if (!(s->flags & STEP_COMPARE) && s->target != REG_NONE && s->target >= REG_VECTOR) {
        touch(m, w, s->target, s->target_words);
        const uint32_t *low = w->vector[s->target - REG_VECTOR];
        const uint32_t *high = s->target_words > 1 ? low + MOST_LANES : NULL;
        for (uint32_t l = 0; l < L->count; l++) {
            L->d[l] = low[l] | (high ? (uint64_t)high[l] << 32 : 0);
        }
    }
    s->alu(L);
    if (s->flags & STEP_CLAMP)
        clamp(s, L);
    return lanes;
}

static void commit(struct machine *m, struct wave *w, const struct step *s, struct lanes *L,
                   uint64_t lanes)
{
    if (s->flags & STEP_COMPARE) {
        uint64_t mask = L->out & lanes;
        if (!(s->flags & STEP_ONLY_EXEC))
            set_mask(m, w, s->mask_out, mask);
        if (s->flags & STEP_EXEC)
            set_mask(m, w, REG_EXEC, mask);
        return;
    }
    write_lanes(m, w, s, L, lanes);
    if (s->flags & STEP_CARRY)
        set_mask(m, w, s->mask_out, L->out & lanes);
}

static void scalar(struct machine *m, struct wave *w, const struct step *s, struct lanes *L)
{
    L->count = 1;
    L->exec = exec_of(m, w);
    L->vcc = 0;
    L->scc = w->scc;
    L->ieee = m->launch->ieee;
    L->simm = s->offset;
    for (int k = 0; k < 2; k++) {
        L->s[k][0] = s->source[k] == REG_NONE ? (uint16_t)s->offset : scalar_source(m, w, s, k);
    }
    uint64_t exec = L->exec;
    L->d[0] = 0;
    if (s->target != REG_NONE && s->target < REG_SCALARS && !is_null(m, s->target)) {
        touch(m, w, s->target, s->target_words);
        L->d[0] = w->scalar[s->target];
        if (s->target_words > 1)
            L->d[0] |= (uint64_t)w->scalar[s->target + 1] << 32;
    }
    s->alu(L);
    w->scc = L->scc;
    if (L->exec != exec)
        set_mask(m, w, REG_EXEC, L->exec);
    if (s->target != REG_NONE)
        set_scalar(m, w, s->target, s->target_words, L->d[0]);
}

void gfx_perm_b32(struct lanes *L)
{
    for (uint32_t l = 0; l < L->count; l++) {
        uint64_t data = L->s[0][l] << 32 | (L->s[1][l] & 0xffffffffu), made = 0;
        for (int k = 0; k < 4; k++) {
            uint32_t select = (uint32_t)(L->s[2][l] >> 8 * k & 255);
            uint64_t byte;
            if (select >= 13)
                byte = 255;
            else if (select == 12)
                byte = 0;
            else if (select >= 8)
                byte = data >> (16 * (select - 8) + 15) & 1 ? 255 : 0;
            else
                byte = data >> 8 * select & 255;
            made |= byte << 8 * k;
        }
        L->d[l] = made;
    }
}

static float mixed_source(const struct lanes *L, int k, uint32_t l)
{
    uint32_t bits = (uint32_t)L->s[k][l], bit = 1u << k;
    float value = f32_of(bits);
    if (L->select_high & bit) {
        value = f16_of((L->select & bit ? bits >> 16 : bits) & 0xffff);
    }
    if (L->absolute & bit)
        value = fabsf(value);
    return L->negate & bit ? -value : value;
}

static float mix(const struct lanes *L, uint32_t l)
{
    return fmaf(mixed_source(L, 0, l), mixed_source(L, 1, l), mixed_source(L, 2, l));
}

#define MIX(NAME, RESULT)                                                                          \
    void gfx_##NAME(struct lanes *L)                                                               \
    {                                                                                              \
        for (uint32_t l = 0; l < L->count; l++) {                                                  \
            float x = mix(L, l);                                                                   \
            L->d[l] = RESULT;                                                                      \
        }                                                                                          \
    }
#define LOW(x) ((L->d[l] & 0xffff0000u) | f16_bits(x))
#define HIGH(x) ((L->d[l] & 0xffffu) | f16_bits(x) << 16)
MIX(fma_mix_f32, f32_bits(x))
MIX(fma_mixlo_f16, LOW(x))
MIX(fma_mixhi_f16, HIGH(x))

void gfx_pk_mov_b32(struct lanes *L)
{
    for (uint32_t l = 0; l < L->count; l++) {
        uint64_t low = L->select & 1 ? L->s[0][l] >> 32 : L->s[0][l] & 0xffffffffu;
        uint64_t high = L->select & 2 ? L->s[1][l] >> 32 : L->s[1][l] & 0xffffffffu;
        L->d[l] = low | high << 32;
    }
}

/* Across lanes ------------------------------------------------------------------------------- */

static void read_lane(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t exec = exec_of(m, w);
    uint32_t lane = 0;
    if (s->kind == KIND_READ_FIRST)
        lane = exec ? (uint32_t)__builtin_ctzll(exec) : 0;
    else
        lane = (uint32_t)scalar_source(m, w, s, 1) & (m->launch->wave_size - 1);
    uint32_t code = s->source[0];
    uint64_t value;
    if (code >= REG_VECTOR) {
        touch(m, w, code, 1);
        value = w->vector[code - REG_VECTOR][lane];
    } else {
        value = scalar_source(m, w, s, 0);
    }
    set_scalar(m, w, s->target, 1, value);
}

static void write_lane(struct machine *m, struct wave *w, const struct step *s)
{
    uint32_t lane = (uint32_t)scalar_source(m, w, s, 1) & (m->launch->wave_size - 1);
    touch(m, w, s->target, 1);
    w->vector[s->target - REG_VECTOR][lane] = (uint32_t)scalar_source(m, w, s, 0);
}

/* v_permlane16 and v_permlanex16 (what: 1). */
static void permute_16(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t select = (scalar_source(m, w, s, 1) & 0xffffffffu) | scalar_source(m, w, s, 2) << 32;
    uint64_t exec = exec_of(m, w);
    uint32_t from[MOST_LANES], n = m->launch->wave_size;
    touch(m, w, s->source[0], 1);
    touch(m, w, s->target, 1);
    memcpy(from, w->vector[s->source[0] - REG_VECTOR], sizeof from);
    for (uint32_t l = 0; l < n; l++) {
        if (!(exec >> l & 1))
            continue;
        uint32_t lane = (l & ~15u) + (uint32_t)(select >> 4 * (l & 15) & 15);
        if (s->what)
            lane ^= 16;
        int has = s->select & 1 || exec >> lane & 1;
        if (has || s->select & 2)
            w->vector[s->target - REG_VECTOR][l] = has ? from[lane] : 0;
    }
}

/* Memory ------------------------------------------------------------------------------------- */

/* The register that a load fills may not be touched before its counter has come down. */
static void expect(struct machine *m, struct wave *w, enum counter counter, uint32_t code,
                   uint32_t words)
{
    uint64_t number;
    if (counter == COUNT_SCALAR && m->launch->generation < 12) {
        number = ++w->issued[COUNT_LDS]; /* they share a counter there */
        w->last_scalar = number;
    } else {
        if (counter == COUNT_STORE && m->launch->generation == 9)
            counter = COUNT_LOAD;
        number = ++w->issued[counter];
    }
    for (uint32_t k = 0; k < words; k++) {
        if (!is_null(m, code))
            w->pending[code + k] = number << 2 | counter;
    }
}

static void wait_for(struct machine *m, struct wave *w, const struct step *s)
{
    for (int c = 0; c < COUNTERS; c++) {
        if (s->wait[c] < 0)
            continue;
        uint64_t left = (uint64_t)s->wait[c];
        uint64_t upto = w->issued[c] > left ? w->issued[c] - left : 0;
        if (c == COUNT_LDS && m->launch->generation < 12) {
            /* Scalar loads return in any order, so that a count above 0 says nothing then. */
            if (left && w->last_scalar > w->done[COUNT_SCALAR])
                continue;
            if (!left)
                w->done[COUNT_SCALAR] = w->issued[COUNT_LDS];
        }
        if (c == COUNT_SCALAR && left)
            continue;
        if (upto > w->done[c])
            w->done[c] = upto;
    }
}

static uint8_t *global(struct machine *m, struct wave *w, uint64_t address, uint32_t bytes,
                       int writes, uint32_t lane)
{
    const struct launch *launch = m->launch;
    const struct range *r = m->last_range;
    if (!r || address < r->first || address >= r->last || address + bytes > r->last ||
        (writes && !r->writable)) {
        r = NULL;
        for (uint64_t k = 0; k < launch->range_count; k++) {
            const struct range *of = &launch->ranges[k];
            if (address >= of->first && address + bytes <= of->last && address + bytes > address &&
                (!writes || of->writable)) {
                r = of;
                break;
            }
        }
        if (!r) {
            fail(
                m, w, FAULT_BOUNDS,
                "out of bounds: lane %u %s %u bytes at %#llx, outside of what the launch was given",
                lane, writes ? "writes" : "reads", bytes, (unsigned long long)address);
        }
        m->last_range = r;
    }
    return (uint8_t *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
}

static void scalar_load(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t base = scalar_source(m, w, s, 0);
    if (s->source[1] != REG_NONE)
        base += scalar_source(m, w, s, 1) & 0xffffffffu;
    uint64_t address = (base + (uint64_t)(int64_t)s->offset) & ~3ull;
    uint32_t words = s->target_words, values[16];
    memcpy(values, global(m, w, address, 4 * words, 0, 0), 4 * (size_t)words);
    touch(m, w, s->target, words);
    for (uint32_t k = 0; k < words; k++)
        w->scalar[s->target + k] = values[k];
    expect(m, w, COUNT_SCALAR, s->target, words);
}

/* The address of a lane's access; 0 for one beyond a buffer's records, which reads zeros. */
static uint64_t address_of(struct machine *m, struct wave *w, const struct step *s, uint32_t l)
{
    if (!(s->flags & STEP_BUFFER)) {
        uint64_t address = (uint64_t)(int64_t)s->offset;
        if (s->source[1] != REG_NONE) { /* a scalar base, and 32 bits of each lane */
            address += scalar_source(m, w, s, 1);
            if (s->source[0] != REG_NONE)
                address += w->vector[s->source[0] - REG_VECTOR][l];
            return address;
        }
        const uint32_t *low = w->vector[s->source[0] - REG_VECTOR];
        return address + (low[l] | (uint64_t)low[MOST_LANES + l] << 32);
    }
    const uint32_t *resource = &w->scalar[s->source[1]];
    uint64_t base = resource[0] | (uint64_t)(resource[1] & 0xffff) << 32;
    if (base >> 47)
        base |= 0xffffull << 48;
    uint64_t offset = (uint64_t)(uint32_t)s->offset + (scalar_source(m, w, s, 2) & 0xffffffffu);
    if (s->flags & STEP_OFFSET_LANES)
        offset += w->vector[s->source[0] - REG_VECTOR][l];
    if (offset >= resource[2])
        return 0;
    if (offset + s->bytes > resource[2]) {
        fail(m, w, FAULT_BOUNDS, "out of bounds: lane %u crosses the end of a buffer", l);
    }
    return base + offset;
}

static void touch_address(struct machine *m, struct wave *w, const struct step *s)
{
    if (s->source[0] != REG_NONE) {
        touch(m, w, s->source[0], s->words[0]);
    }
    if (s->flags & STEP_BUFFER) {
        touch(m, w, s->source[1], 4);
        if (w->scalar[s->source[1] + 1] >> 31) {
            fail(m, w, FAULT_UNSUPPORTED, "a swizzled buffer");
        }
    } else if (s->source[1] != REG_NONE) {
        touch(m, w, s->source[1], 2);
    }
}

/* What a lane loads of `bytes` bytes, into registers of which each lane has one. */
static void fill(const struct step *s, uint32_t (*to)[MOST_LANES], uint32_t l, const uint8_t *from,
                 uint32_t bytes)
{
    if (bytes >= 4) {
        for (uint32_t k = 0; k < bytes / 4; k++) {
            uint32_t value = 0;
            if (from)
                memcpy(&value, from + 4 * (size_t)k, 4);
            to[k][l] = value;
        }
        return;
    }
    uint32_t value = 0;
    if (from)
        memcpy(&value, from, bytes);
    if (s->flags & STEP_SIGNED)
        value = (uint32_t)sign_extend(value, 8 * bytes);
    if (s->flags & STEP_HIGH)
        value = (to[0][l] & 0xffff) | value << 16;
    else if (s->flags & STEP_LOW)
        value = (to[0][l] & 0xffff0000u) | (value & 0xffff);
    to[0][l] = value;
}

static void load(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t exec = exec_of(m, w);
    touch_address(m, w, s);
    touch(m, w, s->target, s->target_words);
    uint32_t (*to)[MOST_LANES] = &w->vector[s->target - REG_VECTOR];
    /* A target may overlap the address. */
    uint64_t addresses[MOST_LANES];
    for (uint32_t l = 0; l < m->launch->wave_size; l++) {
        addresses[l] = exec >> l & 1 ? address_of(m, w, s, l) : 0;
    }
    for (uint32_t l = 0; l < m->launch->wave_size; l++) {
        if (!(exec >> l & 1))
            continue;
        const uint8_t *from = NULL;
        if (addresses[l] || !(s->flags & STEP_BUFFER)) {
            from = global(m, w, addresses[l], s->bytes, 0, l);
        }
        fill(s, to, l, from, s->bytes);
    }
    expect(m, w, COUNT_LOAD, s->target, s->target_words);
}

static void store(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t exec = exec_of(m, w);
    touch_address(m, w, s);
    uint32_t words = s->words[3];
    touch(m, w, s->source[3], words);
    const uint32_t (*from)[MOST_LANES] =
        (const uint32_t (*)[MOST_LANES]) & w->vector[s->source[3] - REG_VECTOR];
    for (uint32_t l = 0; l < m->launch->wave_size; l++) {
        if (!(exec >> l & 1))
            continue;
        uint64_t address = address_of(m, w, s, l);
        if (!address && s->flags & STEP_BUFFER)
            continue;
        uint8_t *to = global(m, w, address, s->bytes, 1, l);
        if (s->bytes < 4) {
            uint32_t value = s->flags & STEP_HIGH ? from[0][l] >> 16 : from[0][l];
            memcpy(to, &value, s->bytes);
            continue;
        }
        for (uint32_t k = 0; k < words; k++)
            memcpy(to + 4 * (size_t)k, &from[k][l], 4);
    }
    expect(m, w, COUNT_STORE, 0, 0);
}

static uint64_t changed(enum atomic what, uint64_t old, uint64_t given, uint64_t compared,
                        uint32_t bits)
{
    int64_t a = sign_extend(old, bits), b = sign_extend(given, bits);
    switch (what) {
    case ATOMIC_SWAP:
        return given;
    case ATOMIC_CMPSWAP:
        return old == compared ? given : old;
    case ATOMIC_ADD:
        return old + given;
    case ATOMIC_SMIN:
        return a < b ? old : given;
    case ATOMIC_UMIN:
        return old < given ? old : given;
    case ATOMIC_SMAX:
        return a > b ? old : given;
    case ATOMIC_UMAX:
        return old > given ? old : given;
    case ATOMIC_AND:
        return old & given;
    case ATOMIC_OR:
        return old | given;
    case ATOMIC_XOR:
        return old ^ given;
    }
    return old;
}

/* Lanes one after the other: of those that meet at an address the lower comes first. */
static void atomic(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t exec = exec_of(m, w);
    uint32_t words = s->bytes / 4, all = s->words[3];
    touch_address(m, w, s);
    touch(m, w, s->source[3], all);
    if (s->flags & STEP_RETURN)
        touch(m, w, s->target, words);
    for (uint32_t l = 0; l < m->launch->wave_size; l++) {
        if (!(exec >> l & 1))
            continue;
        uint64_t address = address_of(m, w, s, l), old = 0, given[2] = {0, 0};
        if (!address && s->flags & STEP_BUFFER && s->flags & STEP_RETURN)
            fail(m, w, FAULT_UNSUPPORTED, "an atomic beyond a buffer that returns what was there");
        if (!address && s->flags & STEP_BUFFER)
            continue;
        uint8_t *at = global(m, w, address, s->bytes, 1, l);
        for (uint32_t k = 0; k < all; k++) {
            uint64_t word = w->vector[s->source[3] - REG_VECTOR + k][l];
            given[k / words] |= word << 32 * (k % words);
        }
        memcpy(&old, at, s->bytes);
        uint64_t made = changed((enum atomic)s->what, old, given[0], given[1], 8u * s->bytes);
        memcpy(at, &made, s->bytes);
        if (!(s->flags & STEP_RETURN))
            continue;
        for (uint32_t k = 0; k < words; k++) {
            w->vector[s->target - REG_VECTOR + k][l] = (uint32_t)(old >> 32 * k);
        }
    }
    if (s->flags & STEP_RETURN)
        expect(m, w, COUNT_LOAD, s->target, words);
    else
        expect(m, w, COUNT_STORE, 0, 0);
}

/* LDS ---------------------------------------------------------------------------------------- */

/* `bytes` of LDS of one lane, to be read, or to be written with `written`. Two waves that touch a
 * byte need a barrier between them, unless both write the same there. (That accesses which a wave
 * began before a barrier come before those that another begins behind it needs no wait: LDS serves
 * all waves in one order. LLVM, SIMemoryLegalizer.) */
static uint8_t *local(struct machine *m, struct wave *w, uint32_t at, uint32_t bytes,
                      const void *written, uint32_t lane)
{
    if (w->signalled)
        fail(m, w, FAULT_UNSUPPORTED, "LDS between the two halves of a barrier");
    if ((uint64_t)at + bytes > m->launch->lds_bytes) {
        fail(m, w, FAULT_BOUNDS, "out of bounds: lane %u %s %u bytes at %u of %u bytes of LDS",
             lane, written ? "writes" : "reads", bytes, at, m->launch->lds_bytes);
    }
    int is_same = written && !memcmp(m->lds + at, written, bytes);
    for (uint32_t k = at; k < at + bytes; k++) {
        struct touch *t = &m->touched[k];
        int wrote = t->written_at == m->epoch, read = t->read_at == m->epoch;
        if (wrote && t->writer != w->number && !is_same) {
            fail(m, w, FAULT_HAZARD,
                 "hazard: byte %u of LDS, written by another wave, without a barrier", k);
        }
        if (written && read && t->reader != w->number) {
            fail(m, w, FAULT_HAZARD,
                 "hazard: byte %u of LDS is written, read by another wave, without a barrier", k);
        }
        if (written) {
            t->writer = wrote && t->writer != w->number ? SEVERAL : (uint8_t)w->number;
            t->written_at = m->epoch;
        } else {
            t->reader = read && t->reader != w->number ? SEVERAL : (uint8_t)w->number;
            t->read_at = m->epoch;
        }
    }
    return m->lds + at;
}

static void lds_load(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t exec = exec_of(m, w);
    uint32_t addresses[MOST_LANES], one = s->bytes < 4 ? 1 : s->bytes / 4;
    touch(m, w, s->source[0], 1);
    touch(m, w, s->target, s->target_words);
    memcpy(addresses, w->vector[s->source[0] - REG_VECTOR], sizeof addresses);
    uint32_t (*to)[MOST_LANES] = &w->vector[s->target - REG_VECTOR];
    for (uint32_t l = 0; l < m->launch->wave_size; l++) {
        if (!(exec >> l & 1))
            continue;
        uint32_t at = addresses[l] + (uint32_t)s->offset;
        fill(s, to, l, local(m, w, at, s->bytes, NULL, l), s->bytes);
        if (!(s->flags & STEP_PAIR))
            continue;
        at = addresses[l] + (uint32_t)s->offset1;
        fill(s, to + one, l, local(m, w, at, s->bytes, NULL, l), s->bytes);
    }
    expect(m, w, COUNT_LDS, s->target, s->target_words);
}

static void lds_write(struct machine *m, struct wave *w, const struct step *s, uint32_t code,
                      int32_t offset)
{
    uint64_t exec = exec_of(m, w);
    uint32_t words = s->bytes < 4 ? 1 : s->bytes / 4;
    touch(m, w, code, words);
    const uint32_t *addresses = w->vector[s->source[0] - REG_VECTOR];
    for (uint32_t l = 0; l < m->launch->wave_size; l++) {
        if (!(exec >> l & 1))
            continue;
        uint32_t values[4];
        for (uint32_t k = 0; k < words; k++)
            values[k] = w->vector[code - REG_VECTOR + k][l];
        if (s->bytes < 4 && s->flags & STEP_HIGH)
            values[0] >>= 16;
        uint32_t at = addresses[l] + (uint32_t)offset;
        memcpy(local(m, w, at, s->bytes, values, l), values, s->bytes);
    }
}

static void lds_store(struct machine *m, struct wave *w, const struct step *s)
{
    touch(m, w, s->source[0], 1);
    lds_write(m, w, s, s->source[1], s->offset);
    if (s->flags & STEP_PAIR)
        lds_write(m, w, s, s->source[2], s->offset1);
    expect(m, w, COUNT_LDS, 0, 0);
}

/* Exchanges between lanes by way of LDS's wires: nothing is stored. */
static void lds_lanes(struct machine *m, struct wave *w, const struct step *s)
{
    uint64_t exec = exec_of(m, w);
    uint32_t n = m->launch->wave_size, from[MOST_LANES], made[MOST_LANES] = {0};
    uint32_t data = s->what == LANES_SWIZZLE ? s->source[0] : s->source[1];
    touch(m, w, s->source[0], 1);
    touch(m, w, data, 1);
    touch(m, w, s->target, 1);
    memcpy(from, w->vector[data - REG_VECTOR], sizeof from);
    const uint32_t *address = w->vector[s->source[0] - REG_VECTOR];
    uint32_t offset = (uint32_t)s->offset;
    for (uint32_t l = 0; l < n; l++) {
        uint32_t lane = (address[l] + offset) / 4 % n;
        if (s->what == LANES_SWIZZLE) {
            if (offset & 0x8000) {
                if (offset >= 0xc000)
                    fail(m, w, FAULT_UNSUPPORTED, "ds_swizzle %#x", offset);
                lane = (l & ~3u) + (offset >> 2 * (l & 3) & 3);
            } else {
                lane = (((l & 31 & offset) | (offset >> 5 & 31)) ^ (offset >> 10 & 31)) | (l & 32);
            }
        }
        if (s->what == LANES_PERMUTE) {
            if (exec >> l & 1)
                made[lane] = from[l];
        } else if (exec >> lane & 1) {
            made[l] = from[lane];
        }
    }
    for (uint32_t l = 0; l < n; l++) {
        if (exec >> l & 1)
            w->vector[s->target - REG_VECTOR][l] = made[l];
    }
    expect(m, w, COUNT_LDS, s->target, 1);
}

/* Matrices ----------------------------------------------------------------------------------- */

static double element(const struct wave *w, uint32_t code, enum matrix type, uint32_t lane,
                      uint32_t k)
{
    const uint32_t (*v)[MOST_LANES] =
        (const uint32_t (*)[MOST_LANES]) & w->vector[code - REG_VECTOR];
    if (type == MATRIX_F32)
        return (double)f32_of(v[k][lane]);
    uint32_t bits = v[k / 2][lane] >> 16 * (k & 1) & 0xffff;
    return type == MATRIX_F16 ? (double)f16_of(bits) : (double)f32_of(bits << 16);
}

/* Sums are made in binary64 and rounded once: what real units keep between is not documented. The
 * exact products of f32 are added one after the other with one rounding each, as MFMA does. */
static void multiply(double *d, const double *a, const double *b, uint32_t rows, uint32_t depth,
                     int in_turn)
{
    for (uint32_t i = 0; i < rows; i++) {
        double *sums = d + i * rows;
        for (uint32_t k = 0; k < depth; k++) {
            double x = a[i * depth + k];
            const double *y = b + k * rows;
            if (in_turn) {
                for (uint32_t j = 0; j < rows; j++)
                    sums[j] = (double)fmaf((float)x, (float)y[j], (float)sums[j]);
            } else {
                for (uint32_t j = 0; j < rows; j++)
                    sums[j] += x * y[j];
            }
        }
    }
}

/* WMMA of RDNA3: lanes 16 to 31 repeat the first 16, each has a whole row or column; results of
 * even rows are in the lower lanes. RDNA4: halves of the depth; rows from 8 on in the upper. MFMA:
 * groups of lanes have four (f32: one) of the depth each; results in fours of rows. */
static void matrix(struct machine *m, struct wave *w, const struct step *s)
{
    double a[32 * 16], b[32 * 16], d[32 * 32];
    uint32_t n = m->launch->wave_size, rows = s->rows, depth = s->depth, groups = n / rows;
    uint32_t generation = m->launch->generation;
    enum matrix type = (enum matrix)s->what;
    uint64_t all = n == 64 ? ~0ull : 0xffffffffull;
    if (exec_of(m, w) != all)
        fail(m, w, FAULT_UNSUPPORTED, "a matrix product of some lanes");
    touch(m, w, s->source[0], s->words[0]);
    touch(m, w, s->source[1], s->words[1]);
    loaded(m, w, s->target, s->target_words);
    uint32_t each = generation == 11 ? depth : depth / groups;
    for (uint32_t l = 0; l < n; l++) {
        uint32_t row = l % rows, group = l / rows;
        uint32_t first = generation == 11 ? 0 : group * each;
        for (uint32_t k = 0; k < each; k++) {
            double x = element(w, s->source[0], type, l, k);
            double y = element(w, s->source[1], type, l, k);
            if (generation == 11 && group) {
                if (memcmp(&x, &a[row * depth + k], sizeof x) ||
                    memcmp(&y, &b[k * rows + row], sizeof y)) {
                    fail(m, w, FAULT_HAZARD, "hazard: lane %u does not repeat lane %u for WMMA", l,
                         row);
                }
                continue;
            }
            a[row * depth + first + k] = x;
            b[(first + k) * rows + row] = y;
        }
    }
    uint32_t words = s->target_words;
    int has_c = s->source[2] >= REG_VECTOR && s->source[2] != REG_NONE;
    /* A product that adds to all of one before, and to nothing else, needs no wait. */
    uint32_t c_first = s->source[2], c_last = c_first + words - 1;
    int same = has_c && w->product_first[c_first] == c_first &&
               w->product_at[c_first] == w->product_at[c_last] &&
               (c_last + 1 == REG_END || w->product_first[c_last + 1] != c_first);
    if (has_c)
        loaded(m, w, s->source[2], words);
    if (has_c && !same)
        await_product(m, w, s->source[2], words, 1);
    float c = has_c ? 0 : f32_of((uint32_t)scalar_source(m, w, s, 2));
    for (int writes = 0; writes < 2; writes++) {
        if (writes)
            multiply(d, a, b, rows, depth, type == MATRIX_F32);
        for (uint32_t group = 0; group < groups; group++) {
            for (uint32_t k = 0; k < words; k++) {
                uint32_t row = k / 4 * 4 * groups + 4 * group + k % 4;
                if (generation != 9)
                    row = generation == 11 ? 2 * k + group : k + 8 * group;
                double *at = &d[row * rows];
                uint32_t *to = &w->vector[s->target - REG_VECTOR + k][group * rows];
                const uint32_t *from =
                    has_c ? &w->vector[s->source[2] - REG_VECTOR + k][group * rows] : NULL;
                for (uint32_t column = 0; column < rows; column++) {
                    if (writes)
                        to[column] = f32_bits((float)at[column]);
                    else
                        at[column] = (double)(has_c ? f32_of(from[column]) : c);
                }
            }
        }
    }
    /* A pass is four cycles. gfx942: 256 products of f16 and 32 of f32 a cycle and unit. */
    uint32_t slow = type == MATRIX_F32;
    for (uint32_t k = s->target; generation == 9 && k < (uint32_t)s->target + words; k++) {
        w->product_at[k] = w->states;
        w->product_first[k] = s->target;
        w->passes[k] = (uint8_t)(rows * rows * depth / (slow ? 128 : 1024));
        w->is_slow[k] = (uint8_t)slow;
    }
}

/* Waves -------------------------------------------------------------------------------------- */

static int taken(struct machine *m, struct wave *w, enum condition condition)
{
    switch (condition) {
    case IF_ALWAYS:
        return 1;
    case IF_SCC0:
        return !w->scc;
    case IF_SCC1:
        return w->scc != 0;
    case IF_VCCZ:
        return mask_of(m, w, REG_VCC) == 0;
    case IF_VCCNZ:
        return mask_of(m, w, REG_VCC) != 0;
    case IF_EXECZ:
        return exec_of(m, w) == 0;
    case IF_EXECNZ:
        return exec_of(m, w) != 0;
    }
    return 0;
}

/* Runs a wave to its end or to a barrier. */
static void run_wave(struct machine *m, struct wave *w, struct lanes *L, struct lanes *second)
{
    const struct launch *launch = m->launch;
    while (!w->ended && !w->waiting) {
        if (w->at >= launch->count)
            fail(m, w, FAULT_END, "the program runs beyond its end");
        const struct step *s = &launch->steps[w->at];
        if (++m->report->steps > launch->most_steps) {
            fail(m, w, FAULT_END, "no end after %llu instructions",
                 (unsigned long long)launch->most_steps);
        }
        uint32_t next = w->at + 1;
        switch ((enum kind)s->kind) {
        case KIND_NOP:
            w->states += (uint64_t)s->offset;
            break;
        case KIND_VECTOR: {
            uint64_t lanes = compute(m, w, s, L);
            if (s->flags & STEP_DUAL) {
                uint64_t others = compute(m, w, s + 1, second);
                commit(m, w, s, L, lanes);
                commit(m, w, s + 1, second, others);
                next++;
            } else {
                commit(m, w, s, L, lanes);
            }
            break;
        }
        case KIND_SCALAR:
            scalar(m, w, s, L);
            break;
        case KIND_BRANCH:
            if (taken(m, w, (enum condition)s->what))
                next = s->next;
            break;
        case KIND_WAIT:
            wait_for(m, w, s);
            break;
        case KIND_BARRIER:
            w->waiting = w->signalled = 1;
            break;
        case KIND_SIGNAL:
            w->signalled = 1;
            break;
        case KIND_BARRIER_WAIT:
            if (!w->signalled)
                fail(m, w, FAULT_HAZARD, "hazard: a wait without a signal");
            w->waiting = 1;
            break;
        case KIND_END:
            w->ended = 1;
            break;
        case KIND_SCALAR_LOAD:
            scalar_load(m, w, s);
            break;
        case KIND_LOAD:
            load(m, w, s);
            break;
        case KIND_STORE:
            store(m, w, s);
            break;
        case KIND_ATOMIC:
            atomic(m, w, s);
            break;
        case KIND_LDS_LOAD:
            lds_load(m, w, s);
            break;
        case KIND_LDS_STORE:
            lds_store(m, w, s);
            break;
        case KIND_LDS_LANES:
            lds_lanes(m, w, s);
            break;
        case KIND_READ_LANE:
        case KIND_READ_FIRST:
            read_lane(m, w, s);
            break;
        case KIND_WRITE_LANE:
            write_lane(m, w, s);
            break;
        case KIND_PERMUTE_16:
            permute_16(m, w, s);
            break;
        case KIND_MATRIX:
            matrix(m, w, s);
            break;
        case KIND_INVALIDATE:
            if (launch->generation == 12)
                expect(m, w, COUNT_LOAD, 0, 0);
            break;
        }
        w->at = next;
        w->states++;
    }
}

/* Registers as a wave finds them. What nobody set holds noise. */
static void begin(struct machine *m, struct wave *w, uint32_t number)
{
    const struct launch *launch = m->launch;
    memset(w->pending, 0, sizeof *w - offsetof(struct wave, pending));
    w->number = number;
    w->at = (uint32_t)launch->entry;
    memcpy(w->scalar, m->noise, sizeof w->scalar);
    memcpy(w->vector, m->noise, sizeof w->vector);
    uint32_t first = number * launch->wave_size, left = launch->threads - first;
    uint64_t exec = left >= launch->wave_size ? ~0ull : (1ull << left) - 1;
    if (launch->wave_size == 32)
        exec &= 0xffffffffu;
    w->scalar[REG_EXEC] = (uint32_t)exec;
    w->scalar[REG_EXEC + 1] = (uint32_t)(exec >> 32);
    for (uint32_t l = 0; l < launch->wave_size; l++)
        w->vector[0][l] = first + l;
    if (launch->kernarg_register != REG_NONE) {
        w->scalar[launch->kernarg_register] = (uint32_t)launch->kernarg;
        w->scalar[launch->kernarg_register + 1] = (uint32_t)(launch->kernarg >> 32);
    }
    if (launch->preload_count) {
        const uint8_t *kernarg = global(m, w, launch->kernarg + 4ull * launch->preload_offset,
                                        4 * launch->preload_count, 0, 0);
        memcpy(&w->scalar[launch->preload_register], kernarg, 4ull * launch->preload_count);
    }
    if (launch->generation == 12) {
        w->scalar[REG_TTMP + 9] = m->group[0];
        w->scalar[REG_TTMP + 7] = m->group[1] | m->group[2] << 16;
        w->scalar[REG_TTMP + 8] = number << 25; /* the wave's number in its group, bits 25 to 29 */
    } else {
        for (int k = 0; k < 3; k++) {
            if (launch->group_register[k] != REG_NONE) {
                w->scalar[launch->group_register[k]] = m->group[k];
            }
        }
    }
}

static void run_group(struct machine *m, struct lanes *L)
{
    m->epoch++;
    memcpy(m->lds, m->noise, m->launch->lds_bytes);
    for (uint32_t k = 0; k < m->wave_count; k++)
        begin(m, &m->waves[k], k);
    for (;;) {
        uint32_t ended = 0;
        for (uint32_t k = 0; k < m->wave_count; k++) {
            run_wave(m, &m->waves[k], &L[0], &L[1]);
            ended += m->waves[k].ended != 0;
        }
        if (ended == m->wave_count)
            break;
        m->epoch++; /* all that have not ended are at the barrier */
        for (uint32_t k = 0; k < m->wave_count; k++) {
            m->waves[k].waiting = m->waves[k].signalled = 0;
        }
    }
}

int gfx_run(const struct launch *launch, struct report *report)
{
    struct machine *m = calloc(1, sizeof *m);
    struct lanes *L = calloc(2, sizeof *L);
    memset(report, 0, sizeof *report);
    uint32_t waves = (launch->threads + launch->wave_size - 1) / launch->wave_size;
    if (m && L && waves && waves <= MOST_WAVES && launch->lds_bytes <= LDS_LIMIT) {
        m->launch = launch;
        m->report = report;
        m->wave_count = waves;
        m->waves = calloc(waves, sizeof *m->waves);
        m->lds = calloc(launch->lds_bytes + 1, 1);
        m->noise = malloc(NOISE_BYTES);
        m->touched = calloc(launch->lds_bytes + 1, sizeof *m->touched);
    }
    if (!m || !L || !m->waves || !m->lds || !m->noise || !m->touched) {
        report->fault = FAULT_UNSUPPORTED;
        snprintf(report->text, sizeof report->text, "no memory, or a workgroup that is too large");
    } else if (!setjmp(m->failed)) {
        for (uint32_t k = 0; k < NOISE_BYTES / 4; k++) {
            uint32_t value = mixed(launch->seed + k) | 0x7fc00000u;
            memcpy(m->noise + 4 * (size_t)k, &value, 4);
        }
        for (uint32_t z = 0; z < launch->grid[2]; z++) {
            for (uint32_t y = 0; y < launch->grid[1]; y++) {
                for (uint32_t x = 0; x < launch->grid[0]; x++) {
                    m->group[0] = x, m->group[1] = y, m->group[2] = z;
                    run_group(m, L);
                }
            }
        }
    }
    if (m) {
        free(m->waves);
        free(m->lds);
        free(m->noise);
        free(m->touched);
    }
    free(m);
    free(L);
    return (int)report->fault;
}
