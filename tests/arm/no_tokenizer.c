/* Stands for the tokenizer and its libraries where token ids are all there is: a model opens, no text is read or written. */
#include "model/token.h"

struct token_model {
    struct token_special special;
};

static struct token_model none = {{TOKEN_NONE, TOKEN_NONE, TOKEN_NONE, TOKEN_NONE, TOKEN_NONE, false, false}};

int token_open(struct token_model **out, const struct gguf *g, u32 n_vocab, struct err *err)
{
    (void)g, (void)n_vocab, (void)err;
    *out = &none;
    return 0;
}

void token_close(struct token_model *t)
{
    (void)t;
}

const struct token_special *token_special(const struct token_model *t)
{
    return &t->special;
}

bool token_is_end(const struct token_model *t, u32 id)
{
    (void)t, (void)id;
    return false;
}

void token_ids_free(struct token_ids *ids)
{
    (void)ids;
}

int token_encode(const struct token_model *t, const char *text, size_t len, unsigned flags, struct token_ids *out,
                 struct err *err)
{
    (void)t, (void)text, (void)len, (void)flags, (void)out;
    err_set(err, "built without a tokenizer");
    return -1;
}

const char *token_bytes(const struct token_model *t, u32 id, bool keep_special, size_t *len)
{
    (void)t, (void)id, (void)keep_special;
    *len = 0;
    return "";
}

size_t token_stream_push(const struct token_model *t, struct token_stream *s, u32 id, char *buf, size_t buf_bytes)
{
    (void)t, (void)s, (void)id, (void)buf, (void)buf_bytes;
    return 0;
}

size_t token_stream_end(struct token_stream *s, char *buf, size_t buf_bytes)
{
    (void)s, (void)buf, (void)buf_bytes;
    return 0;
}

size_t token_max_bytes(const struct token_model *t)
{
    (void)t;
    return 0;
}
