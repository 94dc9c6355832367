/* Attention: rotary embedding, storing new keys and values, and attending to the cache with every new token.

   Positions are read in tiles with a running maximum and sum (FlashAttention: Dao et al., 2205.14135), through the
   block table (PagedAttention: Kwon et al., 2309.06180), each once for all query heads and new tokens that see it. */
#pragma once
#include "cache.h"
#include "layers.h"

enum {
    TILE_COLUMNS = 32, /* positions of a tile: their keys and values fit in the L1 cache */
    TRANSPOSE_FROM = 4, /* for this many queries or more, a tile's keys are transposed first */
    LINE = 64          /* bytes of a cache line */
};

typedef struct { /* the new tokens of one sequence and one KV head */
    const Model *model;
    const Slots *slots;
    const int32_t *table;
    int block_size, start, count, head;
    float *query, *key, *value; /* of the first token; tokens are heads x d, and kv_heads x d numbers apart */
} Task;

static inline int64_t slot_of(const Task *task, int position) {
    return (int64_t)task->table[position / task->block_size] * task->block_size + position % task->block_size;
}

static void rotate(float *x, const float *cosine, const float *sine, int n) {
    const int half = n / 2;
    for (int i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i + half] + a * sine[i + half];
    }
}

/* Rotate a token's key, and store it and the value. */
static void store_token(const Task *task, const Layer *layer, int t) {
    const Model *model = task->model;
    const Slots *slots = task->slots;
    const int d = model->head_dim, position = task->start + t;
    const size_t at = (size_t)position * d, row = (size_t)t * model->kv_heads * d;
    float *k = task->key + row, *v = task->value + row;
    if (layer->key_norm) rms_norm(k, layer->key_norm, model->epsilon, 1, d, k);
    rotate(k, model->cosine + at, model->sine + at, d);
    const int64_t slot = slot_of(task, position);
    write_slot(slots, slots->keys, slots->key_scales, slot, task->head, k, d);
    write_slot(slots, slots->values, slots->value_scales, slot, task->head, v, d);
}

/* Rotate the new queries and keys, and store the keys and values. */
static void rotate_and_store(const Task *task, const Layer *layer) {
    const Model *model = task->model;
    const int d = model->head_dim, group = model->heads / model->kv_heads;
    for (int t = 0; t < task->count; t++) {
        const size_t at = (size_t)(task->start + t) * d;
        const float *cosine = model->cosine + at, *sine = model->sine + at;
        for (int h = 0; h < group; h++) {
            float *q = task->query + ((size_t)t * model->heads + h) * d;
            if (layer->query_norm) rms_norm(q, layer->query_norm, model->epsilon, 1, d, q);
            rotate(q, cosine, sine, d);
        }
        store_token(task, layer, t);
    }
}

/* The slots of a tile's positions; returns how many it has. */
static int tile_slots(const Task *task, int begin, int64_t *slots) {
    const int stop = task->start + task->count, columns = stop - begin < TILE_COLUMNS ? stop - begin : TILE_COLUMNS;
    int block = begin / task->block_size, at = begin % task->block_size;
    for (int c = 0; c < columns; c++) {
        slots[c] = (int64_t)task->table[block] * task->block_size + at;
        if (++at == task->block_size) at = 0, block++;
    }
    return columns;
}

/* Prefetch the keys and values of a tile: blocks lie anywhere, and no processor foresees where. */
static void prefetch_tile(const Task *task, int begin) {
    int64_t slots[TILE_COLUMNS];
    const int columns = tile_slots(task, begin, slots);
    for (int c = 0; c < columns; c++) {
        const uint8_t *key = numbers_at(task->slots, task->slots->keys, slots[c], task->head);
        const uint8_t *value = numbers_at(task->slots, task->slots->values, slots[c], task->head);
        for (int i = 0; i < task->slots->head_bytes; i += LINE)
            __builtin_prefetch(key + i, 0, 2), __builtin_prefetch(value + i, 0, 2);
    }
}

/* The weights of a tile's values, for several queries that are next to each other. */
typedef struct {
    float weight[TILE_ROWS][TILE_COLUMNS]; /* scores, at first */
    float shrink[TILE_ROWS];               /* by what the queries' outputs so far are multiplied */
    int visible[TILE_ROWS];                /* columns that each of them sees */
} Weights;

/* output = output x shrink + the values from column `from` up to `to`, weighted: `width` numbers of them, all in
   registers, for each of `rows` queries from query `q` on. */
static inline __attribute__((always_inline)) void add_values_part(
    float *output, const Weights *its, int q, const float *const *value, int from, int to, int d, int at,
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
    float *output, const Weights *its, int q, const float *const *value, int from, int to, int d, const int rows) {
    int at = 0;
    for (; at + 4 * LANES <= d; at += 4 * LANES)
        add_values_part(output, its, q, value, from, to, d, at, 4 * LANES, rows);
    for (; at < d; at += LANES) add_values_part(output, its, q, value, from, to, d, at, LANES, rows);
}

/* The values that all of `rows` queries see are loaded once for them; then each takes its own. */
static void add_all_values(float *output, const Weights *its, const float *const *value, int d, int rows) {
    const int shared = its->visible[0]; /* a later token sees no less */
#define ROWS(n) case n: add_values(output, its, 0, value, 0, shared, d, n); break;
    switch (rows) { /* so that the compiler knows the number of rows */
        ROWS(1) ROWS(2) ROWS(3)
#if TILE_ROWS > 3
        ROWS(4) ROWS(5) ROWS(6)
#endif
    }
    for (int r = 0; r < rows; r++)
        if (its->visible[r] > shared) add_values(output + r * d, its, r, value, shared, its->visible[r], d, 1);
}

/* One query's softmax so far; the total is still spread over lanes. */
typedef struct {
    float maximum;
    lanes total;
} Softmax;

/* Turn a tile's scores into weights, of which the first `visible` count. Returns the factor that earlier ones shrink
   by. */
static inline float update_softmax(Softmax *softmax, float *score, int visible, float scaling) {
    for (int c = visible; c < TILE_COLUMNS; c++) score[c] = -INFINITY;
    lanes highest = (lanes){0} + softmax->maximum;
    for (int c = 0; c < TILE_COLUMNS; c += LANES) {
        store(score + c, load(score + c) * scaling);
        highest = lanewise_max(load(score + c), highest);
    }
    const float maximum = max_of_lanes(highest);
    const float shrink = exponential((lanes){0} + (softmax->maximum - maximum))[0];
    for (int c = 0; c < TILE_COLUMNS; c += LANES) store(score + c, exponential(load(score + c) - maximum));
    for (int c = visible; c < TILE_COLUMNS; c++) score[c] = 0; /* e^-87 is not quite 0 */
    softmax->maximum = maximum;
    softmax->total *= shrink;
    for (int c = 0; c < TILE_COLUMNS; c += LANES) softmax->total += load(score + c);
    return shrink;
}

/* Rotate, store, attend. The queries are overwritten with their results. output [queries, d] and softmax [queries] are
   scratch space. */
static inline __attribute__((always_inline)) void attend_heads(
    const Task *task, const Layer *layer, float *output, Softmax *softmax, const int d) {
    const Model *model = task->model;
    const Slots *slots = task->slots;
    const int group = model->heads / model->kv_heads;
    const int queries = task->count * group, stop = task->start + task->count;
    prefetch_tile(task, 0);
    rotate_and_store(task, layer);

    for (int j = 0; j < queries; j++) softmax[j] = (Softmax){-INFINITY, {0}};
    memset(output, 0, (size_t)queries * d * sizeof(float));
    float keys[TILE_COLUMNS * d], values[TILE_COLUMNS * d], transposed[d * TILE_COLUMNS];
    for (int begin = model->chain ? 1 : 0; begin < stop; begin += TILE_COLUMNS) {
        int64_t slot[TILE_COLUMNS];
        const int columns = tile_slots(task, begin, slot);
        const float *key[TILE_COLUMNS], *value[TILE_COLUMNS];
        prefetch_tile(task, begin + TILE_COLUMNS);
        for (int c = 0; c < columns; c++) {
            key[c] = read_slot(slots, slots->keys, slots->key_scales, slot[c], task->head, d, keys + c * d);
            value[c] = read_slot(slots, slots->values, slots->value_scales, slot[c], task->head, d, values + c * d);
        }
        for (int c = columns; c < TILE_COLUMNS; c++) key[c] = key[0]; /* any numbers: their scores do not count */
        if (queries >= TRANSPOSE_FROM) transpose_all(key, d, TILE_COLUMNS, transposed);

        /* The queries before `j` see nothing of this tile. */
        for (int j = model->dflash || begin <= task->start ? 0 : (begin - task->start) * group, rows; j < queries; j += rows) {
            const int left = queries - j;
            rows = left / ((left + TILE_ROWS - 1) / TILE_ROWS); /* equal shares */
            Weights its;
            for (int r = 0; r < rows; r++) {
                const int t = (j + r) / group, seen = task->start + (model->dflash ? task->count : t + 1) - begin;
                const float *query = task->query + ((size_t)t * model->heads + (j + r) % group) * d;
                const int visible = its.visible[r] = seen < columns ? seen : columns;
                if (queries >= TRANSPOSE_FROM)
                    for (int c = 0; c < visible; c += BLOCK)
                        block_of_dots(query, transposed + c, TILE_COLUMNS, d, its.weight[r] + c);
                else
                    for (int c = 0; c < visible; c += 4) four_dots(query, key + c, d, its.weight[r] + c);
                its.shrink[r] = update_softmax(softmax + j + r, its.weight[r], visible, model->scaling);
            }
            add_all_values(output + (size_t)j * d, &its, value, d, rows);
        }
    }
    for (int j = 0; j < queries; j++) {
        float *query = task->query + ((size_t)(j / group) * model->heads + j % group) * d;
        const float total = sum(softmax[j].total);
        for (int i = 0; i < d; i += LANES) store(query + i, load(output + (size_t)j * d + i) / total);
    }
}

/* Where the compiler knows the head size, it unrolls the loops over it. */
static void attend(const Task *task, const Layer *layer, float *output, Softmax *softmax) {
    switch (task->model->head_dim) {
    case 64: attend_heads(task, layer, output, softmax, 64); break;
    case 128: attend_heads(task, layer, output, softmax, 128); break;
    default: attend_heads(task, layer, output, softmax, task->model->head_dim);
    }
}
