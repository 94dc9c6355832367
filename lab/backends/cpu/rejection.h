/* Rejection sampling as in lab/backends/torch/rejection_sampler.py, which explains the three rules, a round at a time.
   The standard rule gives the same to the last bit; the others, which add up float64 numbers in another order, nearly. */
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

enum { BY_TOKEN, BY_BLOCK, BY_LIKELIHOOD }; /* rules, in the order of METHODS there */

/* Weight of a recovered token in block verification: max(product p - q, 0). The product of two float32 numbers is exact
   in float64, also where a compiler fuses it with the difference. q: NULL for 0. */
static inline double scaled_residual(float product, const float *p, const float *q, int i) {
    const double left = (double)product * p[i] - (q ? q[i] : 0);
    return left > 0 ? left : 0;
}

/* Block verification (Sun et al., 2403.10444, algorithm 2) of g draft tokens: how many are accepted. products [g + 1],
   the first of them 1; thresholds [g]. */
static int verify_block(
    const Round *round, int n, const float *p, const float *p_draft, const float *q_draft, float *products,
    float *thresholds) {
    const int g = round->num_draft_tokens;
    int accepted = 0;
    products[0] = 1;
    for (int i = 1; i <= g; i++) {
        const float x = products[i - 1] * p_draft[i - 1] / q_draft[i - 1], *q = round->q + (size_t)i * n;
        products[i] = x > 1 ? 1 : x; /* NaN stays */
        const float *subtracted = i < g && is_finite(q, n) ? q : NULL;
        double mass = 0;
        for (int t = 0; t < n; t++) mass += scaled_residual(products[i], p + (size_t)i * n, subtracted, t);
        const double threshold = products[i] == 1 ? 1 : mass / (mass + 1 - products[i]);
        if (round->u[(i - 1) * UNIFORMS + VERIFY] < threshold) accepted = i;
        thresholds[i - 1] = threshold;
    }
    return accepted;
}

/* Draw the token after the longest block that passed. q: as for scaled_residual. */
static int draw_after_block(
    float product, const float *p, const float *q, int n, double u, float *weights, Scratch *scratch) {
    double total = 0;
    for (int i = 0; i < n; i++) {
        const double left = scaled_residual(product, p, q, i);
        weights[i] = left, scratch[i].cumulative = total += left;
    }
    if (total > 0) return invert(scratch, n, u);
    memcpy(weights, p, n * sizeof(float));
    return draw(p, n, u, scratch);
}

/* Typical acceptance (Cai et al., 2401.10774): write the threshold for a token's p. Returns the total variation between
   p and what comes out: q above the threshold, and otherwise p. */
static double typical(const float *p, const float *q, int n, double *threshold) {
    const double epsilon = 0.09, delta = 0.3; /* EPSILON, DELTA */
    double entropy = 0, kept = 0, moved = 0;
    for (int i = 0; i < n; i++)
        if (p[i] != 0) entropy -= p[i] * log(p[i]);
    *threshold = delta * exp(-entropy);
    if (*threshold > epsilon) *threshold = epsilon;
    for (int i = 0; i < n; i++) kept += p[i] > *threshold ? q[i] : 0;
    for (int i = 0; i < n; i++) moved += fabs((p[i] > *threshold ? q[i] : 0) - kept * p[i]);
    return moved / 2;
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

/* Write the most likely tokens [count, 2] of a distribution p, and return its entropy. Where p is not 0 its logarithm is
   the logit over the temperature, less a constant, which the most likely token gives. */
static float write_top(float *top, int count, const float *logits, const float *p, int n, float temperature) {
    int ids[count];
    for (int i = 0; i < count; i++) ids[i] = -1;
    top_tokens(p, n, count, ids);
    for (int i = 0; i < count; i++) top[2 * i] = ids[i], top[2 * i + 1] = ids[i] < 0 ? 0 : p[ids[i]];
    if (ids[0] < 0) return 0; /* not finite: the sequence ends here */
    lanes sums = {0};
    for (int i = 0; i < n; i += LANES) sums += load_some(p + i, n - i, 0) * load_some(logits + i, n - i, 0);
    const float divisor = temperature ? temperature : 1, found = (logits[ids[0]] - sum(sums)) / divisor - logf(top[1]);
    if (isfinite(found)) return found > 0 ? found : 0;
    double entropy = 0; /* a logit of -infinity */
    for (int i = 0; i < n; i++) entropy -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    return entropy;
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
    if (drawn && round->method == BY_BLOCK) {
        float products[g + 1];
        accepted = verify_block(round, n, p, p_draft, q_draft, products, round->evidence);
        if (g) memcpy(round->evidence + g, products + 1, g * sizeof(float));
        const float *q = round->q + (size_t)accepted * n, *subtracted = accepted < g && is_finite(q, n) ? q : NULL;
        const double point = u[accepted * UNIFORMS + RECOVER];
        next = draw_after_block(
            products[accepted], p + (size_t)accepted * n, subtracted, n, point, weights, scratch);
        if (accepted < g) residual = weights;
    } else if (drawn && round->method == BY_LIKELIHOOD) {
        for (; accepted < g; accepted++) {
            const size_t first = (size_t)accepted * n;
            double threshold;
            round->evidence[g + accepted] = typical(p + first, round->q + first, n, &threshold);
            round->evidence[accepted] = threshold;
            if (!(p_draft[accepted] > threshold) || !isfinite(q_draft[accepted])) break;
        }
        const float *p_next = p + (size_t)accepted * n;
        next = draw(p_next, n, u[accepted * UNIFORMS + RECOVER], scratch);
        if (accepted < g) residual = p_next;
    } else if (drawn) {
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
    const int top = round->top_tokens;
    for (int i = 0; top && i <= accepted; i++) {
        const size_t first = (size_t)i * n;
        round->top[(g + 1) * top * 2 + i] =
            write_top(round->top + i * top * 2, top, logits + first, p + first, n, round->sampling.temperature);
    }
    return (Verdict){accepted, next, p[(size_t)accepted * n + next]};
}
