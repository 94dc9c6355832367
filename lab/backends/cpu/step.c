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
 * at hand. Read the files in this order: vectors.h, model.h, thread_pool.h, layers.h, cache.h, attention_tile.h,
 * attention.h, forward.h, sample.h, rejection.h, and last the calls that Python makes. limits.h measures what the
 * processor does at best.
 */
#include <stdlib.h>

#include "forward.h"
#include "limits.h"
#include "rejection.h"

/* A thread's part of store_text. */
static void store_thread(void *argument) {
    Forward *shared = argument;
    const Model *model = shared->model;
    const Plan *plan = shared->plan;
    const int rows = plan->rows, hidden = model->hidden, width = model->dflash->fuse.inputs;
    const size_t kv_row = (size_t)model->kv_heads * model->head_dim;
    float *memory = malloc(rows * ((size_t)hidden + 2 * BLOCK + (width + hidden) / 2) * sizeof(float));
    float *normed = memory, *out = normed + (size_t)rows * hidden;
    Input input = {NULL, model->rounded ? (uint32_t *)(out + (size_t)rows * 2 * BLOCK) : NULL};
    if (!memory) __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
    barrier();
    if (shared->failed) {
        free(memory);
        return;
    }
    set_input(&input, plan->given, (size_t)rows * width);
    linear_layer(&model->dflash->fuse, &input, rows, shared->x, 0, out);
    barrier();
    rms_norm(shared->x, model->dflash->hidden_norm, model->epsilon, rows, hidden, normed);
    set_input(&input, normed, (size_t)rows * hidden);
    for (int l = 0; l < shared->layers; l++) {
        linear_layer(&model->layer[l].key, &input, rows, shared->key + l * rows * kv_row, 0, out);
        linear_layer(&model->layer[l].value, &input, rows, shared->value + l * rows * kv_row, 0, out);
    }
    barrier();
    for (int task; (task = claim_next(shared->claimed)) < shared->layers * plan->sequences * model->kv_heads;) {
        const int l = task / (plan->sequences * model->kv_heads), s = task / model->kv_heads % plan->sequences;
        int row = l * rows;
        for (int i = 0; i < s; i++) row += plan->counts[i];
        const Task its = task_of(shared, l, s, task % model->kv_heads, row);
        for (int t = 0; t < its.count; t++) store_token(&its, model->layer + l, t);
    }
    free(memory);
}

/* Store the keys and values that a DFlash head makes of its target's hidden states, `given` of the plan. Returns as
   forward does. */
int store_text(const Model *model, int layers, const Slots *storage, const Plan *plan, int threads) {
    const size_t rows = plan->rows, kv_row = (size_t)model->kv_heads * model->head_dim;
    float *x = malloc(rows * (model->hidden + 2 * layers * kv_row) * sizeof(float));
    if (!x) return 1;
    int claimed = 0;
    Forward shared = {.model = model, .storage = storage, .plan = plan, .x = x, .query = x, .claimed = &claimed,
                      .layers = layers, .key = x + rows * model->hidden};
    shared.value = shared.key + rows * layers * kv_row;
    run_on_threads(threads, store_thread, &shared);
    free(x);
    return shared.failed;
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

static void sample_thread(void *argument) {
    Samples *shared = argument;
    const Choices *choices = shared->choices;
    Scratch *scratch = malloc(shared->n * sizeof(Scratch));
    if (!scratch) __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
    for (int r = share_begin(shared->rows); scratch && r < share_end(shared->rows); r++) {
        const int place = shared->places ? shared->places[r] : r;
        shared->tokens[place] = sample_row(
            shared->logits + (size_t)r * shared->n, shared->n, choices->sampling + place / choices->each,
            choices->u ? choices->u + place : NULL, shared->p + (size_t)place * shared->n, scratch);
    }
    free(scratch);
}

/* Sample a token for each row of logits [rows, n]. Row r's distribution and token go to index places[r] of p
   [places, n] and tokens [places], or to r if places is NULL. Returns as forward does. */
int sample(
    const float *logits, int rows, int n, const int32_t *places, const Choices *choices, float *p, int64_t *tokens,
    int threads) {
    Samples shared = {logits, rows, n, places, choices, p, tokens, 0};
    run_on_threads(rows > 1 ? threads : 1, sample_thread, &shared);
    return shared.failed;
}

/* Logits over a head's draft tokens, as logits over the target's. */
static void spread(const Model *model, const float *found, int rows, float *logits) {
    const int n = model->vocabulary, outputs = model->head.outputs;
    for (int r = 0; r < rows; r++, found += outputs, logits += n) {
        for (int i = 0; i < n; i++) logits[i] = -INFINITY;
        for (int i = 0; i < outputs; i++) logits[model->target_ids[i]] = found[i];
    }
}

/* Draft windows[s] tokens after sequence s, at least one and at most `width`; all but the last are fed back. `plan` is
   that of the first forward pass and keeps the last row of every sequence. The i-th token after sequence s has index
   s x width + i in choices, tokens and q [indices, vocabulary]; indices past a window stay as they are. Returns as
   forward does. */
int decode_ahead(
    const Model *model, int layers, const Slots *storage, const Plan *plan, const int32_t *windows, int width,
    const Choices *choices, int64_t *tokens, float *q, int threads) {
    const int n = model->vocabulary, hidden = model->hidden;
    const int sequences = plan->sequences, height = plan->height;
    float *logits = malloc((size_t)sequences * (n + model->head.outputs + 2 * hidden) * sizeof(float));
    float *found = model->target_ids ? logits + (size_t)sequences * n : logits;
    float *last = logits + (size_t)sequences * (n + model->head.outputs), *fused = last + (size_t)sequences * hidden;
    int64_t *token_ids = malloc(sequences * sizeof(int64_t));
    int32_t *memory = malloc((size_t)sequences * (5 + height) * sizeof(int32_t));
    int32_t *active = memory, *places = active + sequences, *starts = places + sequences, *counts = starts + sequences,
            *keep = counts + sequences, *tables = keep + sequences;
    int failed = !logits || !token_ids || !memory, num_active = sequences;
    for (int s = 0; s < sequences && !failed; s++) active[s] = s;
    Plan step = *plan;
    for (int i = 0; num_active && !failed; i++) {
        for (int k = 0; k < num_active; k++) places[k] = active[k] * width + i;
        if (model->chain) step.last = last;
        failed = forward(model, layers, storage, &step, found, threads);
        if (model->target_ids) spread(model, found, num_active, logits);
        failed = failed || sample(logits, num_active, n, places, choices, q, tokens, threads);
        int remaining = 0;
        for (int k = 0; k < num_active; k++) {
            const int s = active[k];
            if (windows[s] <= i + 1) continue;
            active[remaining] = s;
            starts[remaining] = plan->starts[s] + plan->counts[s] + i;
            counts[remaining] = 1;
            keep[remaining] = remaining;
            token_ids[remaining] = tokens[places[k]];
            if (model->chain) memcpy(fused + (size_t)remaining * hidden, last + (size_t)k * hidden, hidden * sizeof(float));
            memcpy(tables + (size_t)remaining * height, plan->tables + (size_t)s * height, height * sizeof(int32_t));
            remaining++;
        }
        num_active = remaining;
        step = (Plan){.sequences = num_active, .rows = num_active, .kept = num_active, .block_size = plan->block_size,
                      .height = height, .starts = starts, .counts = counts, .tables = tables,
                      .token_ids = token_ids, .keep = keep, .fused = fused};
    }
    free(logits), free(token_ids), free(memory);
    return failed;
}

/* Choose the tokens of a DSpark head's blocks, windows[s] of them after newest[s], each by its logits and the table's row
   for the token before it. logits [sum of windows, outputs], block by block; choices, tokens and q [.., vocabulary] have
   the same indices. Returns as forward does. */
int choose_in_turn(
    const Model *model, const float *logits, const int32_t *windows, const int64_t *newest, int sequences,
    const Choices *choices, int64_t *tokens, float *q, int threads) {
    const Linear *second = &model->markov->second;
    const int n = model->vocabulary, outputs = model->head.outputs, rank = second->inputs;
    float *first = malloc((size_t)sequences * (rank + outputs + n) * sizeof(float));
    float *found = first + (size_t)sequences * rank, *all = found + (size_t)sequences * outputs;
    int32_t *places = malloc(sequences * sizeof(int32_t));
    int failed = !first || !places;
    for (int i = 0; !failed; i++) {
        int rows = 0;
        for (int s = 0, begin = 0; s < sequences; begin += windows[s++]) {
            if (windows[s] <= i) continue;
            const int64_t before = i ? tokens[begin + i - 1] : newest[s];
            memcpy(first + (size_t)rows * rank, model->markov->first + before * rank, rank * sizeof(float));
            places[rows++] = begin + i;
        }
        if (!rows) break;
        failed = multiply(second, model->rounded, rows, first, found, threads);
        for (int r = 0; r < rows && !failed; r++)
            for (int t = 0; t < outputs; t++) found[(size_t)r * outputs + t] += logits[(size_t)places[r] * outputs + t];
        spread(model, found, rows, all);
        failed = failed || sample(all, rows, n, places, choices, q, tokens, threads);
    }
    free(first), free(places);
    return failed;
}

typedef struct {
    const float *logits;
    int n;
    const Round *rounds;
    int count, max_draft_tokens;
    Verdict *verdicts;
    float *p, *q;
    int claimed, failed;
} Rounds;

static void verify_thread(void *argument) {
    Rounds *shared = argument;
    const size_t n = shared->n;
    const size_t most = (shared->max_draft_tokens + 1) * n;
    float *rows = malloc((most + n) * sizeof(float)), *weights = rows + most;
    Scratch *scratch = malloc(n * sizeof(Scratch));
    if (!rows || !scratch) __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
    for (int i; rows && scratch && (i = claim_next(&shared->claimed)) < shared->count;) {
        const Round *one = shared->rounds + i;
        size_t first = 0;
        for (int before = 0; before < i; before++) first += shared->rounds[before].num_draft_tokens + 1;
        shared->verdicts[i] = verify_round(
            shared->logits + first * n, n, one, shared->p + first, shared->q + first, rows, weights, scratch);
    }
    free(rows), free(scratch);
}

/* Verify several rounds. logits [sum of (draft tokens + 1), n], round by round; p and q of the draft tokens have the
   same indices, of which each round's last is not written. Returns as forward does. */
int verify(
    const float *logits, int n, const Round *rounds, int count, Verdict *verdicts, float *p, float *q, int threads) {
    Rounds shared = {logits, n, rounds, count, 0, verdicts, p, q, 0, 0};
    for (int i = 0; i < count; i++)
        if (rounds[i].num_draft_tokens > shared.max_draft_tokens) shared.max_draft_tokens = rounds[i].num_draft_tokens;
    run_on_threads(count > 1 ? threads : 1, verify_thread, &shared);
    return shared.failed;
}
