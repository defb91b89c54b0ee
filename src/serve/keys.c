/* API keys. See keys.h. Keys are compared as KEY_MAX bytes padded with zeros, all bytes of all keys each time. */
#include "serve/keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct key {
    struct key *next;
    u64 domain;
    u32 holds, running; /* under lock; the list holds one */
    u8 text[KEY_MAX];
};

struct keys {
    char *path;
    pthread_mutex_t lock;
    struct key *list;
    u64 last_domain;
};

static void drop(struct key *key) /* under lock */
{
    if (--key->holds == 0) {
        memset(key->text, 0, sizeof key->text);
        free(key);
    }
}

static void drop_list(struct key *list)
{
    while (list) {
        struct key *next = list->next;
        drop(list);
        list = next;
    }
}

/* 1 when a and b are equal; looks at every byte. */
static u32 same(const u8 *a, const u8 *b)
{
    volatile u32 differ = 0;
    for (u32 i = 0; i < KEY_MAX; i++)
        differ |= (u32)(a[i] ^ b[i]);
    return differ == 0;
}

static struct key *find(struct key *list, const u8 *text)
{
    struct key *found = NULL;
    for (struct key *key = list; key; key = key->next)
        found = same(key->text, text) ? key : found;
    return found;
}

/* A line without its end and white space around it; false: nothing to read there. */
static bool trim(char *line, size_t *from, size_t *len)
{
    *from = strspn(line, " \t");
    *len = strcspn(line + *from, "\r\n");
    while (*len && (line[*from + *len - 1] == ' ' || line[*from + *len - 1] == '\t'))
        --*len;
    return *len && line[*from] != '#';
}

static int read_keys(FILE *f, const char *path, struct key **list, struct err *err)
{
    char line[2 * KEY_MAX + 64];
    u32 number = 0, n = 0;
    while (fgets(line, sizeof line, f)) {
        size_t from, len;
        number++;
        if (!strchr(line, '\n') && !feof(f))
            return err_set(err, "%s line %u: longer than a key may be: at most %d characters", path, number, KEY_MAX);
        if (!trim(line, &from, &len))
            continue;
        bool ok = len >= KEY_MIN && len <= KEY_MAX;
        for (size_t i = 0; i < len; i++)
            ok = ok && (u8)line[from + i] > ' ' && (u8)line[from + i] < 0x7F;
        if (!ok)
            return err_set(err, "%s line %u: expected a key of %d to %d printable characters without spaces", path, number,
                           KEY_MIN, KEY_MAX);
        struct key *key = mem_array(1, sizeof *key);
        if (!key)
            return err_set(err, "out of memory");
        memcpy(key->text, line + from, len);
        key->holds = 1;
        key->next = *list;
        *list = key;
        n++;
    }
    memset(line, 0, sizeof line);
    if (ferror(f))
        return err_set(err, "%s: %s", path, strerror(errno));
    return n ? 0 : err_set(err, "%s: holds no key; expected one a line", path);
}

int keys_reload(struct keys *k, struct err *err)
{
    if (!k->path)
        return 0;
    struct key *fresh = NULL, *list = NULL;
    FILE *f = fopen(k->path, "r");
    if (!f)
        return err_set(err, "%s: %s", k->path, strerror(errno));
    int rc = read_keys(f, k->path, &fresh, err);
    fclose(f);
    pthread_mutex_lock(&k->lock);
    while (!rc && fresh) { /* a key that was there stays itself */
        struct key *key = fresh, *old = find(k->list, key->text);
        fresh = key->next;
        if (find(list, key->text)) {
            drop(key);
            continue;
        }
        if (old) {
            struct key **at = &k->list;
            while (*at != old)
                at = &(*at)->next;
            *at = old->next;
            drop(key);
            key = old;
        } else {
            key->domain = ++k->last_domain;
        }
        key->next = list;
        list = key;
    }
    if (!rc) {
        drop_list(k->list);
        k->list = list;
    }
    drop_list(fresh);
    pthread_mutex_unlock(&k->lock);
    return rc;
}

int keys_open(struct keys **out, const char *path, struct err *err)
{
    struct keys *k = *out = mem_array(1, sizeof *k);
    if (!k)
        return err_set(err, "out of memory");
    pthread_mutex_init(&k->lock, NULL);
    k->path = path ? strdup(path) : NULL;
    int rc = path && !k->path ? err_set(err, "out of memory") : keys_reload(k, err);
    if (rc) {
        keys_close(k);
        *out = NULL;
    }
    return rc;
}

void keys_close(struct keys *k)
{
    if (!k)
        return;
    drop_list(k->list);
    pthread_mutex_destroy(&k->lock);
    free(k->path);
    free(k);
}

u32 keys_count(struct keys *k)
{
    u32 n = 0;
    pthread_mutex_lock(&k->lock);
    for (struct key *key = k->list; key; key = key->next)
        n++;
    pthread_mutex_unlock(&k->lock);
    return n;
}

bool keys_needed(const struct keys *k)
{
    return k->path != NULL;
}

struct key *keys_find(struct keys *k, const char *text, size_t len)
{
    u8 padded[KEY_MAX] = {0};
    memcpy(padded, text, len < KEY_MAX ? len : KEY_MAX);
    pthread_mutex_lock(&k->lock);
    struct key *key = find(k->list, padded);
    if (len > KEY_MAX)
        key = NULL;
    if (key)
        key->holds++;
    pthread_mutex_unlock(&k->lock);
    return key;
}

bool keys_start(struct keys *k, struct key *key, u32 most)
{
    pthread_mutex_lock(&k->lock);
    bool may = !most || key->running < most;
    key->running += may;
    pthread_mutex_unlock(&k->lock);
    return may;
}

void keys_stop(struct keys *k, struct key *key)
{
    pthread_mutex_lock(&k->lock);
    key->running--;
    pthread_mutex_unlock(&k->lock);
}

void keys_give(struct keys *k, struct key *key)
{
    if (!key)
        return;
    pthread_mutex_lock(&k->lock);
    drop(key);
    pthread_mutex_unlock(&k->lock);
}

u64 keys_domain(const struct key *key)
{
    return key->domain;
}
