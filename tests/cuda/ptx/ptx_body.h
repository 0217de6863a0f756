/* List of the PTX instructions in Atoll's kernels: X(mnemonic with _ for . and :, number of operands, action). The file
 * is included several times. D(i) is the slot of operand i, 0 the result; tests/cuda/ptx/ptx_run.c defines the other
 * macros.
 *
 * - A loaded or converted value may go to a wider register, extended by zeros or its sign.
 * - Comparisons without u are false if an operand is NaN.
 * - Shifts by more bits than the width give zeros (or sign bits). */
/* clang-format off */
#define UNARY(name, to, from, value) X(name, 2, { from##_t a = D(1).from; D(0).to = (to##_t)(value); })
#define INTEGER(name, to, from) X(name, 2, { to##_t a = (to##_t)D(1).from; D(0).u64 = (u64_t)a; })
#define BINARY(name, type, value)                                                                                      \
    X(name, 3, { type##_t a = D(1).type, b = D(2).type; D(0).type = (type##_t)(value); })
#define TERNARY(name, type, value)                                                                                     \
    X(name, 4, { type##_t a = D(1).type, b = D(2).type, c = D(3).type; D(0).type = (type##_t)(value); })
#define SHIFT(name, type, value)                                                                                       \
    X(name, 3, { type##_t a = D(1).type; u32_t b = D(2).u32; D(0).type = (type##_t)(value); })
#define COMPARE(name, type, value) X(setp_##name, 3, { type##_t a = D(1).type, b = D(2).type; D(0).u32 = (value); })
#define COMPARES(type, as)                                                                                             \
    COMPARE(eq_##type, as, a == b)                                                                                     \
    COMPARE(ne_##type, as, a != b)                                                                                     \
    COMPARE(lt_##type, as, a < b)                                                                                      \
    COMPARE(le_##type, as, a <= b)                                                                                     \
    COMPARE(gt_##type, as, a > b)                                                                                      \
    COMPARE(ge_##type, as, a >= b)
#define SELECT(type) X(selp_##type, 4, D(0).u64 = D(3).u32 ? D(1).u64 : D(2).u64)
#define MOVE(type) X(mov_##type, 2, D(0).u64 = D(1).u64)

MOVE(pred) MOVE(u16) MOVE(b16) MOVE(u32) MOVE(b32) MOVE(f32) MOVE(u64) MOVE(b64) MOVE(f64)
X(mov_b32_joined, 3, D(0).u32 = D(1).u16 | (u32_t)D(2).u16 << 16)
X(mov_b64_joined, 3, D(0).u64 = D(1).u32 | (u64_t)D(2).u32 << 32)
X(mov_b64_parted, 3, { u64_t a = D(2).u64; D(0).u32 = (u32_t)a; D(1).u32 = (u32_t)(a >> 32); })
UNARY(cvta_to_global_u64, u64, u64, a)
SELECT(u16) SELECT(b16) SELECT(u32) SELECT(s32) SELECT(b32) SELECT(f32) SELECT(u64) SELECT(s64) SELECT(b64) SELECT(f64)

BINARY(add_s16, u16, a + b)
BINARY(add_s32, u32, a + b)
BINARY(add_s64, u64, a + b)
BINARY(sub_s32, u32, a - b)
BINARY(sub_s64, u64, a - b)
BINARY(mul_lo_s32, u32, a * b)
BINARY(mul_lo_s64, u64, a * b)
TERNARY(mad_lo_s32, u32, a * b + c)
TERNARY(mad_lo_s64, u64, a * b + c)
X(mul_wide_u16, 3, D(0).u32 = (u32_t)D(1).u16 * D(2).u16)
X(mul_wide_u32, 3, D(0).u64 = (u64_t)D(1).u32 * D(2).u32)
X(mul_wide_s32, 3, D(0).s64 = (s64_t)D(1).s32 * D(2).s32)
BINARY(div_u32, u32, b ? a / b : UINT32_MAX)
BINARY(div_u64, u64, b ? a / b : UINT64_MAX)
BINARY(rem_u32, u32, b ? a % b : a)
BINARY(rem_u64, u64, b ? a % b : a)
BINARY(min_u32, u32, a < b ? a : b)
BINARY(max_u32, u32, a > b ? a : b)
BINARY(min_s32, s32, a < b ? a : b)
BINARY(max_s32, s32, a > b ? a : b)
BINARY(min_u64, u64, a < b ? a : b)
BINARY(max_u64, u64, a > b ? a : b)
UNARY(neg_s32, u32, u32, 0 - a)
UNARY(neg_s64, u64, u64, 0 - a)
UNARY(popc_b32, u32, u32, __builtin_popcount(a))

BINARY(and_b16, u16, a & b)
BINARY(and_b32, u32, a & b)
BINARY(and_b64, u64, a & b)
BINARY(and_pred, u32, a & b)
BINARY(or_b16, u16, a | b)
BINARY(or_b32, u32, a | b)
BINARY(or_b64, u64, a | b)
BINARY(or_pred, u32, a | b)
BINARY(xor_b32, u32, a ^ b)
BINARY(xor_b64, u64, a ^ b)
BINARY(xor_pred, u32, a ^ b)
UNARY(not_b32, u32, u32, ~a)
UNARY(not_b64, u64, u64, ~a)
UNARY(not_pred, u32, u32, !a)
SHIFT(shl_b16, u16, b > 15 ? 0 : a << b)
SHIFT(shl_b32, u32, b > 31 ? 0 : a << b)
SHIFT(shl_b64, u64, b > 63 ? 0 : a << b)
SHIFT(shr_u16, u16, b > 15 ? 0 : a >> b)
SHIFT(shr_u32, u32, b > 31 ? 0 : a >> b)
SHIFT(shr_u64, u64, b > 63 ? 0 : a >> b)
SHIFT(shr_s32, s32, a >> (b > 31 ? 31 : b))
SHIFT(shr_s64, s64, a >> (b > 63 ? 63 : b))
X(shf_l_wrap_b32, 4, D(0).u32 = (u32_t)((D(1).u32 | (u64_t)D(2).u32 << 32) << (D(3).u32 & 31) >> 32))
X(bfi_b32, 5, D(0).u32 = insert_bits(D(1).u32, D(2).u32, D(3).u32, D(4).u32))

COMPARES(s16, s16) COMPARES(u16, u16) COMPARES(s32, s32) COMPARES(u32, u32) COMPARES(s64, s64) COMPARES(u64, u64)
COMPARES(f32, f32) COMPARES(f64, f64)
COMPARE(eq_b16, u16, a == b) COMPARE(ne_b16, u16, a != b)
COMPARE(eq_b32, u32, a == b) COMPARE(ne_b32, u32, a != b)
COMPARE(eq_b64, u64, a == b) COMPARE(ne_b64, u64, a != b)
COMPARE(equ_f32, f32, !(a < b || a > b)) COMPARE(neu_f32, f32, !(a == b))
COMPARE(ltu_f32, f32, !(a >= b)) COMPARE(leu_f32, f32, !(a > b))
COMPARE(gtu_f32, f32, !(a <= b)) COMPARE(geu_f32, f32, !(a < b))

BINARY(add_rn_f32, f32, a + b)
BINARY(sub_rn_f32, f32, a - b)
BINARY(mul_rn_f32, f32, a * b)
BINARY(div_rn_f32, f32, a / b)
TERNARY(fma_rn_f32, f32, fmaf(a, b, c))
TERNARY(fma_rm_f32, f32, fma_down(a, b, c))
BINARY(min_f32, f32, fminf(a, b))
BINARY(max_f32, f32, fmaxf(a, b))
UNARY(neg_f32, f32, f32, -a)
UNARY(abs_f32, f32, f32, fabsf(a))
UNARY(sqrt_rn_f32, f32, f32, sqrtf(a))
UNARY(rcp_rn_f32, f32, f32, 1.0f / a)
UNARY(rcp_approx_ftz_f32, f32, f32, flushed(1.0f / flushed(a)))
UNARY(ex2_approx_f32, f32, f32, exp2f(a))
UNARY(ex2_approx_ftz_f32, f32, f32, flushed(exp2f(flushed(a))))
BINARY(add_rn_f64, f64, a + b)
BINARY(sub_rn_f64, f64, a - b)
BINARY(mul_rn_f64, f64, a * b)
BINARY(div_rn_f64, f64, a / b)
TERNARY(fma_rn_f64, f64, fma(a, b, c))
BINARY(max_f64, f64, fmax(a, b))
UNARY(neg_f64, f64, f64, -a)
UNARY(sqrt_rn_f64, f64, f64, sqrt(a))
UNARY(rcp_rn_f64, f64, f64, 1.0 / a)
UNARY(rcp_approx_ftz_f64, f64, f64, 1.0 / a)

INTEGER(cvt_u64_u32, u64, u32)
INTEGER(cvt_u32_u64, u32, u64)
INTEGER(cvt_u16_u32, u16, u32)
INTEGER(cvt_u16_u64, u16, u64)
INTEGER(cvt_u32_u16, u32, u16)
INTEGER(cvt_s32_s8, s32, s8)
INTEGER(cvt_s64_s32, s64, s32)
UNARY(cvt_f64_f32, f64, f32, a)
UNARY(cvt_rn_f32_f64, f32, f64, a)
UNARY(cvt_rn_f32_u32, f32, u32, a)
UNARY(cvt_rn_f32_s32, f32, s32, a)
UNARY(cvt_rn_f32_u64, f32, u64, a)
UNARY(cvt_rn_f64_u32, f64, u32, a)
UNARY(cvt_rn_f64_u64, f64, u64, a)
UNARY(cvt_rzi_u32_f32, u32, f32, !(a > 0) ? 0 : a >= 0x1p32f ? UINT32_MAX : (u32_t)a)
UNARY(cvt_rni_f32_f32, f32, f32, nearbyintf(a))
UNARY(cvt_sat_f32_f32, f32, f32, !(a > 0) ? 0 : a > 1 ? 1 : a)
UNARY(cvt_rn_bf16_f32, u16, f32, bf16_of(a))
X(cvt_rn_bf16x2_f32, 3, D(0).u32 = bf16_of(D(2).f32) | (u32_t)bf16_of(D(1).f32) << 16)

#define LOAD(space, type, to, n) X(ld_##space##_##type, n + 1, LOADS(space, to, n))
#define STORE(space, type, from, n) X(st_##space##_##type, n + 1, STORES(space, from, n))
LOAD(param, u8, u8, 1) LOAD(param, u32, u32, 1) LOAD(param, b32, u32, 1) LOAD(param, f32, u32, 1)
LOAD(param, u64, u64, 1) LOAD(param, f64, u64, 1) LOAD(param, v2_u32, u32, 2) LOAD(param, v2_f32, u32, 2)
LOAD(param, v2_b32, u32, 2)
LOAD(global, u8, u8, 1) LOAD(global, u16, u16, 1) LOAD(global, u32, u32, 1) LOAD(global, s32, s32, 1)
LOAD(global, b32, u32, 1) LOAD(global, f32, u32, 1) LOAD(global, u64, u64, 1) LOAD(global, b64, u64, 1)
LOAD(global, f64, u64, 1) LOAD(global, v2_u32, u32, 2) LOAD(global, v2_f32, u32, 2) LOAD(global, v4_u32, u32, 4)
LOAD(global, v4_f32, u32, 4) LOAD(global, v4_b32, u32, 4)
LOAD(shared, u32, u32, 1) LOAD(shared, b32, u32, 1) LOAD(shared, f32, u32, 1) LOAD(shared, u64, u64, 1)
LOAD(shared, f64, u64, 1) LOAD(shared, v2_f32, u32, 2) LOAD(shared, v4_b32, u32, 4) LOAD(shared, v4_f32, u32, 4)
STORE(global, u8, u8, 1) STORE(global, u16, u16, 1) STORE(global, u32, u32, 1) STORE(global, b32, u32, 1)
STORE(global, f32, u32, 1) STORE(global, u64, u64, 1) STORE(global, b64, u64, 1) STORE(global, f64, u64, 1)
STORE(global, v2_u32, u32, 2) STORE(global, v2_f32, u32, 2) STORE(global, v4_u32, u32, 4) STORE(global, v4_f32, u32, 4)
STORE(global, v4_b32, u32, 4)
STORE(shared, u32, u32, 1) STORE(shared, b32, u32, 1) STORE(shared, f32, u32, 1) STORE(shared, u64, u64, 1)
STORE(shared, f64, u64, 1) STORE(shared, v4_f32, u32, 4)

/* Instructions with other threads of the warp or block: tests/cuda/emulator/emulate.c. */
X(bar_sync, 1, cuda_emulated_barrier(kernel->name, in->line))
X(bar_warp_sync, 1, WHOLE_WARP(0, cuda_emulated_warp_barrier(kernel->name, in->line)))
X(shfl_sync_bfly_b32, 6, WHOLE_WARP(5, D(0).u32 = cuda_emulated_xor_u32(D(2).u32, D(3).u32, in->line)))
X(shfl_sync_up_b32, 6, WHOLE_WARP(5, D(0).u32 = cuda_emulated_up_u32(D(2).u32, D(3).u32, in->line)))
X(vote_sync_ballot_b32, 3, WHOLE_WARP(2, D(0).u32 = cuda_emulated_ballot((int)D(1).u32, in->line)))
X(redux_sync_add_u32, 3, WHOLE_WARP(2, D(0).u32 = cuda_emulated_add_u32(D(1).u32, in->line)))
X(redux_sync_max_u32, 3, WHOLE_WARP(2, D(0).u32 = cuda_emulated_max_u32(D(1).u32, in->line)))

/* The same, in tests/cuda/emulator/emulate_mma.c. */
X(cp_async_cg_shared_global, 4, copy_in(kernel, in, slots, 16))
X(cp_async_ca_shared_global, 4, copy_in(kernel, in, slots, 4))
X(cp_async_commit_group, 0, copy_commit())
X(cp_async_wait_group, 1, copy_wait((int)D(0).u32))
X(ldmatrix_sync_aligned_m8n8_x4_shared_b16, 5, matrices(kernel, in, slots, false))
X(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, 5, matrices(kernel, in, slots, true))
X(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, 14, multiply_add(in, slots))

X(bra, 0, next = in->target)
X(bra_uni, 0, next = in->target)
X(ret, 0, return)

#undef UNARY
#undef INTEGER
#undef BINARY
#undef TERNARY
#undef SHIFT
#undef COMPARE
#undef COMPARES
#undef SELECT
#undef MOVE
#undef LOAD
#undef STORE
    /* clang-format on */
