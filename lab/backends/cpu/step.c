/* One forward pass of a Llama-shaped model on a CPU: the new tokens of several sequences go through all layers.
 *
 * The same computation as transformers' modules with the lab's reference attention, in float32. Two things
 * make it several times faster for the few rows of a decode or a verify. Weights are read as bfloat16, half
 * the bytes, and widened in registers: decoding one token is bound by the weights' bytes. And a step is one
 * call, in which threads meet five times a layer, instead of hundreds of calls from Python.
 *
 * A token has the same bits alone, among others and in any tile: the order of every sum depends on what is
 * summed, never on how many rows there are.
 *
 * Plain C with the vector extensions of GCC and Clang; `lab/backends/cpu/build.py` compiles it for the processor
 * at hand. Read the files in this order: vectors.h, model.h, thread_pool.h, layers.h, cache.h, attention.h, sample.h,
 * token_distributions.h, rejection.h, and last the step.
 */
#include <stdlib.h>

#include "attention.h"
#include "rejection.h"
#include "layers.h"
#include "sample.h"

/* A forward pass as its threads see it. The matrices are shared: [rows, ...]. */
typedef struct {
    const Model *model;
    const Storage *storage;
    const Plan *plan;
    float *x, *query, *key, *value, *inner, *logits;
    int *claimed; /* [layers]: how many heads of attention threads have claimed */
    int layers, failed;
} Forward;

static void attend_all(const Forward *its, int l, float *found, Softmax *softmax) {
    const Model *model = its->model;
    const Plan *plan = its->plan;
    const size_t d = model->head_dim, q_row = model->heads * d, kv_row = model->kv_heads * d;
    for (int task; (task = claim(its->claimed + l)) < plan->sequences * model->kv_heads;) {
        const int s = task / model->kv_heads, head = task % model->kv_heads;
        int row = 0;
        for (int i = 0; i < s; i++) row += plan->counts[i];
        const Task mine = {
            .model = model, .storage = its->storage, .slots = its->storage->layer + l, .head = head,
            .table = plan->tables + (size_t)s * plan->height, .block_size = plan->block_size,
            .start = plan->starts[s], .count = plan->counts[s],
            .query = its->query + row * q_row + head * (model->heads / model->kv_heads) * d,
            .key = its->key + row * kv_row + head * d, .value = its->value + row * kv_row + head * d,
        };
        attend(&mine, model->layer + l, found, softmax);
    }
}

/* A thread's part of a forward pass. It normalises for itself: cheaper than waiting for another thread's result. */
static void go_forward(void *given) {
    Forward *its = given;
    const Model *model = its->model;
    const Plan *plan = its->plan;
    const int rows = plan->rows, hidden = model->hidden;
    const size_t q_row = (size_t)model->heads * model->head_dim, shared = model->heads / model->kv_heads;
    const int wide = model->layer[0].gate.outputs;
    const size_t most = hidden + q_row + wide; /* more than the inputs of any linear layer */
    float *mine = malloc(rows * ((hidden + q_row + 2 * BLOCK + most / 2) * sizeof(float) + shared * sizeof(Softmax)));
    float *normed = mine, *found = normed + (size_t)rows * hidden, *out = found + rows * q_row;
    Softmax *softmax = (Softmax *)(out + (size_t)rows * 2 * BLOCK);
    Input input = {NULL, model->rounded ? (uint32_t *)(softmax + rows * shared) : NULL};
    if (!mine) __atomic_store_n(&its->failed, 1, __ATOMIC_RELAXED);
    meet();
    if (its->failed) {
        free(mine);
        return;
    }
    for (int l = 0; l < its->layers; l++) {
        const Layer *layer = model->layer + l;
        normalise(its->x, layer->attention_norm, model->epsilon, rows, hidden, normed);
        take(&input, normed, (size_t)rows * hidden);
        apply(&layer->query, &input, rows, its->query, 0, out);
        apply(&layer->key, &input, rows, its->key, 0, out);
        apply(&layer->value, &input, rows, its->value, 0, out);
        meet();
        attend_all(its, l, found, softmax);
        meet();
        take(&input, its->query, rows * q_row);
        apply(&layer->output, &input, rows, its->x, 1, out);
        meet();
        normalise(its->x, layer->mlp_norm, model->epsilon, rows, hidden, normed);
        take(&input, normed, (size_t)rows * hidden);
        gated(layer, &input, rows, its->inner, out);
        meet();
        take(&input, its->inner, (size_t)rows * wide);
        apply(&layer->down, &input, rows, its->x, 1, out);
        meet();
    }
    for (int i = 0; i < plan->kept; i++)
        normalise(its->x + (size_t)plan->keep[i] * hidden, model->final_norm, model->epsilon, 1, hidden,
                  normed + (size_t)i * hidden);
    take(&input, normed, (size_t)plan->kept * hidden);
    apply(&model->head, &input, plan->kept, its->logits, 0, out);
    free(mine);
}

/* The first `layers` layers, the last norm and the head. logits [kept, vocabulary]. Returns 0, or 1 if memory
   runs out. */
int forward(
    const Model *model, int layers, const Storage *storage, const Plan *plan, float *logits, int threads) {
    const int rows = plan->rows, hidden = model->hidden;
    const size_t q_row = (size_t)model->heads * model->head_dim, kv_row = (size_t)model->kv_heads * model->head_dim;
    const int wide = model->layer[0].gate.outputs;
    float *x = malloc(rows * (hidden + q_row + 2 * kv_row + wide) * sizeof(float));
    if (!x) return 1;
    for (int r = 0; r < rows; r++)
        memcpy(x + (size_t)r * hidden, model->embedding + plan->token_ids[r] * hidden, hidden * sizeof(float));
    int claimed[layers];
    memset(claimed, 0, sizeof(claimed));
    Forward its = {.model = model, .storage = storage, .plan = plan, .x = x, .query = x + (size_t)rows * hidden,
                   .logits = logits, .claimed = claimed, .layers = layers};
    its.key = its.query + rows * q_row, its.value = its.key + rows * kv_row, its.inner = its.value + rows * kv_row;
    together(threads, go_forward, &its);
    free(x);
    return its.failed;
}

typedef struct {
    const float *logits;
    int rows, n;
    const int32_t *places;
    const Choices *choices;
    float *p;
    int64_t *tokens;
    int failed;
} Samples;

static void sample_share(void *given) {
    Samples *its = given;
    const Choices *choices = its->choices;
    Room *room = malloc(its->n * sizeof(Room));
    if (!room) __atomic_store_n(&its->failed, 1, __ATOMIC_RELAXED);
    for (int r = first_of(its->rows); room && r < end_of(its->rows); r++) {
        const int place = its->places ? its->places[r] : r;
        its->tokens[place] = sample_row(
            its->logits + (size_t)r * its->n, its->n, choices->sampling + place / choices->each,
            choices->u ? choices->u + place : NULL, its->p + (size_t)place * its->n, room);
    }
    free(room);
}

/* Row r of logits [rows, n] gives the distribution and the token at place places[r], or r if places is NULL: p
   [places, n], tokens [places]. Returns as forward does. */
int sample(
    const float *logits, int rows, int n, const int32_t *places, const Choices *choices, float *p, int64_t *tokens,
    int threads) {
    Samples its = {logits, rows, n, places, choices, p, tokens, 0};
    together(rows > 1 ? threads : 1, sample_share, &its);
    return its.failed;
}

/* Decode ahead: windows[s] tokens after sequence s, at least one and at most `width`, all fed back but the last. `plan`
   is that of the first forward pass and keeps the last row of every sequence. The i-th token after sequence s has place
   s x width + i in choices, tokens and q [places, vocabulary]; places past a window stay as they are. Returns as
   forward does. */
int decode_ahead(
    const Model *model, int layers, const Storage *storage, const Plan *plan, const int32_t *windows, int width,
    const Choices *choices, int64_t *tokens, float *q, int threads) {
    const int n = model->head.outputs, sequences = plan->sequences, height = plan->height;
    float *logits = malloc((size_t)sequences * n * sizeof(float));
    int64_t *token_ids = malloc(sequences * sizeof(int64_t));
    int32_t *memory = malloc((size_t)sequences * (5 + height) * sizeof(int32_t));
    int32_t *who = memory, *places = who + sequences, *starts = places + sequences, *counts = starts + sequences,
            *keep = counts + sequences, *tables = keep + sequences;
    int failed = !logits || !token_ids || !memory, going = sequences;
    for (int s = 0; s < sequences && !failed; s++) who[s] = s;
    Plan step = *plan;
    for (int i = 0; going && !failed; i++) {
        for (int k = 0; k < going; k++) places[k] = who[k] * width + i;
        failed = forward(model, layers, storage, &step, logits, threads)
                 || sample(logits, going, n, places, choices, q, tokens, threads);
        int left = 0;
        for (int k = 0; k < going; k++) {
            const int s = who[k];
            if (windows[s] <= i + 1) continue;
            who[left] = s;
            starts[left] = plan->starts[s] + plan->counts[s] + i;
            counts[left] = 1;
            keep[left] = left;
            token_ids[left] = tokens[places[k]];
            memcpy(tables + (size_t)left * height, plan->tables + (size_t)s * height, height * sizeof(int32_t));
            left++;
        }
        going = left;
        step = (Plan){.sequences = going, .rows = going, .kept = going, .block_size = plan->block_size,
                      .height = height, .starts = starts, .counts = counts, .tables = tables,
                      .token_ids = token_ids, .keep = keep};
    }
    free(logits), free(token_ids), free(memory);
    return failed;
}

typedef struct {
    const float *logits;
    int n;
    const Round *rounds;
    int count, most;
    Verdict *verdicts;
    float *p, *q;
    int claimed, failed;
} Rounds;

static void judge_some(void *given) {
    Rounds *its = given;
    const size_t n = its->n;
    float *rows = malloc((its->most + 2) * n * sizeof(float));
    Room *room = malloc(n * sizeof(Room));
    if (!rows || !room) __atomic_store_n(&its->failed, 1, __ATOMIC_RELAXED);
    for (int i; rows && room && (i = claim(&its->claimed)) < its->count;) {
        const Round *one = its->rounds + i;
        size_t first = 0;
        for (int before = 0; before < i; before++) first += its->rounds[before].proposals + 1;
        its->verdicts[i] = judge_round(
            its->logits + first * n, n, one, its->p + first, its->q + first, rows, rows + (its->most + 1) * n, room);
    }
    free(rows), free(room);
}

/* Judge several rounds. logits [sum of (proposals + 1), n], round by round; p and q of the proposals have the same
   places, of which each round's last is not written. Returns as forward does. */
int judge(
    const float *logits, int n, const Round *rounds, int count, Verdict *verdicts, float *p, float *q, int threads) {
    Rounds its = {logits, n, rounds, count, 0, verdicts, p, q, 0, 0};
    for (int i = 0; i < count; i++) its.most = rounds[i].proposals > its.most ? rounds[i].proposals : its.most;
    together(count > 1 ? threads : 1, judge_some, &its);
    return its.failed;
}
