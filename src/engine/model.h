/* A model as the engine and its callers share it: the file, its weights and its tokenizer. Immutable after open. */
#ifndef PS_MODEL_H
#define PS_MODEL_H

#include "model/token.h"
#include "model/weights.h"
#include "plainsong.h"

struct ps_model {
    struct gguf file;
    struct weights weights;
    struct token_model *token;
    struct gguf_str chat_template; /* at NULL: none */
    char *bos, *eos;
};

#endif
