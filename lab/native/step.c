/* One forward of a Llama-shaped model on a CPU: the new tokens of some sequences go through all layers.
 *
 * The same computation as transformers' modules with the lab's reference attention, in float32. Two things
 * make it several times faster for the few rows of a decode or a verify. Weights are read as bfloat16, half
 * the bytes, and widened in registers: decoding one token is bound by the weights' bytes. And a step is one
 * call, in which threads meet five times a layer, instead of hundreds of calls from Python.
 *
 * A token has the same bits alone, among others and in any tile: every sum's order is settled by what is
 * summed, never by how many rows there are.
 *
 * Plain C with the vector extensions of GCC and Clang; `lab/native/build.py` compiles it for the processor
 * at hand. To read in this order: vectors.h, model.h, layers.h, cache.h, attention.h, sample.h, judge.h, and last
 * the step.
 */
#include <stdlib.h>

#include "attention.h"
#include "judge.h"
#include "layers.h"
#include "sample.h"

/* The first `layers` layers, the last norm and the head. logits [kept, vocabulary]. Returns 0, or 1 if there
   is no memory. */
int forward(
    const Model *model, int layers, const Storage *storage, const Plan *plan, float *logits, int threads) {
    const int rows = plan->rows, hidden = model->hidden, d = model->head_dim;
    const size_t q_row = (size_t)model->heads * d, kv_row = (size_t)model->kv_heads * d;
    const int wide = model->layer[0].gate.outputs;
    float *memory = malloc((rows * (hidden + q_row + 2 * kv_row + wide)) * sizeof(float));
    if (!memory) return 1;
    float *x = memory, *query = x + (size_t)rows * hidden, *key = query + rows * q_row, *value = key + rows * kv_row,
          *inner = value + rows * kv_row;
    for (int r = 0; r < rows; r++)
        memcpy(x + (size_t)r * hidden, model->embedding + plan->token_ids[r] * hidden, hidden * sizeof(float));

    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        /* Every thread normalises for itself: cheaper than waiting for another one's result. */
        const size_t most = hidden + q_row + wide; /* of a linear layer's inputs, and to spare */
        const size_t shared = model->heads / model->kv_heads;
        float *mine = malloc(
            rows * ((hidden + q_row + 2 * BLOCK + most / 2) * sizeof(float) + shared * sizeof(Softmax)));
        float *normed = mine, *found = normed + (size_t)rows * hidden, *out = found + rows * q_row;
        Softmax *softmax = (Softmax *)(out + (size_t)rows * 2 * BLOCK);
        Input input = {NULL, model->rounded ? (uint32_t *)(softmax + rows * shared) : NULL};
        if (!mine) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp barrier
        if (!failed) {
            for (int l = 0; l < layers; l++) {
                const Layer *layer = model->layer + l;
                normalise(x, layer->attention_norm, model->epsilon, rows, hidden, normed);
                take(&input, normed, (size_t)rows * hidden);
                apply(&layer->query, &input, rows, query, 0, out);
                apply(&layer->key, &input, rows, key, 0, out);
                apply(&layer->value, &input, rows, value, 0, out);
#pragma omp barrier
#pragma omp for schedule(dynamic)
                for (int task = 0; task < plan->sequences * model->kv_heads; task++) {
                    const int s = task / model->kv_heads, head = task % model->kv_heads;
                    int row = 0;
                    for (int i = 0; i < s; i++) row += plan->counts[i];
                    const Task its = {
                        .model = model, .storage = storage, .slots = storage->layer + l, .head = head,
                        .table = plan->tables + (size_t)s * plan->height, .block_size = plan->block_size,
                        .start = plan->starts[s], .count = plan->counts[s],
                        .query = query + row * q_row + (size_t)head * (model->heads / model->kv_heads) * d,
                        .key = key + row * kv_row + (size_t)head * d, .value = value + row * kv_row + (size_t)head * d,
                    };
                    attend(&its, layer, found, softmax);
                }
                take(&input, query, rows * q_row);
                apply(&layer->output, &input, rows, x, 1, out);
#pragma omp barrier
                normalise(x, layer->mlp_norm, model->epsilon, rows, hidden, normed);
                take(&input, normed, (size_t)rows * hidden);
                gated(layer, &input, rows, inner, out);
#pragma omp barrier
                take(&input, inner, (size_t)rows * wide);
                apply(&layer->down, &input, rows, x, 1, out);
#pragma omp barrier
            }
            for (int i = 0; i < plan->kept; i++)
                normalise(x + (size_t)plan->keep[i] * hidden, model->final_norm, model->epsilon, 1, hidden,
                          normed + (size_t)i * hidden);
            take(&input, normed, (size_t)plan->kept * hidden);
            apply(&model->head, &input, plan->kept, logits, 0, out);
        }
        free(mine);
    }
    free(memory);
    return failed;
}

/* Row r of logits [rows, n] gives the distribution and the token of place places[r], or r: p [places, n], tokens
   [places]. Returns as forward does. */
int sample(
    const float *logits, int rows, int n, const int32_t *places, const Sampling *sampling, float *p, int64_t *tokens,
    int threads) {
    int failed = 0;
#pragma omp parallel num_threads(threads) if (rows > 1)
    {
        double *cumulative = malloc(n * sizeof(double));
        if (!cumulative) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(static)
        for (int r = 0; r < rows; r++) {
            const int place = places ? places[r] : r;
            if (cumulative)
                tokens[place] = sample_row(logits + (size_t)r * n, n, sampling->temperatures[place],
                                           sampling->u ? sampling->u + place : NULL, p + (size_t)place * n, cumulative);
        }
        free(cumulative);
    }
    return failed;
}

/* Decode ahead: windows[s] tokens after sequence s, at least one and at most `width`, each of them fed back but the
   last. `plan` is the first forward's and keeps the last row of every sequence. The i-th token after sequence s has
   place s x width + i in sampling, tokens and q [places, vocabulary]; places past a window stay as they are. Returns
   as forward does. */
int decode_ahead(
    const Model *model, int layers, const Storage *storage, const Plan *plan, const int32_t *windows, int width,
    const Sampling *sampling, int64_t *tokens, float *q, int threads) {
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
                 || sample(logits, going, n, places, sampling, q, tokens, threads);
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

/* Judge some rounds; logits [sum of (proposals + 1), n], round by round, and so p and q of the proposals, of which each
   round's last place is not written. Returns as forward does. */
int judge(
    const float *logits, int n, const Round *rounds, int count, Verdict *verdicts, float *p, float *q, int threads) {
    int failed = 0, most = 0;
    for (int i = 0; i < count; i++) most = rounds[i].proposals > most ? rounds[i].proposals : most;
#pragma omp parallel num_threads(threads) if (count > 1)
    {
        float *rows = malloc((size_t)(most + 2) * n * sizeof(float));
        double *cumulative = malloc(n * sizeof(double));
        if (!rows || !cumulative) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic)
        for (int i = 0; i < count; i++) {
            const Round *its = rounds + i;
            size_t first = 0;
            for (int before = 0; before < i; before++) first += rounds[before].proposals + 1;
            if (rows && cumulative)
                verdicts[i] = judge_round(
                    logits + first * n, n, its->proposals, its->temperature, its->u, its->tokens, its->q, p + first,
                    q + first, rows, rows + (size_t)(most + 1) * n, cumulative);
        }
        free(rows), free(cumulative);
    }
    return failed;
}
