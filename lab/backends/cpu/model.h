/* What Python passes to C: a model, its cache, and a step's plan. lab/backends/cpu/structs.py has the same fields. */
#pragma once
#include "vectors.h"

enum { PLAIN, INT8, INT4 }; /* what a cache slot holds: lab/kv_cache/formats.py */

typedef struct {
    const uint32_t *weight; /* [outputs / BLOCK, inputs / 2, BLOCK] pairs of bfloat16, an even input's weight in the
                               low half and the next one's in the high half; outputs are padded with zeros */
    const float *bias;      /* [outputs] or NULL */
    int32_t inputs, outputs;
} Linear;

typedef struct {
    const float *attention_norm, *mlp_norm; /* [hidden] */
    const float *query_norm, *key_norm;     /* [head_dim] or NULL (Qwen3 has them) */
    Linear query, key, value, output, gate, up, down;
} Layer;

typedef struct { /* how a head that drafts in a chain takes in a token and the hidden states of the one before it:
                    lab/models/eagle3_head.py, mtp_head.py. Its first position is 1 */
    const float *embedding_norm, *hidden_norm; /* [hidden] */
    Linear fuse, join; /* EAGLE-3: from the target's hidden states to those that its attention takes in beside an
                          embedding; MTP: from an embedding and hidden states to what enters the layer. The other has no
                          weights */
    int32_t hidden_first;                      /* the hidden states are to the left of the embedding */
    int32_t norm_before_residual, norm_output;
} Chain;

typedef struct { /* how a DFlash head takes in the target's hidden states: lab/models/dflash_head.py */
    Linear fuse;
    const float *hidden_norm; /* [hidden] */
} DFlash;

typedef struct { /* what DSpark adds to that: lab/models/dspark_head.py */
    const float *first; /* [vocabulary, inputs of `second`], a row for the token before */
    Linear second;
} Markov;

typedef struct {
    int32_t hidden, heads, kv_heads, head_dim, vocabulary;
    float epsilon, scaling;
    int32_t rounded; /* the inputs of linear layers are rounded to bfloat16 */
    const float *embedding;  /* [vocabulary, hidden] */
    const float *final_norm; /* [hidden] */
    const float *cosine, *sine; /* [context, head_dim], rotary embedding (Su et al., 2104.09864) */
    const Layer *layer;
    Linear head;
    const int64_t *target_ids; /* [outputs of the head], what a head's draft tokens are in the vocabulary; NULL: this is
                                  a model of its own */
    const Chain *chain;   /* NULL: this is no such head */
    const DFlash *dflash; /* NULL: nor one of these, and new tokens see only those before them */
    const Markov *markov; /* NULL: nor one of these */
} Model;

typedef struct { /* one layer's slots, in its own format */
    uint8_t *keys, *values;
    uint8_t *key_scales, *value_scales; /* not read for PLAIN */
    int32_t format, group; /* group: numbers that share a scale */
    int64_t slot_bytes, head_bytes;     /* from a slot to the next, and from a head's numbers to the next head's */
    int64_t slot_scales, head_scales;   /* the same for scales, counted in scales */
} Slots;

typedef struct {
    int32_t sequences, rows, kept, block_size, height;
    const int32_t *starts, *counts; /* [sequences]: position of the first new token, and how many there are */
    const int32_t *tables;          /* [sequences, height] blocks in the order of their positions */
    const int64_t *token_ids;       /* [rows], sequence by sequence */
    const int32_t *keep;            /* [kept] rows whose logits are wanted */
    int32_t num_tapped;
    const int32_t *tapped;          /* [num_tapped] layers, ascending, whose input is wanted; if all their
                                       number, what leaves the last */
    float *states;                  /* [rows, num_tapped, hidden], that input */
    const float *given;             /* [rows, inputs of the head's `fuse`], the target's hidden states, to be fused */
    const float *fused;             /* [rows, hidden], what a chain's head takes in where nothing is `given` */
    float *last;                    /* [kept, hidden], what it gives back, or NULL */
} Plan;

typedef struct { /* SamplingParams of lab/config.py */
    float temperature; /* 0: the most likely token; the distribution is that of temperature 1 */
    int32_t top_k;     /* 0: all */
    float top_p;       /* 1: all */
} Sampling;

typedef struct { /* how each of several tokens is chosen */
    const Sampling *sampling; /* one for the first `each` tokens, one for the next, and so on */
    int32_t each;
    const double *u; /* in [0, 1), one to draw each token with; NULL: none is drawn */
} Choices;

typedef struct { /* draft tokens accepted, the token after them, and its probability */
    int32_t accepted, next_token;
    float p_next;
} Verdict;

typedef struct { /* draft tokens of one sequence, to be verified */
    int32_t num_draft_tokens;
    Sampling sampling;
    const int64_t *draft_tokens; /* [num_draft_tokens] */
    const float *q;              /* [num_draft_tokens, vocabulary], which they were drawn from, or NULL */
    const double *u;             /* [num_draft_tokens + 1, 3] */
    int32_t method;              /* of rejection.h, where verdicts are drawn */
    float *evidence;             /* [2, num_draft_tokens] of block verification and typical acceptance */
    int32_t logprobs;            /* how many of the most likely tokens are reported for each draft token */
    float *figures; /* [num_draft_tokens, tokens, 4] of rejection.h; then each draft token's overlap of p, q */
    int32_t top_tokens;          /* how many of the target's most likely tokens are reported for each output token */
    float *top; /* [num_draft_tokens + 1, top_tokens, 2], ids (-1: none) and p; then each position's entropy */
} Round;
