/* Verdicts on proposals: what lab/decode/acceptance.py does (Leviathan et al., 2211.17192, algorithm 1), a round at a
   time and to the last bit. */
#pragma once
#include "model.h"
#include "sample.h"

enum { JUDGE = 1, CHOOSE = 2, DRAWS = 3 }; /* columns of u: lab/decode/sequence.py */

static int is_finite(const float *x, int n) {
    lanes all = {0};
    for (int i = 0; i < n; i += LANES) {
        float zeros[LANES] = {0};
        if (i + LANES > n) memcpy(zeros, x + i, (n - i) * sizeof(float));
        all += load(i + LANES > n ? zeros : x + i) * 0.0f; /* infinity x 0 is NaN */
    }
    return sum(all) == 0;
}

/* What a refused proposal's replacement is drawn from: max(p - q, 0), or p where that is nothing. */
static const float *residual(const float *p, const float *q, int n, float *room) {
    if (!is_finite(q, n)) return p;
    float most = 0;
    for (int i = 0; i < n; i++) {
        room[i] = p[i] - q[i] > 0 ? p[i] - q[i] : 0;
        most = room[i] > most ? room[i] : most;
    }
    return most > 0 ? room : p;
}

/* Judge proposals tokens [g], drawn from q [g, n] or, where that is NULL, from nothing: they are kept then, as in
   greedy decoding, when they are the target's own tokens. logits [g + 1, n] are the target's; u [g + 1, DRAWS].
   p [g + 1, n], room [n] and cumulative [n] are room to work in. */
static Verdict judge_round(
    const float *logits, int n, int g, float temperature, const double *u, const int64_t *tokens, const float *q,
    float *p_proposed, float *q_proposed, float *p, float *room, double *cumulative) {
    int likeliest[g + 1], kept = 0, next;
    for (int i = 0; i <= g; i++)
        likeliest[i] = distribution(logits + (size_t)i * n, n, temperature == 0 ? 1 : temperature, p + (size_t)i * n);
    for (int i = 0; i < g; i++) {
        p_proposed[i] = p[(size_t)i * n + tokens[i]];
        q_proposed[i] = q ? q[(size_t)i * n + tokens[i]] : 1;
    }
    if (q && temperature != 0) {
        while (kept < g && u[kept * DRAWS + JUDGE] * q_proposed[kept] < p_proposed[kept]) kept++;
        const float *after = p + (size_t)kept * n; /* after the last proposal there is nothing to subtract */
        const float *weights = kept < g ? residual(after, q + (size_t)kept * n, n, room) : after;
        next = draw(weights, n, u[kept * DRAWS + CHOOSE], cumulative);
    } else
        for (;; kept++) {
            next = temperature == 0 ? likeliest[kept]
                                    : draw(p + (size_t)kept * n, n, u[kept * DRAWS + CHOOSE], cumulative);
            if (kept == g || next != tokens[kept]) break;
        }
    return (Verdict){kept, next, p[(size_t)kept * n + next]};
}
