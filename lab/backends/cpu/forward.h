/* The forward pass: the layers in order, on all threads. */
#pragma once
#include "attention.h"

/* A forward pass as its threads see it. The matrices are shared: [rows, ...]. */
typedef struct {
    const Model *model;
    const Slots *storage; /* [layers] */
    const Plan *plan;
    float *x, *query, *key, *value, *inner, *logits;
    int *claimed; /* [layers]: how many heads of attention threads have claimed */
    int layers, failed;
} Forward;

/* The new tokens of sequence s in layer l, as KV head `head` sees them. `row`: of the first one. */
static Task task_of(const Forward *shared, int l, int s, int head, int row) {
    const Model *model = shared->model;
    const Plan *plan = shared->plan;
    const size_t d = model->head_dim, q_row = model->heads * d, kv_row = model->kv_heads * d;
    return (Task){
        .model = model, .slots = shared->storage + l, .head = head,
        .table = plan->tables + (size_t)s * plan->height, .block_size = plan->block_size,
        .start = plan->starts[s], .count = plan->counts[s],
        .query = shared->query + row * q_row + head * (model->heads / model->kv_heads) * d,
        .key = shared->key + row * kv_row + head * d, .value = shared->value + row * kv_row + head * d,
    };
}

static void attend_all(const Forward *shared, int l, float *output, Softmax *softmax) {
    const Model *model = shared->model;
    const Plan *plan = shared->plan;
    for (int task; (task = claim_next(shared->claimed + l)) < plan->sequences * model->kv_heads;) {
        const int s = task / model->kv_heads;
        int row = 0;
        for (int i = 0; i < s; i++) row += plan->counts[i];
        const Task head_task = task_of(shared, l, s, task % model->kv_heads, row);
        attend(&head_task, model->layer + l, output, softmax);
    }
}

/* Copy what enters layer l, or leaves the one before, if that is wanted: a thread's share of the rows. */
static void show_states(const Plan *plan, const float *x, int hidden, int l) {
    for (int t = 0; t < plan->num_tapped; t++)
        for (int r = share_begin(plan->rows); plan->tapped[t] == l && r < share_end(plan->rows); r++)
            memcpy(plan->states + ((size_t)r * plan->num_tapped + t) * hidden, x + (size_t)r * hidden,
                   hidden * sizeof(float));
}

/* What the head of a chain takes in: each token's embedding and hidden states `x` [rows, hidden], normed, side by side. */
static void norm_both(const Model *model, const Plan *plan, const float *x, float *normed) {
    const Chain *chain = model->chain;
    const int hidden = model->hidden;
    for (int r = 0; r < plan->rows; r++, x += hidden, normed += 2 * hidden) {
        rms_norm(model->embedding + plan->token_ids[r] * hidden, chain->embedding_norm, model->epsilon, 1, hidden,
                 normed + (chain->hidden_first ? hidden : 0));
        rms_norm(x, chain->hidden_norm, model->epsilon, 1, hidden,
                 normed + (chain->hidden_first ? 0 : hidden));
    }
}

/* A thread's part of a forward pass. Every thread normalises all rows: cheaper than waiting for another's result. */
static void forward_thread(void *argument) {
    Forward *shared = argument;
    const Model *model = shared->model;
    const Plan *plan = shared->plan;
    const int rows = plan->rows, hidden = model->hidden;
    const size_t q_row = (size_t)model->heads * model->head_dim, group = model->heads / model->kv_heads;
    const int intermediate = model->layer[0].gate.outputs;
    const Chain *chain = model->chain;
    const int joins = chain && chain->join.weight, attends_to_both = chain && !joins;
    const size_t width = chain ? 2 * hidden : hidden, given = plan->given ? chain->fuse.inputs : 0;
    const size_t inputs = width + q_row + intermediate + given; /* at least those of any linear layer */
    const size_t row = (width + q_row + 2 * BLOCK + inputs / 2) * sizeof(float) + group * sizeof(Softmax);
    float *memory = malloc(rows * row);
    float *normed = memory, *output = normed + rows * width, *out = output + rows * q_row;
    Softmax *softmax = (Softmax *)(out + (size_t)rows * 2 * BLOCK);
    Input input = {NULL, model->rounded ? (uint32_t *)(softmax + rows * group) : NULL};
    if (!memory) __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
    barrier();
    if (shared->failed) {
        free(memory);
        return;
    }
    if (plan->given) {
        set_input(&input, plan->given, rows * given);
        linear_layer(&chain->fuse, &input, rows, shared->x, 0, out);
        barrier();
    }
    if (joins) {
        norm_both(model, plan, plan->fused, normed);
        set_input(&input, normed, rows * width);
        linear_layer(&chain->join, &input, rows, shared->x, 0, out);
        barrier();
    }
    for (int l = 0; l < shared->layers; l++) {
        const Layer *layer = model->layer + l;
        show_states(plan, shared->x, hidden, l);
        if (attends_to_both) norm_both(model, plan, shared->x, normed);
        else rms_norm(shared->x, layer->attention_norm, model->epsilon, rows, hidden, normed);
        set_input(&input, normed, rows * (attends_to_both ? width : (size_t)hidden));
        linear_layer(&layer->query, &input, rows, shared->query, 0, out);
        linear_layer(&layer->key, &input, rows, shared->key, 0, out);
        linear_layer(&layer->value, &input, rows, shared->value, 0, out);
        barrier();
        if (chain && chain->norm_before_residual)
            for (int r = share_begin(rows); r < share_end(rows); r++)
                memcpy(shared->x + (size_t)r * hidden, normed + r * width + hidden, hidden * sizeof(float));
        attend_all(shared, l, output, softmax);
        barrier();
        set_input(&input, shared->query, rows * q_row);
        linear_layer(&layer->output, &input, rows, shared->x, 1, out);
        barrier();
        rms_norm(shared->x, layer->mlp_norm, model->epsilon, rows, hidden, normed);
        set_input(&input, normed, (size_t)rows * hidden);
        swiglu(layer, &input, rows, shared->inner, out);
        barrier();
        set_input(&input, shared->inner, (size_t)rows * intermediate);
        linear_layer(&layer->down, &input, rows, shared->x, 1, out);
        barrier();
    }
    show_states(plan, shared->x, hidden, shared->layers);
    for (int i = 0; i < plan->kept; i++)
        rms_norm(shared->x + (size_t)plan->keep[i] * hidden, model->final_norm, model->epsilon, 1, hidden,
                  normed + (size_t)i * hidden);
    for (int i = share_begin(plan->kept); plan->last && i < share_end(plan->kept); i++)
        memcpy(plan->last + (size_t)i * hidden,
               chain->norm_output ? normed + (size_t)i * hidden : shared->x + (size_t)plan->keep[i] * hidden,
               hidden * sizeof(float));
    set_input(&input, normed, (size_t)plan->kept * hidden);
    linear_layer(&model->head, &input, plan->kept, shared->logits, 0, out);
    free(memory);
}

/* The first `layers` layers, the last norm and the head. logits [kept, vocabulary]. Returns 0, or 1 if memory
   runs out. */
int forward(
    const Model *model, int layers, const Slots *storage, const Plan *plan, float *logits, int threads) {
    const int rows = plan->rows, hidden = model->hidden;
    const size_t q_row = (size_t)model->heads * model->head_dim, kv_row = (size_t)model->kv_heads * model->head_dim;
    const int intermediate = model->layer[0].gate.outputs;
    float *x = malloc(rows * (hidden + q_row + 2 * kv_row + intermediate) * sizeof(float));
    if (!x) return 1;
    for (int r = 0; r < rows && !plan->given; r++)
        memcpy(x + (size_t)r * hidden,
               model->chain ? plan->fused + (size_t)r * hidden : model->embedding + plan->token_ids[r] * hidden,
               hidden * sizeof(float));
    int claimed[layers];
    memset(claimed, 0, sizeof(claimed));
    Forward shared = {.model = model, .storage = storage, .plan = plan, .x = x, .query = x + (size_t)rows * hidden,
                   .logits = logits, .claimed = claimed, .layers = layers};
    shared.key = shared.query + rows * q_row, shared.value = shared.key + rows * kv_row;
    shared.inner = shared.value + rows * kv_row;
    run_on_threads(threads, forward_thread, &shared);
    free(x);
    return shared.failed;
}
