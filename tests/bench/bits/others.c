#include "bits.h"
void bits_others(hy3d_context *const *levels, int level_count, uint64_t seed, uint64_t index,
                 bits_shared *shared)
{ (void)levels; (void)level_count; (void)seed; (void)index; (void)shared; }
