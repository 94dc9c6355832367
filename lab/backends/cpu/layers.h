/* The layers that do not depend on positions: linear ones, SwiGLU, RMSNorm. Matrices are row-major, rows are tokens. */
#pragma once
#include "model.h"
#include "thread_pool.h"

/* A linear layer's input: rows of numbers, and the same rounded to bfloat16 if products are to use those. */
typedef struct {
    const float *numbers;
    uint32_t *rounded; /* pairs, two numbers each; NULL: products are float32 */
} Input;

/* Prefetch the next block's weights, `ahead` weights from here, into the L2 cache while this block's are multiplied, if
   there are `enough` products to hide the wait. For few rows the processor's own prefetching does better. */
static inline void prefetch_next(const uint32_t *weight, size_t ahead, const int enough) {
    if (enough) __builtin_prefetch(weight + ahead, 0, 2);
}

/* out[r, 0..BLOCK - 1] of one block of outputs for `rows` <= TILE_ROWS rows of `pairs` x 2 inputs. Weights are loaded
   once and stay in registers for all rows; four sums per row, since no product should wait for the previous one. */
static inline __attribute__((always_inline)) void float32_tile(
    const uint32_t *weight, size_t ahead, const float *x, int pairs, float *out, const int rows) {
    lanes total[TILE_ROWS][2][2] = {0};
    for (int i = 0; i < pairs; i++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, weight += LANES) {
            const bits pair = *(const bits *)weight;
            prefetch_next(weight, ahead, rows > 2);
            const lanes even = (lanes)(pair << 16), odd = (lanes)(pair & 0xffff0000u);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                total[r][half][0] += even * x[((size_t)r * pairs + i) * 2];
                total[r][half][1] += odd * x[((size_t)r * pairs + i) * 2 + 1];
            }
        }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++)
            store(out + r * BLOCK + half * LANES, total[r][half][0] + total[r][half][1]);
}

#if BFLOAT16_PRODUCTS
#include <immintrin.h>
const int32_t has_bfloat16_products = 1; /* this processor multiplies pairs of bfloat16, and sums in float32 */

enum { BFLOAT16_ROWS = 10 }; /* like TILE_ROWS, but a row has half as many sums here */

/* The same with rounded inputs, for up to BFLOAT16_ROWS rows: one instruction for 32 products. */
static inline __attribute__((always_inline)) void bfloat16_tile(
    const uint32_t *weight, size_t ahead, const uint32_t *x, int pairs, float *out, const int rows) {
    __m512 total[BFLOAT16_ROWS][2] = {0};
    for (int i = 0; i < pairs; i++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, weight += LANES) {
            const __m512bh w = (__m512bh)_mm512_loadu_si512(weight);
            prefetch_next(weight, ahead, rows > 3);
#pragma GCC unroll 10
            for (int r = 0; r < rows; r++)
                total[r][half] =
                    _mm512_dpbf16_ps(total[r][half], w, (__m512bh)_mm512_set1_epi32((int)x[(size_t)r * pairs + i]));
        }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) _mm512_storeu_ps(out + r * BLOCK + half * LANES, total[r][half]);
}

/* Round to nearest, ties to even. */
static inline void round_to_bfloat16(const float *x, uint32_t *to, size_t count) {
    for (size_t i = 0; i < count; i += LANES)
        _mm256_storeu_si256((__m256i *)(to + i / 2), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
}
#else
enum { BFLOAT16_ROWS = TILE_ROWS };
const int32_t has_bfloat16_products = 0; /* so the two functions are never called */
#define bfloat16_tile(...) ((void)0)
#define round_to_bfloat16(x, to, count) ((void)(count))
#endif

static inline __attribute__((always_inline)) void any_tile(
    const uint32_t *weight, size_t ahead, const Input *input, int first, int pairs, float *out, const int rows) {
    if (rows > TILE_ROWS || input->rounded) /* only tiles of rounded rows are so large */
        bfloat16_tile(weight, ahead, input->rounded + (size_t)first * pairs, pairs, out, rows);
    else
        float32_tile(weight, ahead, input->numbers + (size_t)first * pairs * 2, pairs, out, rows);
}

static int blocks_of(const Linear *linear) { return (linear->outputs + BLOCK - 1) / BLOCK; }

/* One block of outputs for any number of rows: out [rows, BLOCK]. */
static void block_product(const Linear *linear, int block, const Input *input, int rows, float *out) {
    const int pairs = linear->inputs / 2;
    const size_t size = (size_t)pairs * BLOCK, ahead = block + 1 < blocks_of(linear) ? size : 0;
    const uint32_t *weight = linear->weight + block * size;
    const int max_rows = input->rounded ? BFLOAT16_ROWS : TILE_ROWS, tiles = (rows + max_rows - 1) / max_rows;
    for (int t = 0, r = 0; t < tiles; t++) {
        const int count = (rows - r) / (tiles - t); /* equal shares */
        float *to = out + r * BLOCK;
#define TILE(n) case n: any_tile(weight, ahead, input, r, pairs, to, n); break;
        switch (count) { /* so that the compiler knows the number of rows */
            TILE(1) TILE(2) TILE(3)
#if TILE_ROWS > 3
            TILE(4) TILE(5) TILE(6)
#endif
#if BFLOAT16_PRODUCTS
            TILE(7) TILE(8) TILE(9) TILE(10)
#endif
        }
        r += count;
    }
    if (linear->bias)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < BLOCK && block * BLOCK + i < linear->outputs; i++)
                out[r * BLOCK + i] += linear->bias[block * BLOCK + i];
}

/* Make `x`, `count` numbers, the input of the next layer. Every thread rounds for itself. */
static void set_input(Input *input, const float *x, size_t count) {
    input->numbers = x;
    if (input->rounded) round_to_bfloat16(x, input->rounded, count);
}

/* y = x W^T + b, or y += with `add`. Threads share the blocks and go on without waiting for each other. */
static void linear_layer(const Linear *linear, const Input *input, int rows, float *y, int add, float *out) {
    for (int block = share_begin(blocks_of(linear)); block < share_end(blocks_of(linear)); block++) {
        block_product(linear, block, input, rows, out);
        const int first = block * BLOCK;
        const int width = linear->outputs - first < BLOCK ? linear->outputs - first : BLOCK;
        for (int r = 0; r < rows; r++) {
            float *to = y + (size_t)r * linear->outputs + first;
            if (add)
                for (int i = 0; i < width; i++) to[i] += out[r * BLOCK + i];
            else
                memcpy(to, out + r * BLOCK, width * sizeof(float));
        }
    }
}

/* y = silu(gate(x)) * up(x): SwiGLU (Shazeer, 2002.05202). */
static void swiglu(const Layer *layer, const Input *input, int rows, float *y, float *out) {
    const int outputs = layer->gate.outputs;
    float *up = out + (size_t)rows * BLOCK;
    for (int block = share_begin(blocks_of(&layer->gate)); block < share_end(blocks_of(&layer->gate)); block++) {
        block_product(&layer->gate, block, input, rows, out);
        block_product(&layer->up, block, input, rows, up);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < BLOCK && block * BLOCK + i < outputs; i += LANES) {
                lanes g = load(out + r * BLOCK + i), u = load(up + r * BLOCK + i);
                store(y + (size_t)r * outputs + block * BLOCK + i, g / (1.0f + exponential(-g)) * u);
            }
    }
}

/* RMSNorm (Zhang and Sennrich, 1910.07467) of `rows` vectors of n numbers. */
static void rms_norm(const float *x, const float *weight, float epsilon, int rows, int n, float *y) {
    for (int r = 0; r < rows; r++, x += n, y += n) {
        const float factor = 1.0f / sqrtf(dot(x, x, n) / n + epsilon);
        for (int i = 0; i < n; i += LANES) store(y + i, load(x + i) * factor * load(weight + i));
    }
}
