/* Two prompts decoded together through the C API:
 *     cc streams.c $(pkg-config --cflags --libs plainsong) -o streams && ./streams model.gguf "text one" "text two" */
#include <plainsong.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct ps_error err;
    struct ps_stream *stream[16];
    int n = argc - 2 < 16 ? argc - 2 : 16;
    struct ps_model *model = argc > 2 ? ps_model_open(argv[1], &err) : NULL;
    struct ps_engine *engine = model ? ps_engine_open(model, NULL, &err) : NULL;
    if (!engine) {
        fprintf(stderr, "%s\n", argc > 2 ? err.text : "usage: streams MODEL TEXT...");
        ps_model_close(model);
        return 1;
    }
    for (int i = 0; i < n; i++) { /* all are queued before the first token is read: they share every step */
        struct ps_request r = {.max_tokens = 32};
        uint32_t *ids;
        stream[i] = NULL;
        if (ps_encode(model, argv[i + 2], strlen(argv[i + 2]), false, true, &ids, &r.n_ids, &err) == 0) {
            r.ids = ids;
            stream[i] = ps_stream_open(engine, &r, &err);
            free(ids);
        }
        if (!stream[i])
            fprintf(stderr, "stream %d: %s\n", i, err.text);
    }
    for (int i = 0; i < n; i++) {
        struct ps_token token;
        struct ps_decoder *text = ps_decoder_open(model, false);
        size_t len;
        printf("%d:", i);
        while (stream[i] && ps_stream_next(stream[i], &token, &err) == 1) {
            const char *piece = ps_decoder_push(text, token.id, &len); /* before len is read */
            fwrite(piece, 1, len, stdout);
        }
        printf("\n");
        ps_decoder_close(text);
        ps_stream_close(stream[i]);
    }
    ps_engine_close(engine);
    ps_model_close(model);
    return 0;
}
