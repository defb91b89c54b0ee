/* Any bytes as a request's body: a refusal has a status and a line, what is taken is JSON that the template and the
 * call parser can read. The first byte of an input chooses the endpoint.
 *
 *   sh tests/fuzz/run.sh 20000 request
 *
 * Or, without libFuzzer, -DFUZZ_MAIN makes a program that runs the files it is given. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "serve/calls.h"
#include "serve/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void must_be(const char *json, json_type type)
{
    json_t *value = json ? json_loads(json, JSON_DECODE_ANY, NULL) : NULL;
    if (json && (!value || json_typeof(value) != type))
        abort();
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct request r;
    struct api_error e = {0};
    struct calls_tools *tools;
    if (len < 1)
        return 0;
    enum endpoint endpoint = (enum endpoint)(bytes[0] % (ENDPOINT_APPLY_TEMPLATE + 1));
    if (request_parse(&r, endpoint, (const char *)bytes + 1, len - 1, &e)) {
        struct bytes out = {0};
        if (e.status != 400 || !e.message[0])
            abort();
        api_error_openai(&e, &out);
        api_error_anthropic(&e, "r", &out);
        bytes_free(&out);
        return 0;
    }
    if (!r.messages_json == !r.prompts)
        abort();
    must_be(r.messages_json, JSON_ARRAY);
    must_be(r.tools_json, JSON_ARRAY);
    must_be(r.kwargs_json, JSON_OBJECT);
    if (r.n < 1 || r.n > REQUEST_MAX_CHOICES || (r.format == FORMAT_SCHEMA) != !!r.schema_json ||
        (r.tool_choice == TOOLS_NAMED) != !!r.tool_name || (r.tool_choice == TOOLS_NONE) != !r.tools_json)
        abort();
    if (r.tools_json) {
        if (calls_tools_open(&tools, r.tools_json))
            abort();
        calls_tools_close(tools);
    }
    request_free(&r);
    return 0;
}

#ifdef FUZZ_MAIN
#include <stdio.h>

int main(int argc, char **argv)
{
    static uint8_t bytes[1 << 20];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        size_t len = file ? fread(bytes, 1, sizeof bytes, file) : 0;
        if (file)
            fclose(file);
        LLVMFuzzerTestOneInput(bytes, len);
    }
    return 0;
}
#endif
