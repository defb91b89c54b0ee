/* Any bytes as a model file: opening must answer, never crash. With libFuzzer:
 *
 *   sh tests/fuzz/run.sh 20000 gguf
 *
 * Or, without libFuzzer, -DFUZZ_MAIN makes a program that runs the files it is given. */
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* Every value and every byte of every tensor that a reader of the file may touch. */
static u64 touch(const struct gguf *g)
{
    u64 sum = 0;
    for (u64 i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        const u8 *at = kv->at;
        for (u64 k = 0; k < kv->count; k++) {
            if (kv->item == GGUF_STRING) {
                struct gguf_str s = gguf_item_str(&at);
                sum += s.len ? (u8)s.at[s.len - 1] : 0;
            } else {
                sum += (u64)gguf_item_int(kv, k) + (gguf_item_f32(kv, k) > 0);
            }
        }
    }
    for (u64 i = 0; i < g->n_tensors; i++)
        sum += g->tensors[i].data[0] + g->tensors[i].data[g->tensors[i].bytes - 1];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct gguf g;
    struct weights w;
    struct err err;
    volatile u64 sum;
    err.text[0] = 0;
    if (gguf_parse(&g, "fuzz", bytes, len, &err)) {
        if (!err.text[0])
            abort(); /* a failure without a line */
        return 0;
    }
    sum = touch(&g);
    (void)sum;
    if (!weights_open(&w, &g, &err))
        weights_close(&w);
    else if (!err.text[0])
        abort();
    gguf_close(&g);
    return 0;
}

#ifdef FUZZ_MAIN
#include <stdio.h>

int main(int argc, char **argv)
{
    static uint8_t buf[1 << 20];
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f)
            return 1;
        size_t n = fread(buf, 1, sizeof buf, f);
        fclose(f);
        uint8_t *copy = malloc(n ? n : 1); /* exact, for AddressSanitizer */
        if (!copy)
            return 1;
        memcpy(copy, buf, n);
        LLVMFuzzerTestOneInput(copy, n);
        free(copy);
    }
    return 0;
}
#endif
