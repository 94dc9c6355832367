/* A cache's slots: what lab/kv_cache/formats.py's formats do, one head's vector at a time. */
#pragma once
#include "model.h"

static uint16_t to_bfloat16(float x) { /* to the nearest, ties to even; NaN stays NaN */
    union { float f; uint32_t u; } both = {x};
    return x == x ? (both.u + 0x7fff + (both.u >> 16 & 1)) >> 16 : 0x7fc0;
}

static float from_bfloat16(uint16_t x) {
    union { uint32_t u; float f; } both = {(uint32_t)x << 16};
    return both.f;
}

/* NaN counts as infinite, so that the vector is not read back as finite. */
static inline float larger(float a, float b) { return b <= a ? a : b == b ? b : INFINITY; }

static void write_int8(int8_t *to, float *scale, const float *x, int n) {
    float most = 0;
    for (int i = 0; i < n; i++) most = larger(most, fabsf(x[i]));
    *scale = fmaxf(most / 127, 0x1p-126f);
    for (int i = 0; i < n; i++) to[i] = (int8_t)rintf(x[i] / *scale);
}

static void write_int4(uint8_t *to, uint16_t *scales, const float *x, int n, int group) {
    for (int g = 0; g < n / group; g++, x += group) {
        float below = 0, above = 0;
        for (int i = 0; i < group; i++) {
            below = larger(below, -x[i]);
            above = larger(above, x[i]);
        }
        float scale = fmaxf(fmaxf(below, above) / 8, fminf(below, above) / 7.5f);
        scale = fmaxf(scale * (1 + 0x1p-8f), 0x1p-126f);
        scales[g] = to_bfloat16(above > below ? -scale : scale);
        scale = from_bfloat16(scales[g]);
        for (int i = 0; i < group; i += 2) {
            float low = rintf(x[i] / scale) + 8, high = rintf(x[i + 1] / scale) + 8;
            *to++ = (uint8_t)fminf(fmaxf(low, 0), 15) | (uint8_t)fminf(fmaxf(high, 0), 15) << 4;
        }
    }
}

/* Where a head's numbers lie in a slot. */
static inline uint8_t *numbers_at(const Slots *slots, const uint8_t *numbers, int64_t slot, int head) {
    return (uint8_t *)numbers + slot * slots->slot_bytes + head * slots->head_bytes;
}

static inline int64_t scales_at(const Slots *slots, int64_t slot, int head) {
    return slot * slots->slot_scales + head * slots->head_scales;
}

static void write_slot(
    const Slots *slots, uint8_t *numbers, uint8_t *scales, int64_t slot, int head, const float *x, int n) {
    uint8_t *to = numbers_at(slots, numbers, slot, head);
    const int64_t scale = scales_at(slots, slot, head);
    switch (slots->format) {
    case PLAIN: memcpy(to, x, n * sizeof(float)); break;
    case INT8: write_int8((int8_t *)to, (float *)scales + scale, x, n); break;
    case INT4: write_int4(to, (uint16_t *)scales + scale, x, n, slots->group);
    }
}

static inline __attribute__((always_inline)) void read_int4(
    const uint8_t *restrict from, const uint16_t *restrict scales, int n, const int group, float *restrict to) {
    for (int g = 0; g < n / group; g++, from += group / 2, to += group) {
        const float scale = from_bfloat16(scales[g]);
        for (int i = 0; i < group / 2; i++) {
            to[2 * i] = ((from[i] & 15) - 8) * scale;
            to[2 * i + 1] = ((from[i] >> 4) - 8) * scale;
        }
    }
}

/* A slot's vector as float32: in place, or dequantised into `buffer`. */
static const float *read_slot(
    const Slots *slots, const uint8_t *numbers, const uint8_t *scales, int64_t slot, int head, int n,
    float *buffer) {
    const uint8_t *from = numbers_at(slots, numbers, slot, head);
    const int64_t scale = scales_at(slots, slot, head);
    switch (slots->format) {
    case PLAIN: return (const float *)from;
    case INT8:
        for (int i = 0; i < n; i++) buffer[i] = ((const int8_t *)from)[i] * ((const float *)scales)[scale];
        return buffer;
    case INT4:
        read_int4(from, (const uint16_t *)scales + scale, n, slots->group, buffer);
    }
    return buffer;
}
