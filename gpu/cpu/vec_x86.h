/* The operations that AVX2 and AVX-512 share. V(op): the intrinsic of the level, which vec_*.h defines. */
#ifndef GPU_VEC_X86_H
#define GPU_VEC_X86_H

static inline vf v_zero(void)
{
    return V(setzero_ps)();
}
static inline vf v_set1(float x)
{
    return V(set1_ps)(x);
}
static inline vf v_load(const float *p)
{
    return V(loadu_ps)(p);
}
static inline void v_store(float *p, vf v)
{
    V(storeu_ps)(p, v);
}
/* Bypasses the caches; p is aligned to the vector. Before another thread reads the data, the writer needs a fence
 * (pool.c has one). */
static inline void v_stream(float *p, vf v)
{
    V(stream_ps)(p, v);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return V(fmadd_ps)(a, b, c);
}
static inline vf v_max(vf a, vf b)
{
    return V(max_ps)(a, b);
} /* NaN in b stays */
static inline vf v_min(vf a, vf b)
{
    return V(min_ps)(a, b);
}
static inline vf v_sqrt(vf a)
{
    return V(sqrt_ps)(a);
}

#endif
