/* See fake_objc.h. The trampoline saves the registers that carry arguments, asks fake_find for the function and jumps; what lies on the
 * stack (a structure passed by value) is where the function expects it. Our messages pass no floating point. */
#include "fake_objc.h"

#include "device/metal_objc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
__asm__(".text\n.globl objc_msgSend\n.hidden objc_msgSend\n.type objc_msgSend, @function\nobjc_msgSend:\n"
        "push %rbp\nmov %rsp, %rbp\npush %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\n"
        "call fake_find\n"
        "mov %rax, %r11\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\npop %rbp\njmp *%r11\n"
        ".size objc_msgSend, .-objc_msgSend\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl objc_msgSend\n.hidden objc_msgSend\n.type objc_msgSend, %function\nobjc_msgSend:\n"
        "stp x29, x30, [sp, #-96]!\nmov x29, sp\nstp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\n"
        "stp x6, x7, [sp, #64]\nstr x8, [sp, #80]\nbl fake_find\nmov x16, x0\n"
        "ldp x0, x1, [sp, #16]\nldp x2, x3, [sp, #32]\nldp x4, x5, [sp, #48]\nldp x6, x7, [sp, #64]\nldr x8, [sp, #80]\n"
        "ldp x29, x30, [sp], #96\nbr x16\n.size objc_msgSend, .-objc_msgSend\n");
#else
#error "the fake's objc_msgSend is written for x86-64 and arm64"
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake live = {.next = &live, .prev = &live}, gone = {.next = &gone, .prev = &gone};
static u32 n_live;
static struct sel *selectors;

void fake_fail(const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "fake Metal: %s\n", text);
    fflush(NULL);
    _Exit(86);
}

/* ---- messages ---- */

struct sel *sel_registerName(const char *name)
{
    pthread_mutex_lock(&lock);
    struct sel *s = selectors;
    while (s && strcmp(s->name, name))
        s = s->next;
    if (!s) {
        s = malloc(sizeof *s);
        *s = (struct sel){strdup(name), selectors};
        selectors = s;
    }
    pthread_mutex_unlock(&lock);
    return s;
}

static const struct fake_method *method_of(const struct fake_class *c, const char *name)
{
    for (; c; c = c->super)
        for (const struct fake_method *m = c->methods; m && m->name; m++)
            if (!strcmp(m->name, name))
                return m;
    return NULL;
}

void (*fake_find(struct fake *self, struct sel *name))(void);
void (*fake_find(struct fake *self, struct sel *name))(void)
{
    if (!name)
        fake_fail("a message without a selector");
    if (!self)
        fake_fail("-%s sent to nil", name->name);
    if (!self->isa)
        fake_fail("-%s sent to what is no object", name->name);
    if (self->isa->head.isa != NULL && self->refs <= 0)
        fake_fail("-%s sent to a %s that is gone", name->name, self->isa->name);
    const struct fake_method *m = method_of(self->isa, name->name);
    if (!m)
        fake_fail("%s does not know -%s", self->isa->name, name->name);
    return m->fn;
}

struct objc *objc_getClass(const char *name)
{
    for (u32 i = 0; fake_classes[i]; i++)
        if (!strcmp(fake_classes[i]->name, name))
            return (struct objc *)(uintptr_t)fake_classes[i];
    return NULL;
}

/* ---- objects ---- */

static void link_to(struct fake *list, struct fake *o)
{
    o->next = list->next;
    o->prev = list;
    list->next->prev = o;
    list->next = o;
}

struct fake *fake_new(const struct fake_class *c)
{
    struct fake *o = calloc(1, c->bytes);
    o->isa = c;
    o->refs = 1;
    pthread_mutex_lock(&lock);
    link_to(&live, o);
    n_live++;
    pthread_mutex_unlock(&lock);
    return o;
}

struct fake *fake_retain(struct fake *o)
{
    if (o->refs++ <= 0)
        fake_fail("a %s that is gone is retained", o->isa->name);
    return o;
}

void fake_release(struct fake *o)
{
    int before = o->refs--;
    if (before <= 0)
        fake_fail("a %s is released once too often", o->isa->name);
    if (before > 1)
        return;
    for (const struct fake_class *c = o->isa; c; c = c->super)
        if (c->end)
            c->end(o);
    pthread_mutex_lock(&lock);
    o->prev->next = o->next;
    o->next->prev = o->prev;
    link_to(&gone, o);
    n_live--;
    pthread_mutex_unlock(&lock);
}

void fake_check(const void *at, const struct fake_class *c, const char *what)
{
    const struct fake *o = at;
    if (!o)
        fake_fail("%s: nil; expected a %s", what, c->name);
    if (o->isa != c)
        fake_fail("%s: a %s; expected a %s", what, o->isa && o->isa->name ? o->isa->name : "thing", c->name);
    if (o->refs <= 0)
        fake_fail("%s: a %s that is gone", what, c->name);
}

u32 fake_live(void)
{
    pthread_mutex_lock(&lock);
    u32 n = n_live;
    pthread_mutex_unlock(&lock);
    return n;
}

const struct fake_class *fake_class_of_live(u32 *most)
{
    const struct fake_class *found = NULL;
    *most = 0;
    pthread_mutex_lock(&lock);
    for (u32 i = 0; fake_classes[i]; i++) {
        u32 n = 0;
        for (struct fake *o = live.next; o != &live; o = o->next)
            n += o->isa == fake_classes[i];
        if (n > *most) {
            *most = n;
            found = fake_classes[i];
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- pools: a stack for each thread; a pool is its depth ---- */

enum { POOL_ROOM = 4096, POOLS = 32 };

static _Thread_local struct fake *pooled[POOL_ROOM];
static _Thread_local u32 n_pooled, pool_from[POOLS], n_pools;

void *objc_autoreleasePoolPush(void)
{
    if (n_pools == POOLS)
        fake_fail("%d pools within each other", POOLS);
    pool_from[n_pools++] = n_pooled;
    return (void *)(uintptr_t)n_pools;
}

void objc_autoreleasePoolPop(void *pool)
{
    if ((uintptr_t)pool != n_pools || !n_pools)
        fake_fail("pool %u is popped, the innermost is %u", (u32)(uintptr_t)pool, n_pools);
    u32 from = pool_from[--n_pools];
    while (n_pooled > from)
        fake_release(pooled[--n_pooled]);
}

struct fake *fake_autorelease(struct fake *o)
{
    if (!n_pools)
        fake_fail("a %s is autoreleased and there is no pool: it leaks", o->isa->name);
    if (n_pooled == POOL_ROOM)
        fake_fail("%d objects in pools", POOL_ROOM);
    pooled[n_pooled++] = o;
    return o;
}

/* ---- NSObject ---- */

static struct fake *root_alloc(const struct fake *class, struct sel *name)
{
    (void)name;
    return fake_new((const struct fake_class *)class);
}

static struct fake *root_init(struct fake *self, struct sel *name)
{
    (void)name;
    return self;
}

static struct fake *root_retain(struct fake *self, struct sel *name)
{
    (void)name;
    return fake_retain(self);
}

static void root_release(struct fake *self, struct sel *name)
{
    (void)name;
    fake_release(self);
}

static bool root_responds(struct fake *self, struct sel *name, struct sel *asked)
{
    (void)name;
    return method_of(self->isa, asked->name) != NULL;
}

static const struct fake_method ROOT[] = {FAKE_METHOD("init", root_init),
                                          FAKE_METHOD("retain", root_retain),
                                          FAKE_METHOD("release", root_release),
                                          FAKE_METHOD("respondsToSelector:", root_responds),
                                          {0}};
static const struct fake_method ROOT_CLASS[] = {FAKE_METHOD("alloc", root_alloc), {0}};
const struct fake_class fake_root_class = {.name = "NSObject's class", .methods = ROOT_CLASS};
const struct fake_class fake_root = {.head = {.isa = &fake_root_class}, .name = "NSObject", .methods = ROOT, .bytes = sizeof(struct fake)};

/* ---- NSString ---- */

struct string {
    struct fake head;
    char *text;
};

struct fake *fake_text(const char *text)
{
    struct string *s = (struct string *)fake_new(&fake_string);
    s->text = strdup(text);
    return &s->head;
}

const char *fake_text_of(const struct fake *o)
{
    fake_check(o, &fake_string, "a text");
    return ((const struct string *)o)->text;
}

static struct fake *string_with(const struct fake *class, struct sel *name, const char *text)
{
    (void)class, (void)name;
    return fake_autorelease(fake_text(text));
}

static const char *string_utf8(struct fake *self, struct sel *name)
{
    (void)name;
    return fake_text_of(self);
}

static void string_end(struct fake *self)
{
    struct string *s = (struct string *)self;
    memset(s->text, '?', strlen(s->text)); /* who reads it later sees that */
    free(s->text);
}

static const struct fake_method STRING[] = {FAKE_METHOD("UTF8String", string_utf8), {0}};
static const struct fake_method STRING_CLASS[] = {FAKE_METHOD("stringWithUTF8String:", string_with), {0}};
static const struct fake_class string_class = {.name = "NSString's class", .super = &fake_root_class, .methods = STRING_CLASS};
const struct fake_class fake_string = {.head = {.isa = &string_class}, .name = "NSString", .super = &fake_root, .methods = STRING,
                                       .bytes = sizeof(struct string), .end = string_end};
