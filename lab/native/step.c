/* One forward of a Llama-shaped model on a CPU: the new tokens of some sequences go through all layers.
 *
 * The same computation as transformers' modules with the lab's reference attention, in float32. Two things
 * make it several times faster for the few rows of a decode or a verify. Weights are read as bfloat16, half
 * the bytes, and widened in registers: decoding one token is bound by the weights' bytes. And a step is one
 * call, in which threads meet five times a layer, instead of hundreds of calls from Python.
 *
 * Plain C with the vector extensions of GCC and Clang; `lab/native/build.py` compiles it for the processor
 * at hand. Matrices are row-major and rows are tokens, unless said otherwise.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Numbers in a register, and rows whose sums fit in all registers together: vectors that are longer than the
   processor's are slower by far. */
#if defined(__AVX512F__)
enum { LANES = 16, TILE_ROWS = 6 };
#elif defined(__AVX__)
enum { LANES = 8, TILE_ROWS = 3 };
#elif defined(__aarch64__)
enum { LANES = 4, TILE_ROWS = 6 };
#else
enum { LANES = 4, TILE_ROWS = 3 };
#endif
enum { BLOCK = 2 * LANES, TILE_COLUMNS = 32 };
const int32_t lanes_in_use = LANES; /* for Python, which packs the weights */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t whole __attribute__((vector_size(4 * LANES), aligned(4)));
enum { NATIVE, INT8, INT4 }; /* what a cache slot holds: lab/kv/storage.py */

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

typedef struct {
    int32_t hidden, heads, kv_heads, head_dim;
    float epsilon, scaling;
    int32_t rounded; /* the inputs of linear layers are rounded to bfloat16 */
    const float *embedding;  /* [vocabulary, hidden] */
    const float *final_norm; /* [hidden] */
    const float *cosine, *sine; /* [context, head_dim], rotary embedding (Su et al., 2104.09864) */
    const Layer *layer;
    Linear head;
} Model;

typedef struct { /* one layer's slots; strides count elements */
    uint8_t *keys, *values;
    uint8_t *key_scales, *value_scales; /* NULL for NATIVE */
} Slots;

typedef struct {
    int32_t format, group; /* numbers that share a scale */
    int64_t slot_stride, scale_stride, head_scales;
    const Slots *layer;
} Storage;

typedef struct {
    int32_t sequences, rows, kept, block_size, height;
    const int32_t *starts, *counts; /* [sequences]: position of the first new token, how many there are */
    const int32_t *tables;          /* [sequences, height] blocks in the order of their positions */
    const int64_t *token_ids;       /* [rows], sequence by sequence */
    const int32_t *keep;            /* [kept] rows whose logits are wanted */
} Plan;

/* -- vectors --------------------------------------------------------------------------------------------- */

static inline lanes load(const float *from) { return *(const lanes *)from; }
static inline void store(float *to, lanes x) { *(lanes *)to = x; }

static inline float sum(lanes x) {
    typedef float four __attribute__((vector_size(16)));
    union { lanes all; four part[LANES / 4]; } both = {x};
    four total = both.part[0];
    for (int i = 1; i < LANES / 4; i++) total += both.part[i];
    return (total[0] + total[2]) + (total[1] + total[3]);
}

static float dot(const float *a, const float *b, int n) {
    lanes total = {0};
    for (int i = 0; i < n; i += LANES) total += load(a + i) * load(b + i);
    return sum(total);
}

/* e^x within three units in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes' expf).
   x is held between -87 and 88, where float32 ends; NaN stays NaN. */
static inline lanes choose(whole where, float then, lanes otherwise) {
    return (lanes)(((bits)((lanes){0} + then) & (bits)where) | ((bits)otherwise & ~(bits)where));
}

static inline lanes exponential(lanes x) {
    x = choose(x < -87.0f, -87.0f, x);
    x = choose(x > 88.0f, 88.0f, x);
    lanes n = x * 1.44269504088896341f + 12582912.0f; /* adding 1.5 x 2^23 rounds to a whole number */
    bits exponent = (bits)n;
    n -= 12582912.0f;
    lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
    lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (lanes)((bits)p + (exponent << 23));
}

/* -- linear layers --------------------------------------------------------------------------------------- */

/* What a linear layer is given: rows of numbers, and the same rounded to bfloat16 where products are of those. */
typedef struct {
    const float *numbers;
    uint32_t *rounded; /* pairs, two numbers each; NULL: products are float32 */
} Input;

/* out[r, 0..BLOCK - 1] of one block of outputs for `rows` <= TILE_ROWS rows of `pairs` x 2 inputs. The weights stream
   by once and stay in registers for all rows; four sums a row, for the next product must not wait for the last. */
static inline __attribute__((always_inline)) void tile(
    const uint32_t *weight, const float *x, int pairs, float *out, const int rows) {
    lanes total[TILE_ROWS][2][2] = {0};
    for (int i = 0; i < pairs; i++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, weight += LANES) {
            const bits pair = *(const bits *)weight;
            const lanes even = (lanes)(pair << 16), odd = (lanes)(pair & 0xffff0000u);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                total[r][half][0] += even * x[((size_t)r * pairs + i) * 2];
                total[r][half][1] += odd * x[((size_t)r * pairs + i) * 2 + 1];
            }
        }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) store(out + r * BLOCK + half * LANES, total[r][half][0] + total[r][half][1]);
}

#if defined(__AVX512BF16__)
#include <immintrin.h>
const int32_t rounds = 1; /* this processor multiplies pairs of bfloat16, and sums in float32 */

/* The same with the inputs rounded: one instruction for 32 products. */
static inline __attribute__((always_inline)) void tile_rounded(
    const uint32_t *weight, const uint32_t *x, int pairs, float *out, const int rows) {
    __m512 total[TILE_ROWS][2] = {0};
    for (int i = 0; i < pairs; i++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, weight += LANES) {
            const __m512bh w = (__m512bh)_mm512_loadu_si512(weight);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                total[r][half] =
                    _mm512_dpbf16_ps(total[r][half], w, (__m512bh)_mm512_set1_epi32((int)x[(size_t)r * pairs + i]));
        }
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) _mm512_storeu_ps(out + r * BLOCK + half * LANES, total[r][half]);
}
#else
const int32_t rounds = 0;
static inline void tile_rounded(const uint32_t *weight, const uint32_t *x, int pairs, float *out, const int rows) {
    (void)weight, (void)x, (void)pairs, (void)out, (void)rows; /* never asked for */
}
#endif

static inline __attribute__((always_inline)) void tile_of(
    const uint32_t *weight, const Input *input, int first, int pairs, float *out, const int rows) {
    if (input->rounded)
        tile_rounded(weight, input->rounded + (size_t)first * pairs, pairs, out, rows);
    else
        tile(weight, input->numbers + (size_t)first * pairs * 2, pairs, out, rows);
}

/* One block of outputs for any number of rows: out [rows, BLOCK]. */
static void block_of(const Linear *linear, int block, const Input *input, int rows, float *out) {
    const int pairs = linear->inputs / 2;
    const uint32_t *weight = linear->weight + (size_t)block * pairs * BLOCK;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int t = 0, r = 0; t < tiles; t++) {
        const int count = (rows - r) / (tiles - t); /* equal shares */
        float *to = out + r * BLOCK;
        switch (count) {
        case 1: tile_of(weight, input, r, pairs, to, 1); break;
        case 2: tile_of(weight, input, r, pairs, to, 2); break;
#if defined(__AVX512F__) || defined(__aarch64__)
        case 3: tile_of(weight, input, r, pairs, to, 3); break;
        case 4: tile_of(weight, input, r, pairs, to, 4); break;
        case 5: tile_of(weight, input, r, pairs, to, 5); break;
#endif
        case TILE_ROWS: tile_of(weight, input, r, pairs, to, TILE_ROWS); break;
        }
        r += count;
    }
    if (linear->bias)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < BLOCK && block * BLOCK + i < linear->outputs; i++)
                out[r * BLOCK + i] += linear->bias[block * BLOCK + i];
}

static uint16_t to_bfloat16(float x) { /* to the nearest, ties to even; NaN stays NaN */
    union { float f; uint32_t u; } both = {x};
    return x == x ? (both.u + 0x7fff + (both.u >> 16 & 1)) >> 16 : 0x7fc0;
}

/* Let `x`, `count` numbers, be the input of what follows. Every thread rounds for itself. */
static void take(Input *input, const float *x, size_t count) {
    input->numbers = x;
    if (input->rounded)
        for (size_t i = 0; i < count / 2; i++)
            input->rounded[i] = to_bfloat16(x[2 * i]) | (uint32_t)to_bfloat16(x[2 * i + 1]) << 16;
}

static int blocks_of(const Linear *linear) { return (linear->outputs + BLOCK - 1) / BLOCK; }

/* y = x W^T + b, or y += with `add`. Threads share the blocks and go on without waiting for each other. */
static void apply(const Linear *linear, const Input *input, int rows, float *y, int add, float *out) {
#pragma omp for schedule(static) nowait
    for (int block = 0; block < blocks_of(linear); block++) {
        block_of(linear, block, input, rows, out);
        const int first = block * BLOCK;
        const int width = linear->outputs - first < BLOCK ? linear->outputs - first : BLOCK;
        for (int r = 0; r < rows; r++) {
            float *to = y + (size_t)r * linear->outputs + first;
            if (add)
                for (int i = 0; i < width; i++) to[i] += out[r * BLOCK + i];
            else
                memcpy(to, out + r * BLOCK, width * sizeof(float));
        }
    }
}

/* y = silu(gate(x)) * up(x): SwiGLU (Shazeer, 2002.05202). */
static void gated(const Layer *layer, const Input *input, int rows, float *y, float *out) {
    const int outputs = layer->gate.outputs;
    float *other = out + (size_t)rows * BLOCK;
#pragma omp for schedule(static) nowait
    for (int block = 0; block < blocks_of(&layer->gate); block++) {
        block_of(&layer->gate, block, input, rows, out);
        block_of(&layer->up, block, input, rows, other);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < BLOCK && block * BLOCK + i < outputs; i += LANES) {
                lanes g = load(out + r * BLOCK + i), u = load(other + r * BLOCK + i);
                store(y + (size_t)r * outputs + block * BLOCK + i, g / (1.0f + exponential(-g)) * u);
            }
    }
}

/* RMSNorm (Zhang and Sennrich, 1910.07467) of `rows` vectors of n numbers. */
static void normalise(const float *x, const float *weight, float epsilon, int rows, int n, float *y) {
    for (int r = 0; r < rows; r++, x += n, y += n) {
        const float factor = 1.0f / sqrtf(dot(x, x, n) / n + epsilon);
        for (int i = 0; i < n; i += LANES) store(y + i, load(x + i) * factor * load(weight + i));
    }
}

/* -- the cache: what lab/kv/storage.py's formats do, one head's vector at a time ---------------------------- */

static float from_bfloat16(uint16_t x) {
    union { uint32_t u; float f; } both = {(uint32_t)x << 16};
    return both.f;
}

/* NaN counts as infinite, so that the vector does not come back as finite. */
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

static void write_slot(
    const Storage *storage, uint8_t *numbers, uint8_t *scales, int64_t slot, int head, const float *x, int n) {
    const int64_t scale = slot * storage->scale_stride + head * storage->head_scales;
    switch (storage->format) {
    case NATIVE: memcpy((float *)numbers + slot * storage->slot_stride + head * n, x, n * sizeof(float)); break;
    case INT8:
        write_int8((int8_t *)numbers + slot * storage->slot_stride + head * n, (float *)scales + scale, x, n);
        break;
    case INT4:
        write_int4(numbers + slot * storage->slot_stride + head * n / 2, (uint16_t *)scales + scale, x, n,
                   storage->group);
    }
}

/* A slot's vector as float32: where it lies, or dequantised into `buffer`. */
static const float *read_slot(
    const Storage *storage, const uint8_t *numbers, const uint8_t *scales, int64_t slot, int head, int n,
    float *buffer) {
    const int64_t scale_at = slot * storage->scale_stride + head * storage->head_scales;
    if (storage->format == NATIVE) return (const float *)numbers + slot * storage->slot_stride + head * n;
    if (storage->format == INT8) {
        const int8_t *from = (const int8_t *)numbers + slot * storage->slot_stride + head * n;
        const float scale = ((const float *)scales)[scale_at];
        for (int i = 0; i < n; i++) buffer[i] = from[i] * scale;
        return buffer;
    }
    const uint8_t *from = numbers + slot * storage->slot_stride + head * n / 2;
    for (int i = 0; i < n; i += 2) {
        const float scale = from_bfloat16(((const uint16_t *)scales)[scale_at + i / storage->group]);
        buffer[i] = ((from[i / 2] & 15) - 8) * scale;
        buffer[i + 1] = ((from[i / 2] >> 4) - 8) * scale;
    }
    return buffer;
}

/* -- attention ------------------------------------------------------------------------------------------- */

static void rotate(float *x, const float *cosine, const float *sine, int n) {
    const int half = n / 2;
    for (int i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i + half] + a * sine[i + half];
    }
}

/* The new tokens of sequence s and one KV head: rotate, store, attend. Positions go by in tiles with a running
   maximum and sum (FlashAttention: Dao et al., 2205.14135), read through the block table (PagedAttention: Kwon et
   al., 2309.06180), each once for all query heads and new tokens that see it.
   query [rows, heads, d] is overwritten with its output; key and value [rows, kv_heads, d]. */
static void attend(
    const Model *model, const Layer *layer, const Storage *storage, const Slots *slots, const Plan *plan, int s,
    int first_row, int kv_head, float *query, float *key, float *value) {
    const int d = model->head_dim, shared = model->heads / model->kv_heads;
    const int count = plan->counts[s], start = plan->starts[s], queries = count * shared;
    const int32_t *table = plan->tables + (size_t)s * plan->height;
    const size_t q_row = (size_t)model->heads * d, kv_row = (size_t)model->kv_heads * d;
    query += first_row * q_row + (size_t)kv_head * shared * d;
    key += first_row * kv_row + (size_t)kv_head * d;
    value += first_row * kv_row + (size_t)kv_head * d;

    for (int t = 0; t < count; t++) {
        const int position = start + t;
        const float *cosine = model->cosine + (size_t)position * d, *sine = model->sine + (size_t)position * d;
        float *k = key + t * kv_row;
        if (layer->key_norm) normalise(k, layer->key_norm, model->epsilon, 1, d, k);
        rotate(k, cosine, sine, d);
        for (int h = 0; h < shared; h++) {
            float *q = query + t * q_row + (size_t)h * d;
            if (layer->query_norm) normalise(q, layer->query_norm, model->epsilon, 1, d, q);
            rotate(q, cosine, sine, d);
        }
        const int64_t slot = (int64_t)table[position / plan->block_size] * plan->block_size
                             + position % plan->block_size;
        write_slot(storage, slots->keys, slots->key_scales, slot, kv_head, k, d);
        write_slot(storage, slots->values, slots->value_scales, slot, kv_head, value + t * kv_row, d);
    }

    float maximum[queries], total[queries];
    float *found = calloc((size_t)queries * d, sizeof(float));
    float keys[TILE_COLUMNS * d], values[TILE_COLUMNS * d];
    for (int j = 0; j < queries; j++) maximum[j] = -INFINITY, total[j] = 0;
    for (int begin = 0; begin < start + count; begin += TILE_COLUMNS) {
        const int columns = start + count - begin < TILE_COLUMNS ? start + count - begin : TILE_COLUMNS;
        const float *k[TILE_COLUMNS], *v[TILE_COLUMNS];
        for (int c = 0; c < columns; c++) {
            const int position = begin + c;
            const int64_t slot = (int64_t)table[position / plan->block_size] * plan->block_size
                                 + position % plan->block_size;
            k[c] = read_slot(storage, slots->keys, slots->key_scales, slot, kv_head, d, keys + c * d);
            v[c] = read_slot(storage, slots->values, slots->value_scales, slot, kv_head, d, values + c * d);
        }
        for (int j = 0; j < queries; j++) {
            const float *q = query + (j / shared) * q_row + (size_t)(j % shared) * d;
            const int position = start + j / shared;
            const int seen = position - begin + 1 < columns ? position - begin + 1 : columns;
            if (seen <= 0) continue;
            float score[TILE_COLUMNS], newest = maximum[j];
            for (int c = 0; c < TILE_COLUMNS; c++) {
                score[c] = c < seen ? dot(q, k[c], d) * model->scaling : -INFINITY;
                newest = score[c] > newest ? score[c] : newest;
            }
            const float shrink = expf(maximum[j] - newest);
            maximum[j] = newest;
            for (int c = 0; c < TILE_COLUMNS; c += LANES) store(score + c, exponential(load(score + c) - newest));
            for (int c = seen; c < TILE_COLUMNS; c++) score[c] = 0; /* e^-87 is not quite */
            lanes weight = {0};
            for (int c = 0; c < TILE_COLUMNS; c += LANES) weight += load(score + c);
            total[j] = total[j] * shrink + sum(weight);
            for (int i = 0; i < d; i += LANES) {
                lanes x = load(found + (size_t)j * d + i) * shrink;
                for (int c = 0; c < seen; c++) x += score[c] * load(v[c] + i);
                store(found + (size_t)j * d + i, x);
            }
        }
    }
    for (int j = 0; j < queries; j++)
        for (int i = 0; i < d; i += LANES)
            store(query + (j / shared) * q_row + (size_t)(j % shared) * d + i, load(found + (size_t)j * d + i) / total[j]);
    free(found);
}

/* -- the step -------------------------------------------------------------------------------------------- */

/* The first `layers` layers, the last norm and the head. logits [kept, vocabulary]. Returns 0, or 1 if there
   is no memory. */
int forward(
    const Model *model, int layers, const Storage *storage, const Plan *plan, float *logits, int threads) {
    const int rows = plan->rows, hidden = model->hidden, d = model->head_dim;
    const size_t q_row = (size_t)model->heads * d, kv_row = (size_t)model->kv_heads * d;
    const int wide = model->layer[0].gate.outputs;
    float *memory = malloc((rows * (hidden + q_row + 2 * kv_row + wide)) * sizeof(float));
    if (!memory) return 1;
    float *x = memory, *query = x + (size_t)rows * hidden, *key = query + rows * q_row, *value = key + rows * kv_row,
          *inner = value + rows * kv_row;
    for (int r = 0; r < rows; r++)
        memcpy(x + (size_t)r * hidden, model->embedding + plan->token_ids[r] * hidden, hidden * sizeof(float));

    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        /* Every thread normalises for itself: cheaper than waiting for another one's result. */
        const size_t most = hidden + q_row + wide; /* of a linear layer's inputs, and to spare */
        float *mine = malloc(rows * (hidden + 2 * BLOCK + most / 2) * sizeof(float));
        float *normed = mine, *out = mine + (size_t)rows * hidden;
        Input input = {NULL, model->rounded ? (uint32_t *)(out + (size_t)rows * 2 * BLOCK) : NULL};
        if (!mine) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp barrier
        if (!failed) {
            for (int l = 0; l < layers; l++) {
                const Layer *layer = model->layer + l;
                normalise(x, layer->attention_norm, model->epsilon, rows, hidden, normed);
                take(&input, normed, (size_t)rows * hidden);
                apply(&layer->query, &input, rows, query, 0, out);
                apply(&layer->key, &input, rows, key, 0, out);
                apply(&layer->value, &input, rows, value, 0, out);
#pragma omp barrier
#pragma omp for schedule(dynamic)
                for (int task = 0; task < plan->sequences * model->kv_heads; task++) {
                    const int s = task / model->kv_heads;
                    int first_row = 0;
                    for (int i = 0; i < s; i++) first_row += plan->counts[i];
                    attend(model, layer, storage, storage->layer + l, plan, s, first_row, task % model->kv_heads, query,
                           key, value);
                }
                take(&input, query, rows * q_row);
                apply(&layer->output, &input, rows, x, 1, out);
#pragma omp barrier
                normalise(x, layer->mlp_norm, model->epsilon, rows, hidden, normed);
                take(&input, normed, (size_t)rows * hidden);
                gated(layer, &input, rows, inner, out);
#pragma omp barrier
                take(&input, inner, (size_t)rows * wide);
                apply(&layer->down, &input, rows, x, 1, out);
#pragma omp barrier
            }
            for (int i = 0; i < plan->kept; i++)
                normalise(x + (size_t)plan->keep[i] * hidden, model->final_norm, model->epsilon, 1, hidden,
                          normed + (size_t)i * hidden);
            take(&input, normed, (size_t)plan->kept * hidden);
            apply(&model->head, &input, plan->kept, logits, 0, out);
        }
        free(mine);
    }
    free(memory);
    return failed;
}
