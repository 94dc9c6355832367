/* Rejection sampling, to the last bit as in lab/backends/torch/rejection_sampler.py (Leviathan et al., 2211.17192,
   algorithm 1), a round at a time. */
#pragma once
#include "sample.h"

enum { VERIFY = 1, RECOVER = 2, UNIFORMS = 3 }; /* columns of u: lab/engine/sequence.py */

static int is_finite(const float *x, int n) {
    lanes all = {0};
    for (int i = 0; i < n; i += LANES) all += load_some(x + i, n - i, 0) * 0.0f; /* infinity x 0 is NaN */
    return sum(all) == 0;
}

/* Weights that a recovered token is drawn from: max(p - q, 0), or p if that is all 0 or q is not finite. */
static const float *residual_weights(const float *p, const float *q, int n, float *weights) {
    if (!is_finite(q, n)) return p;
    float most = 0;
    for (int i = 0; i < n; i++) {
        weights[i] = p[i] - q[i] > 0 ? p[i] - q[i] : 0;
        most = weights[i] > most ? weights[i] : most;
    }
    return most > 0 ? weights : p;
}

/* The likeliest tokens around a verdict: what lab/backends/torch/batched_verification.py reads. */
enum { FIGURES = 4 }; /* for each token: its id, p, q and residual probability */

/* The draft token; the most likely tokens by p, by q and by the residual, `count` of each; the recovered token. */
static inline int listed_tokens(int count) { return 2 + 3 * count; }

/* Write to ids [count] the indices of the largest weights above 0, the largest first, lower indices first among equals.
   Where there are fewer, the other ids stay as they are. */
static void top_tokens(const float *weights, int n, int count, int *ids) {
    float most[count];
    for (int i = 0; i < count; i++) most[i] = 0;
    const float *least = most + count - 1;
    for (int block = 0; block < n; block += LANES) {
        if (!any_lane(load_some(weights + block, n - block, 0) > *least)) continue;
        for (int i = block; i < n && i < block + LANES; i++) {
            if (!(weights[i] > *least)) continue;
            int at = count - 1;
            for (; at && weights[i] > most[at - 1]; at--) most[at] = most[at - 1], ids[at] = ids[at - 1];
            most[at] = weights[i], ids[at] = i;
        }
    }
}

/* Write the figures [listed_tokens(count), FIGURES] of one draft token: its own first, and again where there is no
   other token. q: NULL without one. residual: what the recovered token was drawn from; NULL if none was. */
static void write_distributions(
    float *figures, int count, int n, int draft_token, const float *p, const float *q, const float *residual,
    int recovered) {
    const int tokens = listed_tokens(count);
    int ids[tokens];
    for (int i = 0; i < tokens; i++) ids[i] = draft_token;
    top_tokens(p, n, count, ids + 1);
    if (q) top_tokens(q, n, count, ids + 1 + count);
    lanes sums = {0};
    if (residual) {
        top_tokens(residual, n, count, ids + 1 + 2 * count);
        ids[tokens - 1] = recovered;
        for (int i = 0; i < n; i += LANES) sums += load_some(residual + i, n - i, 0);
    }
    const float total = sum(sums);
    for (int i = 0; i < tokens; i++, figures += FIGURES) {
        const int id = ids[i];
        figures[0] = id, figures[1] = p[id], figures[2] = q ? q[id] : 0;
        figures[3] = residual ? residual[id] / total : 0;
    }
}

/* The probability that a draft token from q is accepted: the sum of min(p, q). */
static float overlap(const float *p, const float *q, int n) {
    lanes total = {0};
    for (int i = 0; i < n; i += LANES)
        total -= lanewise_max(-load_some(p + i, n - i, 0), -load_some(q + i, n - i, 0));
    return sum(total);
}

/* Verify a round of g draft tokens. Without a q that they were drawn from, and in greedy decoding, they are accepted if
   they equal the target's tokens. logits [g + 1, n] are the target's. Its distributions are written to p [g + 1, n],
   the weights of a recovered token to weights [n]. scratch [n]. */
static Verdict verify_round(
    const float *logits, int n, const Round *round, float *p_draft, float *q_draft, float *p, float *weights,
    Scratch *scratch) {
    const int g = round->num_draft_tokens, greedy = round->sampling.temperature == 0, drawn = round->q && !greedy;
    const double *u = round->u;
    const int64_t *tokens = round->draft_tokens;
    int target_tokens[g + 1], accepted = 0, next;
    for (int i = 0; i <= g; i++)
        target_tokens[i] = distribution(logits + (size_t)i * n, n, &round->sampling, p + (size_t)i * n, scratch);
    for (int i = 0; i < g; i++) {
        p_draft[i] = p[(size_t)i * n + tokens[i]];
        q_draft[i] = round->q ? round->q[(size_t)i * n + tokens[i]] : 1;
    }
    const float *residual = NULL;
    if (drawn) {
        while (accepted < g && u[accepted * UNIFORMS + VERIFY] * q_draft[accepted] < p_draft[accepted]) accepted++;
        const float *p_next = p + (size_t)accepted * n; /* the bonus token's distribution, if all are accepted */
        if (accepted < g) residual = residual_weights(p_next, round->q + (size_t)accepted * n, n, weights);
        next = draw(residual ? residual : p_next, n, u[accepted * UNIFORMS + RECOVER], scratch);
    } else {
        for (;; accepted++) {
            const double point = u[accepted * UNIFORMS + RECOVER];
            next = greedy ? target_tokens[accepted] : draw(p + (size_t)accepted * n, n, point, scratch);
            if (accepted == g || next != tokens[accepted]) break;
        }
    }
    const int count = round->logprobs, share = listed_tokens(count) * FIGURES;
    for (int i = 0; count && i < g && i <= accepted; i++) {
        const float *p_row = p + (size_t)i * n, *q = round->q ? round->q + (size_t)i * n : NULL;
        const float *left = i == accepted ? residual : NULL;
        write_distributions(round->figures + i * share, count, n, tokens[i], p_row, q, left, next);
        if (drawn) round->figures[g * share + i] = overlap(p_row, q, n);
    }
    return (Verdict){accepted, next, p[(size_t)accepted * n + next]};
}
