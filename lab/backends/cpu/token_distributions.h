/* The most likely tokens around a verdict: what lab/backends/torch/token_distributions.py gathers and reads. */
#pragma once
#include "sample.h"

enum { FIGURES = 4 }; /* for each token: its id, p, q and residual probability */

/* The proposal; the most likely tokens by p, by q and by the residual, `count` of each; the proposal's replacement. */
static inline int tokens_around(int count) { return 2 + 3 * count; }

/* Write to ids [count] the places of the largest weights above 0, the largest first, lower places first among equals.
   Where there are fewer, the other ids stay as they are. */
static void likeliest(const float *weights, int n, int count, int *ids) {
    float most[count];
    for (int i = 0; i < count; i++) most[i] = 0;
    const float *least = most + count - 1;
    for (int block = 0; block < n; block += LANES) {
        if (!any(load_some(weights + block, n - block, 0) > *least)) continue;
        for (int i = block; i < n && i < block + LANES; i++) {
            if (!(weights[i] > *least)) continue;
            int at = count - 1;
            for (; at && weights[i] > most[at - 1]; at--) most[at] = most[at - 1], ids[at] = ids[at - 1];
            most[at] = weights[i], ids[at] = i;
        }
    }
}

/* The figures [tokens_around(count), FIGURES] around one proposal: its own first, and again where no other token is.
   q: NULL without one. left: the weights that the replacement was drawn from; NULL where nothing was replaced. */
static void tell_around(
    float *figures, int count, int n, int proposal, const float *p, const float *q, const float *left,
    int replacement) {
    const int tokens = tokens_around(count);
    int ids[tokens];
    for (int i = 0; i < tokens; i++) ids[i] = proposal;
    likeliest(p, n, count, ids + 1);
    if (q) likeliest(q, n, count, ids + 1 + count);
    lanes all = {0};
    if (left) {
        likeliest(left, n, count, ids + 1 + 2 * count);
        ids[tokens - 1] = replacement;
        for (int i = 0; i < n; i += LANES) all += load_some(left + i, n - i, 0);
    }
    const float total = sum(all);
    for (int i = 0; i < tokens; i++, figures += FIGURES) {
        const int id = ids[i];
        figures[0] = id, figures[1] = p[id], figures[2] = q ? q[id] : 0, figures[3] = left ? left[id] / total : 0;
    }
}

/* The probability that a proposal drawn from q is accepted: the sum of min(p, q). */
static float overlap(const float *p, const float *q, int n) {
    lanes total = {0};
    for (int i = 0; i < n; i += LANES)
        total -= larger_of(-load_some(p + i, n - i, 0), -load_some(q + i, n - i, 0));
    return sum(total);
}
