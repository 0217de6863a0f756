/* vec.h in portable C (GNU vector types, which gcc and clang lower to the target's instructions): 4 lanes, no fused
 * multiply-add. The tests compare the other levels with it. */
#ifndef GPU_VEC_PORTABLE_H
#define GPU_VEC_PORTABLE_H

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { VL = 4, MR = 4, AMR = 4 };

typedef float vf __attribute__((vector_size(16)));
typedef int vi __attribute__((vector_size(16)));

static inline vf v_zero(void)
{
    return (vf){0, 0, 0, 0};
}
static inline vf v_set1(float x)
{
    return (vf){x, x, x, x};
}
static inline vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
static inline void v_stream(float *p, vf v)
{
    v_store(p, v);
} /* the other levels bypass the caches */
static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf v_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}
static inline vf v_max(vf a, vf b)
{
    return v_select(a > b, a, b);
} /* NaN in b stays */
static inline vf v_min(vf a, vf b)
{
    return v_select(a < b, a, b);
}
static inline vf v_sqrt(vf a)
{
    return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
}

/* The first n (0 .. VL) lanes; the others read as zero, or are not written. */
static inline vf v_load_n(const float *p, size_t n)
{
    vf v = v_zero();
    for (size_t i = 0; i < n && i < VL; i++) v[i] = p[i];
    return v;
}
static inline void v_store_n(float *p, vf v, size_t n)
{
    for (size_t i = 0; i < n && i < VL; i++) p[i] = v[i];
}

/* Lanes from `first` (0 .. VL) on are v's, those before it `other`'s. */
static inline vf v_keep_from(vf v, size_t first, vf other)
{
    for (size_t i = 0; i < first && i < VL; i++) v[i] = other[i];
    return v;
}

/* dst[j * ld + i] = row i, element j. */
static inline void v_transpose_store(const vf row[4], float *dst, size_t ld)
{
    for (size_t j = 0; j < VL; j++) v_store(dst + j * ld, (vf){row[0][j], row[1][j], row[2][j], row[3][j]});
}

#endif
