/* Top-k of the outer path: delta, error feedback, selection, quantization and new residual; every number is read once.
 * Grid: n_pieces, one block of 4 warps per chunk, 5,216 bytes of shared memory. A thread keeps its values in registers:
 * x[j] is value j * THREADS + thread, so that a ballot over a warp yields 32 consecutive places.
 *
 * Bisection on the bits finds the k-th largest magnitude: 32 comparisons per thread, a warp sum and one barrier per
 * step, at most 31 steps. [derived: about 2000 cycles of arithmetic per chunk, 3000 of memory traffic] */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 /* there ptxas would spill one or two of the 96 registers */
#define KERNEL_RESIDENT 512
#else
#define KERNEL_RESIDENT 640
#endif
#include "gpu/cuda/kernels/cuda_delta.h"

enum { WARPS = CUDA_CHUNK_THREADS / 32, EACH = CUDA_CHUNK_MAX / CUDA_CHUNK_THREADS, WORDS = CUDA_CHUNK_MAX / 32 };

DEVICE unsigned place_of(unsigned j)
{
    return j * CUDA_CHUNK_THREADS + threadIdx.x;
}

/* Number of magnitudes in the block that are at least `least`. Consecutive calls alternate between two `sums`: a thread
 * that writes one has passed the barrier after which all threads have read it. */
DEVICE unsigned count_reaching(const float *x, uint32_t least, unsigned *sums)
{
    unsigned n = 0;
    UNROLL
    for (unsigned j = 0; j < EACH; j++) n += rule_magnitude(x[j]) >= least;
    n = __reduce_add_sync(FULL_WARP, n);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = n;
    __syncthreads();
    n = 0;
    for (unsigned warp = 0; warp < WARPS; warp++) n += sums[warp];
    return n;
}

DEVICE uint32_t block_max(uint32_t x, uint32_t *most)
{
    x = __reduce_max_sync(FULL_WARP, x);
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned warp = 0; warp < WARPS; warp++) x = most[warp] > x ? most[warp] : x;
    return x;
}

struct places {             /* a set of places, in shared memory */
    uint32_t word[WORDS];   /* bit i of word w: place 32 w + i is in the set */
    unsigned before[WORDS]; /* members in the words before word w */
    unsigned sums[WARPS];
};

/* Builds the set from bit j of `mine`: x[j] is a member. May be called again at once: a warp reads (rank_of) only the
 * words that it wrote, and two barriers precede the writes of `before`. */
DEVICE void find_places(struct places *p, uint32_t mine)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncwarp(); /* all lanes have read the old words; a ballot orders no memory */
    UNROLL
    for (unsigned j = 0; j < EACH; j++) {
        uint32_t word = __ballot_sync(FULL_WARP, mine >> j & 1);
        if (lane == 0) p->word[j * WARPS + warp] = word;
    }
    __syncthreads(); /* all words are written */
    unsigned own = __popc(p->word[threadIdx.x]), sum = own;
    for (unsigned lanes = 1; lanes < 32; lanes *= 2) {
        unsigned lower = __shfl_up_sync(FULL_WARP, sum, lanes);
        sum += lane >= lanes ? lower : 0;
    }
    if (lane == 31) p->sums[warp] = sum;
    __syncthreads(); /* all sums of warps are written */
    for (unsigned w = 0; w < warp; w++) sum += p->sums[w];
    p->before[threadIdx.x] = sum - own;
    __syncthreads(); /* `before` is written */
}

/* Number of members below place_of(j). */
DEVICE unsigned rank_of(const struct places *p, unsigned j)
{
    unsigned word = j * WARPS + threadIdx.x / 32;
    return p->before[word] + __popc(p->word[word] & ((1u << threadIdx.x % 32) - 1));
}

/* Returns bit j for the x[j] among the k largest magnitudes. Of equal magnitudes the lower place wins; zeros are never
 * chosen. `most`: the largest magnitude. */
DEVICE uint32_t choose(const float *x, uint32_t k, uint32_t most, struct places *p, unsigned (*sums)[WARPS])
{
    unsigned parity = 0;
    /* Invariant while reached > k: `reached` magnitudes are >= low, fewer than k are >= high. */
    uint32_t low = 1, high = most + 1, taken = 0, ties = 0;
    unsigned reached = count_reaching(x, low, sums[0]);
    while (reached > k && high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        parity ^= 1;
        unsigned n = count_reaching(x, middle, sums[parity]);
        if (n >= k) {
            low = middle;
            reached = n;
        } else {
            high = middle;
        }
    }
    UNROLL
    for (unsigned j = 0; j < EACH; j++) {
        uint32_t bits = rule_magnitude(x[j]);
        taken |= (uint32_t)(bits >= low) << j;
        ties |= (uint32_t)(bits == low) << j;
    }
    if (reached <= k) return taken;
    parity ^= 1;
    unsigned above = count_reaching(x, low + 1, sums[parity]);
    find_places(p, ties);
    UNROLL
    for (unsigned j = 0; j < EACH; j++)
        if (ties >> j & 1 && rank_of(p, j) >= k - above) taken &= ~(1u << j);
    return taken;
}

struct sums {
    double all, above, below; /* above: sum of magnitudes larger than the split */
    uint32_t most, least, n_above;
};

/* Sums of n > 0 magnitudes as the format defines them: sequential, in order of place. If the largest is less than 2^12
 * times the smallest, no addition rounds, and every order gives the same result. Every warp computes them. */
DEVICE struct sums sums_of(const uint32_t *magnitude, unsigned n, uint32_t split)
{
    struct sums s;
    s.all = s.above = s.below = 0;
    s.most = s.n_above = 0;
    s.least = RULE_MAGNITUDE;
    for (unsigned i = threadIdx.x % 32; i < n; i += 32) {
        uint32_t bits = magnitude[i];
        s.all += (double)rule_float(bits);
        s.above += bits > split ? (double)rule_float(bits) : 0.0;
        s.n_above += bits > split;
        s.most = bits > s.most ? bits : s.most;
        s.least = bits < s.least ? bits : s.least;
    }
    s.all = warp_sum_double(s.all);
    s.above = warp_sum_double(s.above);
    s.n_above = __reduce_add_sync(FULL_WARP, s.n_above);
    s.most = __reduce_max_sync(FULL_WARP, s.most);
    s.least = RULE_MAGNITUDE - __reduce_max_sync(FULL_WARP, RULE_MAGNITUDE - s.least);
    s.below = s.all - s.above;
    if ((s.most >> 23) - (s.least >> 23) <= 11) return s;
    s.all = s.above = s.below = 0;
    for (unsigned i = 0; i < n; i++) {
        double x = (double)rule_float(magnitude[i]);
        s.all += x;
        if (magnitude[i] > split)
            s.above += x;
        else
            s.below += x;
    }
    return s;
}

/* Scale codes of n > 0 values, and the split of TWO_LEVELS. */
DEVICE void scales_of(enum piece_kind kind, const uint32_t *magnitude, unsigned n, uint32_t most, uint32_t *low,
                      uint32_t *high, uint32_t *split)
{
    unsigned mantissa = rule_mantissa(kind);
    *high = *split = 0;
    if (kind == PIECE_BYTES) {
        *low = rule_scale_code(mantissa, most);
    } else if (kind == PIECE_HALF) {
        *low = most >> 23;
    } else {
        struct sums s = sums_of(magnitude, n, RULE_MAGNITUDE);
        *split = rule_bits((float)(s.all / (double)n));
        *low = rule_scale_code(mantissa, *split);
        if (kind == PIECE_SIGN) return;
        s = sums_of(magnitude, n, *split);
        *low = rule_scale_code(mantissa, rule_bits((float)(s.below / (double)(n - s.n_above))));
        *high = s.n_above ? rule_scale_code(mantissa, rule_bits((float)(s.above / (double)s.n_above))) : *low;
    }
}

/* Writes indices and codes of the chosen values. x keeps the quantization error. */
DEVICE void send_chunk(const struct cuda_delta_args *a, const struct piece_range *piece, float *x, uint32_t most,
                       struct piece_head *head, struct places *p, unsigned (*sums)[WARPS], uint32_t *magnitude)
{
    uint32_t taken = choose(x, piece->k, most, p, sums), low, high, split;
    find_places(p, taken);
    unsigned n = p->before[WORDS - 1] + __popc(p->word[WORDS - 1]);
    if (!n) return;
    UNROLL
    for (unsigned j = 0; j < EACH; j++)
        if (taken >> j & 1) magnitude[rank_of(p, j)] = rule_magnitude(x[j]);
    __syncthreads(); /* all magnitudes are written */
    scales_of(a->kind, magnitude, n, most, &low, &high, &split);
    unsigned mantissa = rule_mantissa(a->kind);
    if (low < rule_scale_least(mantissa)) return;
    float scale = rule_scale(mantissa, low), scale1 = rule_scale(mantissa, high);
    uint16_t *index = a->out.index + piece->out, *code = a->out.code + piece->out;
    UNROLL
    for (unsigned j = 0; j < EACH; j++) {
        if (!(taken >> j & 1)) continue;
        uint32_t c = rule_chosen(a->kind, x[j], split, low, scale);
        unsigned rank = rank_of(p, j);
        index[rank] = (uint16_t)place_of(j);
        code[rank] = (uint16_t)c;
        x[j] -= rule_chosen_value(a->kind, c, scale, scale1);
    }
    head->scale[0] = low;
    head->scale[1] = high;
    head->n = n;
}

KERNEL(cuda_delta_chunk, cuda_delta_args, CUDA_CHUNK_THREADS)
{
    __shared__ struct places places;
    __shared__ uint32_t magnitude[CUDA_CHOSEN_MAX];
    __shared__ unsigned sums[2][WARPS];
    __shared__ uint32_t largest[WARPS];
    __shared__ double squares[WARPS];
    const struct piece_range piece = a.pieces[blockIdx.x];
    float x[EACH];
    double square = 0;
    uint32_t most = 0;
    UNROLL
    for (unsigned j = 0; j < EACH; j++) {
        x[j] = place_of(j) < piece.length ? delta_at(&a, piece.from + place_of(j), &square) : 0.0f;
        most = rule_magnitude(x[j]) > most ? rule_magnitude(x[j]) : most;
    }
    warps_sum(square, squares);
    most = block_max(most, largest);
    struct piece_head head;
    memset(&head, 0, sizeof head);
    head.square = sum_of(squares, WARPS);
    head.bad = most >= RULE_INFINITY;
    if (!head.bad && piece.k) send_chunk(&a, &piece, x, most, &head, &places, sums, magnitude);
    if (threadIdx.x == 0) a.out.heads[blockIdx.x] = head;
    if (head.bad) return;
    UNROLL
    for (unsigned j = 0; j < EACH; j++) {
        if (place_of(j) >= piece.length) continue;
        if (!piece.k) {
            uint16_t half = rule_bf16(x[j]);
            a.out.plain[piece.out + place_of(j)] = half;
            x[j] -= rule_bf16_value(half);
        }
        if (a.rest) a.rest[piece.from + place_of(j)] = x[j];
    }
}
