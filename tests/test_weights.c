/* Hyperparameters and tensors of every architecture: what is read, what is assumed when a key is
 * absent, and what is refused in which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "build_gguf.h"
#include "model/weights.h"

#include <math.h>

struct opened { /* a model built in memory; zero-initialise */
    struct bytes file;
    struct gguf g;
    struct weights w;
    struct err err;
    int result;
};

/* Frees b. */
static void open_model(struct opened *o, struct build *b)
{
    *o = (struct opened){0};
    o->file = build_bytes(b);
    free(b);
    if (gguf_parse(&o->g, "t.gguf", o->file.at, o->file.len, &o->err))
        fail_msg("not even a GGUF: %s", o->err.text);
    o->result = weights_open(&o->w, &o->g, &o->err);
}

static void close_model(struct opened *o)
{
    weights_close(&o->w);
    gguf_close(&o->g);
    free(o->file.at);
}

static struct hparams hparams_of(struct build *b)
{
    struct opened o;
    open_model(&o, b);
    if (o.result)
        fail_msg("%s", o.err.text);
    struct hparams hp = o.w.hp;
    close_model(&o);
    return hp;
}

/* The file must open as a GGUF and be refused in one printable line with each of the words, split
 * at '|'. */
static void check_refused(struct build *b, const char *words)
{
    struct opened o;
    char copy[256];
    open_model(&o, b);
    if (!o.result)
        fail_msg("accepted, expected a message with \"%s\"", words);
    snprintf(copy, sizeof copy, "t.gguf|%s", words);
    for (char *save, *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (!strstr(o.err.text, w))
            fail_msg("message \"%s\" lacks \"%s\"", o.err.text, w);
    for (const char *c = o.err.text; *c; c++)
        assert_in_range((u8)*c, 0x20, 0x7E);
    assert_null(o.w.layers);
    close_model(&o);
}

static const struct {
    const char *name;
    enum arch arch;
    bool experts, neox, used_norm;
} MODELS[] = {
    {"qwen3moe", ARCH_QWEN3MOE, true, true, true}, {"qwen3", ARCH_QWEN3, false, true, false},
    {"llama", ARCH_LLAMA, false, false, false},    {"llama", ARCH_LLAMA, true, false, true},
    {"qwen2", ARCH_QWEN2, false, true, false},     {"qwen2moe", ARCH_QWEN2MOE, true, true, false},
    {"olmoe", ARCH_OLMOE, true, true, false},
};

static void every_architecture_opens(void **state)
{
    (void)state;
    for (u32 i = 0; i < COUNT(MODELS); i++) {
        struct opened o;
        open_model(&o, build_model(MODELS[i].name, MODELS[i].experts));
        if (o.result)
            fail_msg("%s: %s", MODELS[i].name, o.err.text);
        const struct hparams *hp = &o.w.hp;
        bool moe = MODELS[i].experts, olmoe = hp->arch == ARCH_OLMOE;
        assert_int_equal(hp->arch, MODELS[i].arch);
        assert_string_equal(hparams_arch_name(hp->arch), MODELS[i].name);
        assert_string_equal(hp->name, "Test");
        assert_int_equal(hp->d_model, 64);
        assert_int_equal(hp->n_layers, 2);
        assert_int_equal(hp->n_vocab, 32);
        assert_int_equal(hp->n_heads, 2);
        assert_int_equal(hp->n_kv, 1);
        assert_int_equal(hp->d_head, 32);
        assert_int_equal(hp->d_ff, moe ? 0 : 96);
        assert_int_equal(hp->n_experts, moe ? 4 : 0);
        assert_int_equal(hp->n_used, moe ? 2 : 0);
        assert_int_equal(hp->d_ff_exp, moe ? 32 : 0);
        assert_int_equal(hp->d_ff_shared, hp->arch == ARCH_QWEN2MOE ? 64 : 0);
        assert_int_equal(hp->n_ctx, 128);
        assert_false(hp->window_cut);
        assert_int_equal(hp->d_rope, 32);
        assert_int_equal(hp->rope_neox, MODELS[i].neox);
        assert_true(hp->rope_base == 1e6f && hp->rope_scale == 1 && hp->eps == 1e-6f);
        if (moe) {
            assert_int_equal(hp->used_norm, MODELS[i].used_norm);
            assert_true(hp->used_scale == 1);
        }
        const struct layer_weights *l = &o.w.layers[1];
        assert_ptr_equal(l->q, gguf_find_tensor(&o.g, "blk.1.attn_q.weight"));
        assert_ptr_equal(l->o, gguf_find_tensor(&o.g, "blk.1.attn_output.weight"));
        assert_ptr_equal(l->gate, gguf_find_tensor(&o.g, "blk.1.ffn_gate.weight"));
        assert_ptr_equal(l->router, gguf_find_tensor(&o.g, "blk.1.ffn_gate_inp.weight"));
        assert_ptr_equal(l->down_exps, gguf_find_tensor(&o.g, "blk.1.ffn_down_exps.weight"));
        assert_ptr_equal(l->shared_router,
                         gguf_find_tensor(&o.g, "blk.1.ffn_gate_inp_shexp.weight"));
        assert_ptr_equal(l->q_bias, gguf_find_tensor(&o.g, "blk.1.attn_q.bias"));
        assert_int_equal(l->q_norm ? l->q_norm->ne[0] : 0, olmoe ? 64 : l->q_norm ? 32 : 0);
        assert_ptr_equal(o.w.output, o.w.embed);
        assert_null(o.w.rope_factors);
        close_model(&o);
    }
}

static void defaults(void **state)
{
    (void)state;
    struct build *b = build_model("llama", false);
    build_drop(b, "llama.rope.freq_base");
    build_drop(b, "general.name");
    struct hparams hp = hparams_of(b);
    assert_true(hp.rope_base == 10000);
    assert_string_equal(hp.name, "");

    b = build_model("llama", false); /* key heads default to query heads: then k and v are wider */
    build_drop(b, "llama.attention.head_count_kv");
    check_refused(b, "blk.0.attn_k.weight|32, 64)|64, 64)");

    b = build_model("qwen3", false); /* heads need not divide d_model when their length is given */
    u32 d_head = 32;
    build_u32(b, "qwen3.attention.key_length", d_head);
    build_u32(b, "qwen3.attention.value_length", d_head);
    build_u32(b, "qwen3.rope.dimension_count", 16);
    hp = hparams_of(b);
    assert_int_equal(hp.d_head, 32);
    assert_int_equal(hp.d_rope, 16);

    b = build_model("qwen2moe", true); /* widths from the tensors */
    build_drop(b, "qwen2moe.expert_feed_forward_length");
    build_drop(b, "qwen2moe.expert_shared_feed_forward_length");
    hp = hparams_of(b);
    assert_int_equal(hp.d_ff_exp, 32);
    assert_int_equal(hp.d_ff_shared, 64);

    b = build_model("qwen3moe", true); /* no dense layer: its width is not needed */
    build_drop(b, "qwen3moe.feed_forward_length");
    build_bool(b, "qwen3moe.expert_weights_norm", 0);
    build_f32(b, "qwen3moe.expert_weights_scale", 2.5f);
    hp = hparams_of(b);
    assert_false(hp.used_norm);
    assert_true(hp.used_scale == 2.5f);

    b = build_model("llama", false);
    build_u32(b, "llama.expert_count", 0);
    assert_int_equal(hparams_of(b).n_experts, 0);
}

static void values_that_files_vary(void **state)
{
    (void)state;
    static const u32 SAME[] = {96, 96}, DIFFER[] = {96, 64};
    struct build *b = build_model("llama", false);
    build_array(b, "llama.feed_forward_length", GGUF_U32, 2, SAME, sizeof SAME);
    assert_int_equal(hparams_of(b).d_ff, 96);
    b = build_model("llama", false);
    build_array(b, "llama.feed_forward_length", GGUF_U32, 2, DIFFER, sizeof DIFFER);
    check_refused(b, "llama.feed_forward_length|item 1 is 64|expected 96");
    b = build_model("llama", false);
    build_array(b, "llama.feed_forward_length", GGUF_F32, 2, SAME, sizeof SAME);
    check_refused(b, "llama.feed_forward_length|2 f32|integer");
    b = build_model("llama", false);
    build_array(b, "llama.feed_forward_length", GGUF_U32, 0, SAME, 0);
    check_refused(b, "llama.feed_forward_length|0 u32|integer");

    b = build_model("llama", false);
    build_raw(b, "llama.context_length", GGUF_U64, "\0\1\0\0\0\0\0\0", 8);
    build_u32(b, "llama.attention.sliding_window", 100);
    struct hparams hp = hparams_of(b);
    assert_int_equal(hp.n_ctx, 100);
    assert_true(hp.window_cut);
    b = build_model("llama", false);
    build_u32(b, "llama.attention.sliding_window", 0);
    assert_int_equal(hparams_of(b).n_ctx, 128);

    b = build_model("qwen2", false);
    build_string(b, "qwen2.rope.scaling.type", "linear");
    build_f32(b, "qwen2.rope.scaling.factor", 4);
    assert_true(hparams_of(b).rope_scale == 0.25f);
    b = build_model("qwen2", false);
    build_string(b, "qwen2.rope.scaling.type", "none");
    build_f32(b, "qwen2.rope.scaling.factor", 4);
    assert_true(hparams_of(b).rope_scale == 1);
    b = build_model("qwen2", false);
    build_f32(b, "qwen2.rope.scale_linear", 8);
    assert_true(hparams_of(b).rope_scale == 0.125f);
    b = build_model("olmoe", true);
    build_f32(b, "olmoe.attention.clamp_kqv", 0);
    hparams_of(b);
    b = build_model("llama", false);
    build_string(b, "general.name", "a\n\"b\"");
    assert_string_equal(hparams_of(b).name, "a\\x0a\\x22b\\x22");
}

static void hostile_integers(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key;
        u32 value;
        const char *words;
    } CASES[] = {
        {"qwen3moe", "block_count", 0, "is 0|1 to 1024"},
        {"qwen3moe", "block_count", 3, "is 3, expected at most 2|26 tensors"},
        {"qwen3moe", "block_count", 1, "layer 1|0 to 0"},
        {"qwen3moe", "block_count", UINT32_MAX, "is 4294967295"},
        {"qwen3moe", "context_length", 0, "is 0"},
        {"qwen3moe", "context_length", 1 << 25, "is 33554432|16777216"},
        {"qwen3moe", "embedding_length", 0, "is 0"},
        {"qwen3moe", "embedding_length", 1 << 17, "is 131072|65536"},
        {"qwen3moe", "attention.head_count", 0, "is 0"},
        {"qwen3moe", "attention.head_count", 3, "is 3|divisor of embedding_length 64"},
        {"qwen3moe", "attention.head_count", 64, "heads of 1|even"},
        {"qwen3moe", "attention.head_count_kv", 0, "is 0"},
        {"qwen3moe", "attention.head_count_kv", 3, "is 3|divisor of head_count 2"},
        {"qwen3moe", "attention.head_count_kv", 4, "is 4|divisor of head_count 2"},
        {"qwen3moe", "attention.key_length", 0, "is 0"},
        {"qwen3moe", "attention.key_length", 33, "33|even"},
        {"qwen3moe", "attention.value_length", 16, "is 16, expected 32 to 32"},
        {"qwen3moe", "rope.dimension_count", 0, "is 0"},
        {"qwen3moe", "rope.dimension_count", 34, "is 34|1 to 32"},
        {"qwen3moe", "rope.dimension_count", 31, "is 31|even"},
        {"qwen3moe", "expert_count", 0, "is 0|1 to 1024"},
        {"qwen3moe", "expert_count", 2000, "is 2000|1024"},
        {"qwen3moe", "expert_used_count", 0, "is 0|1 to 4"},
        {"qwen3moe", "expert_used_count", 5, "is 5|1 to 4"},
        {"qwen3moe", "expert_feed_forward_length", 0, "is 0"},
        {"qwen3moe", "feed_forward_length", 0, "is 0"},
        {"qwen3moe", "vocab_size", 31, "is 31, expected 32|token_embd.weight"},
        {"qwen3moe", "expert_gating_func", 2, "is 2, expected 1"},
        {"qwen3moe", "expert_group_count", 4, "is 4, expected 1"},
        {"qwen3", "expert_count", 8, "is 8, expected 0 to 0"},
    };
    for (u32 i = 0; i < COUNT(CASES); i++) {
        char key[96], words[256];
        struct build *b = build_model(CASES[i].arch, !strcmp(CASES[i].arch, "qwen3moe"));
        snprintf(key, sizeof key, "%s.%s", CASES[i].arch, CASES[i].key);
        build_u32(b, key, CASES[i].value);
        /* Where the value breaks a default, the message names the key that the default stands for.
         */
        bool other_key = i == 2 || CASES[i].value == 64;
        snprintf(words, sizeof words, "%s|%s", other_key ? "t.gguf" : key, CASES[i].words);
        check_refused(b, words);
    }
    struct build *b = build_model("qwen3", false);
    build_raw(b, "qwen3.block_count", GGUF_I32, "\xff\xff\xff\xff", 4);
    check_refused(b, "qwen3.block_count|is -1");
    b = build_model("qwen3", false);
    build_string(b, "qwen3.block_count", "2");
    check_refused(b, "qwen3.block_count|string|integer");
    b = build_model("qwen3", false);
    build_f32(b, "qwen3.block_count", 2);
    check_refused(b, "qwen3.block_count|f32|integer");
}

static void hostile_floats(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        float value;
        const char *words;
    } CASES[] = {
        {"attention.layer_norm_rms_epsilon", 0, "is 0"},
        {"attention.layer_norm_rms_epsilon", -1e-6f, "is -1e-06"},
        {"attention.layer_norm_rms_epsilon", NAN, "nan"},
        {"attention.layer_norm_rms_epsilon", INFINITY, "is inf"},
        {"rope.freq_base", 0, "is 0"},
        {"rope.freq_base", -10000, "is -10000"},
        {"rope.freq_base", NAN, "nan"},
        {"rope.freq_base", INFINITY, "is inf"},
        {"rope.scaling.factor", 0, "is 0"},
        {"rope.scaling.factor", NAN, "nan"},
        {"rope.scaling.factor", 1e-30f, "is 1e-30"},
        {"rope.scaling.attn_factor", 2, "is 2, expected 1"},
        {"expert_weights_scale", 0, "is 0"},
        {"expert_weights_scale", NAN, "nan"},
        {"attention.clamp_kqv", 8, "is 8, expected 0"},
        {"attention.clamp_kqv", NAN, "nan"},
        {"attn_logit_softcapping", 50, "is 50, expected 0"},
        {"final_logit_softcapping", 30, "is 30, expected 0"},
    };
    for (u32 i = 0; i < COUNT(CASES); i++) {
        char key[96], words[256];
        struct build *b = build_model("olmoe", true);
        snprintf(key, sizeof key, "olmoe.%s", CASES[i].key);
        build_f32(b, key, CASES[i].value);
        snprintf(words, sizeof words, "%s|%s|expected", key, CASES[i].words);
        check_refused(b, words);
    }
    struct build *b = build_model("olmoe", true);
    build_u32(b, "olmoe.rope.freq_base", 10000);
    check_refused(b, "olmoe.rope.freq_base|u32|f32 or f64");
    b = build_model("olmoe", true);
    build_bool(b, "olmoe.attention.causal", 0);
    check_refused(b, "olmoe.attention.causal|is 0, expected 1");
    b = build_model("olmoe", true);
    build_u32(b, "olmoe.expert_weights_norm", 1);
    check_refused(b, "olmoe.expert_weights_norm|u32|bool");
}

static void missing_keys(void **state)
{
    (void)state;
    static const char *const KEYS[] = {"block_count",
                                       "context_length",
                                       "embedding_length",
                                       "attention.head_count",
                                       "attention.layer_norm_rms_epsilon",
                                       "expert_count",
                                       "expert_used_count"};
    for (u32 i = 0; i < COUNT(KEYS); i++) {
        char key[96], words[128];
        struct build *b = build_model("qwen3moe", true);
        snprintf(key, sizeof key, "qwen3moe.%s", KEYS[i]);
        build_drop(b, key);
        snprintf(words, sizeof words, "%s|missing|expected", key);
        check_refused(b, words);
    }
    struct build *b = build_model("qwen3", false);
    build_drop(b, "general.architecture");
    check_refused(b, "general.architecture|missing");
    b = build_model("qwen3", false);
    build_string(b, "general.architecture", "mamba\x1b");
    check_refused(b, "general.architecture|mamba\\x1b|qwen3moe");
    b = build_model("qwen3", false);
    build_drop(b, "qwen3.feed_forward_length");
    check_refused(b, "qwen3.feed_forward_length|missing");
    b = build_model("llama", true); /* a Mixtral that forgot to say so */
    build_drop(b, "llama.expert_count");
    check_refused(b, "llama.expert_count|missing|ffn_gate_inp");
    b = build_model("llama", false);
    build_u32(b, "llama.expert_count", 4);
    build_u32(b, "llama.expert_used_count", 2);
    check_refused(b, "llama.expert_count|is 4|ffn_gate_inp.weight");
}

static void rope_scaling_types(void **state)
{
    (void)state;
    static const char *const TYPES[] = {"yarn", "longrope", "dynamic", "\x7f"};
    for (u32 i = 0; i < COUNT(TYPES); i++) {
        char words[96];
        struct build *b = build_model("llama", false);
        build_string(b, "llama.rope.scaling.type", TYPES[i]);
        snprintf(words, sizeof words, "llama.rope.scaling.type|%s|none or linear",
                 i == 3 ? "\\x7f" : TYPES[i]);
        check_refused(b, words);
    }
    float factors[16];
    for (u32 i = 0; i < 16; i++)
        factors[i] = i < 8 ? 1 : 8;
    struct opened o;
    struct build *b = build_model("llama", false);
    build_tensor(b, "rope_freqs.weight", DT_F32, 16, 0, 0)->data = factors;
    open_model(&o, b);
    if (o.result)
        fail_msg("%s", o.err.text);
    assert_non_null(o.w.rope_factors);
    close_model(&o);
    static const float BAD[] = {0, -1, NAN, INFINITY};
    for (u32 i = 0; i < COUNT(BAD); i++) {
        factors[5] = BAD[i];
        b = build_model("llama", false);
        build_tensor(b, "rope_freqs.weight", DT_F32, 16, 0, 0)->data = factors;
        check_refused(b, "rope_freqs.weight|item 5|expected");
    }
    b = build_model("llama", false);
    build_tensor(b, "rope_freqs.weight", DT_F32, 32, 0, 0);
    check_refused(b, "rope_freqs.weight|1, 32)|1, 16)");
    b = build_model("llama", false);
    build_tensor(b, "rope_freqs.weight", DT_F16, 16, 0, 0);
    check_refused(b, "rope_freqs.weight|f16|f32");
}

/* Every tensor in turn: left out, made longer, turned into another type. */
static void every_tensor_is_needed_and_checked(void **state)
{
    (void)state;
    for (u32 m = 0; m < COUNT(MODELS); m++) {
        struct build *b = build_model(MODELS[m].name, MODELS[m].experts);
        u32 n = b->n_tensors;
        free(b);
        for (u32 i = 0; i < n; i++) {
            char name[96];
            b = build_model(MODELS[m].name, MODELS[m].experts);
            snprintf(name, sizeof name, "%s", b->tensors[i].name);
            build_drop_tensor(b, name);
            build_tensor(b, "unrelated", DT_F32, 8, 0, 0); /* keeps the count */
            /* Without its router a layer counts as dense, and its expert tensors are out of place.
             */
            bool router = strstr(name, "ffn_gate_inp.weight") != NULL;
            check_refused(b, router ? "blk." : name);

            for (u32 d = 0; d < 3; d++) {
                b = build_model(MODELS[m].name, MODELS[m].experts);
                struct build_tensor *t = &b->tensors[i];
                if (i == 0 && d == 1) { /* its rows are the vocabulary: nothing to compare with */
                    free(b);
                    continue;
                }
                u64 ne[3] = {t->ne[0], t->ne[1], t->ne[2]};
                ne[d] += 32;
                build_tensor(b, name, t->type, ne[0], ne[1], ne[2]);
                /* A width read from the first such tensor shows up in the others of its layer. */
                check_refused(b, "tensor|shape|expected");
            }

            b = build_model(MODELS[m].name, MODELS[m].experts);
            if (b->tensors[i].n_dims == 1) {
                build_tensor(b, name, DT_Q8_0, b->tensors[i].ne[0], 0, 0);
                char words[128];
                snprintf(words, sizeof words, "%s|q8_0|f32, f16 or bf16", name);
                check_refused(b, words);
            } else {
                free(b);
            }
        }
    }
}

static void tensors_out_of_place(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *name, *words;
    } CASES[] = {
        {"llama", "blk.0.attn_q_norm.weight", "not known|llama"},
        {"llama", "blk.0.ffn_gate.bias", "not known|llama"},
        {"llama", "blk.1.ssm_in.weight", "not known"},
        {"llama", "blk.2.attn_q.weight", "layer 2|0 to 1"},
        {"llama", "blk.999999999999.attn_q.weight", "not known"},
        {"llama", "blk.01.attn_q.weight", "place is taken"},
        {"llama", "blk.", "not known"},
        {"llama", "blk.x.attn_q.weight", "not known"},
        {"llama", "blk.0.attn_qkv.weight", "fused"},
        {"llama", "blk.0.ffn_gate.0.weight", "one tensor per expert|ffn_gate_exps"},
        {"llama", "blk.0.ffn_down.7.weight", "one tensor per expert"},
        {"llama", "blk.0.ffn_gate_exps.weight", "dense layer"},
        {"llama", "blk.0.a\x1b[2Jb", "a\\x1b[2Jb"},
        {"llama", "output.bias", "output.bias"},
        {"qwen3moe", "blk.0.ffn_gate.weight", "routed layer"},
        {"qwen3moe", "blk.0.ffn_gate_shexp.weight", "routed layer"},
        {"qwen3moe", "blk.1.exp_probs_b.bias", "not known"},
    };
    for (u32 i = 0; i < COUNT(CASES); i++) {
        struct build *b = build_model(CASES[i].arch, !strcmp(CASES[i].arch, "qwen3moe"));
        build_tensor(b, CASES[i].name, DT_F32, 64, 0, 0);
        check_refused(b, CASES[i].words);
    }
    struct opened o; /* outside the layers unknown names do no harm */
    struct build *b = build_model("llama", false);
    build_tensor(b, "v.patch_embd.weight", DT_F32, 64, 0, 0);
    build_tensor(b, "output.weight", DT_Q6_K, 256, 1, 0);
    build_tensor(b, "output.weight", DT_Q8_0, 64, 32, 0);
    build_tensor(b, "blk.0.attn_output.bias", DT_F16, 64, 0, 0);
    build_tensor(b, "blk.1.attn_q.bias", DT_BF16, 64, 0, 0);
    open_model(&o, b);
    if (o.result)
        fail_msg("%s", o.err.text);
    assert_ptr_not_equal(o.w.output, o.w.embed);
    assert_non_null(o.w.layers[0].o_bias);
    assert_null(o.w.layers[0].q_bias);
    assert_non_null(o.w.layers[1].q_bias);
    close_model(&o);
}

static void dense_layers_among_routed(void **state)
{
    (void)state;
    static const char *const OUT[] = {"ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps",
                                      "ffn_down_exps"};
    for (u32 with_width = 0; with_width < 2; with_width++) {
        struct build *b = build_model("qwen3moe", true);
        for (u32 i = 0; i < COUNT(OUT); i++) {
            char name[96];
            snprintf(name, sizeof name, "blk.0.%s.weight", OUT[i]);
            build_drop_tensor(b, name);
        }
        build_tensor(b, "blk.0.ffn_gate.weight", DT_Q4_0, 64, 96, 0);
        build_tensor(b, "blk.0.ffn_up.weight", DT_Q4_0, 64, 96, 0);
        build_tensor(b, "blk.0.ffn_down.weight", DT_Q4_0, 96, 64, 0);
        if (!with_width) {
            build_drop(b, "qwen3moe.feed_forward_length");
            check_refused(b, "qwen3moe.feed_forward_length|missing");
            continue;
        }
        struct opened o;
        open_model(&o, b);
        if (o.result)
            fail_msg("%s", o.err.text);
        assert_int_equal(o.w.hp.d_ff, 96);
        assert_null(o.w.layers[0].router);
        assert_non_null(o.w.layers[0].gate);
        assert_non_null(o.w.layers[1].router);
        assert_null(o.w.layers[1].gate);
        close_model(&o);
    }
}

static void close_accepts_anything(void **state)
{
    (void)state;
    struct weights w = {0};
    weights_close(&w);
    struct gguf g = {0};
    gguf_close(&g);
    struct build *b = build_new(); /* metadata without a single tensor */
    build_string(b, "general.architecture", "qwen3");
    check_refused(b, "qwen3.embedding_length|missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_opens),
        cmocka_unit_test(defaults),
        cmocka_unit_test(values_that_files_vary),
        cmocka_unit_test(hostile_integers),
        cmocka_unit_test(hostile_floats),
        cmocka_unit_test(missing_keys),
        cmocka_unit_test(rope_scaling_types),
        cmocka_unit_test(every_tensor_is_needed_and_checked),
        cmocka_unit_test(tensors_out_of_place),
        cmocka_unit_test(dense_layers_among_routed),
        cmocka_unit_test(close_accepts_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
