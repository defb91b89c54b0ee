/* The device and the standing cost. See cost.h. */
#include "cli/cost.h"

#include <unistd.h>

struct amount {
    double n;
    const char *unit;
};

static struct amount amount(u64 bytes)
{
    return bytes >= 1000000000 ? (struct amount){1e-9 * (double)bytes, "GB"}
                               : (struct amount){1e-6 * (double)bytes, "MB"};
}

void cost_print(FILE *out, const struct ps_cost *c)
{
    struct amount weights = amount(c->weights), kv = amount(c->kv), setup = amount(c->setup),
                  scratch = amount(c->scratch), total = amount(c->total);
    fprintf(out, "memory: %.1f %s weights, %.1f %s keys and values (%u x %u x %llu bytes),\n",
            weights.n, weights.unit, kv.n, kv.unit, c->n_slots, c->n_ctx,
            (unsigned long long)c->position_bytes);
    fprintf(out, "  %.1f %s setup, %.1f %s scratch: %.1f %s in all", setup.n, setup.unit, scratch.n,
            scratch.unit, total.n, total.unit);
    if (c->opened_bytes)
        fprintf(out, " of the %.1f %s that were free", amount(c->opened_bytes).n,
                amount(c->opened_bytes).unit);
    fputc('\n', out);
    if (!c->n_others)
        return;
    struct amount other = amount(c->other_bytes);
    if (c->n_others == 1)
        fprintf(out, "another plainsong (pid %u) holds %.1f %s\n", c->other_pid, other.n, other.unit);
    else
        fprintf(out, "%u other plainsongs run; the largest (pid %u) holds %.1f %s\n", c->n_others,
                c->other_pid, other.n, other.unit);
}

const char *cost_device(char *text, size_t room, const struct ps_stats *s)
{
    int n = snprintf(text, room, "%s %s", s->device, s->isa);
    if (s->n_threads && n > 0 && (size_t)n < room)
        snprintf(text + n, room - (size_t)n, ", %u thread%s", s->n_threads,
                 s->n_threads == 1 ? "" : "s");
    return text;
}

void cost_greet(struct ps_engine *e, bool asked)
{
    struct ps_cost c;
    if (!asked && !isatty(STDERR_FILENO))
        return;
    ps_engine_cost(e, &c);
    cost_print(stderr, &c);
}
