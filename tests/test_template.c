/* Chat templates: equal to transformers' renderings, and whatever a template or a message does, an
 * answer or a one-line error within the limit, no descriptor and no process left behind. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/gguf.h"
#include "model/template.h"

#define USER "[{\"role\": \"user\", \"content\": \"Hi\"}]"

/* The limit of 2 s and what a busy machine adds; two limits one after the other would be more. */
static const double LATE_S = 3.9;

static char *read_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: %s", path, strerror(errno));
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *len = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*len + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *len, f), *len);
    text[*len] = 0;
    fclose(f);
    return text;
}

static struct template *open_text(const char *source)
{
    struct err err = {.text = ""};
    struct template *t = NULL;
    if (template_open(&t, source, strlen(source), "<s>", "</s>", &err) != 0)
        fail_msg("%s: %s", source, err.text);
    return t;
}

static struct template *open_shipped(void)
{
    struct err err = {.text = ""};
    struct gguf g;
    struct gguf_str s;
    struct template *t = NULL;
    if (gguf_open(&g, "models/plainsong-tiny-q4_0.gguf", &err) != 0 ||
        gguf_string(&g, "tokenizer.chat_template", &s, &err) != 1 ||
        template_open(&t, s.at, s.len, "", "<|im_end|>", &err) != 0)
        fail_msg("%s", err.text);
    gguf_close(&g);
    return t;
}

/* One rendering of an object with messages, tools, kwargs, add_generation_prompt (true when
 * absent), and text, or error: a part of the message. */
static void check_case(struct template *t, const char *where, size_t i, const json_t *c)
{
    struct err err = {.text = ""};
    struct template_text out;
    const json_t *tools = json_object_get(c, "tools"), *kwargs = json_object_get(c, "kwargs");
    const json_t *add = json_object_get(c, "add_generation_prompt"),
                 *error = json_object_get(c, "error");
    char *m = json_dumps(json_object_get(c, "messages"), 0);
    char *to = json_is_array(tools) ? json_dumps(tools, 0) : NULL;
    char *kw = json_is_object(kwargs) ? json_dumps(kwargs, 0) : NULL;
    int rc = template_render(t, m, to, kw, !json_is_false(add), &out, &err);
    if (error) {
        if (rc == 0 || !strstr(err.text, json_string_value(error)))
            fail_msg("%s case %zu: expected error %s, got %s", where, i, json_string_value(error),
                     rc == 0 ? out.text : err.text);
    } else {
        if (rc != 0)
            fail_msg("%s case %zu: %s", where, i, err.text);
        const char *text = json_string_value(json_object_get(c, "text"));
        size_t len = json_string_length(json_object_get(c, "text"));
        if (out.len != len || memcmp(out.text, text, len) != 0)
            fail_msg("%s case %zu: expected\n%s\ngot\n%s", where, i, text, out.text);
    }
    free(out.text);
    free(m);
    free(to);
    free(kw);
}

static void equals_transformers_on_chats(void **state)
{
    (void)state;
    struct template *t = open_shipped();
    size_t len, n = 0;
    char *text = read_file("tests/oracle/chat.jsonl", &len), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *c = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(c);
        check_case(t, "chat.jsonl", n++, c);
        json_decref(c);
    }
    assert_int_equal(n, 40);
    free(text);
    template_close(t);
}

static void equals_transformers_on_prompts(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        size_t n, chats; /* bare_text has no messages */
    } file[] = {{"tests/oracle/prompts.json", 12, 12}, {"tests/oracle/prompts-extra.json", 14, 13}};
    struct template *t = open_shipped();
    for (size_t f = 0; f < COUNT(file); f++) {
        json_t *all = json_load_file(file[f].path, 0, NULL),
               *prompts = json_object_get(all, "prompts");
        assert_int_equal(json_array_size(prompts), file[f].n);
        size_t chats = 0;
        for (size_t i = 0; i < file[f].n; i++) {
            const json_t *c = json_array_get(prompts, i);
            if (json_is_array(json_object_get(c, "messages"))) {
                check_case(t, file[f].path, i, c);
                chats++;
            }
        }
        assert_int_equal(chats, file[f].chats);
        json_decref(all);
    }
    template_close(t);
}

static void equals_jinja2_on_own_templates(void **state)
{
    (void)state;
    static const char *const name[] = {"thinking", "headers", "brackets"};
    struct template *t[COUNT(name)];
    char path[80];
    size_t len, n = 0;
    for (size_t i = 0; i < COUNT(name); i++) {
        snprintf(path, sizeof path, "tests/oracle/templates/%s.jinja", name[i]);
        char *source = read_file(path, &len);
        t[i] = open_text(source);
        free(source);
    }
    char *text = read_file("tests/oracle/templates/cases.jsonl", &len), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *c = json_loads(line, 0, NULL);
        assert_non_null(c);
        for (size_t i = 0; i < COUNT(name); i++)
            if (strcmp(json_string_value(json_object_get(c, "template")), name[i]) == 0)
                check_case(t[i], "cases.jsonl", n++, c);
        json_decref(c);
    }
    assert_int_equal(n, 21);
    free(text);
    for (size_t i = 0; i < COUNT(name); i++)
        template_close(t[i]);
}

/* ---- Values in ---- */

static void renders(struct template *t, const char *messages, const char *tools, const char *kwargs,
                    bool add, const char *expect)
{
    struct err err = {.text = ""};
    struct template_text out;
    if (template_render(t, messages, tools, kwargs, add, &out, &err) != 0)
        fail_msg("expected %s, got error %s", expect, err.text);
    if (out.len != strlen(expect) || strcmp(out.text, expect) != 0)
        fail_msg("expected %s, got %s", expect, out.text);
    free(out.text);
}

static void refuses(struct template *t, const char *messages, const char *tools, const char *kwargs,
                    const char *expect)
{
    struct err err = {.text = ""};
    struct template_text out;
    if (template_render(t, messages, tools, kwargs, false, &out, &err) == 0)
        fail_msg("expected error %s, got text %s", expect, out.text);
    assert_null(out.text);
    if (!strstr(err.text, expect))
        fail_msg("expected error %s, got %s", expect, err.text);
}

static void variables(void **state)
{
    (void)state;
    struct template *t = open_text(
        "{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ documents }}|{{ x }}|{{ x is defined }}|"
        "{{ add_generation_prompt }}|{{ messages | length }}");
    renders(t, "[]", NULL, NULL, true, "<s>|</s>|None|None||False|True|0");
    renders(t, USER, "[]", "{}", false, "<s>|</s>|[]|None||False|False|1");
    renders(t, " [ ] ", "[{\"a\":1}]", "{\"x\":null,\"eos_token\":\"!\",\"documents\":[2]}", false,
            "<s>|!|[{'a': 1}]|[2]|None|True|False|0");
    refuses(t, USER, NULL, "{\"messages\":[]}",
            "template variables: messages is set by the request itself");
    refuses(t, USER, NULL, "{\"tools\":[]}", "tools is set by");
    refuses(t, USER, NULL, "{\"add_generation_prompt\":true}", "add_generation_prompt is set by");
    template_close(t);
}

static void json_is_checked(void **state)
{
    (void)state;
    struct template *t = open_text("{{ messages[0].v | tojson }}");
    renders(t,
            "[{\"v\":[1,2.0,1.50,1e22,-0.0,1e-7,123456789012345678901234567890,true,null,"
            "\"\\u00fc\\u0000<&'\"]}]",
            NULL, NULL, false,
            "[1, 2.0, 1.5, 1e+22, -0.0, 1e-07, 123456789012345678901234567890, true, null, "
            "\"\xc3\xbc\\u0000<&'\"]");
    renders(t, "[{\"v\":1,\"v\":2}]", NULL, NULL, false, "2");
    refuses(t, "", NULL, NULL, "messages: not valid JSON");
    refuses(t, "[", NULL, NULL, "messages: not valid JSON");
    refuses(t, "[],[]", NULL, NULL, "messages: not valid JSON");
    refuses(t, "[\"\xff\"]", NULL, NULL, "messages: not valid JSON");
    refuses(t, "[\"\n\"]", NULL, NULL, "messages: not valid JSON");
    refuses(t, "[{\"v\":NaN}]", NULL, NULL, "NaN is not a JSON number");
    refuses(t, "[{\"v\":-Infinity}]", NULL, NULL, "-Infinity is not a JSON number");
    refuses(t, "[{\"v\":1e999}]", NULL, NULL, "a number is too large");
    refuses(t, "{}", NULL, NULL, "messages: expected a JSON array");
    refuses(t, "[1]", NULL, NULL, "messages: item 0 is not a JSON object");
    refuses(t, "[]", "{}", NULL, "tools: expected a JSON array");
    refuses(t, "[]", "", NULL, "tools: not valid JSON");
    refuses(t, "[]", NULL, "[]", "template variables: expected a JSON object");
    refuses(t, "[{\"v\":1}]", "[1e999]", NULL, "tools: not valid JSON");
    size_t deep = 200000;
    char *nest = malloc(deep + 1);
    memset(nest, '[', deep);
    nest[deep] = 0;
    refuses(t, nest, NULL, NULL, "messages: JSON nested too deeply");
    free(nest);
    template_close(t);

    t = open_text("{{ messages[0].v }}");
    struct err err;
    struct template_text out;
    assert_int_equal(template_render(t, "[{\"v\":\"a\\u0000b\"}]", NULL, NULL, false, &out, &err),
                     0);
    assert_int_equal(out.len, 3);
    assert_memory_equal(out.text, "a\0b", 4);
    free(out.text);
    refuses(t, "[{\"v\":\"\\ud800\"}]", NULL, NULL, "half of a surrogate pair");
    template_close(t);
}

static void errors_are_one_clear_line(void **state)
{
    (void)state;
    struct template *t = open_text("a\n{{ messages[0].v.w.x }}");
    refuses(t, USER, NULL, NULL, "chat template: line 2: 'dict object' has no attribute 'v'");
    template_close(t);
    t = open_text("{{ raise_exception('two\nlines \"q\" \xc3\xbc \x1b[31m') }}");
    refuses(t, USER, NULL, NULL, "chat template: two\\x0alines \\x22q\\x22 \\xc3\\xbc \\x1b[31m");
    template_close(t);
    t = open_text("{{ raise_exception('x' * 1000000) }}");
    refuses(t, USER, NULL, NULL, "chat template: xxx");
    template_close(t);
    t = open_text("{{ 1 // messages[0].n }}");
    refuses(t, "[{\"n\":0}]", NULL, NULL, "line 1: ZeroDivisionError");
    template_close(t);
}

static void open_fails_clearly(void **state)
{
    (void)state;
    static const struct {
        const char *source, *expect;
    } bad[] = {
        {"a\nb{% if %}", "chat template: line 2: Expected an expression"},
        {"{% endfor %}", "chat template: line 1: Encountered unknown tag 'endfor'"},
        {"{{ x | nosuch }}", "No filter named 'nosuch'"},
        {"\xff", "chat template: not UTF-8"},
        {"{{ ", "chat template: line 1"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct err err = {.text = ""};
        struct template *t = (struct template *)&err;
        assert_int_equal(template_open(&t, bad[i].source, strlen(bad[i].source), "", "", &err), -1);
        assert_null(t);
        if (!strstr(err.text, bad[i].expect))
            fail_msg("%s: expected %s, got %s", bad[i].source, bad[i].expect, err.text);
    }
    template_close(NULL);
}

static void without_python_says_what_to_install(void **state)
{
    (void)state;
    struct err err = {.text = ""};
    struct template *t = NULL;
    assert_int_equal(setenv("PLAINSONG_PYTHON", "/nonexistent", 1), 0);
    assert_int_equal(template_open(&t, "x", 1, "", "", &err), -1);
    assert_null(t);
    assert_non_null(strstr(err.text, "PLAINSONG_PYTHON=/nonexistent"));
    assert_non_null(strstr(err.text, "python3-jinja2"));
    assert_non_null(strstr(err.text, "raw completions work without"));
    assert_int_equal(setenv("PLAINSONG_PYTHON", "/bin/true", 1), 0); /* starts, and is no Python */
    assert_int_equal(template_open(&t, "x", 1, "", "", &err), -1);
    assert_non_null(strstr(err.text, "PLAINSONG_PYTHON=/bin/true"));
    assert_int_equal(unsetenv("PLAINSONG_PYTHON"), 0);
}

/* A python3 on PATH that is none is passed over. */
static void search_passes_over_a_bad_python(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_template.XXXXXX", link[64], path[200], *old = strdup(getenv("PATH"));
    assert_non_null(mkdtemp(dir));
    snprintf(link, sizeof link, "%s/python3", dir);
    assert_int_equal(symlink("/bin/false", link), 0);
    snprintf(path, sizeof path, "relative::%s:/usr/bin", dir);
    setenv("PATH", path, 1);
    template_close(open_text("x"));
    setenv("PATH", old, 1);
    free(old);
    unlink(link);
    rmdir(dir);
}

static void time_is_local_and_stays_so(void **state)
{
    (void)state;
    char *old = getenv("TZ") ? strdup(getenv("TZ")) : NULL;
    setenv("TZ", "ABC-5:30", 1);
    tzset();
    struct template *t = open_text("{{ strftime_now('%Y-%m-%d %H %a %B') }}");
    for (int i = 0; i < 3; i++) { /* again: nothing may read the zone's file later */
        char before[80], after[80];
        struct err err;
        struct template_text out;
        time_t now = time(NULL);
        struct tm tm;
        strftime(before, sizeof before, "%Y-%m-%d %H %a %B", localtime_r(&now, &tm));
        assert_int_equal(template_render(t, USER, NULL, NULL, false, &out, &err), 0);
        now = time(NULL);
        strftime(after, sizeof after, "%Y-%m-%d %H %a %B", localtime_r(&now, &tm));
        if (strcmp(out.text, before) != 0)
            assert_string_equal(out.text, after);
        free(out.text);
    }
    template_close(t);
    if (old)
        setenv("TZ", old, 1);
    else
        unsetenv("TZ");
    tzset();
    free(old);
}

/* ---- The sandbox ---- */

static void sandbox_escapes_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *source, *expect;
    } escape[] = {
        {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "'__class__' of a str is refused"},
        {"{{ ''['__class__'] }}", "'__class__' of a str is refused"},
        {"{{ ''|attr('__class__') }}", "'__class__' of a str is refused"},
        {"{{ ''|attr('__cla' + 'ss__')|attr('__mro__') }}", "'__class__' of a str is refused"},
        {"{{ self.__init__.__globals__ }}", "'__init__' of a TemplateReference is refused"},
        {"{{ cycler.__init__.__globals__.os.system('id') }}", "'__init__' of a type is refused"},
        {"{{ lipsum.__globals__['os'] }}", "'__globals__' of a function is refused"},
        {"{{ raise_exception.__globals__ }}", "'__globals__' of a function is refused"},
        {"{{ messages|map(attribute='__class__')|list }}", "is refused"},
        {"{{ [messages]|map('attr', '__class__')|list }}", "is refused"},
        {"{{ [messages]|groupby('__class__') }}", "is refused"},
        {"{{ '{0.__class__.__mro__}'.format('') }}", "'__class__' of a str is refused"},
        {"{{ '{x.__class__}'.format_map({'x': 1}) }}", "'__class__' of a int is refused"},
        {"{% set f = '{0.__class__}'.format %}{{ f(1) }}", "'__class__' of a int is refused"},
        {"{{ ('{0.__class__}'|attr('format'))(1) }}", "'__class__' of a int is refused"},
        {"{{ self._TemplateReference__context.name }}", "unsafe"},
        {"{{ (messages|select).gi_frame.f_globals }}", "unsafe"},
        {"{% include '/etc/passwd' %}", "cannot include, import or extend"},
        {"{% include 'x' ignore missing %}", "cannot include, import or extend"},
        {"{% import 'os' as os %}", "cannot include, import or extend"},
        {"{% from 'os' import system %}", "cannot include, import or extend"},
        {"{% extends 'base' %}", "cannot include, import or extend"},
        {"{% set _ = messages.append(1) %}", "unsafe"},
        {"{% set _ = messages[0].update({'a': 1}) %}", "unsafe"},
        {"{% set _ = messages[0].__setitem__('a', 1) %}", "is refused"},
        {"{{ open('/etc/passwd') }}", "'open' is undefined"},
        {"{{ __import__('os') }}", "'__import__' is undefined"},
        {"{{ loop.__class__ }}", "'__class__' of a Undefined is refused"},
        {"{% macro m() %}{% endmacro %}{{ m.__call__.__func__ }}", "is refused"},
        {"{{ namespace.__init__ }}", "is refused"},
    };
    /* One template of many branches: starting Python for each would take most of this test's time.
     */
    static char source[16384], chat[64];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(escape); i++)
        n +=
            (size_t)snprintf(source + n, sizeof source - n,
                             "{%% if messages[0].n == %zu %%}%s{%% endif %%}", i, escape[i].source);
    assert_true(n < sizeof source);
    struct template *t = open_text(source);
    for (size_t i = 0; i < COUNT(escape); i++) {
        struct err err = {.text = ""};
        struct template_text out;
        snprintf(chat, sizeof chat, "[{\"n\":%zu}]", i);
        if (template_render(t, chat, NULL, NULL, false, &out, &err) == 0)
            fail_msg("%s: rendered %s", escape[i].source, out.text);
        if (!strstr(err.text, escape[i].expect))
            fail_msg("%s: expected %s, got %s", escape[i].source, escape[i].expect, err.text);
    }
    template_close(t);
}

/* ---- Limits ---- */

/* The template renders messages with go = false, fails with go = true within the limit, and renders
 * again, with a new worker where need be. */
static void blow_up(const char *source, const char *expect)
{
    struct err err = {.text = ""};
    struct template_text out;
    struct template *t = open_text(source);
    renders(t, "[]", NULL, NULL, false, "ok");
    double start = time_now();
    if (template_render(t, "[{\"n\":9,\"s\":\"x\"}]", NULL, NULL, false, &out, &err) == 0)
        fail_msg("%s: rendered %zu bytes", source, out.len);
    double took = time_now() - start;
    if (took > LATE_S)
        fail_msg("%s: took %.2f s", source, took);
    if (!strstr(err.text, expect))
        fail_msg("%s: expected %s, got %s", source, expect, err.text);
    renders(t, "[]", NULL, NULL, false, "ok");
    template_close(t);
}

#define GO(text)                                                                                   \
    "{% if not messages %}ok{% else %}{% set n = messages[0].n %}{% set s = messages[0].s %}" text \
    "{% endif %}"
#define LATE "chat template: no text within 2000 ms"
#define MEMORY "wants more than 256 MiB of memory"

static void loops_end(void **state)
{
    (void)state;
    blow_up(GO("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
            LATE);
    blow_up(GO("{{ n ** (n ** n) }}"), LATE);
    blow_up(GO("{% for i in range(10 ** n) %}{% endfor %}"), "Range too big");
    blow_up(GO("{% for i in range(99999) %}{% for j in range(99999) %}{{ s * 1000 }}{% endfor "
               "%}{% endfor %}"),
            "its text is longer than 16 MiB");
}

static void recursion_ends(void **state)
{
    (void)state;
    blow_up(GO("{% macro m(i) %}{{ m(i + 1) }}{% endmacro %}{{ m(0) }}"), "recurses too deeply");
    blow_up(GO("{% for i in [messages] recursive %}{{ loop([i]) }}{% endfor %}"),
            "recurses too deeply");
    blow_up(GO("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% "
               "endfor %}{{ ns.l|tojson }}"),
            "recurses too deeply");
    blow_up(GO("{% macro m(i) %}{{ m(i + 1) }}{{ m(i + 1) }}{% endmacro %}{{ m(0) }}"),
            "recurses too deeply");
}

static void huge_values_end(void **state)
{
    (void)state;
    blow_up(GO("{{ s * 10 ** n }}"), MEMORY);
    blow_up(GO("{{ s | center(10 ** n) }}"), MEMORY);
    blow_up(GO("{{ [s] * 10 ** n }}"), MEMORY);
    blow_up(GO("{{ '%1000000000d' % n }}"), MEMORY);
    blow_up(GO("{{ '{:1000000000d}'.format(n) }}"), MEMORY);
    blow_up(GO("{{ s | indent(10 ** n, first=true) }}"), MEMORY);
    blow_up(GO("{% set ns = namespace(t=s) %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t "
               "%}{% endfor %}{{ ns.t }}"),
            MEMORY);
    blow_up(GO("{{ s * 30 * 10 ** 6 }}"), "its text is longer than 16 MiB");
    blow_up(GO("{{ '\xc3\xbc' * 9 * 10 ** 6 }}"), "its text is longer than 16 MiB");
    blow_up(GO("{{ n ** 5000 }}"), "ValueError");
}

/* jinja2 folds constants, so some blow up before the first render. */
static void compilation_is_limited(void **state)
{
    (void)state;
    struct err err = {.text = ""};
    struct template *t = NULL;
    double start = time_now();
    assert_int_equal(template_open(&t, "{{ 9**(9**9) }}", 15, "", "", &err), -1);
    assert_true(time_now() - start < LATE_S + 3); /* Python's own start before it */
    assert_non_null(strstr(err.text, "chat template: no compilation within 2000 ms"));
    t = open_text("{{ 'x' * 10**9 }}");
    refuses(t, USER, NULL, NULL, MEMORY);
    template_close(t);
    size_t n = 100000;
    char *deep = malloc(2 * n + 5);
    memcpy(deep, "{{", 2);
    memset(deep + 2, '(', n);
    memcpy(deep + 2 + n, "}}", 3);
    assert_int_equal(template_open(&t, deep, strlen(deep), "", "", &err), -1);
    assert_non_null(strstr(err.text, "recurses too deeply"));
    free(deep);
}

static void largest_text_and_chat(void **state)
{
    (void)state;
    struct err err = {.text = ""};
    struct template_text out;
    struct template *t = open_text("{{ messages[0].s * messages[0].n }}");
    if (template_render(t, "[{\"s\":\"\xc3\xbc\",\"n\":8388608}]", NULL, NULL, false, &out, &err) !=
        0)
        fail_msg("%s", err.text);
    assert_int_equal(out.len, TEMPLATE_MAX_BYTES);
    free(out.text);

    size_t n = (size_t)4 * TEMPLATE_MAX_BYTES;
    char *big = malloc(n + 2);
    memset(big, ' ', n + 1);
    big[n + 1] = 0;
    refuses(t, big, NULL, NULL, "more than 67108864 bytes");
    refuses(t, big + 1, " ", NULL, "more than 67108864 bytes");
    refuses(t, big + 1, NULL, NULL, "messages: not valid JSON");
    for (size_t i = 0; i < n; i++)
        big[i + 1] = i % 3 == 0 ? '[' : i % 3 == 1 ? ']' : ',';
    big[1] = '[';
    refuses(t, big + 1, NULL, NULL, "");
    free(big);
    renders(t, "[{\"s\":\"a\",\"n\":2}]", NULL, NULL, false, "aa");
    template_close(t);
}

/* ---- The process ---- */

static int count_fds(void)
{
    DIR *d = opendir("/dev/fd");
    assert_non_null(d);
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* Of our child: the only one in these tests. 0 where there is no /proc. */
static pid_t worker_pid(void)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%d", &pid) != 1)
            pid = 0;
        fclose(f);
    }
    return pid;
}

static size_t read_proc(pid_t pid, const char *name, char *buf, size_t n)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t len = fread(buf, 1, n - 1, f);
    buf[len] = 0;
    fclose(f);
    return len;
}

static void worker_is_confined(void **state)
{
    (void)state;
    char buf[8192], path[64];
    int open_here = dup(1); /* one that a child inherits */
    setenv("PLAINSONG_TEST_SECRET", "key", 1);
    struct template *t = open_text("x");
    unsetenv("PLAINSONG_TEST_SECRET");
    close(open_here);
    pid_t pid = worker_pid();
    if (pid && template_confined(t)) {
        size_t len = read_proc(pid, "environ", buf, sizeof buf);
        assert_null(memmem(buf, len, "SECRET", 6));
        read_proc(pid, "status", buf, sizeof buf);
        assert_non_null(strstr(buf, "\nSeccomp:\t2\n"));
        assert_non_null(strstr(buf, "\nNoNewPrivs:\t1\n"));
        read_proc(pid, "limits", buf, sizeof buf);
        assert_non_null(strstr(buf, "\nMax file size             0 "));
        assert_non_null(strstr(buf, "\nMax open files            1 "));
        assert_non_null(strstr(buf, "\nMax core file size        0 "));
        assert_non_null(strstr(buf, "\nMax processes             0 "));
        snprintf(path, sizeof path, "/proc/%d/cwd", (int)pid);
        assert_int_equal(readlink(path, buf, sizeof buf), 1);
        snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
        DIR *d = opendir(path);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));)
            if (e->d_name[0] != '.')
                assert_string_equal(e->d_name, "0");
        closedir(d);
    } else {
        print_message("not confined here, not checked\n");
    }
    template_close(t);
}

static void worker_outlives_ctrl_c_and_is_replaced_when_killed(void **state)
{
    (void)state;
    struct template *t = open_text("{{ messages[0].content }}");
    pid_t pid = worker_pid();
    if (pid) {
        renders(t, USER, NULL, NULL, false, "Hi");
        kill(pid, SIGINT);
        renders(t, USER, NULL, NULL, false, "Hi");
        assert_int_equal(worker_pid(), pid);
        kill(pid, SIGKILL); /* dead before the next question, or on receiving it */
        struct err err;
        struct template_text out;
        if (template_render(t, USER, NULL, NULL, false, &out, &err) == 0)
            free(out.text);
        else
            assert_non_null(strstr(err.text, "the renderer died"));
        renders(t, USER, NULL, NULL, false, "Hi");
        assert_int_not_equal(worker_pid(), pid);
        kill(worker_pid(), SIGSTOP); /* hangs */
        double start = time_now();
        refuses(t, USER, NULL, NULL, "no text within 2000 ms");
        assert_true(time_now() - start < LATE_S);
        renders(t, USER, NULL, NULL, false, "Hi");
    }
    template_close(t);
}

static bool is_gone(pid_t pid) /* or waits for somebody to reap it */
{
    char path[64], gone = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%*d %*s %c", &gone) != 1)
            gone = 'Z';
        fclose(f);
    }
    return gone == 'Z';
}

/* One process renders a loop without end and is killed; another dies with its worker at rest. */
static void worker_ends_with_its_process(void **state)
{
    (void)state;
    pid_t worker[2] = {0};
    for (int busy = 0; busy < 2; busy++) {
        int end[2];
        assert_int_equal(pipe(end), 0);
        pid_t us = fork();
        if (us == 0) {
            struct template *t = open_text("{% for i in range(99999) %}{% for j in range(99999) %}"
                                           "{% endfor %}{% endfor %}");
            struct template_text out;
            pid_t pid = worker_pid();
            if (write(end[1], &pid, sizeof pid) == sizeof pid && busy)
                template_render(t, USER, NULL, NULL, false, &out, NULL);
            pause();
        }
        assert_int_equal(read(end[0], &worker[busy], sizeof worker[busy]), sizeof worker[busy]);
        close(end[0]);
        close(end[1]);
        usleep(300000); /* for the render to begin */
        kill(us, SIGKILL);
        assert_int_equal(waitpid(us, NULL, 0), us);
    }
    double start = time_now();
    while (worker[0] && !(is_gone(worker[0]) && is_gone(worker[1]))) {
        assert_true(time_now() - start < 6);
        usleep(50000);
    }
}

struct turn {
    struct template *t;
    int who, wrong;
};

static void *render_often(void *arg)
{
    struct turn *turn = arg;
    for (int i = 0; i < 50; i++) {
        char chat[80], expect[40];
        struct err err;
        struct template_text out;
        snprintf(chat, sizeof chat, "[{\"content\":\"%d/%d\"}]", turn->who, i);
        snprintf(expect, sizeof expect, "%d/%d", turn->who, i);
        if (template_render(turn->t, chat, NULL, NULL, false, &out, &err) != 0 ||
            strcmp(out.text, expect) != 0)
            turn->wrong++;
        free(out.text);
    }
    return NULL;
}

static void threads_get_their_own_answers(void **state)
{
    (void)state;
    pthread_t thread[4];
    struct turn turn[COUNT(thread)];
    struct template *t = open_text("{{ messages[0].content }}");
    for (size_t i = 0; i < COUNT(thread); i++) {
        turn[i] = (struct turn){t, (int)i, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, render_often, &turn[i]), 0);
    }
    for (size_t i = 0; i < COUNT(thread); i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(turn[i].wrong, 0);
    }
    template_close(t);
}

static int fds_at_start;

static void nothing_is_left_behind(void **state)
{
    (void)state;
    assert_int_equal(count_fds(), fds_at_start);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(void)
{
    fds_at_start = count_fds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers_on_chats),
        cmocka_unit_test(equals_transformers_on_prompts),
        cmocka_unit_test(equals_jinja2_on_own_templates),
        cmocka_unit_test(variables),
        cmocka_unit_test(json_is_checked),
        cmocka_unit_test(errors_are_one_clear_line),
        cmocka_unit_test(open_fails_clearly),
        cmocka_unit_test(without_python_says_what_to_install),
        cmocka_unit_test(search_passes_over_a_bad_python),
        cmocka_unit_test(time_is_local_and_stays_so),
        cmocka_unit_test(sandbox_escapes_are_refused),
        cmocka_unit_test(loops_end),
        cmocka_unit_test(recursion_ends),
        cmocka_unit_test(huge_values_end),
        cmocka_unit_test(compilation_is_limited),
        cmocka_unit_test(largest_text_and_chat),
        cmocka_unit_test(worker_is_confined),
        cmocka_unit_test(worker_outlives_ctrl_c_and_is_replaced_when_killed),
        cmocka_unit_test(worker_ends_with_its_process),
        cmocka_unit_test(threads_get_their_own_answers),
        cmocka_unit_test(nothing_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
