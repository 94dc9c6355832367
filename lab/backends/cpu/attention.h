/* Attention: rotary embedding, storing new keys and values, and attending to the cache with every new token.

   Positions are read in tiles with a running maximum and sum (FlashAttention: Dao et al., 2205.14135), through the
   block table (PagedAttention: Kwon et al., 2309.06180), each once for all query heads and new tokens that see it. */
#pragma once
#include "attention_tile.h"
#include "cache.h"
#include "layers.h"

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

/* Which keys and values a tile will read, to prefetch them in `times` shares. */
static void look_ahead(const Task *task, int begin, int times, Ahead *ahead) {
    const Slots *slots = task->slots;
    int64_t slot[TILE_COLUMNS];
    const int columns = tile_slots(task, begin, slot);
    for (int c = 0; c < columns; c++) {
        ahead->vector[2 * c] = numbers_at(slots, slots->keys, slot[c], task->head);
        ahead->vector[2 * c + 1] = numbers_at(slots, slots->values, slot[c], task->head);
    }
    ahead->next = 0, ahead->count = 2 * columns, ahead->bytes = slots->head_bytes;
    ahead->share = (2 * TILE_COLUMNS + times - 1) / times;
}

/* Rotate, store, attend. The queries are overwritten with their results. output [queries, d] and softmax [queries] are
   scratch space. */
static void attend(const Task *task, const Layer *layer, float *output, Softmax *softmax) {
    const Model *model = task->model;
    const int d = model->head_dim;
    const Slots *slots = task->slots;
    const int group = model->heads / model->kv_heads;
    const int queries = task->count * group, stop = task->start + task->count;
    const int groups_of_rows = (queries + TILE_ROWS - 1) / TILE_ROWS;
    Ahead ahead;
    look_ahead(task, 0, 1, &ahead);
    prefetch(&ahead, ahead.share);
    rotate_and_store(task, layer);

    for (int j = 0; j < queries; j++) softmax[j] = (Softmax){-INFINITY, {0}};
    memset(output, 0, (size_t)queries * d * sizeof(float));
    float keys[TILE_COLUMNS * d], values[TILE_COLUMNS * d], transposed[d * TILE_COLUMNS];
    Tile tile = {.transposed = queries >= TRANSPOSE_FROM ? transposed : NULL};
    for (int begin = model->chain ? 1 : 0; begin < stop; begin += TILE_COLUMNS) {
        int64_t slot[TILE_COLUMNS];
        const int columns = tile_slots(task, begin, slot);
        look_ahead(task, begin + TILE_COLUMNS, 2 * groups_of_rows, &ahead);
        for (int c = 0; c < columns; c++) {
            tile.key[c] = read_slot(slots, slots->keys, slots->key_scales, slot[c], task->head, d, keys + c * d);
            tile.value[c] =
                read_slot(slots, slots->values, slots->value_scales, slot[c], task->head, d, values + c * d);
        }
        for (int c = columns; c < TILE_COLUMNS; c++) tile.key[c] = tile.key[0]; /* their scores do not count */
        if (tile.transposed) transpose_all(tile.key, d, TILE_COLUMNS, transposed);

        /* The queries before `j` see nothing of this tile. */
        for (int j = model->dflash || begin <= task->start ? 0 : (begin - task->start) * group, rows; j < queries; j += rows) {
            const int left = queries - j;
            rows = left / ((left + TILE_ROWS - 1) / TILE_ROWS); /* equal shares */
            Queries its;
            for (int r = 0; r < rows; r++) {
                const int t = (j + r) / group, seen = task->start + (model->dflash ? task->count : t + 1) - begin;
                its.query[r] = task->query + ((size_t)t * model->heads + (j + r) % group) * d;
                its.visible[r] = seen < columns ? seen : columns;
            }
            attend_tile(&tile, &ahead, &its, softmax + j, output + (size_t)j * d, model->scaling, d, rows);
        }
    }
    for (int j = 0; j < queries; j++) {
        float *query = task->query + ((size_t)(j / group) * model->heads + j % group) * d;
        const float total = sum(softmax[j].total);
        for (int i = 0; i < d; i += LANES) store(query + i, load(output + (size_t)j * d + i) / total);
    }
}

