/* What this processor does at best with the loops of a step: reads, and the product of a linear layer. */
#pragma once
#include <stdlib.h>

#include "layers.h"

typedef struct {
    const bits *from;
    int64_t vectors;
    uint32_t sum;
} Read;

static void read_thread(void *argument) {
    Read *shared = argument;
    const int64_t begin = shared->vectors * rank / ranks, end = shared->vectors * (rank + 1) / ranks;
    bits total[8] = {0}; /* no sum waits for the one before */
    for (int64_t i = begin; i + 8 <= end; i += 8)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) total[k] ^= shared->from[i + k];
    for (int k = 1; k < 8; k++) total[0] ^= total[k];
    __atomic_fetch_xor(&shared->sum, total[0][0], __ATOMIC_RELAXED); /* or the compiler would leave it all out */
}

/* Read `size` bytes from memory or a cache, wherever they are. */
uint32_t read_all(const void *from, int64_t size, int threads) {
    Read shared = {from, size / (int64_t)sizeof(bits), 0};
    run_on_threads(threads, read_thread, &shared);
    return shared.sum;
}

typedef struct {
    const Linear *linear;
    const float *x;
    float *y;
    int rows, rounded, failed;
} Product;

static void product_thread(void *argument) {
    Product *shared = argument;
    const size_t inputs = (size_t)shared->rows * shared->linear->inputs;
    float *out = malloc(((size_t)shared->rows * BLOCK + (shared->rounded ? inputs / 2 : 0)) * sizeof(float));
    if (!out) {
        __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    Input input = {NULL, shared->rounded ? (uint32_t *)(out + (size_t)shared->rows * BLOCK) : NULL};
    set_input(&input, shared->x, inputs);
    linear_layer(shared->linear, &input, shared->rows, shared->y, 0, out);
    free(out);
}

/* y [rows, outputs] = x [rows, inputs] W^T. Returns 0, or 1 if memory runs out. */
int multiply(const Linear *linear, int rounded, int rows, const float *x, float *y, int threads) {
    Product shared = {linear, x, y, rows, rounded, 0};
    run_on_threads(threads, product_thread, &shared);
    return shared.failed;
}
