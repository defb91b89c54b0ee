/* API keys: who may ask. A file holds one key a line; blank lines and lines that begin with # are skipped. A key is 8 to
 * KEY_MAX printable ASCII characters without spaces. Reading the file again (SIGHUP) keeps the identity of a key that is
 * still there: its domain, in which kept prefixes are shared, and what it has running. */
#ifndef PS_KEYS_H
#define PS_KEYS_H

#include "base/base.h"

enum { KEY_MIN = 8, KEY_MAX = 256 };

struct keys;
struct key; /* counted: valid from keys_take to keys_give */

/* path NULL: everyone may, as one and the same. err: the line at fault by its number, never the key. */
int keys_open(struct keys **out, const char *path, struct err *err);
void keys_close(struct keys *k); /* no key may be out */
/* On failure the old keys stay. Any thread. */
int keys_reload(struct keys *k, struct err *err);
u32 keys_count(struct keys *k);
bool keys_needed(const struct keys *k);

/* The key that reads so, held; NULL: none does. The time taken does not depend on how much of a key agrees. Any thread. */
struct key *keys_find(struct keys *k, const char *text, size_t len);
/* Asks for a place among the requests that a key may run at once: false when `most` run already (0: no limit). */
bool keys_start(struct keys *k, struct key *key, u32 most);
void keys_stop(struct keys *k, struct key *key);
void keys_give(struct keys *k, struct key *key); /* NULL is fine */
u64 keys_domain(const struct key *key);          /* never that of another key, also of one that was removed */

#endif
