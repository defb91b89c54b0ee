/* Pre-tokenizers: the regular expressions that cut a text into pieces before any merging, one entry
 * for each tokenizer.ggml.pre we know. The patterns are Hugging Face's tokenizer.json ones; a file
 * only names them. \s is written out as Unicode's White_Space, because PCRE2's \s also takes
 * U+180E; \S is its complement. A text where PCRE2 gives up is an error, never a different cut. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>

/* Hugging Face's engine has Unicode 16, PCRE2 10.42 has 14: what came between, by category. */
#define NEW_LU "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"
#define NEW_LL "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"
#define NEW_LM                                                                            \
    "\\x{10d4e}\\x{10d6f}\\x{16d40}-\\x{16d42}\\x{16d6b}-\\x{16d6c}\\x{1e030}-\\x{1e06d}" \
    "\\x{1e4eb}"
#define NEW_LO                                                                            \
    "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4d}\\x{10d4f}\\x{10ec2}-\\x{10ec4}"           \
    "\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}" \
    "\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}"  \
    "\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}"           \
    "\\x{16100}-\\x{1611d}\\x{16d43}-\\x{16d6a}\\x{18cff}\\x{1b132}\\x{1b155}"            \
    "\\x{1e4d0}-\\x{1e4ea}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}" \
    "\\x{31350}-\\x{323af}"
#define NEW_M                                                                             \
    "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}"        \
    "\\x{113b8}-\\x{113c0}\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}" \
    "\\x{113d2}\\x{113e1}-\\x{113e2}\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}" \
    "\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}" \
    "\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"
#define NEW_N                                                                              \
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
    "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}" \
    "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define NEW_P                                                                          \
    "\\x{1b4e}-\\x{1b4f}\\x{1b7f}\\x{10d6e}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}" \
    "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11f43}-\\x{11f4f}\\x{16d6d}-\\x{16d6f}\\x{1e5ff}"

#define L "\\p{L}" NEW_LU NEW_LL NEW_LM NEW_LO
#define N "\\p{N}" NEW_N
#define WS                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define S "[" WS "]"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* Lines; all but the last of some spaces; what is left. */
#define SPACES "|" S "*[\\r\\n]+|" S "+(?![^" WS "])|" S "+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" NEW_LU NEW_LM NEW_LO NEW_M "]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" NEW_LL NEW_LM NEW_LO NEW_M "]"

/* Qwen2 and Llama 3 differ in how many digits make a piece. */
#define CL100K(digits) \
    CONTRACTION "|[^\\r\\n" L N "]?[" L "]+|[" N "]" digits "| ?[^" WS L N "]+[\\r\\n]*" SPACES
#define O200K                                                                                 \
    "[^\\r\\n" L N "]?" UPPER "*" LOWER "+" CONTRACTION "?|[^\\r\\n" L N "]?" UPPER "+" LOWER \
    "*" CONTRACTION "?|[" N "]{1,3}| ?[^" WS L N "]+[\\r\\n/]*" SPACES
#define GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?[" L "]+| ?[" N "]+| ?[^" WS L N "]+|" S "+(?![^" WS "])|" S "+"

static const struct pre_kind {
    const char *names; /* each followed by a space */
    const char *stages[PRE_STAGES];
    bool nfc, ignore_merges, add_bos;
} kinds[] = {
    {"qwen2 deepseek-r1-qwen ", {CL100K("")}, .nfc = true},
    {"llama-bpe llama3 llama-v3 ", {CL100K("{1,3}")}, .ignore_merges = true, .add_bos = true},
    {"gpt-4o ", {O200K}, .nfc = false},
    {"olmo ", {GPT2}, .nfc = true},
    {"gpt-2 ", {GPT2}, .nfc = false},
    /* Files older than the field, and llama.cpp's fallback for them: Falcon's cut with \p{P} for
       punctuation. */
    {"default ", {"[\\p{P}$+<=>^~|" NEW_P "]+", GPT2, "[" N "]+", "[0-9][0-9][0-9]"}, .nfc = false},
};

static bool pre_named(const char *names, struct gguf_str name)
{
    for (const char *end; (end = strchr(names, ' ')); names = end + 1)
        if ((size_t)(end - names) == name.len && !memcmp(names, name.at, name.len))
            return true;
    return false;
}

int pre_open(struct token_pre *p, const char *path, struct gguf_str name, struct err *err)
{
    const struct pre_kind *k = NULL;
    for (size_t i = 0; i < COUNT(kinds) && !k; i++)
        if (pre_named(kinds[i].names, name))
            k = &kinds[i];
    if (!k) {
        char quoted[64], known[160] = "";
        for (size_t i = 0; i < COUNT(kinds); i++)
            strncat(known, kinds[i].names, sizeof known - strlen(known) - 1);
        known[strlen(known) - 1] = 0;
        return err_set(err, "%.200s: tokenizer.ggml.pre is \"%s\"; known are: %s", path,
                       err_quote(quoted, sizeof quoted, name.at, name.len), known);
    }
    p->nfc = k->nfc;
    p->ignore_merges = k->ignore_merges;
    p->add_bos = k->add_bos;
    for (; p->n_stages < PRE_STAGES && k->stages[p->n_stages]; p->n_stages++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code *re =
            pcre2_compile((PCRE2_SPTR)k->stages[p->n_stages], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
        if (!re) {
            pre_close(p);
            return err_set(err, "PCRE2 refuses the pattern of pre-tokenizer %s at %zu (error %d)",
                           k->names, at, code);
        }
        /* Where this fails the interpreter runs: the same cut, slower. */
        pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
        p->stages[p->n_stages] = re;
    }
    return 0;
}

void pre_close(struct token_pre *p)
{
    for (u32 i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stages[i]);
    p->n_stages = 0;
}

struct cut { /* one pre_cut's state */
    const struct token_pre *pre;
    pcre2_match_data *data[PRE_STAGES];
    pcre2_match_context *limits;
    struct pre_sink sink;
};

/* Cuts text by stage and hands the pieces to the next; at the last stage to the sink. Text between
 * matches is a piece too. Each piece is a subject of its own: a look-ahead ends where it ends. */
static int cut_stage(struct cut *c, u32 stage, const char *text, size_t len, struct err *err)
{
    if (stage == c->pre->n_stages)
        return c->sink.piece(c->sink.ctx, text, len, err);
    const pcre2_code *re = c->pre->stages[stage];
    pcre2_match_data *data = c->data[stage];
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(data);
    for (size_t done = 0; done < len;) {
        int rc = pcre2_match(re, (PCRE2_SPTR)text, len, done, PCRE2_NO_UTF_CHECK, data, c->limits);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(re, (PCRE2_SPTR)text, len, done, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                             data, c->limits);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
            PCRE2_UCHAR why[120];
            pcre2_get_error_message(rc, why, sizeof why);
            return err_set(err,
                           "the pre-tokenizer cannot cut this text: PCRE2 says \"%s\" %zu bytes "
                           "before its end",
                           (char *)why, len - done);
        }
        size_t start = rc < 0 ? len : span[0], end = rc < 0 ? len : span[1];
        if (start > done && cut_stage(c, stage + 1, text + done, start - done, err))
            return -1;
        if (end > start && cut_stage(c, stage + 1, text + start, end - start, err))
            return -1;
        done = end; /* no pattern matches the empty string, so this moves */
    }
    return 0;
}

int pre_cut(const struct token_pre *p, const char *text, size_t len, struct pre_sink sink,
            struct err *err)
{
    struct cut c = {.pre = p, .sink = sink};
    bool ok = (c.limits = pcre2_match_context_create(NULL)) != NULL;
    for (u32 i = 0; i < p->n_stages; i++)
        ok = (c.data[i] = pcre2_match_data_create(1, NULL)) && ok;
    int rc = -1;
    if (ok) {
        /* A match walks its piece a few times forth and back (at most 4 alternatives with one loop
         * each). */
        pcre2_set_match_limit(c.limits, (u32)min_u64(1000000 + 16 * (u64)len, UINT32_MAX));
        pcre2_set_heap_limit(c.limits, 256 << 10); /* KiB, of the interpreter */
        rc = cut_stage(&c, 0, text, len, err);
    } else {
        err_set(err, "no memory to cut a text into pieces");
    }
    for (u32 i = 0; i < p->n_stages; i++)
        pcre2_match_data_free(c.data[i]);
    pcre2_match_context_free(c.limits);
    return rc;
}
