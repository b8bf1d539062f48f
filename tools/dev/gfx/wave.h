/* Waves of AMD machine code, executed. machine.py has the same structures for ctypes. */
#ifndef HY3D_GFX_WAVE_H
#define HY3D_GFX_WAVE_H

#include "alu.h"

/* Registers by number: as in AMD's encoding of sources, and AccVGPRs behind the VGPRs. */
enum {
    REG_VCC = 106,
    REG_TTMP = 108,
    REG_EXEC = 126,
    REG_SCALARS = 128,
    REG_SCC = 253,
    REG_LITERAL = 255,
    REG_VECTOR = 256,
    REG_ACC = 512,
    REG_END = 768,
    REG_NONE = 0xffff,
};

enum kind {
    KIND_NOP,
    KIND_VECTOR, /* alu over the active lanes */
    KIND_SCALAR,
    KIND_BRANCH,
    KIND_WAIT,
    KIND_BARRIER,
    KIND_SIGNAL,
    KIND_BARRIER_WAIT,
    KIND_END,
    KIND_SCALAR_LOAD,
    KIND_LOAD,
    KIND_STORE,
    KIND_ATOMIC,
    KIND_LDS_LOAD,
    KIND_LDS_STORE,
    KIND_LDS_LANES,
    KIND_READ_LANE,
    KIND_READ_FIRST,
    KIND_WRITE_LANE,
    KIND_PERMUTE_16,
    KIND_MATRIX,
    KIND_INVALIDATE, /* of a cache: counted as a load on RDNA4 */
};

/* How a source is read and a result is written. */
enum form { FORM_BITS, FORM_HALF, FORM_PACKED_HALF, FORM_PACKED_FLOAT, FORM_AS_IT_IS };

enum condition { IF_ALWAYS, IF_SCC0, IF_SCC1, IF_VCCZ, IF_VCCNZ, IF_EXECZ, IF_EXECNZ };

enum counter { COUNT_LOAD, COUNT_STORE, COUNT_LDS, COUNT_SCALAR, COUNTERS };

enum atomic {
    ATOMIC_SWAP,
    ATOMIC_CMPSWAP,
    ATOMIC_ADD,
    ATOMIC_SMIN,
    ATOMIC_UMIN,
    ATOMIC_SMAX,
    ATOMIC_UMAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
};

enum lanes_op { LANES_BPERMUTE, LANES_PERMUTE, LANES_SWIZZLE };

enum matrix { MATRIX_F16, MATRIX_BF16, MATRIX_F32 };

/* Flags of a step. */
enum {
    STEP_DUAL = 1,       /* reads before the next step writes, which is its other half */
    STEP_COMPARE = 2,    /* the mask is all of the result */
    STEP_EXEC = 4,       /* the mask goes to EXEC as well */
    STEP_ONLY_EXEC = 8,  /* ... and nowhere else */
    STEP_CARRY = 16,     /* there is a mask beside the result */
    STEP_ZERO_HIGH = 32, /* a 16-bit result clears the upper half */
    STEP_SIGNED = 64,    /* a narrow load extends the sign */
    STEP_HIGH = 128,     /* the upper half of a register is loaded or stored */
    STEP_LOW = 256,      /* a 16-bit load keeps the upper half */
    STEP_RETURN = 512,   /* an atomic returns what was there */
    STEP_BUFFER = 1024,
    STEP_OFFSET_LANES = 2048, /* a buffer's address has an offset from each lane */
    STEP_PAIR = 4096,         /* LDS: two accesses, `offset` and `offset1` */
    STEP_DPP = 8192,
    STEP_SDWA = 16384,
    STEP_CLAMP = 32768,
};

struct step {
    void (*alu)(struct lanes *);
    uint32_t kind;
    uint32_t flags;
    uint32_t next; /* where a branch that is taken goes: number of a step */
    uint32_t literal;
    int32_t offset;
    int32_t offset1;
    int32_t wait[COUNTERS]; /* at most so many outstanding; -1: any number */
    uint16_t source[4];
    uint16_t target;
    uint16_t mask_in;
    uint16_t mask_out;
    uint16_t dpp;
    uint8_t words[4]; /* registers of each source */
    uint8_t forms[4];
    uint8_t bits[4]; /* of a source, for its sign */
    uint8_t target_words;
    uint8_t target_bits;
    uint8_t is_float[4]; /* inline constants are floats */
    uint8_t negate, absolute, negate_high, select, select_high;
    uint8_t row_mask, bank_mask, bound, inactive;
    uint8_t selected[2], extended, target_selected, target_unused;
    uint8_t what;        /* condition, atomic, lanes_op or matrix */
    uint8_t rows, depth; /* of a matrix */
    uint8_t bytes;       /* of a memory access of one lane, or of one of a pair */
};

struct range {
    uint64_t first, last; /* [first, last) */
    uint32_t writable;
    uint32_t padding;
};

struct launch {
    const struct step *steps;
    uint64_t count;
    uint64_t entry; /* number of a step */
    uint64_t kernarg;
    const struct range *ranges;
    uint64_t range_count;
    uint64_t most_steps; /* of all waves; more is taken for a kernel without end */
    uint32_t generation; /* 9, 11, 12 */
    uint32_t wave_size;
    uint32_t grid[3];
    uint32_t threads;
    uint32_t lds_bytes;
    uint32_t kernarg_register; /* of the pair that holds its address; REG_NONE */
    uint32_t preload_register, preload_count, preload_offset; /* dwords of it, in registers */
    uint32_t group_register[3];                               /* of each axis; REG_NONE */
    uint32_t ieee;
    uint32_t seed; /* of what registers and LDS hold at the beginning */
};

enum fault {
    FAULT_NONE,
    FAULT_BOUNDS,
    FAULT_HAZARD,
    FAULT_UNSUPPORTED,
    FAULT_END,
};

struct report {
    uint64_t steps;
    uint32_t fault;
    uint32_t step;
    uint32_t group[3];
    uint32_t wave;
    char text[232];
};

/* Runs a launch to its end, or to the first fault, which the report has. Returns its kind. */
int gfx_run(const struct launch *launch, struct report *report);

/* Instructions whose pseudo-code is no function of a lane's sources alone. */
void gfx_perm_b32(struct lanes *);
void gfx_fma_mix_f32(struct lanes *);
void gfx_fma_mixlo_f16(struct lanes *);
void gfx_fma_mixhi_f16(struct lanes *);
void gfx_pk_mov_b32(struct lanes *);

#endif
