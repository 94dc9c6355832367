/* From logits to a distribution and a token: what lab/backends/torch/sampler.py does. */
#pragma once
#include <stdlib.h>

#include "model.h"

static inline lanes load_some(const float *from, int count, float padding) { /* padding: for numbers past count */
    if (count >= LANES) return load(from);
    float some[LANES];
    for (int i = 0; i < LANES; i++) some[i] = i < count ? from[i] : padding;
    return load(some);
}

static inline void store_some(float *to, lanes x, int count) {
    if (count >= LANES) store(to, x);
    else memcpy(to, &x, count * sizeof(float));
}

/* The index of the first number that equals x; n - 1 if none does. */
static int index_of(float x, const float *numbers, int n) {
    int at = 0;
    while (at + LANES < n && !any_lane(load(numbers + at) == x)) at += LANES;
    while (at < n - 1 && numbers[at] != x) at++;
    return at;
}

enum { BUCKETS = (0x3F800000 >> 19) + 1 }; /* one for probabilities with the same exponent and four bits after it */

static int bucket_of(float p) {
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    return bits >> 19;
}

typedef union { /* one for each token */
    struct {
        float p;
        int32_t token;
    } candidate;
    double cumulative;
} Scratch;

static int by_probability(const void *a, const void *b) { /* the largest first, then the lower token */
    const Scratch *x = a, *y = b;
    if (x->candidate.p != y->candidate.p) return x->candidate.p < y->candidate.p ? 1 : -1;
    return x->candidate.token - y->candidate.token;
}

/* Keep only the largest of p [n] and set the others to 0: at most `most`, and no more than it takes to reach `mass`.
   Only one bucket has to be sorted: the one with the last number kept. scratch [n]. Returns the sum of what is kept. */
static double keep_largest(float *p, int n, int most, double mass, Scratch *scratch) {
    double sums[BUCKETS] = {0}, total = 0;
    int counts[BUCKETS] = {0}, kept = 0, bucket = BUCKETS, found = 0;
    for (int i = 0; i < n; i++) {
        const int b = bucket_of(p[i]);
        sums[b] += p[i], counts[b]++;
    }
    while (bucket-- && kept + counts[bucket] <= most && total + sums[bucket] < mass)
        kept += counts[bucket], total += sums[bucket];
    if (bucket < 0) return total;
    const uint32_t bits = (uint32_t)bucket << 19;
    float least;
    memcpy(&least, &bits, sizeof least);
    for (int i = 0; i < n; i++) {
        if (bucket_of(p[i]) == bucket) scratch[found++] = (Scratch){.candidate = {p[i], i}};
        else if (p[i] < least) p[i] = 0;
    }
    qsort(scratch, found, sizeof *scratch, by_probability);
    for (int i = 0; i < found; i++) {
        if (kept < most && total < mass) kept++, total += scratch[i].candidate.p;
        else p[scratch[i].candidate.token] = 0;
    }
    return total;
}

/* p = softmax(logits / temperature) of n tokens, then top-k, then top-p. scratch [n]. Returns the most likely token,
   the first among equals. */
static int distribution(const float *logits, int n, const Sampling *sampling, float *p, Scratch *scratch) {
    const float temperature = sampling->temperature == 0 ? 1 : sampling->temperature;
    lanes highest = (lanes){0} - INFINITY, total = {0};
    for (int i = 0; i < n; i += LANES) highest = lanewise_max(load_some(logits + i, n - i, -INFINITY), highest);
    const float most = max_of_lanes(highest);
    for (int i = 0; i < n; i += LANES) {
        const lanes below = load_some(logits + i, n - i, -INFINITY) / temperature - most / temperature;
        const lanes x = blend(below < -87.0f, 0.0f, exponential(below)); /* where exponential() clamps */
        total += x;
        store_some(p + i, x, n - i);
    }
    float norm = sum(total);
    const int cuts = sampling->temperature != 0 && (sampling->top_k || sampling->top_p < 1);
    if (cuts && norm == norm) {
        if (sampling->top_k) norm = keep_largest(p, n, sampling->top_k, INFINITY, scratch);
        if (sampling->top_p < 1) norm = keep_largest(p, n, n, (double)sampling->top_p * norm, scratch);
    }
    for (int i = 0; i < n; i += LANES) store_some(p + i, load_some(p + i, n - i, 0) / norm, n - i);
    return index_of(most, logits, n);
}

/* The first token whose cumulative sum in scratch [n] is above u times their total; with NaN, the last token. */
static int invert(const Scratch *scratch, int n, double u) {
    const double point = u * scratch[n - 1].cumulative; /* below the total: u is at most 1 - 2^-53 */
    int low = 0, high = n - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (scratch[middle].cumulative > point) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Draw by inverting the cumulative sum, in float64: `draw` of lab/backends/torch/sampler.py, to the last bit. */
static int draw(const float *p, int n, double u, Scratch *scratch) {
    double total = 0;
    for (int i = 0; i < n; i++) scratch[i].cumulative = total += p[i];
    return invert(scratch, n, u);
}

/* A row's distribution and its token: the most likely one if the temperature is 0. u in [0, 1), to draw it with; NULL:
   nothing is drawn. scratch [n]. */
static int sample_row(const float *logits, int n, const Sampling *sampling, const double *u, float *p,
                      Scratch *scratch) {
    const int most_likely = distribution(logits, n, sampling, p, scratch);
    return sampling->temperature == 0 || !u ? most_likely : draw(p, n, *u, scratch);
}
