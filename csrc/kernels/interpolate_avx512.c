/* Interpolation, a pixel at a time with its channels side by side, the last ones masked. No
 * multiply-add is fused. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512vl")))
#define INLINE static inline __attribute__((always_inline)) AVX512

typedef struct corners {
    const float *a, *b, *c;
} corners;

INLINE corners corners_of(int32_t face, size_t channels, uint32_t vertices,
                          const float *attributes, const int32_t *triangles)
{
    const int32_t *const corner = triangles + 3 * (size_t)(face - 1);
    return (corners){attributes + channels * (size_t)hy3d__read_index(corner, vertices),
                     attributes + channels * (size_t)hy3d__read_index(corner + 1, vertices),
                     attributes + channels * (size_t)hy3d__read_index(corner + 2, vertices)};
}

INLINE __m128 sum4(__mmask8 mask, const float *w, corners at)
{
    const __m128 a = _mm_mul_ps(_mm_broadcast_ss(w), _mm_maskz_loadu_ps(mask, at.a));
    const __m128 b = _mm_mul_ps(_mm_broadcast_ss(w + 1), _mm_maskz_loadu_ps(mask, at.b));
    const __m128 c = _mm_mul_ps(_mm_broadcast_ss(w + 2), _mm_maskz_loadu_ps(mask, at.c));
    return _mm_add_ps(_mm_add_ps(a, b), c);
}

INLINE __m512 sum16(__mmask16 mask, const float *w, corners at, size_t i)
{
    const __m512 a = _mm512_mul_ps(_mm512_set1_ps(w[0]), _mm512_maskz_loadu_ps(mask, at.a + i));
    const __m512 b = _mm512_mul_ps(_mm512_set1_ps(w[1]), _mm512_maskz_loadu_ps(mask, at.b + i));
    const __m512 c = _mm512_mul_ps(_mm512_set1_ps(w[2]), _mm512_maskz_loadu_ps(mask, at.c + i));
    return _mm512_add_ps(_mm512_add_ps(a, b), c);
}

/* Up to four channels. With three or four a store of four lanes reaches at most one value into
 * the next pixel's, which is written after it. */
INLINE void few(size_t pixels, size_t channels, uint32_t vertices, uint32_t faces,
                const float *attributes, const int32_t *triangles, const int32_t *face_index,
                const float *w, float *out)
{
    const __mmask8 mask = (__mmask8)((1U << channels) - 1U);
    for (size_t p = 0; p < pixels; p++, w += 3, out += channels) {
        __m128 value = _mm_setzero_ps();
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        if (face != 0) {
            value = sum4(mask, w, corners_of(face, channels, vertices, attributes, triangles));
        }
        if (channels >= 3 && p + 1 < pixels) {
            _mm_storeu_ps(out, value);
        } else {
            _mm_mask_storeu_ps(out, mask, value);
        }
    }
}

AVX512 static void three(size_t pixels, uint32_t vertices, uint32_t faces, const float *attributes,
                         const int32_t *triangles, const int32_t *face_index, const float *w,
                         float *out)
{
    few(pixels, 3, vertices, faces, attributes, triangles, face_index, w, out);
}

AVX512 void hy3d_interpolate_f32__avx512(size_t pixels, size_t channels, uint32_t vertices,
                                         uint32_t faces, const float *attributes,
                                         const int32_t *triangles, const int32_t *face_index,
                                         const float *w, float *restrict out)
{
    if (channels == 3) {
        three(pixels, vertices, faces, attributes, triangles, face_index, w, out);
        return;
    }
    if (channels <= 4) {
        few(pixels, channels, vertices, faces, attributes, triangles, face_index, w, out);
        return;
    }
    const __mmask16 all = 0xffff, last = (__mmask16)((1U << (channels - 1) % 16 << 1) - 1U);
    for (size_t p = 0; p < pixels; p++, w += 3, out += channels) {
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        const corners at = face == 0 ? (corners){NULL, NULL, NULL}
                                     : corners_of(face, channels, vertices, attributes, triangles);
        for (size_t i = 0; i < channels; i += 16) {
            const __mmask16 mask = channels - i <= 16 ? last : all;
            const __m512 value = face == 0 ? _mm512_setzero_ps() : sum16(mask, w, at, i);
            _mm512_mask_storeu_ps(out + i, mask, value);
        }
    }
}
#endif
