/* The list of devices, and what all of them check. See device.h. */
#include "device/device_impl.h"

#include "gpu/args.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)DEVICE_PICKS == (int)PICK_TOP && (int)DEVICE_PICK_WORDS == (int)PICK_WORDS,
               "the kernel's list is the one that device.h describes");

#if PS_METAL
static const struct device_ops *const DEVICES[] = {&device_cpu, &device_cuda, &device_metal, &device_emu};
#define NAMES "cpu, cuda, metal, emu"
#else
static const struct device_ops *const DEVICES[] = {&device_cpu, &device_cuda, &device_emu};
#define NAMES "cpu, cuda, emu"
#endif

static const struct device_ops *find(const char *name, struct err *err)
{
    for (u32 i = 0; i < COUNT(DEVICES); i++)
        if (!name || !strcmp(DEVICES[i]->name, name))
            return DEVICES[i];
    char text[64];
    if (!strcmp(name, "metal"))
        err_set(err, "--device metal: it is for Macs with an M1 or later, where it is built in; this program has: " NAMES);
    else
        err_set(err, "--device: \"%s\" is not built in; this program has: " NAMES, err_quote(text, sizeof text, name, strlen(name)));
    return NULL;
}

int device_memory(const char *name, u64 *free_bytes, struct err *err)
{
    const struct device_ops *ops = find(name, err);
    *free_bytes = 0;
    if (!ops)
        return -1;
    return ops->memory ? ops->memory(free_bytes, err) : 0;
}

bool device_advise(const char *name, u64 need, char *text, size_t n)
{
    const struct device_ops *ops = find(name, NULL);
    text[0] = 0;
    if (!ops || !ops->advise)
        return false;
    ops->advise(need, text, n);
    return true;
}

int device_chunk(const char *name, u32 *rows, struct err *err)
{
    const struct device_ops *ops = find(name, err);
    *rows = ops ? ops->chunk : 0;
    return ops ? 0 : -1;
}

int device_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err)
{
    *out = NULL;
    const struct device_ops *ops = find(opts->name, err);
    return ops ? ops->open(out, p, opts, err) : -1;
}

void device_close(struct device *d)
{
    if (d)
        d->ops->close(d);
}

int device_step(struct device *d, const struct row *rows, u32 n_rows, struct err *err)
{
    u32 logits = 0;
    if (d->stats.broken)
        return err_set(err, "%s", d->stats.broken);
    if (n_rows == 0 || n_rows > d->opts.max_rows)
        return err_set(err, "step: %u rows; expected 1 to %u", n_rows, d->opts.max_rows);
    for (u32 i = 0; i < n_rows; i++) {
        const struct row *r = &rows[i];
        logits += r->wants_logits;
        if (r->slot >= d->opts.n_slots || r->pos >= d->opts.n_ctx || r->token >= d->plan->hp.n_vocab)
            return err_set(err, "step: row %u has slot %u, position %u, token %u; limits are %u, %u, %u", i, r->slot,
                           r->pos, r->token, d->opts.n_slots, d->opts.n_ctx, d->plan->hp.n_vocab);
    }
    if (logits > d->opts.max_logits)
        return err_set(err, "step: %u rows want logits; expected at most %u", logits, d->opts.max_logits);
    return d->ops->step(d, rows, n_rows, err);
}

void device_copy(struct device *d, u32 from, u32 to, u32 n)
{
    if (from != to && n && !d->stats.broken)
        d->ops->copy(d, from, to, n);
    d->stats.copied += n;
}

const float *device_logits(const struct device *d, u32 i)
{
    return d->stats.broken ? NULL : d->ops->logits(d, i);
}

const u32 *device_picks(const struct device *d, u32 i)
{
    return d->ops->picks && !d->stats.broken ? d->ops->picks(d, i) : NULL;
}

void device_each(struct device *d, u32 n, void (*fn)(void *arg, u32 i, u32 thread), void *arg)
{
    if (d->ops->each) {
        d->ops->each(d, n, fn, arg);
        return;
    }
    for (u32 i = 0; i < n; i++)
        fn(arg, i, 0);
}

void device_stats(const struct device *d, struct device_stats *s)
{
    *s = d->stats;
}

void device_break(struct device *d, const char *why)
{
    if (d->stats.broken)
        return;
    snprintf(d->broken, sizeof d->broken, "%s", why);
    d->stats.broken = d->broken;
}

void device_warn(struct device *d, const char *what)
{
    if (d->stats.warning)
        return;
    snprintf(d->warning, sizeof d->warning, "%s", what);
    d->stats.warning = d->warning;
}

void device_set_trace(struct device *d, device_trace *fn, void *arg)
{
    d->trace = fn;
    d->trace_arg = arg;
}
