/* Attention over a tile of positions, for several queries together: scores, softmax, and the sum of values. */
#pragma once
#include "model.h"

enum {
    TILE_COLUMNS = 32,  /* positions of a tile: their keys and values fit in the L1 cache */
    TRANSPOSE_FROM = 4, /* for this many queries or more, a tile's keys are transposed first */
    SHRINKS = (TILE_ROWS + LANES - 1) / LANES * LANES, /* one for each query, whole vectors of them */
    LINE = 64           /* bytes of a cache line */
};

/* A tile's keys and values, [d] each; transposed [d, TILE_COLUMNS]: the keys, or NULL for few queries. */
typedef struct {
    const float *key[TILE_COLUMNS], *value[TILE_COLUMNS], *transposed;
} Tile;

/* The next tile's keys and values, of `bytes` each. They are prefetched while this one's are multiplied, `share` at a
   time: blocks lie anywhere, no processor foresees where, and all at once would wait for each other. */
typedef struct {
    const uint8_t *vector[2 * TILE_COLUMNS];
    int next, count, share, bytes;
} Ahead;

static inline void prefetch(Ahead *ahead, int vectors) {
    for (; vectors && ahead->next < ahead->count; vectors--, ahead->next++)
        for (int i = 0; i < ahead->bytes; i += LINE) __builtin_prefetch(ahead->vector[ahead->next] + i, 0, 2);
}

/* Several queries that are next to each other, and their weights of a tile's values. */
typedef struct {
    const float *query[TILE_ROWS];
    int visible[TILE_ROWS];                /* columns that each of them sees: a later one no fewer */
    float weight[TILE_ROWS][TILE_COLUMNS]; /* scores, at first */
    float shrink[SHRINKS];                 /* by what the queries' outputs so far are multiplied */
} Queries;

/* output = output x shrink + the values from column `from` up to `to`, weighted: `width` numbers of them, all in
   registers, for each of `rows` queries from query `q` on. */
static inline __attribute__((always_inline)) void add_values_part(
    float *output, const Queries *its, int q, const float *const *value, int from, int to, int d, int at,
    const int width, const int rows) {
    lanes x[TILE_ROWS][4];
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < width / LANES; i++)
            x[r][i] = load(output + r * d + at + i * LANES) * (from ? 1.0f : its->shrink[q + r]);
    for (int c = from; c < to; c++)
#pragma GCC unroll 4
        for (int i = 0; i < width / LANES; i++) {
            const lanes v = load(value[c] + at + i * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) x[r][i] += its->weight[q + r][c] * v;
        }
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int i = 0; i < width / LANES; i++) store(output + r * d + at + i * LANES, x[r][i]);
}

static inline __attribute__((always_inline)) void add_values(
    float *output, const Queries *its, int q, const float *const *value, int from, int to, int d, const int rows) {
    int at = 0;
    for (; at + 4 * LANES <= d; at += 4 * LANES)
        add_values_part(output, its, q, value, from, to, d, at, 4 * LANES, rows);
    for (; at < d; at += LANES) add_values_part(output, its, q, value, from, to, d, at, LANES, rows);
}

/* The values that all of `rows` queries see are loaded once for them; then each takes its own. */
static inline __attribute__((always_inline)) void add_all_values(
    float *output, const Queries *its, const float *const *value, int d, const int rows) {
    const int shared = its->visible[0];
    add_values(output, its, 0, value, 0, shared, d, rows);
    for (int r = 1; r < rows; r++)
        if (its->visible[r] > shared) add_values(output + r * d, its, r, value, shared, its->visible[r], d, 1);
}

/* One query's softmax so far; the total is still spread over lanes. */
typedef struct {
    float maximum;
    lanes total;
} Softmax;

/* Turn a tile's scores into weights, and set the factors that earlier ones shrink by. */
static inline __attribute__((always_inline)) void update_softmax(
    Softmax *softmax, Queries *its, float scaling, const int rows) {
    float fallen[SHRINKS] = {0};
    for (int r = 0; r < rows; r++) {
        float *score = its->weight[r];
        for (int c = its->visible[r]; c < TILE_COLUMNS; c++) score[c] = -INFINITY;
        lanes highest = (lanes){0} + softmax[r].maximum;
        for (int c = 0; c < TILE_COLUMNS; c += LANES) {
            store(score + c, load(score + c) * scaling);
            highest = lanewise_max(load(score + c), highest);
        }
        const float maximum = max_of_lanes(highest);
        fallen[r] = softmax[r].maximum - maximum;
        softmax[r].maximum = maximum;
    }
    for (int r = 0; r < SHRINKS; r += LANES) store(its->shrink + r, exponential(load(fallen + r)));
    for (int r = 0; r < rows; r++) {
        float *weight = its->weight[r];
        for (int c = 0; c < TILE_COLUMNS; c += LANES)
            store(weight + c, exponential(load(weight + c) - softmax[r].maximum));
        for (int c = its->visible[r]; c < TILE_COLUMNS; c++) weight[c] = 0; /* e^-87 is not quite 0 */
        softmax[r].total *= its->shrink[r];
        for (int c = 0; c < TILE_COLUMNS; c += LANES) softmax[r].total += load(weight + c);
    }
}

static inline __attribute__((always_inline)) void attend_rows(
    const Tile *tile, Ahead *ahead, Queries *its, Softmax *softmax, float *output, float scaling, int d, const int rows) {
    for (int c = 0; tile->transposed && c < its->visible[rows - 1]; c += BLOCK)
        block_of_dots(its->query, tile->transposed + c, TILE_COLUMNS, d, its->weight[0] + c, rows);
    for (int r = 0; !tile->transposed && r < rows; r++)
        for (int c = 0; c < its->visible[r]; c += 4) four_dots(its->query[r], tile->key + c, d, its->weight[r] + c);
    prefetch(ahead, ahead->share);
    update_softmax(softmax, its, scaling, rows);
    prefetch(ahead, ahead->share);
    add_all_values(output, its, tile->value, d, rows);
}

/* Let `rows` queries attend to a tile: output [rows, d], softmax [rows]. */
static void attend_tile(
    const Tile *tile, Ahead *ahead, Queries *its, Softmax *softmax, float *output, float scaling, int d, int rows) {
#define ROWS(n) case n: attend_rows(tile, ahead, its, softmax, output, scaling, d, n); break;
    switch (rows) { /* so that the compiler knows the number of rows */
        ROWS(1) ROWS(2) ROWS(3)
#if TILE_ROWS > 3
        ROWS(4) ROWS(5) ROWS(6)
#endif
    }
}
