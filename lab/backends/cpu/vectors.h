/* Vectors as long as the processor's registers, by the extensions that GCC and Clang share. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32) && defined(__AVX__) && !defined(__clang__)
#error On Windows, GCC may keep these vectors where the processor does not take them (its bug 54412): use Clang.
#endif

/* VECTOR_BITS: the width of the processor's registers, or another to test: the compiler makes a vector of several
   registers or of half a one. Longer vectors than registers are far slower. */
#if !defined(VECTOR_BITS)
#if defined(__AVX512F__)
#define VECTOR_BITS 512
#elif defined(__AVX__)
#define VECTOR_BITS 256
#else
#define VECTOR_BITS 128
#endif
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_ROWS 6 /* rows of a matrix product whose sums fit in all 32 registers together */
#else
#define TILE_ROWS 3 /* or in 16 */
#endif
#if defined(__AVX512BF16__) && VECTOR_BITS == 512
#define BFLOAT16_PRODUCTS 1
#else
#define BFLOAT16_PRODUCTS 0
#endif

enum { LANES = VECTOR_BITS / 32, BLOCK = 2 * LANES }; /* float32 numbers in a vector; outputs of a block of weights */
const int32_t vector_lanes = LANES; /* for Python, which packs the weights */

/* A product and the sum it goes into become one instruction, rounded once, if they stand in one expression. GCC does so
   by default, Clang since version 14. -ffp-contract=fast would let Clang decide anew for every size of a tile, and a
   token's bits could depend on how many others are computed with it. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#endif

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float quad __attribute__((vector_size(16)));

static inline lanes load(const float *from) { return *(const lanes *)from; }
static inline void store(float *to, lanes x) { *(lanes *)to = x; }

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int32_t __attribute__((vector_size(16)))){__VA_ARGS__})
#endif

static inline quad fold(lanes x) {
    union { lanes all; quad part[LANES / 4]; } both = {x};
    quad total = both.part[0];
    for (int i = 1; i < LANES / 4; i++) total += both.part[i];
    return total;
}

static inline float sum(lanes x) {
    const quad total = fold(x);
    return (total[0] + total[2]) + (total[1] + total[3]);
}

static inline int any_lane(ints where) {
    for (int i = LANES / 2; i; i /= 2)
        for (int j = 0; j < i; j++) where[j] |= where[j + i];
    return where[0];
}

static float dot(const float *a, const float *b, int n) {
    lanes total = {0};
    for (int i = 0; i < n; i += LANES) total += load(a + i) * load(b + i);
    return sum(total);
}

/* to[c] = dot(a, b[c], n) for four vectors, with the same bits: one sum across four registers instead of four. */
static inline void four_dots(const float *a, const float *const *b, int n, float *to) {
    lanes total[4] = {0};
    for (int i = 0; i < n; i += LANES)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) total[c] += load(a + i) * load(b[c] + i);
    const quad w = fold(total[0]), x = fold(total[1]), y = fold(total[2]), z = fold(total[3]);
    const quad wx = SHUFFLE(w, x, 0, 4, 1, 5) + SHUFFLE(w, x, 2, 6, 3, 7); /* w0 + w2, x0 + x2, w1 + w3, x1 + x3 */
    const quad yz = SHUFFLE(y, z, 0, 4, 1, 5) + SHUFFLE(y, z, 2, 6, 3, 7);
    const quad all = SHUFFLE(wx, yz, 0, 1, 4, 5) + SHUFFLE(wx, yz, 2, 3, 6, 7);
    memcpy(to, &all, sizeof all);
}

/* The same for each of `rows` vectors a and for BLOCK vectors that are the columns of b [n, stride]: to [rows, stride].
   What is loaded of b is multiplied with all rows. */
static inline __attribute__((always_inline)) void block_of_dots(
    const float *const *a, const float *b, int stride, int n, float *to, const int rows) {
    lanes part[4][TILE_ROWS][2]; /* what fold() gives */
    for (int l = 0; l < 4; l++)
        for (int p = l; p < LANES; p += 4) {
            lanes total[TILE_ROWS][2] = {0};
            for (int i = p; i < n; i += LANES) {
                const lanes left = load(b + (size_t)i * stride), right = load(b + (size_t)i * stride + LANES);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    total[r][0] += a[r][i] * left;
                    total[r][1] += a[r][i] * right;
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                for (int half = 0; half < 2; half++)
                    part[l][r][half] = p > l ? part[l][r][half] + total[r][half] : total[r][half];
        }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++)
            store(to + (size_t)r * stride + half * LANES,
                  (part[0][r][half] + part[2][r][half]) + (part[1][r][half] + part[3][r][half]));
}

/* a0 b0 a1 b1 ..., of the vectors' first halves and of their second. */
#if defined(__clang__)
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif
#if VECTOR_BITS == 512
#define INTERLEAVE_FIRST(a, b) MIX(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define INTERLEAVE_SECOND(a, b) MIX(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VECTOR_BITS == 256
#define INTERLEAVE_FIRST(a, b) MIX(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_SECOND(a, b) MIX(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define INTERLEAVE_FIRST(a, b) MIX(a, b, 0, 4, 1, 5)
#define INTERLEAVE_SECOND(a, b) MIX(a, b, 2, 6, 3, 7)
#endif

/* to [n, count] from `count` vectors of n numbers, multiples of LANES: squares of LANES x LANES, each in log2(LANES)
   passes that interleave the rows of its upper half with those of its lower. */
static void transpose_all(const float *const *from, int n, int count, float *to) {
    for (int c = 0; c < count; c += LANES)
        for (int i = 0; i < n; i += LANES) {
            lanes row[2][LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) row[0][r] = load(from[c + r] + i);
            int now = 0;
#pragma GCC unroll 4
            for (int pass = 1; pass < LANES; pass *= 2, now = !now)
#pragma GCC unroll 8
                for (int r = 0; r < LANES / 2; r++) {
                    row[!now][2 * r] = INTERLEAVE_FIRST(row[now][r], row[now][r + LANES / 2]);
                    row[!now][2 * r + 1] = INTERLEAVE_SECOND(row[now][r], row[now][r + LANES / 2]);
                }
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) store(to + (size_t)(i + r) * count + c, row[now][r]);
        }
}

static inline lanes lanewise_max(lanes a, lanes b) { /* b where one is NaN */
    const bits where = (bits)(a > b);
    return (lanes)(((bits)a & where) | ((bits)b & ~where));
}

static inline float max_of_lanes(lanes x) { /* of numbers of which none is NaN */
    union { lanes all; quad part[LANES / 4]; } both = {x};
    float maxima[4];
    for (int l = 0; l < 4; l++) {
        maxima[l] = both.part[0][l];
        for (int i = 1; i < LANES / 4; i++) maxima[l] = both.part[i][l] > maxima[l] ? both.part[i][l] : maxima[l];
    }
    const float a = maxima[0] > maxima[1] ? maxima[0] : maxima[1], b = maxima[2] > maxima[3] ? maxima[2] : maxima[3];
    return a > b ? a : b;
}

static inline lanes blend(ints where, float value, lanes otherwise) { /* value where the condition holds */
    return (lanes)(((bits)((lanes){0} + value) & (bits)where) | ((bits)otherwise & ~(bits)where));
}

/* e^x within three units in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes' expf).
   x is clamped to [-87, 88], where float32 ends, so n is in [-126, 127]; NaN stays NaN. */
static inline lanes exponential(lanes x) {
    x = blend(x < -87.0f, -87.0f, x);
    x = blend(x > 88.0f, 88.0f, x);
    lanes n = x * 1.44269504088896341f + 12582912.0f; /* adding 1.5 x 2^23 rounds to a whole number */
    bits exponent = (bits)n;
    n -= 12582912.0f;
    lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
    lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (lanes)((exponent + 127) << 23); /* times 2^n, exactly; adding n to p's bits could make NaN finite */
}
