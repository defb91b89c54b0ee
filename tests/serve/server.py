"""A plainsong serve under test: started on a free port, asked, stopped. Standard library only."""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

MODEL = "models/plainsong-tiny-q4_0.gguf"
PATIENCE = 120  # seconds until a test gives up: on a crowded core or under a sanitizer everything takes long


class Server:
    def __init__(self, binary, *args, env=None, ready=True):
        full = dict(os.environ, **(env or {}))
        self.lines = []
        self.process = subprocess.Popen([binary, "serve", "-m", MODEL, "--port", "0", *args], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=full, text=True)
        self.pid = self.process.pid
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        line = self.wait_line(r"https?://[^ \"]+:\d+")
        self.url = re.search(r"https?://[^ \"]+:\d+", line).group(0)
        self.port = int(self.url.rsplit(":", 1)[1])
        self.tls = self.url.startswith("https")
        if ready:
            wait_for(self._healthy, "the model to be loaded")

    def _healthy(self):
        try:
            return self.get("/health")[0] == 200
        except OSError:
            if self.process.poll() is None:
                raise
            self.reader.join(PATIENCE)
            raise AssertionError(f"the server ended with {self.process.returncode}: " + " | ".join(self.lines[-20:])) from None

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_line(self, pattern):
        def found():
            if self.process.poll() is not None and not self.reader.is_alive():
                raise AssertionError("the server ended: " + " | ".join(self.lines[-20:]))
            return next((l for l in self.lines if re.search(pattern, l)), None)
        return wait_for(found, f"a line like {pattern}")

    def connect(self, timeout=PATIENCE):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            s = context.wrap_socket(s)
        return s

    def ask(self, method, path, body=None, headers=None):
        """status, headers, body bytes; on a connection of its own."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        c.sock = self.connect()
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
        finally:
            c.close()

    def get(self, path, headers=None):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        status, _, text = self.ask("POST", path, body, headers)
        return status, json.loads(text)

    def slots(self, headers=None):
        return json.loads(self.get("/slots", headers)[2])

    def metrics(self, headers=None):
        out = {}
        for line in self.get("/metrics", headers)[2].decode().splitlines():
            if line and line[0] != "#":
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def wait_idle(self, headers=None):
        """Counters return to zero, slots to free."""
        def idle():
            s = self.slots(headers)
            return s["active"] == 0 and s["queued"] == 0 and s["requests"] == 0 and all(
                x["state"] == "free" for x in s["slots"])
        wait_for(idle, "free slots")

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        """Waits for the end; the exit status."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.reader.join(PATIENCE)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.end()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.returncode != 0:
            global failures
            failures += 1
            self.reader.join(PATIENCE)
            print(f"not ok the server ends with status 0: {self.process.returncode}")
            print("\n".join("# " + line for line in self.lines[-60:]), flush=True)


def wait_for(fn, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = fn()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE} s for {what}")


def request_bytes(path, body, headers=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            f"{headers}\r\n").encode() + data


def read_response(f):
    """One response from a socket's file: status, headers, body."""
    line = f.readline()
    if not line:
        return None
    status = int(line.split()[1])
    headers = {}
    while (line := f.readline().strip()):
        k, v = line.decode().split(":", 1)
        headers[k.lower()] = v.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while (n := int(f.readline().split(b";")[0], 16)):
            body += f.read(n)
            f.readline()
        f.readline()
    else:
        body = f.read(int(headers.get("content-length", 0)))
    return status, headers, body


failures = 0


def case(name):
    """Runs the function now; a line for it."""
    def run(fn):
        global failures
        try:
            fn()
            print(f"ok {name}", flush=True)
        except Exception as e:  # noqa: BLE001 - whatever it is, it is this case's
            failures += 1
            print(f"not ok {name}: {type(e).__name__}: {str(e)[:600]}", flush=True)
            tb = e.__traceback__
            while tb:
                print(f"# {tb.tb_frame.f_code.co_filename}:{tb.tb_lineno} {tb.tb_frame.f_code.co_name}", flush=True)
                tb = tb.tb_next
        return fn
    return run


def finish():
    sys.exit(1 if failures else 0)
