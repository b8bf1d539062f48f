/* Interpolation, a pixel at a time with its channels side by side: on AVX2 gathering one channel of
 * eight pixels costs more than it saves. No multiply-add is fused. */
#include "kernels/kernels.h"

#if HY3D__X86
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) AVX2

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

INLINE __m128 sum4(const float *w, __m128 a, __m128 b, __m128 c)
{
    const __m128 two = _mm_add_ps(_mm_mul_ps(_mm_broadcast_ss(w), a),
                                  _mm_mul_ps(_mm_broadcast_ss(w + 1), b));
    return _mm_add_ps(two, _mm_mul_ps(_mm_broadcast_ss(w + 2), c));
}

INLINE __m256 sum8(const float *w, const float *a, const float *b, const float *c)
{
    const __m256 two =
        _mm256_add_ps(_mm256_mul_ps(_mm256_broadcast_ss(w), _mm256_loadu_ps(a)),
                      _mm256_mul_ps(_mm256_broadcast_ss(w + 1), _mm256_loadu_ps(b)));
    return _mm256_add_ps(two, _mm256_mul_ps(_mm256_broadcast_ss(w + 2), _mm256_loadu_ps(c)));
}

/* Three channels in four lanes: each pixel's store goes one value into the next one's, which is
 * written after it; the last one's ends where it should. */
AVX2 static void three(size_t pixels, uint32_t vertices, uint32_t faces, const float *attributes,
                       const int32_t *triangles, const int32_t *face_index, const float *w,
                       float *out)
{
    const __m128i mask = _mm_setr_epi32(-1, -1, -1, 0);
    for (size_t p = 0; p < pixels; p++, w += 3, out += 3) {
        __m128 value = _mm_setzero_ps();
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        if (face != 0) {
            const corners at = corners_of(face, 3, vertices, attributes, triangles);
            value = sum4(w, _mm_maskload_ps(at.a, mask), _mm_maskload_ps(at.b, mask),
                         _mm_maskload_ps(at.c, mask));
        }
        if (p + 1 < pixels) {
            _mm_storeu_ps(out, value);
        } else {
            _mm_maskstore_ps(out, mask, value);
        }
    }
}

INLINE void zeros(size_t channels, float *out)
{
    size_t i = 0;
    for (; i + 8 <= channels; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_setzero_ps());
    }
    for (; i < channels; i++) {
        out[i] = 0;
    }
}

AVX2 void hy3d_interpolate_f32__avx2(size_t pixels, size_t channels, uint32_t vertices,
                                     uint32_t faces, const float *attributes,
                                     const int32_t *triangles, const int32_t *face_index,
                                     const float *w, float *restrict out)
{
    if (channels == 3) {
        three(pixels, vertices, faces, attributes, triangles, face_index, w, out);
        return;
    }
    for (size_t p = 0; p < pixels; p++, w += 3, out += channels) {
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        if (face == 0) {
            zeros(channels, out);
            continue;
        }
        const corners at = corners_of(face, channels, vertices, attributes, triangles);
        size_t i = 0;
        for (; i + 8 <= channels; i += 8) {
            _mm256_storeu_ps(out + i, sum8(w, at.a + i, at.b + i, at.c + i));
        }
        if (i + 4 <= channels) {
            _mm_storeu_ps(out + i, sum4(w, _mm_loadu_ps(at.a + i), _mm_loadu_ps(at.b + i),
                                        _mm_loadu_ps(at.c + i)));
            i += 4;
        }
        for (; i < channels; i++) {
            out[i] = (w[0] * at.a[i] + w[1] * at.b[i]) + w[2] * at.c[i];
        }
    }
}
#endif
