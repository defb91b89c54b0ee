/* What a client is told when a request cannot be served: filled once, where the cause is known, and written in the form
 * of the API that was spoken. Messages are printable ASCII: what a client sent appears in them escaped. */
#ifndef PS_API_ERROR_H
#define PS_API_ERROR_H

#include "serve/bytes.h"

struct api_error {
    int status;       /* HTTP: 400, 401, 403, 404, 413, 429, 500, 503 */
    const char *type; /* OpenAI's: "invalid_request_error", ... ; a constant */
    const char *code; /* machine-readable, or NULL; a constant */
    char param[64];   /* the field at fault, as "messages[3].content"; "" when none */
    char message[256];
};

/* Fills e and returns -1. param may be NULL. Bytes that are not printable ASCII become '?'. */
int api_error_set(struct api_error *e, int status, const char *type, const char *code, const char *param,
                  const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* A 400 of type invalid_request_error. */
#define api_error_bad(e, param, ...) api_error_set(e, 400, "invalid_request_error", NULL, param, __VA_ARGS__)

/* A 500 for want of memory: the one failure of these modules that is not the client's. */
int api_error_memory(struct api_error *e);

/* {"error":{"message":..,"type":..,"param":..,"code":..}} */
void api_error_openai(const struct api_error *e, struct bytes *out);
/* {"type":"error","error":{"type":..,"message":..},"request_id":..}; the type follows from the status, as their
 * client's classes do. request_id may be NULL. */
void api_error_anthropic(const struct api_error *e, const char *request_id, struct bytes *out);

#endif
