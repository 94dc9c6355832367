/* Every call that Python makes into step.c, on memory of exactly the right size, with odd sizes and with numbers that
   are not finite. Compiled with AddressSanitizer (test_builds.py): an index outside its array ends the program. */
#include <stdio.h>

#include "step.c"

#define REQUIRE(holds, ...) \
    if (!(holds)) return printf("%s does not hold: ", #holds), printf(__VA_ARGS__), printf("\n"), exit(1)

static uint32_t seed = 1;
static float random_float(void) { /* in [-1, 1), exact in bfloat16 */
    seed = seed * 1664525u + 1013904223u;
    return ((int)(seed >> 25) - 64) / 64.0f;
}

static float *floats(size_t count, float scale) {
    float *made = malloc(count * sizeof(float));
    for (size_t i = 0; i < count; i++) made[i] = scale * random_float();
    return made;
}

enum { KINDS = 10 };
static void fill(float *row, int n, int kind) {
    const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < n; i++) row[i] = kind == 0 ? 0 : kind < 4 ? odd[kind - 1] : 4 * random_float();
    if (kind > 4 && kind < 8) row[kind == 5 ? 0 : kind == 6 ? n / 2 : n - 1] = NAN;
    if (kind >= 8) row[n / 2] = odd[kind - 7];
}

static const Sampling samplings[] = {{0, 0, 1}, {0.8f, 0, 1}, {1, 1, 1}, {1, 3, 1}, {1, 0, 0.5f}, {1, 40, 1e-3f}};
enum { SAMPLINGS = sizeof samplings / sizeof *samplings };
static const double ends[] = {0, 0.5, 1 - 0x1p-53};

static void check_sample(int n) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int how = 0; how < SAMPLINGS; how++)
            for (int end = 0; end < 4; end++) {
                float *logits = floats(2 * n, 3), *p = floats(2 * n, 0);
                double *u = malloc(2 * sizeof(double));
                int64_t *tokens = malloc(2 * sizeof(int64_t));
                int32_t *places = malloc(2 * sizeof(int32_t));
                fill(logits, n, kind);
                u[0] = u[1] = ends[end % 3], places[0] = 1, places[1] = 0;
                const Sampling both[] = {samplings[how], samplings[(how + 1) % SAMPLINGS]};
                const Choices choices = {both, 1, end < 3 ? u : NULL};
                sample(logits, 2, n, end ? places : NULL, &choices, p, tokens, n == LANES ? 2 : 1);
                for (int i = 0; i < 2; i++)
                    REQUIRE(0 <= tokens[i] && tokens[i] < n, "token %d of %d, kind %d", (int)tokens[i], n, kind);
                free(logits), free(p), free(u), free(tokens), free(places);
            }
}

static void check_verify(int n) {
    for (int kind = 0; kind < KINDS * 4; kind++)
        for (int how = 0; how < SAMPLINGS; how++) {
            enum { ROUNDS = 3 };
            const int drafts[ROUNDS] = {3, 0, 1}, total = 3 + 0 + 1 + ROUNDS;
            const int logprobs = (kind + how) % 3 * n / 2, share = listed_tokens(logprobs) * FIGURES + 1;
            float *logits = floats((size_t)total * n, 3), *p = floats(total, 1), *q = floats(total, 1);
            Verdict *verdicts = malloc(ROUNDS * sizeof(Verdict));
            Round *rounds = calloc(ROUNDS, sizeof(Round));
            for (int r = 0; r < total; r++)
                if (r % 2 == kind % 2) fill(logits + (size_t)r * n, n, kind % KINDS);
            for (int i = 0; i < ROUNDS; i++) {
                const int g = drafts[i];
                float *drafted = malloc((size_t)g * n * sizeof(float));
                double *u = malloc((g + 1) * UNIFORMS * sizeof(double));
                int64_t *tokens = malloc(g * sizeof(int64_t));
                for (int j = 0; j < g; j++) {
                    fill(drafted + (size_t)j * n, n, (kind / 2 + j) % KINDS);
                    for (int t = 0; t < n; t++) drafted[(size_t)j * n + t] = fabsf(drafted[(size_t)j * n + t]) / n;
                    tokens[j] = j % 2 ? 0 : n - 1;
                }
                for (int j = 0; j < (g + 1) * UNIFORMS; j++) u[j] = ends[(j + kind) % 3];
                const float *from = i + kind / 2 % 2 ? drafted : NULL;
                const int method = from ? (kind + i) % 3 : BY_TOKEN; /* the other rules need q */
                float *evidence = malloc((2 * (size_t)g + 1) * sizeof(float));
                rounds[i] = (Round){g, samplings[how], tokens, from, u, method, evidence, logprobs, NULL};
                if (!from) free(drafted);
                if (logprobs && g) rounds[i].figures = floats((size_t)g * share, 0);
                rounds[i].top_tokens = 1 + kind % 3 * n;
                rounds[i].top = floats((size_t)(g + 1) * (2 * rounds[i].top_tokens + 1), 0);
            }
            verify(logits, n, rounds, ROUNDS, verdicts, p, q, n == LANES ? 2 : 1);
            for (int i = 0; i < ROUNDS; i++) {
                const Verdict its = verdicts[i];
                REQUIRE(0 <= its.accepted && its.accepted <= drafts[i], "%d of %d", its.accepted, drafts[i]);
                REQUIRE(0 <= its.next_token && its.next_token < n, "token %d of %d, kind %d", its.next_token, n, kind);
                for (int j = 0; rounds[i].figures && j < (its.accepted < drafts[i] ? its.accepted + 1 : drafts[i]); j++)
                    for (int t = 0; t < listed_tokens(logprobs); t++) {
                        const float id = rounds[i].figures[j * (share - 1) + t * FIGURES];
                        REQUIRE(0 <= id && id < n, "id %f of %d, kind %d", id, n, kind);
                    }
                free((void *)rounds[i].draft_tokens), free((void *)rounds[i].q), free((void *)rounds[i].u);
                for (int t = 0; t < (its.accepted + 1) * rounds[i].top_tokens; t++) {
                    const float id = rounds[i].top[2 * t];
                    REQUIRE(-1 <= id && id < n, "likeliest id %f of %d, kind %d", id, n, kind);
                }
                free(rounds[i].figures), free(rounds[i].evidence), free(rounds[i].top);
            }
            free(logits), free(p), free(q), free(verdicts), free(rounds);
        }
}

static Linear linear(int inputs, int outputs, int bias) {
    const size_t blocks = (outputs + BLOCK - 1) / BLOCK, count = blocks * BLOCK * inputs / 2;
    uint32_t *weight = malloc(count * sizeof(uint32_t));
    for (size_t i = 0; i < count; i++)
        weight[i] = (uint32_t)to_bfloat16(random_float()) << 16 | to_bfloat16(random_float());
    return (Linear){weight, bias ? floats(outputs, 1) : NULL, inputs, outputs};
}

static void free_linear(Linear *linear) { free((void *)linear->weight), free((void *)linear->bias); }

enum { MODEL, EAGLE3_HEAD, MTP_HEAD, FAMILIES };

/* A model of random weights or a head, its cache in one of the formats, and three sequences of which two have known
   tokens. A head drafts the last tokens of the vocabulary. */
static void check_forward(int family, int d, int n, int format, int block_size, int rounded, int odd) {
    enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, HIDDEN = 48, INNER = 80, SEQUENCES = 3, WIDTH = 5 };
    const int starts[SEQUENCES] = {family != MODEL, 31, 5}, counts[SEQUENCES] = {17, 2, 1}, windows[SEQUENCES] = {1, 5, 3};
    const int rows = 20, context = 40, height = (context + block_size - 1) / block_size;
    const int slots = SEQUENCES * height * block_size, group = 16, groups = format == INT4 ? d / group : 1;
    const int outputs = family == EAGLE3_HEAD ? n / 2 : n, width = family == EAGLE3_HEAD ? 2 * HIDDEN : HIDDEN;
    Layer *layers = malloc(LAYERS * sizeof(Layer));
    Slots *cache = calloc(LAYERS, sizeof(Slots));
    const int bytes = format == PLAIN ? 4 * d : format == INT8 ? d : d / 2, scale = format == INT8 ? 4 : 2;
    for (int l = 0; l < LAYERS; l++) {
        layers[l] = (Layer){
            floats(HIDDEN, 1), floats(HIDDEN, 1), l ? floats(d, 1) : NULL, l ? floats(d, 1) : NULL,
            linear(width, HEADS * d, 1), linear(width, KV_HEADS * d, 0), linear(width, KV_HEADS * d, 1),
            linear(HEADS * d, HIDDEN, 0), linear(HIDDEN, INNER, 1), linear(HIDDEN, INNER, 0), linear(INNER, HIDDEN, 1)};
        cache[l] = (Slots){.format = format, .group = group, .slot_bytes = (int64_t)KV_HEADS * bytes, .head_bytes = bytes,
                           .slot_scales = KV_HEADS * groups, .head_scales = groups};
        uint8_t **parts[] = {&cache[l].keys, &cache[l].values, &cache[l].key_scales, &cache[l].value_scales};
        for (int i = 0; i < 4; i++)
            if (i < 2 || format != PLAIN)
                *parts[i] = calloc((size_t)slots * KV_HEADS * (i < 2 ? bytes : groups * scale), 1);
    }
    Model model = {HIDDEN, HEADS, KV_HEADS, d, n, 1e-5f, 0.25f, rounded, floats((size_t)n * HIDDEN, 1), floats(HIDDEN, 1),
                   floats((size_t)context * d, 1), floats((size_t)context * d, 1), layers, linear(HIDDEN, outputs, 0)};
    Chain chain = {.norm_before_residual = odd, .norm_output = !odd};
    int64_t *ids = malloc(outputs * sizeof(int64_t));
    for (int i = 0; i < outputs; i++) ids[i] = n - outputs + i;
    if (family != MODEL) {
        chain.embedding_norm = floats(HIDDEN, 1), chain.hidden_norm = floats(HIDDEN, 1);
        model.chain = &chain, model.target_ids = ids;
    }
    if (family == MTP_HEAD)
        chain = (Chain){chain.embedding_norm, chain.hidden_norm, .join = linear(2 * HIDDEN, HIDDEN, 0),
                        .hidden_first = odd, .norm_output = 1};
    else if (family != MODEL) chain.fuse = linear(3 * HIDDEN, HIDDEN, 0);
    if (odd) ((float *)model.embedding)[(n - 1) * HIDDEN] = NAN;
    int32_t *tables = malloc(sizeof(int32_t) * SEQUENCES * height), *keep = malloc(sizeof(int32_t) * SEQUENCES);
    int64_t *token_ids = malloc(sizeof(int64_t) * rows), *tokens = malloc(sizeof(int64_t) * SEQUENCES * WIDTH);
    for (int i = 0; i < SEQUENCES * height; i++) tables[i] = SEQUENCES * height - 1 - i;
    for (int i = 0; i < rows; i++) token_ids[i] = i % 2 ? n - 1 : i % n;
    keep[0] = 16, keep[1] = 18, keep[2] = 19;
    Plan plan = {SEQUENCES, rows, SEQUENCES, block_size, height, starts, counts, tables, token_ids, keep};
    if (chain.fuse.weight) plan.given = floats((size_t)rows * 3 * HIDDEN, 1);
    else plan.fused = floats((size_t)rows * HIDDEN, 1);
    float *logits = floats((size_t)SEQUENCES * outputs, 0), *q = floats((size_t)SEQUENCES * WIDTH * n, 0);
    REQUIRE(!forward(&model, LAYERS, cache, &plan, logits, 1 + odd), "memory");
    const Choices choices = {samplings, WIDTH, NULL};
    REQUIRE(!decode_ahead(&model, LAYERS, cache, &plan, windows, WIDTH, &choices, tokens, q, 1 + odd), "memory");
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i < windows[s]; i++)
            REQUIRE((odd ? 0 : n - outputs) <= tokens[s * WIDTH + i] && tokens[s * WIDTH + i] < n, "token %d", (int)tokens[s * WIDTH + i]);
    plan.kept = 0;
    REQUIRE(!forward(&model, LAYERS - 1, cache, &plan, NULL, 1), "memory");
    for (int l = 0; l < LAYERS; l++) {
        Linear *all[] = {&layers[l].query, &layers[l].key, &layers[l].value, &layers[l].output,
                         &layers[l].gate, &layers[l].up, &layers[l].down};
        for (int i = 0; i < 7; i++) free_linear(all[i]);
        free((void *)layers[l].attention_norm), free((void *)layers[l].mlp_norm);
        free((void *)layers[l].query_norm), free((void *)layers[l].key_norm);
        free(cache[l].keys), free(cache[l].values), free(cache[l].key_scales), free(cache[l].value_scales);
    }
    free_linear(&model.head), free((void *)model.embedding), free((void *)model.final_norm);
    free((void *)model.cosine), free((void *)model.sine), free(layers), free(cache);
    if (chain.join.weight) free_linear(&chain.join);
    if (chain.fuse.weight) free_linear(&chain.fuse);
    free((void *)chain.embedding_norm), free((void *)chain.hidden_norm), free(ids), free((void *)plan.fused), free((void *)plan.given);
    free(tables), free(keep), free(token_ids), free(tokens), free(logits), free(q);
}

/* Blocks of a DSpark head that drafts the last tokens of the vocabulary. */
static void check_blocks(int n, int rounded, int odd) {
    enum { RANK = 16, SEQUENCES = 3, ROWS = 8 };
    const int32_t windows[SEQUENCES] = {5, 1, 2};
    const int outputs = n / 2 + 1;
    const Markov markov = {floats((size_t)n * RANK, 1), linear(RANK, outputs, 0)};
    int64_t *newest = malloc(SEQUENCES * sizeof(int64_t)), *ids = malloc(outputs * sizeof(int64_t));
    int64_t *tokens = malloc(ROWS * sizeof(int64_t));
    double *u = malloc(ROWS * sizeof(double));
    float *logits = floats((size_t)ROWS * outputs, 3), *q = floats((size_t)ROWS * n, 0);
    Sampling sampling[ROWS];
    for (int i = 0; i < SEQUENCES; i++) newest[i] = i % 2 ? n - 1 : 0;
    for (int i = 0; i < outputs; i++) ids[i] = n - outputs + i;
    for (int i = 0; i < ROWS; i++) sampling[i] = samplings[i % SAMPLINGS], u[i] = ends[i % 3];
    if (odd) fill(logits + (size_t)2 * outputs, outputs, 1);
    const Model model = {.vocabulary = n, .rounded = rounded, .head.outputs = outputs, .target_ids = ids,
                         .markov = &markov};
    const Choices choices = {sampling, 1, odd ? NULL : u};
    REQUIRE(!choose_in_turn(&model, logits, windows, newest, SEQUENCES, &choices, tokens, q, 1 + odd), "memory");
    for (int i = 0; i < ROWS; i++)
        REQUIRE((odd && i == 2 ? 0 : n - outputs) <= tokens[i] && tokens[i] < n, "token %d",
                (int)tokens[i]);
    free((void *)markov.first), free_linear((Linear *)&markov.second);
    free(newest), free(ids), free(tokens), free(u), free(logits), free(q);
}

int main(void) {
    const int sizes[] = {1, 2, 3, LANES - 1, LANES, LANES + 1, 2 * LANES, 3 * LANES - 1, 4 * LANES, 70};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++) check_sample(sizes[i]), check_verify(sizes[i]);
    int cases = 0;
    for (int format = PLAIN; format <= INT4; format++)
        for (int d = 16; d <= 64; d *= 2)
            for (int odd = 0; odd < 2; odd++, cases++) {
                const int n = cases % 3 ? 37 : 2 * BLOCK, block_size = (int[]){1, 3, 16}[(cases + format) % 3];
                for (int rounded = 0; rounded <= has_bfloat16_products; rounded++) {
                    for (int family = MODEL; family < FAMILIES; family++)
                        check_forward(family, d, n, format, block_size, rounded, odd);
                    check_blocks(n, rounded, odd);
                }
            }
    printf("%d lanes, bfloat16 %d\n", LANES, has_bfloat16_products);
    return 0;
}
