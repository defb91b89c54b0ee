/* See api_error.h. */
#include "serve/api_error.h"

#include <stdio.h>
#include <string.h>

static void printable(char *text)
{
    for (char *c = text; *c; c++)
        if ((u8)*c < 0x20 || (u8)*c >= 0x7F)
            *c = '?';
}

int api_error_set(struct api_error *e, int status, const char *type, const char *code, const char *param,
                  const char *fmt, ...)
{
    va_list args;
    e->status = status;
    e->type = type;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    printable(e->param);
    printable(e->message);
    return -1;
}

int api_error_memory(struct api_error *e)
{
    return api_error_set(e, 500, "server_error", "out_of_memory", NULL, "out of memory for this request");
}

void api_error_openai(const struct api_error *e, struct bytes *out)
{
    bytes_str(out, "{\"error\":{\"message\":");
    bytes_json(out, e->message, strlen(e->message));
    bytes_str(out, ",\"type\":");
    bytes_json(out, e->type, strlen(e->type));
    bytes_str(out, ",\"param\":");
    if (e->param[0])
        bytes_json(out, e->param, strlen(e->param));
    else
        bytes_str(out, "null");
    bytes_str(out, ",\"code\":");
    if (e->code)
        bytes_json(out, e->code, strlen(e->code));
    else
        bytes_str(out, "null");
    bytes_str(out, "}}");
}

static const char *anthropic_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
    case 529:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void api_error_anthropic(const struct api_error *e, const char *request_id, struct bytes *out)
{
    bytes_str(out, "{\"type\":\"error\",\"error\":{\"type\":");
    bytes_json(out, anthropic_type(e->status), strlen(anthropic_type(e->status)));
    bytes_str(out, ",\"message\":\"");
    if (e->param[0] && strncmp(e->message, e->param, strlen(e->param)) != 0) { /* their form has no place for it */
        bytes_escaped(out, e->param, strlen(e->param));
        bytes_str(out, ": ");
    }
    bytes_escaped(out, e->message, strlen(e->message));
    bytes_str(out, "\"},\"request_id\":");
    if (request_id)
        bytes_json(out, request_id, strlen(request_id));
    else
        bytes_str(out, "null");
    bytes_str(out, "}");
}
