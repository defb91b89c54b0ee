/* Float weights to blocks of 32, and a float GGUF to a quantised one. Rounding as in llama.cpp's
 * reference quantiser, so that files compare byte for byte. */
#ifndef PS_QUANTIZE_H
#define PS_QUANTIZE_H

#include "model/gguf.h"

/* x: (n), n a multiple of 32; out: n / 32 blocks of type.
 *   q4_0: d = the weight of largest magnitude (the first of equals) / -8; q = min(15, floor(x *
 * (1/d) + 8.5)); half(d), then byte j = q[j] | q[j + 16] << 4 q8_0: d = largest magnitude / 127; q
 * = x * (1/d) rounded to the nearest, halves away from 0; half(d), then q d = 0, or so small that
 * 1/d is infinite: every q stands for 0. Scales are rounded to the nearest even half. Returns -1,
 * or the index of the first weight that is not finite or whose block's scale no half holds. */
i64 quantize_blocks(enum dtype type, const float *x, u64 n, u8 *out);

/* The type in which a file of `type` (DT_Q4_0, DT_Q8_0) keeps the tensor. f32: norms, biases and
 * whatever else has one dimension, routers. q8_0: embedding and output matrix. Its own type: rows
 * that are not whole blocks. */
enum dtype quantize_choose(const struct gguf_tensor *t, enum dtype type);

struct quantize_job {
    const char *in, *out;
    enum dtype type;
    /* Each may be NULL. They run on the caller's thread. */
    void (*tell)(void *arg, const char *what, u64 done, u64 total); /* bytes of the input */
    void *tell_arg;
    void (*note)(void *arg,
                 const char *line); /* a tensor that stays as it is, and why; before any tell */
    void *note_arg;
    bool (*stop)(void *arg); /* asked every few milliseconds: whether to give up */
    void *stop_arg;
};

struct quantize_result {
    u64 n_quantised, n_float; /* tensors */
    u64 in_bytes, out_bytes;  /* of the files */
};

/* Does the job. On failure out is as it was before; err: file, tensor and reason. */
int quantize_file(const struct quantize_job *job, struct quantize_result *result, struct err *err);

#endif
