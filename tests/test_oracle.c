/* plainsong-tiny against reference values of transformers in float32 (tests/oracle/README.md): the last logits of each
 * prompt, greedy ids up to the end mark, and 120 tasks with one right answer. The reference does not round
 * activations, so these are the only comparisons with a tolerance; everything between our own kernels is memcmp. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/model.h"
#include "model/prompt.h"
#include "plainsong.h"

enum { N_VOCAB = 4096, STREAMS = 16, TASKS = 120 };

static struct ps_model *model;
static struct ps_engine *engine;

static float *read_floats(const char *path, size_t n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    float *x = malloc(n * sizeof *x);
    assert_int_equal(fread(x, sizeof *x, n, f), n);
    fclose(f);
    return x;
}

static json_t *read_json(const char *path)
{
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j)
        fail_msg("%s: %s", path, e.text);
    return j;
}

static int open_all(void **state)
{
    (void)state;
    struct ps_error err;
    model = ps_model_open("models/plainsong-tiny-q4_0.gguf", &err);
    struct ps_engine_options o = {.n_slots = STREAMS, .n_ctx = 2560};
    engine = model ? ps_engine_open(model, &o, &err) : NULL;
    if (!engine)
        print_error("%s\n", err.text);
    return engine ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    ps_engine_close(engine);
    ps_model_close(model);
    return 0;
}

static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

static uint32_t *ids_of(json_t *array, size_t *n)
{
    *n = json_array_size(array);
    uint32_t *ids = malloc((*n + 1) * sizeof *ids);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return ids;
}

static struct ps_stream *start(const uint32_t *ids, size_t n, uint32_t max, bool logits, bool ignore_end)
{
    struct ps_error err;
    struct ps_request r = {.ids = ids, .n_ids = n, .max_tokens = max, .want_logits = logits, .ignore_end = ignore_end};
    struct ps_stream *s = ps_stream_open(engine, &r, &err);
    if (!s)
        fail_msg("%s", err.text);
    return s;
}

/* How many of the reference's ids up to its end mark (or all) are ours; -1 when all. Also the cosine of the first logits. */
static int compare(json_t *p, const float *logits, double *cos)
{
    size_t n, n_ref;
    uint32_t *ids = ids_of(json_object_get(p, "ids"), &n);
    json_t *ref = json_object_get(p, "q4_0");
    uint32_t *want = ids_of(json_object_get(ref, "greedy"), &n_ref);
    json_t *end = json_object_get(ref, "end_at");
    if (end && json_integer_value(end) >= 0)
        n_ref = (size_t)json_integer_value(end) + 1;
    struct ps_stream *s = start(ids, n, (uint32_t)n_ref, true, true);
    struct ps_token t;
    struct ps_error err;
    int parted = -1;
    for (int i = 0; ps_stream_next(s, &t, &err) == 1; i++) {
        if (i == 0)
            *cos = cosine(t.logits, logits, N_VOCAB);
        if (t.id != want[i] && parted < 0)
            parted = i;
    }
    ps_stream_close(s);
    free(ids);
    free(want);
    return parted;
}

static int prompts(const char *json, const char *floats, size_t n_expected)
{
    json_t *root = read_json(json), *list = json_object_get(root, "prompts");
    size_t n = json_array_size(list);
    int equal = 0;
    assert_int_equal(n, n_expected);
    float *logits = read_floats(floats, n * N_VOCAB);
    for (size_t i = 0; i < n; i++) {
        json_t *p = json_array_get(list, i);
        double cos = 0;
        int parted = compare(p, logits + i * N_VOCAB, &cos);
        print_message("%-14s cosine %.6f %s %d\n", json_string_value(json_object_get(p, "name")), cos,
                      parted < 0 ? "ids equal" : "parts at id", parted);
        assert_true(cos >= 0.9998);
        equal += parted < 0;
    }
    free(logits);
    json_decref(root);
    return equal;
}

static void twelve_prompts(void **state)
{
    (void)state;
    int equal = prompts("tests/oracle/prompts.json", "tests/oracle/logits-q4_0.f32", 12);
    print_message("%d of 12 equal up to the end mark\n", equal);
    assert_true(equal >= 11);
}

static void extra_prompts(void **state)
{
    (void)state;
    int equal = prompts("tests/oracle/prompts-extra.json", "tests/oracle/logits-extra-q4_0.f32", 14);
    print_message("%d of 14 equal up to the end mark\n", equal);
    assert_true(equal >= 11);
}

/* ---- tasks: sixteen streams at a time, and alone ---- */

struct task {
    json_t *json;
    const char *name, *answer;
    bool model_right, right;
    uint32_t *ids;
    size_t n_ids;
    struct ps_stream *stream;
    char text[2048];
};

static struct task task[TASKS];

static void read_task(struct task *t, const struct prompt *p)
{
    struct err err;
    struct token_ids ids = {0};
    json_t *tools = json_object_get(t->json, "tools");
    char *messages = json_dumps(json_object_get(t->json, "messages"), 0);
    char *tools_text = tools && !json_is_null(tools) ? json_dumps(tools, 0) : NULL;
    if (prompt_build(p, messages, tools_text, NULL, true, &ids, &err))
        fail_msg("%s", err.text);
    t->name = json_string_value(json_object_get(t->json, "task"));
    t->answer = json_string_value(json_object_get(t->json, "answer"));
    t->model_right = json_is_true(json_object_get(t->json, "model_q4_0"));
    t->ids = ids.ids;
    t->n_ids = ids.n;
    free(messages);
    free(tools_text);
}

static int read_tasks(void **state)
{
    struct ps_model_info info;
    struct template *tmpl;
    struct prompt *p;
    struct err err;
    json_error_t je;
    if (open_all(state))
        return -1;
    ps_model_info(model, &info);
    if (template_open(&tmpl, info.chat_template, info.chat_template_len, info.bos, info.eos, &err) ||
        prompt_open(&p, model->token, tmpl, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    FILE *f = fopen("tests/oracle/tasks.jsonl", "r");
    assert_non_null(f);
    for (int i = 0; i < TASKS; i++) {
        task[i].json = json_loadf(f, JSON_DISABLE_EOF_CHECK, &je);
        assert_non_null(task[i].json);
        read_task(&task[i], p);
    }
    fclose(f);
    prompt_close(p);
    template_close(tmpl);
    return 0;
}

static int free_tasks(void **state)
{
    for (int i = 0; i < TASKS; i++) {
        json_decref(task[i].json);
        free(task[i].ids);
    }
    return close_all(state);
}

/* Text and verdict: right is the whole answer, then an end mark. */
static void finish_task(struct task *t)
{
    size_t at = 0, len;
    struct ps_token tok;
    struct ps_error err;
    struct ps_stream_info info;
    struct ps_decoder *d = ps_decoder_open(model, true);
    while (ps_stream_next(t->stream, &tok, &err) == 1) {
        const char *piece = ps_decoder_push(d, tok.id, &len);
        assert_true(at + len < sizeof t->text);
        memcpy(t->text + at, piece, len);
        at += len;
    }
    t->text[at] = 0;
    ps_stream_info(t->stream, &info);
    ps_stream_close(t->stream);
    ps_decoder_close(d);
    t->right = info.end == PS_END_STOP && !strcmp(t->text, t->answer);
}

static void tasks(void **state)
{
    (void)state;
    int same = 0, right = 0;
    for (int i = 0; i < TASKS + STREAMS; i++) {
        if (i >= STREAMS) {
            finish_task(&task[i - STREAMS]);
            right += task[i - STREAMS].right;
            same += task[i - STREAMS].right == task[i - STREAMS].model_right;
        }
        if (i < TASKS)
            task[i].stream = start(task[i].ids, task[i].n_ids, 256, false, false);
    }
    print_message("%d right, verdict as the reference's in %d of %d\n", right, same, TASKS);
    assert_true(same >= 118);
}

/* A leak between streams would show as another's key: each recall task, asked alone, gives the text it gave among
 * sixteen. */
static void recall_alone_is_recall_in_company(void **state)
{
    (void)state;
    struct ps_error err;
    struct ps_engine *sixteen = engine;
    struct ps_engine_options o = {.n_slots = 1, .n_ctx = 2560};
    int n = 0;
    engine = ps_engine_open(model, &o, &err);
    assert_non_null(engine);
    for (int i = 0; i < TASKS; i++) {
        if (strncmp(task[i].name, "recall", 6) && strcmp(task[i].name, "update"))
            continue;
        struct task alone = task[i];
        alone.stream = start(alone.ids, alone.n_ids, 256, false, false);
        finish_task(&alone);
        assert_string_equal(alone.text, task[i].text);
        assert_int_equal(alone.right, task[i].right);
        n++;
    }
    ps_engine_close(engine);
    engine = sixteen;
    print_message("%d recall tasks equal\n", n);
    assert_int_equal(n, 22);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twelve_prompts),
        cmocka_unit_test(extra_prompts),
        cmocka_unit_test(tasks),
        cmocka_unit_test(recall_alone_is_recall_in_company),
    };
    return cmocka_run_group_tests(tests, read_tasks, free_tasks);
}
