/* From logits to a distribution and a token: what lab/decode/sampling.py does where nothing is cut off. */
#pragma once
#include "vectors.h"

static inline lanes load_some(const float *from, int count, float rest) { /* for what is not there */
    if (count >= LANES) return load(from);
    float some[LANES];
    for (int i = 0; i < LANES; i++) some[i] = i < count ? from[i] : rest;
    return load(some);
}

static inline void store_some(float *to, lanes x, int count) {
    if (count >= LANES) store(to, x);
    else memcpy(to, &x, count * sizeof(float));
}

/* Where the first number is that equals x; the last place if none does. */
static int place_of(float x, const float *numbers, int n) {
    int at = 0;
    while (at + LANES <= n && !any(load(numbers + at) == x)) at += LANES;
    while (at < n - 1 && numbers[at] != x) at++;
    return at;
}

/* p = softmax(logits / temperature), of n tokens. Returns the likeliest, the first of equals. */
static int distribution(const float *logits, int n, float temperature, float *p) {
    lanes highest = (lanes){0} - INFINITY, total = {0};
    for (int i = 0; i < n; i += LANES) highest = larger_of(load_some(logits + i, n - i, -INFINITY), highest);
    const float most = largest(highest);
    for (int i = 0; i < n; i += LANES) {
        const lanes below = load_some(logits + i, n - i, -INFINITY) / temperature - most / temperature;
        const lanes x = choose(below < -87.0f, 0.0f, exponential(below)); /* where exponential() ends */
        total += x;
        store_some(p + i, x, n - i);
    }
    const float whole = sum(total);
    for (int i = 0; i < n; i += LANES) store_some(p + i, load_some(p + i, n - i, 0) / whole, n - i);
    return place_of(most, logits, n);
}

/* Draw by inverting the cumulative sum, in float64: `draw` of lab/decode/sampling.py, to the last bit. */
static int draw(const float *p, int n, double u, double *cumulative) {
    double total = 0;
    for (int i = 0; i < n; i++) cumulative[i] = total += p[i];
    const double point = fmin(u * total, nextafter(total, 0));
    int low = 0, high = n - 1; /* the first token whose sum is above the point; only NaN gets to the last one's end */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (cumulative[middle] > point) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* A row's distribution and its token: the likeliest where the temperature is 0. u in [0, 1), to draw it by; NULL:
   nothing is drawn. cumulative [n] is room to work in. */
static int sample_row(const float *logits, int n, float temperature, const double *u, float *p, double *cumulative) {
    const int likeliest = distribution(logits, n, temperature == 0 ? 1 : temperature, p);
    return temperature == 0 || !u ? likeliest : draw(p, n, *u, cumulative);
}
