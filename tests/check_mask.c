/* What token masks cost: time of a mask that must be computed (cold) and of one with the cache as it is in use (warm),
 * over random answers of a few grammars. Not a test: `make build/release/tests/check_mask`, then
 *
 *   build/release/tests/check_mask TOKENS      TOKENS: one token a line, in hexadecimal; the last one ends an answer
 *
 * The list of a model's tokens: plainsong-tiny's without an argument. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "serve/schema.h"
#include "serve/vocab_mask.h"

static struct vocab_token *tokens;
static u32 n_tokens;

static void read_tokens(const char *path)
{
    static char line[4096];
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        abort();
    }
    tokens = calloc(1 << 20, sizeof *tokens);
    while (fgets(line, sizeof line, f) && n_tokens < 1 << 20) {
        u32 len = (u32)strcspn(line, "\n") / 2;
        char *at = malloc(len + 1);
        for (u32 i = 0; i < len; i++) {
            char hex[3] = {line[2 * i], line[2 * i + 1], 0};
            at[i] = (char)strtoul(hex, NULL, 16);
        }
        tokens[n_tokens++] = (struct vocab_token){at, len, false};
    }
    fclose(f);
    tokens[n_tokens - 1].end = true;
}

static void tokens_of_tiny(void)
{
    static struct gguf g;
    static struct token_model *t;
    struct err err;
    if (gguf_open(&g, "models/plainsong-tiny-q4_0.gguf", &err) || token_open(&t, &g, 4096, &err))
        abort();
    tokens = calloc(n_tokens = token_count(t), sizeof *tokens);
    for (u32 i = 0; i < n_tokens; i++) {
        size_t len;
        tokens[i].at = token_bytes(t, i, false, &len);
        tokens[i].len = (u32)len;
        tokens[i].end = token_is_end(t, i);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* An allowed token, words before single letters as models choose, by drawing a few times; closing ones now and then. */
static u32 pick(const u32 *bits)
{
    u32 best = UINT32_MAX, tries = 0;
    for (u32 i = 0; i < 64 * 1024 && tries < 3; i++) {
        u32 id = check_below(n_tokens);
        if (!(bits[id >> 5] >> (id & 31) & 1))
            continue;
        tries++;
        if (best == UINT32_MAX || (tokens[id].len && strchr("\"}],", tokens[id].at[0])) || check_below(3) == 0)
            best = id;
    }
    for (u32 first = check_below(n_tokens), i = 0; best == UINT32_MAX && i < n_tokens; i++)
        if (bits[(first + i) % n_tokens >> 5] >> ((first + i) % n_tokens & 31) & 1)
            best = (first + i) % n_tokens;
    return best;
}

enum { MASKS = 3000, STEPS = 200 };

/* Masks of answers one after the other; the cache of one entry is no cache. */
static void measure(const char *name, const struct vocab *v, const json_t *schema, bool cached)
{
    static double times[MASKS], took_s;
    struct grammar g;
    struct masks *m;
    struct mask *k = NULL;
    struct err err;
    struct mask_counts counts;
    u64 masks = 0, found = 0;
    if (schema_open(&g, schema, false, &err) || masks_open(&m, v, &g, cached ? MASKS_CACHE_BYTES : 0, &err)) {
        printf("%s: %s\n", name, err.text);
        return;
    }
    check_seed(3);
    took_s = 0;
    for (u32 i = 0, step = 0; i < MASKS; i++) {
        if (!k && mask_open(&k, m, &err))
            abort();
        double begin = time_now();
        const u32 *bits = mask_allowed(k);
        times[i] = time_now() - begin;
        u32 id = pick(bits);
        begin = time_now();
        mask_took(k, id);
        took_s += time_now() - begin;
        if (tokens[id].end || ++step == STEPS) {
            mask_counts(k, &counts);
            masks += counts.masks;
            found += counts.found;
            mask_close(k);
            k = NULL;
            step = 0;
        }
    }
    mask_close(k);
    masks_close(m);
    double sum = 0;
    for (u32 i = 0; i < MASKS; i++)
        sum += times[i];
    qsort(times, MASKS, sizeof *times, by_value);
    printf("%-28s %-5s  mean %7.1f  median %7.1f  p99 %7.1f  max %7.1f us   found %5.1f %%   took %.1f us\n", name,
           cached ? "warm" : "cold", sum / MASKS * 1e6, times[MASKS / 2] * 1e6, times[MASKS / 100 * 99] * 1e6,
           times[MASKS - 1] * 1e6, masks ? 100.0 * (double)found / (double)masks : 0, took_s / MASKS * 1e6);
}

static const char *const GRAMMARS[][2] = {
    {"any object", "{\"type\":\"object\"}"},
    {"nested objects",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
     "\"maximum\":150},\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\"},\"city\":{\"type\":"
     "\"string\",\"maxLength\":40},\"zip\":{\"type\":\"string\",\"pattern\":\"^\\\\d{5}$\"}},\"required\":[\"street\",\"city\","
     "\"zip\"],\"additionalProperties\":false},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":5},"
     "\"score\":{\"type\":\"number\"}},\"required\":[\"name\",\"age\",\"address\",\"tags\",\"score\"],"
     "\"additionalProperties\":false}"},
    {"string, pattern of words", "{\"type\":\"string\",\"pattern\":\"^[A-Z][a-z]+( [a-z]+)*\\\\.$\"}"},
    {"string, searched pattern", "{\"type\":\"string\",\"pattern\":\"foo\"}"},
    {"string, pattern of lengths", "{\"type\":\"string\",\"pattern\":\"^.{1,200}$\"}"},
    {"string, [^<>]* up to 100", "{\"type\":\"string\",\"pattern\":\"^[^<>]*$\",\"maxLength\":100}"},
    {"string, up to 100", "{\"type\":\"string\",\"maxLength\":100}"},
    {"recursion",
     "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":[\"string\",\"integer\"]},\"left\":{\"anyOf\":"
     "[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]},\"right\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},"
     "\"required\":[\"value\",\"left\",\"right\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}"},
};

int main(int argc, char **argv)
{
    struct vocab *v;
    struct err err;
    if (argc > 1)
        read_tokens(argv[1]);
    else
        tokens_of_tiny();
    double begin = time_now();
    if (vocab_open_tokens(&v, tokens, n_tokens, &err)) {
        printf("%s\n", err.text);
        return 1;
    }
    printf("%u tokens, vocabulary built in %.0f ms\n", n_tokens, (time_now() - begin) * 1e3);
    for (size_t i = 0; i < COUNT(GRAMMARS); i++) {
        json_t *schema = json_loads(GRAMMARS[i][1], 0, NULL);
        measure(GRAMMARS[i][0], v, schema, false);
        measure(GRAMMARS[i][0], v, schema, true);
        json_decref(schema);
    }
    json_t *values = json_array(), *longest = json_pack("{s:o}", "enum", values);
    for (u32 i = 0; i < 5000; i++)
        json_array_append_new(values, json_sprintf("%x value %u of the list", check_u32(), i));
    begin = time_now();
    measure("enum of 5,000", v, longest, false);
    measure("enum of 5,000", v, longest, true);
    json_decref(longest);
    vocab_close(v);
    return 0;
}
