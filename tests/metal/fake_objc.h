/* An Objective-C runtime for tests, as little as a program in C meets: classes as tables, objects counted, pools, and an objc_msgSend that
 * looks a message up and jumps to its function with the caller's arguments untouched. What Apple's would let pass or crash on ends the
 * process with one line on stderr that begins with "fake Metal: ". Any thread. */
#ifndef FAKE_OBJC_H
#define FAKE_OBJC_H

#include "base/base.h"

#include <stdatomic.h>

struct sel { /* one for each name */
    const char *name;
    struct sel *next;
};

struct fake_class;

struct fake { /* first member of every object, and of every class */
    const struct fake_class *isa;
    atomic_int refs;
    struct fake *next, *prev; /* of all that live, or of all that are gone: memory is kept, so that a late message is seen */
};

struct fake_method {
    const char *name;
    void (*fn)(void); /* cast; called with (self, selector, arguments) */
};

struct fake_class {
    struct fake head;       /* isa: the class of the class, whose methods are the class methods */
    const char *name;
    const struct fake_class *super;
    const struct fake_method *methods; /* to one without a name */
    u64 bytes;              /* of an object */
    void (*end)(struct fake *self); /* before it is gone; NULL: nothing to do */
};

#define FAKE_METHOD(text, fn) {text, (void (*)(void))(fn)}

/* A line, and the end. */
void fake_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

struct fake *fake_new(const struct fake_class *c); /* held once by the caller, zeros behind the head */
struct fake *fake_retain(struct fake *o);
void fake_release(struct fake *o);
struct fake *fake_autorelease(struct fake *o); /* into this thread's pool; fails when there is none */
void fake_check(const void *o, const struct fake_class *c, const char *what); /* a living object of that class */
struct fake *fake_text(const char *text); /* an NSString, held once */
const char *fake_text_of(const struct fake *o);

u32 fake_live(void);                       /* objects that live */
const struct fake_class *fake_class_of_live(u32 *n); /* the class with most of them, and how many; NULL: none */

/* The classes of fake_metal.c, of which one is found by name. */
extern const struct fake_class *const fake_classes[];
extern const struct fake_class fake_root, fake_root_class, fake_string;

#endif
