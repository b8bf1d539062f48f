/* Interpolation, a pixel at a time with its channels side by side: gathering one channel of several
 * pixels costs more than it saves. No multiply-add is fused. */

typedef struct corners {
    const float *a, *b, *c;
} corners;

INLINE corners interpolate_corners(int32_t face, size_t channels, uint32_t vertices,
                                   const float *attributes, const int32_t *triangles)
{
    const int32_t *const corner = triangles + 3 * (size_t)(face - 1);
    return (corners){attributes + channels * (size_t)hy3d__read_index(corner, vertices),
                     attributes + channels * (size_t)hy3d__read_index(corner + 1, vertices),
                     attributes + channels * (size_t)hy3d__read_index(corner + 2, vertices)};
}

/* Up to four channels in four lanes. Of three, each pixel's store goes one value into the next
 * one's, which is written after it; the last one's ends where it should. */
INLINE void interpolate_four(const size_t channels, size_t pixels, uint32_t vertices,
                             uint32_t faces, const float *attributes, const int32_t *triangles,
                             const int32_t *face_index, const float *w, float *out)
{
    const __m128i mask =
        _mm_setr_epi32(-1, channels > 1 ? -1 : 0, channels > 2 ? -1 : 0, channels > 3 ? -1 : 0);
    for (size_t p = 0; p < pixels; p++, w += 3, out += channels) {
        __m128 value = _mm_setzero_ps();
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        if (face != 0) {
            const corners at = interpolate_corners(face, channels, vertices, attributes, triangles);
            const __m128 a = _mm_mul_ps(_mm_broadcast_ss(w), _mm_maskload_ps(at.a, mask));
            const __m128 b = _mm_mul_ps(_mm_broadcast_ss(w + 1), _mm_maskload_ps(at.b, mask));
            const __m128 c = _mm_mul_ps(_mm_broadcast_ss(w + 2), _mm_maskload_ps(at.c, mask));
            value = _mm_add_ps(_mm_add_ps(a, b), c);
        }
        if (channels == 1) {
            _mm_store_ss(out, value);
        } else if (channels == 2) {
            _mm_storel_pi((void *)out, value);
        } else if (channels == 4 || p + 1 < pixels) {
            _mm_storeu_ps(out, value);
        } else {
            _mm_maskstore_ps(out, mask, value);
        }
    }
}

INLINE vec interpolate_sum(const float *w, vec a, vec b, vec c)
{
    const vec two = V_ADD(V_MUL(V_SET(w[0]), a), V_MUL(V_SET(w[1]), b));
    return V_ADD(two, V_MUL(V_SET(w[2]), c));
}

TARGET void SUFFIX(hy3d_interpolate_f32)(size_t pixels, size_t channels, uint32_t vertices,
                                         uint32_t faces, const float *attributes,
                                         const int32_t *triangles, const int32_t *face_index,
                                         const float *w, float *restrict out)
{
#define INTERPOLATE_FOUR(n)                                                                        \
    case n:                                                                                        \
        interpolate_four(n, pixels, vertices, faces, attributes, triangles, face_index, w, out);   \
        return;
    switch (channels) {
        INTERPOLATE_FOUR(1)
        INTERPOLATE_FOUR(2)
        INTERPOLATE_FOUR(3)
        INTERPOLATE_FOUR(4)
    default:
        break;
    }
    const size_t whole = channels - channels % LANES;
    const some last = some_of(channels - whole);
    for (size_t p = 0; p < pixels; p++, w += 3, out += channels) {
        const int32_t face = hy3d__read_index(face_index + p, faces + 1);
        if (face == 0) {
            for (size_t i = 0; i < whole; i += LANES) {
                V_STORE(out + i, V_ZERO());
            }
            store_some(out + whole, last, V_ZERO());
            continue;
        }
        const corners at = interpolate_corners(face, channels, vertices, attributes, triangles);
        for (size_t i = 0; i < whole; i += LANES) {
            V_STORE(out + i,
                    interpolate_sum(w, V_LOAD(at.a + i), V_LOAD(at.b + i), V_LOAD(at.c + i)));
        }
        if (whole < channels) {
            const vec sum =
                interpolate_sum(w, load_some(at.a + whole, last), load_some(at.b + whole, last),
                                load_some(at.c + whole, last));
            store_some(out + whole, last, sum);
        }
    }
}
