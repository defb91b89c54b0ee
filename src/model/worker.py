# The chat template worker. template.c starts `python3 -I -c` with a line that receives this text
# over the socket `s` (descriptor 0) and runs it. Order: import, confine, say so, and only then read
# the first byte that somebody else wrote. Then one question, one answer, until the socket ends:
#   first     an answer: "confined" or "free", a blank, the path of this Python
#   question  <5I: kind, flags, bytes of three parts; then the parts
#   answer    <2I: status, bytes; then the bytes
# It refuses what a chat template has no use for: files, network, processes, much memory, attributes
# of Python's own machinery. What remains is what transformers' apply_chat_template sets up.
import datetime
import errno
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import time

DONE, FAILED, LIMIT, NO_JINJA2 = range(4)
COMPILE, RENDER = 1, 2
GENERATE, TOOLS, KWARGS = 1, 2, 4  # flags of RENDER

MEMORY_BYTES = 256 << 20  # beyond what the imports take; a usual chat needs 1 MiB
OUTPUT_BYTES = 16 << 20
# template.c kills us after 2 s. When it died first, this ends a template that loops; a limit on the
# sum of CPU time (RLIMIT_CPU) would end a worker that merely is old, and PR_SET_PDEATHSIG fires when
# the thread that started us ends, not the process.
RENDER_SECONDS = 3

TOO_LONG = "chat template: its text is longer than %d MiB" % (OUTPUT_BYTES >> 20)
TOO_MUCH_MEMORY = b"chat template: it wants more than %d MiB of memory" % (MEMORY_BYTES >> 20)

# Hide the server's Ctrl-C: it goes to the whole foreground group.
signal.signal(signal.SIGINT, signal.SIG_IGN)


def receive(n):
    data = bytearray(n)
    view = memoryview(data)
    while view:
        got = s.recv_into(view)
        if got == 0:
            os._exit(0)
        view = view[got:]
    return data


def answer(status, data):
    s.sendall(struct.pack("<2I", status, len(data)))
    s.sendall(data)


try:
    import ctypes
except ImportError:  # an optional part of Python: without it no system call filter
    ctypes = None
try:
    # Nothing can be imported once confined. These two Python and jinja2 import at their first use.
    import textwrap
    import unicodedata

    import jinja2
    import jinja2.debug
    import jinja2.ext
    import jinja2.sandbox

    if tuple(int(part) for part in jinja2.__version__.split(".")[:2]) < (3, 1):
        raise ImportError("jinja2 %s is older than 3.1" % jinja2.__version__)
except ImportError as e:
    answer(NO_JINJA2, str(e).encode())
    os._exit(0)


# ---- Confinement ----

# Number of each system call that stays: one socket, memory, clock, end.
CALLS = {
    "x86_64": {
        "arch": 0xC000003E, "mmap": 9, "mprotect": 10,
        "free": (44, 45, 11, 25, 12, 28, 202, 60, 231, 15, 219, 228, 96, 318, 38),
    },
    "aarch64": {
        "arch": 0xC00000B7, "mmap": 222, "mprotect": 226,
        "free": (206, 207, 215, 216, 214, 233, 98, 93, 94, 139, 128, 113, 169, 278, 103),
    },
}  # free: sendto recvfrom munmap mremap brk madvise futex exit exit_group rt_sigreturn
#          restart_syscall clock_gettime gettimeofday getrandom setitimer


def filter_program(calls):
    """Classic BPF over {int nr; u32 arch; u64 ip; u64 args[6]}, see seccomp(2)."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, refuse, allow = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000
    exec_bit, args_2 = 4, 32  # PROT_EXEC; the low word of args[2]

    program = [
        (load, 0, 0, 4), (equal, 1, 0, calls["arch"]), (give, 0, 0, kill),
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, kill),  # x32 numbers
    ]
    for number in calls["free"]:
        program += [(equal, 0, 1, number), (give, 0, 0, allow)]
    # mmap and mprotect stay for memory that is not code: jump over the refusal to args[2].
    program += [
        (equal, 2, 0, calls["mmap"]), (equal, 1, 0, calls["mprotect"]), (give, 0, 0, refuse),
        (load, 0, 0, args_2), (any_bit, 0, 1, exec_bit), (give, 0, 0, refuse), (give, 0, 0, allow),
    ]
    return program


def filter_calls():
    calls = CALLS.get(os.uname().machine)
    if sys.platform != "linux" or not calls or not ctypes or sys.maxsize < 1 << 32:
        return
    program = filter_program(calls)
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    room = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog {unsigned short len; struct sock_filter *filter;}
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(room)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    set_name, set_seccomp, set_no_new_privs, mode_filter = 15, 22, 38, 2
    name = ctypes.create_string_buffer(b"plainsong-tmpl")
    prctl(set_name, ctypes.addressof(name), 0, 0, 0)
    if prctl(set_no_new_privs, 1, 0, 0, 0) == 0:
        prctl(set_seccomp, mode_filter, ctypes.addressof(head), 0, 0)


def refused(attempt):
    try:
        attempt()
    except OSError as e:
        return e.errno == errno.EPERM
    return False


def confine():
    """Returns whether the system refuses what it should: tried, not assumed."""
    zone = os.environ.get("TZ", ":/etc/localtime")
    os.environ.clear()
    os.environ["TZ"] = zone  # while it stands unchanged, glibc's strftime leaves the file alone
    time.tzset()
    datetime.datetime.now().strftime("%c %Z")
    os.chdir("/")
    for name in os.listdir("/dev/fd"):
        if int(name) > 0:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own
    try:
        with open("/proc/self/statm") as f:
            now_bytes = int(f.read().split()[0]) * resource.getpagesize()
    except OSError:  # no /proc on macOS; its limit is a wish only
        now_bytes = 256 << 20
    limits = {"AS": now_bytes + MEMORY_BYTES, "CORE": 0, "FSIZE": 0, "NPROC": 0, "NOFILE": 1}
    for name, limit in limits.items():
        try:
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
        except (AttributeError, OSError, ValueError):
            pass
    filter_calls()
    return refused(lambda: os.open("/dev/null", os.O_RDONLY)) and refused(socket.socket)


# ---- What transformers sets up ----


class Raised(jinja2.TemplateError):
    """The template's own refusal, through raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant said, for training. Here it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body", [])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def unsafe_undefined(self, obj, attribute):
        # jinja2 returns an undefined value, which prints as nothing. Say what happened instead.
        if attribute.startswith("__"):
            raise jinja2.sandbox.SecurityError(
                "access to attribute %r of a %s is refused" % (attribute, type(obj).__name__))
        return super().unsafe_undefined(obj, attribute)


def raise_exception(message):
    raise Raised(message)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def no_loader(name):
    raise jinja2.TemplateError("a chat template cannot include, import or extend another one")


env = Sandbox(trim_blocks=True, lstrip_blocks=True, loader=jinja2.FunctionLoader(no_loader),
              extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = strftime_now


# What Python loads at first use, and so while it still can: the codec behind string escapes, the
# traceback's rewriting, filters and formats.
WARM_UP = r"""{% macro m(x) %}{{ x | tojson(indent=1) }}{% endmacro %}
{{- m({"a": [1, 2.5, "\u00fc\N{BULLET}"]}) }}
{%- for x in "abc" %}{% if loop.first %}{% continue %}{% endif %}{{ "%s" % x }}{% endfor %}
{{- "{:>5}".format(3) }}
{{- messages | map("upper") | join | wordwrap | pprint | urlize | title | center(9) }}
{%- generation %}{{ strftime_now("%c %x %X %Z %B") }}{% endgeneration %}"""
try:
    env.from_string(WARM_UP + "{{ raise_exception(undefined_name.x) }}").render(messages=["a"])
except jinja2.UndefinedError:
    pass


# ---- Questions ----


class Refused(Exception):
    """A whole line for the caller."""


def refuse_constant(name):
    raise ValueError("%s is not a JSON number" % name)


def finite(text):
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def parse(what, data, kind):
    try:
        value = json.loads(data.decode(), parse_constant=refuse_constant, parse_float=finite)
    except RecursionError:
        raise Refused("%s: JSON nested too deeply" % what)
    except ValueError as e:
        raise Refused("%s: not valid JSON: %s" % (what, e))
    if type(value) is not kind:
        raise Refused("%s: expected a JSON %s" % (what, {list: "array", dict: "object"}[kind]))
    return value


def compile_template(flags, source, bos, eos):
    try:
        names = {"bos_token": bos.decode(), "eos_token": eos.decode()}
        return env.from_string(source.decode()), names
    except UnicodeDecodeError as e:
        raise Refused("chat template: not UTF-8: %s at byte %d" % (e.reason, e.start))


def render(template, names, flags, messages, tools, kwargs):
    values = dict(names, documents=None)
    if flags & KWARGS:
        values.update(parse("template variables", kwargs, dict))
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in values:
            raise Refused("template variables: %s is set by the request itself" % name)
    values["messages"] = parse("messages", messages, list)
    values["tools"] = parse("tools", tools, list) if flags & TOOLS else None
    values["add_generation_prompt"] = bool(flags & GENERATE)
    for i, message in enumerate(values["messages"]):
        if type(message) is not dict:
            raise Refused("messages: item %d is not a JSON object" % i)
    text = bytearray()
    try:
        for piece in template.generate(values):
            if len(piece) > OUTPUT_BYTES - len(text):
                raise Refused(TOO_LONG)
            text += piece.encode()
            if len(text) > OUTPUT_BYTES:
                raise Refused(TOO_LONG)
    except UnicodeEncodeError:
        raise Refused("chat template: its text holds half of a surrogate pair")
    return text


def line_of(e):
    line, at = 0, e.__traceback__
    while at:
        if at.tb_frame.f_code.co_filename == "<template>":
            line = at.tb_lineno
        at = at.tb_next
    return "line %d: " % line if line else ""


def explain(e):
    if isinstance(e, Refused):
        return str(e)
    if isinstance(e, Raised):
        return "chat template: %s" % e
    if isinstance(e, jinja2.TemplateSyntaxError):
        return "chat template: line %d: %s" % (e.lineno, e.message)
    if isinstance(e, RecursionError):
        return "chat template: %sit recurses too deeply" % line_of(e)
    kind = "" if isinstance(e, jinja2.TemplateError) else type(e).__name__ + ": "
    return "chat template: %s%s%s" % (line_of(e), kind, e)


def serve():
    template = names = None
    while True:
        kind, flags, *lengths = struct.unpack("<5I", receive(20))
        signal.setitimer(signal.ITIMER_REAL, RENDER_SECONDS)
        status, data = DONE, b""
        try:
            parts = [receive(n) for n in lengths]
            if kind == COMPILE:
                template, names = compile_template(flags, *parts)
            else:
                data = render(template, names, flags, *parts)
        except MemoryError:
            status, data = LIMIT, TOO_MUCH_MEMORY
        except Exception as e:
            try:
                status, data = FAILED, explain(e)[:1000].encode("utf-8", "backslashreplace")
            except Exception:  # memory again, or a __str__ that fails
                status, data = LIMIT, b"chat template: it fails beyond words"
        parts = None
        answer(status, data)
        signal.setitimer(signal.ITIMER_REAL, 0)


# The path is for the next start: what started us may be a slow script that looks Python up.
answer(DONE, (b"confined " if confine() else b"free ") + os.fsencode(sys.executable or ""))
serve()
