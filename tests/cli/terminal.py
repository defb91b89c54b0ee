# What needs a terminal or a signal: `python3 terminal.py PLAINSONG CASE`. Says nothing and ends with 0 when the case holds.
import errno
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

LIMIT_S = 60
TALE = "Tell me a tale about a fox and a lantern."


class Terminal:
    """plainsong on a terminal of its own: all that it writes comes to one place, as a person sees it."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(args[0], args)
        self.seen = ""

    def expect(self, pattern):
        """Waits for the pattern in what was not expected yet; returns what came up to its end."""
        end = time.monotonic() + LIMIT_S
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            data = b""
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError as e:  # Linux: the other side is gone
                    if e.errno != errno.EIO:
                        raise
            if not data:
                sys.exit("expected %r, saw %r" % (pattern, self.seen[-600:]))
            self.seen += data.decode("utf-8", "replace")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def send(self, text):
        os.write(self.fd, text.encode())

    def status(self):
        self.expect_end()
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 128 - code if code < 0 else code

    def expect_end(self):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                if select.select([self.fd], [], [], 1)[0] and not os.read(self.fd, 65536):
                    return
            except OSError:
                return
        os.kill(self.pid, signal.SIGKILL)
        sys.exit("did not end")


def equal(got, want, what):
    if got != want:
        sys.exit("%s: %r, expected %r" % (what, got, want))


def chat_interrupt(plainsong):
    """Ctrl-C stops the answer; the conversation goes on; twice at the prompt it ends."""
    t = Terminal(plainsong, "chat")
    t.expect("> ")
    t.send("Remember this: key 7421 is plum. " + TALE + "\n")
    t.expect(r"lantern\.\r\n")  # the terminal's echo
    t.expect(r"\w+ \w+ \w+ \w+ ")
    t.send("\x03")
    stopped = t.expect(r"\(stopped\)\r\n> ")
    equal("^C" in stopped, True, "the terminal's echo")
    t.send("What is key 7421?\n")
    t.expect(r"Key 7421 is plum\.\r\n> ")
    t.send(TALE + "\n")
    t.expect(r"lantern\.\r\n")
    t.send("\x03")  # perhaps before the answer begins, perhaps before the line was read
    t.expect(r"(\(stopped\)|Ctrl-C again.*)\r\n> ")
    t.send("What is 7 + 3?\n")
    t.expect(r"7 \+ 3 = 10\.\r\n> ")
    t.send("half a line\x03")
    t.expect(r"Ctrl-C again.*\r\n> ")
    t.send("What is 2 + 3?\n")
    t.expect(r"2 \+ 3 = 5\.\r\n> ")
    t.send("\x03")
    t.expect("Ctrl-C again")
    t.send("\x03")
    equal(t.status(), 130, "status after two Ctrl-C")


def chat_end(plainsong):
    """Ctrl-D ends with 0; so does /exit."""
    for end in ("\x04", "/exit\n"):
        t = Terminal(plainsong, "chat")
        t.expect("> ")
        t.send(end)
        equal(t.status(), 0, "status after %r" % end)


def chat_loading(plainsong):
    """Ctrl-C while the model loads ends the program, at once."""
    p = subprocess.Popen([plainsong, "chat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=LIMIT_S)
    equal(p.returncode in (-signal.SIGINT, 130), True, "status %r" % p.returncode)


def run_interrupt(plainsong):
    """Ctrl-C in run: what was made stays, 130, no word on stderr."""
    # Unbuffered: communicate() reads the descriptor itself and would miss what a buffer holds.
    p = subprocess.Popen([plainsong, "run", "-p", TALE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    start = p.stdout.read(20)
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=LIMIT_S)
    equal(p.returncode, 130, "status")
    equal(err, b"", "stderr")
    whole = subprocess.run([plainsong, "run", "-p", TALE], stdout=subprocess.PIPE, check=True).stdout
    got = (start + rest).rstrip(b"\n")
    equal(whole.startswith(got) and len(got) < len(whole) - 1, True, "a beginning of the tale: %r" % got)


def run_terminal(plainsong):
    """On a terminal the progress bar leaves nothing behind it but the answer."""
    t = Terminal(plainsong, "run", "-p", "What is 2 + 3?")
    t.expect(r"memory: .* keys and values .*\r\n  .* in all.*\r\n")
    text = t.expect(r"2 \+ 3 = 5\.\r\n")
    t.expect_end()
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text))
    equal(lines[-3:], ["2 + 3 = 5.", "", ""], "last lines")


def run_flush(plainsong):
    """Each token's text is there when it is made, not when the answer ends."""
    p = subprocess.Popen([plainsong, "run", "-p", TALE], stdout=subprocess.PIPE)
    first = os.read(p.stdout.fileno(), 65536)
    equal(len(first) < 100, True, "first piece %r" % first)
    p.stdout.close()  # nobody reads any more: a quiet end
    equal(p.wait(timeout=LIMIT_S), 0, "status")


if __name__ == "__main__":
    # A job in a script's background has SIGINT ignored, and would hand that on to plainsong; a handler is not handed on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()[sys.argv[2]](os.path.abspath(sys.argv[1]))
