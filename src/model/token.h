/* Text to token ids and back, exactly as Hugging Face's tokenizers do it: byte-level BPE and SentencePiece BPE
 * with byte fallback, read from a GGUF's tokenizer.ggml.* fields. Immutable after open: any number of threads
 * may encode and decode at once. */
#ifndef PS_TOKEN_H
#define PS_TOKEN_H

#include "model/gguf.h"

struct token_model; /* owns its tables; needs the gguf only while opening */

enum { TOKEN_NONE = -1 };

struct token_special { /* ids, or TOKEN_NONE */
    i32 bos, eos, eot, pad, unk;
    bool add_bos, add_eos; /* what the file asks for on a fresh text */
};

/* n_vocab: rows of the embedding; the token list must be exactly that long. err names the field. */
int token_open(struct token_model **out, const struct gguf *g, u32 n_vocab, struct err *err);
void token_close(struct token_model *t);

u32 token_count(const struct token_model *t);
const struct token_special *token_special(const struct token_model *t);

/* True for ids that end an answer: eos, eot, and tokens spelled <|im_end|>, <|endoftext|>, <|eot_id|>, <|end_of_text|>,
 * <|end|>, </s> that the file marks as control. */
bool token_is_end(const struct token_model *t, u32 id);

/* The id whose whole text is these bytes (special tokens included), or TOKEN_NONE. */
i32 token_find(const struct token_model *t, const char *text, size_t len);

enum { TOKEN_PARSE_SPECIAL = 1 /* control, unknown and user-defined tokens spelled in the text become their ids */,
       TOKEN_ADD_BOS = 2 /* put bos (eos) where the file asks for it */ };

struct token_ids { /* grows; zero-initialise; released by token_ids_free */
    u32 *ids;
    size_t n, cap;
};
void token_ids_free(struct token_ids *ids);

/* Appends the ids of text[0..len) to out. Ill-formed UTF-8 is an error (nothing appended). Time is O(len log len).
 * With TOKEN_PARSE_SPECIAL the ids are those of Hugging Face's tokenizers. Without it, the way for text that users
 * write, a token's spelling is only text: neither <|im_end|> (control) nor <tool_call> (user-defined) is seen. The
 * exception are user-defined tokens of white space alone (OLMo's runs of spaces): they always are. */
int token_encode(const struct token_model *t, const char *text, size_t len, unsigned flags, struct token_ids *out,
                 struct err *err);

/* The same, but a token's spelling that touches one of the guards (ascending, disjoint) is text all the same, joined
 * with its neighbours: for what users wrote inside a text that is otherwise ours. */
struct token_guard {
    size_t from, to; /* bytes [from, to) of the text */
};
int token_encode_guarded(const struct token_model *t, const char *text, size_t len, const struct token_guard *guards,
                         size_t n_guards, unsigned flags, struct token_ids *out, struct err *err);

/* The bytes of one token (0..TOKEN_MAX_BYTES), not NUL-terminated; control tokens give none unless keep_special.
 * An id outside the vocabulary gives none. Pointer valid as long as t. *len is set always. */
const char *token_bytes(const struct token_model *t, u32 id, bool keep_special, size_t *len);

/* A stream of tokens put together to whole UTF-8 characters. Zero-initialise at the start of each text. A
 * character cut by a token boundary is held back until it is whole; bytes that can never become one come out as
 * U+FFFD, one for each maximal ill-formed part, as Python's and the web's decoders do. */
struct token_stream {
    u8 held[4];
    u8 n_held;
    bool begun;          /* SentencePiece: the first token loses one leading space */
    bool keep_special;
};

/* Writes what token id completes to buf (at least 3 * (bytes of token + 4)); returns the bytes written. */
size_t token_stream_push(const struct token_model *t, struct token_stream *s, u32 id, char *buf, size_t buf_bytes);
/* What is still held, as U+FFFD. At most 12 bytes. */
size_t token_stream_end(struct token_stream *s, char *buf, size_t buf_bytes);

/* Longest token_bytes of this vocabulary: to size buffers once. */
size_t token_max_bytes(const struct token_model *t);

#endif
