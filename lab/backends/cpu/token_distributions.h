/* The most likely tokens at a draft token's position: what lab/backends/torch/token_distributions.py reads. */
#pragma once
#include "sample.h"

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
