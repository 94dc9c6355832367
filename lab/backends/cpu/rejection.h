/* Verdicts on proposals: what lab/backends/torch/rejection_sampler.py does (Leviathan et al., 2211.17192, algorithm 1), a round at a
   time and to the last bit. */
#pragma once
#include "token_distributions.h"
#include "model.h"

enum { JUDGE = 1, CHOOSE = 2, DRAWS = 3 }; /* columns of u: lab/engine/sequence.py */

static int is_finite(const float *x, int n) {
    lanes all = {0};
    for (int i = 0; i < n; i += LANES) all += load_some(x + i, n - i, 0) * 0.0f; /* infinity x 0 is NaN */
    return sum(all) == 0;
}

/* The weights that a recovered token is drawn from: max(p - q, 0), or p if that is all 0 or q is not finite. */
static const float *residual(const float *p, const float *q, int n, float *left) {
    if (!is_finite(q, n)) return p;
    float most = 0;
    for (int i = 0; i < n; i++) {
        left[i] = p[i] - q[i] > 0 ? p[i] - q[i] : 0;
        most = left[i] > most ? left[i] : most;
    }
    return most > 0 ? left : p;
}

/* Judge a round of g proposals: without a q that they were drawn from they are kept, as in greedy decoding, if they are
   the target's own tokens. logits [g + 1, n] are the target's. Its distributions are written to p [g + 1, n], and the
   weights of a replacement to left [n]. room [n] is scratch space. */
static Verdict judge_round(
    const float *logits, int n, const Round *round, float *p_proposed, float *q_proposed, float *p, float *left,
    Room *room) {
    const int g = round->proposals, greedy = round->sampling.temperature == 0, drawn = round->q && !greedy;
    const double *u = round->u;
    const int64_t *tokens = round->tokens;
    int own[g + 1], accepted = 0, next;
    for (int i = 0; i <= g; i++)
        own[i] = distribution(logits + (size_t)i * n, n, &round->sampling, p + (size_t)i * n, room);
    for (int i = 0; i < g; i++) {
        p_proposed[i] = p[(size_t)i * n + tokens[i]];
        q_proposed[i] = round->q ? round->q[(size_t)i * n + tokens[i]] : 1;
    }
    const float *from = NULL; /* the weights that a recovered token is drawn from */
    if (drawn) {
        while (accepted < g && u[accepted * DRAWS + JUDGE] * q_proposed[accepted] < p_proposed[accepted]) accepted++;
        const float *after = p + (size_t)accepted * n; /* after the last proposal there is nothing to subtract */
        if (accepted < g) from = residual(after, round->q + (size_t)accepted * n, n, left);
        next = draw(from ? from : after, n, u[accepted * DRAWS + CHOOSE], room);
    } else
        for (;; accepted++) {
            next = greedy ? own[accepted] : draw(p + (size_t)accepted * n, n, u[accepted * DRAWS + CHOOSE], room);
            if (accepted == g || next != tokens[accepted]) break;
        }
    const int count = round->logprobs, share = tokens_around(count) * FIGURES;
    for (int i = 0; count && i < g && i <= accepted; i++) {
        const float *its = p + (size_t)i * n, *q = round->q ? round->q + (size_t)i * n : NULL;
        tell_around(round->around + i * share, count, n, tokens[i], its, q, i == accepted ? from : NULL, next);
        if (drawn) round->around[g * share + i] = overlap(its, q, n);
    }
    return (Verdict){accepted, next, p[(size_t)accepted * n + next]};
}
