#!/usr/bin/env python3
"""The server over a GPU that fails: `--device cuda` with the plug-in of tests/fake_cuda.c.
  python3 tests/serve/device.py PLAINSONG PLUGIN"""
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

from server import Server, case, finish, wait_for

BINARY, PLUGIN = sys.argv[1:3]
FAULTS = tempfile.mkdtemp()
N = 6  # requests: three slots, three that wait


def fault(*names):
    for name in os.listdir(FAULTS):
        os.unlink(os.path.join(FAULTS, name))
    for name in names:
        open(os.path.join(FAULTS, name), "w").close()


def start(*args):
    fault("slow")
    return Server(BINARY, "--device", "cuda", "--slots", "3", *args, env={"PLAINSONG_CUDA": PLUGIN, "FAKE_FAULTS": FAULTS})


def ask_all(s):
    """Every second one streamed; their answers by number, and the threads that wait for them."""
    answers = {}

    def ask(i):
        status, _, body = s.ask("POST", "/v1/completions", {"prompt": f"number {i}", "max_tokens": 500, "ignore_eos": True, "stream": i % 2 == 0})
        answers[i] = (status, body.decode())
    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(N)]
    for t in threads:
        t.start()
    wait_for(lambda: s.slots()["active"] == 3 and s.slots()["queued"] == N - 3 and s.slots()["steps"] > 3, "streams in work and others in the queue")
    return answers, threads


def ended(threads, seconds=20):
    until = time.monotonic() + seconds
    for t in threads:
        t.join(max(0, until - time.monotonic()))
    assert not any(t.is_alive() for t in threads), "a client still waits"


def breaks(call, *args):
    line = f"CUDA: {call}: the chip is on fire"
    with start(*args) as s:
        answers, threads = ask_all(s)
        fault(call)
        ended(threads)
        for i, (status, body) in answers.items():
            assert status == (200 if i % 2 == 0 else 503), (i, status)
            event = body.split("data: ")[-2] if i % 2 == 0 else body
            error = json.loads(event)["error"]
            assert error["message"] == line and error["code"] == "device_broken", (i, body[-300:])
        fault()
        status, _, body = s.get("/health")
        assert status == 503 and json.loads(body) == {"status": "broken", "message": line}, body
        status, answer = s.post("/v1/completions", {"prompt": "and now", "max_tokens": 2})
        assert status == 503 and answer["error"]["code"] == "device_broken", answer
        s.wait_line(f"broken {line}: every request fails")


def hangs(number):
    with start("--stuck", "1") as s:
        answers, threads = ask_all(s)
        fault("hang")
        wait_for(lambda: s.get("/health")[0] == 503, "/health to say stuck")
        assert json.loads(s.get("/health")[2])["status"] == "stuck"
        s.signal(number)
        time.sleep(0.2)
        s.signal(number)
        ended(threads)
        for i, (_, body) in answers.items():
            assert "draining" in body, (i, body[-300:])
        assert s.process.wait(20) == 0
        s.reader.join(20)
        assert "stopped a step has lasted" in s.lines[-1], s.lines[-3:]


for name in ("submit", "wait"):
    case(f"a device whose {name} fails: every request has the error, /health says it, the next is refused")(lambda: breaks(name))
case("a device that cannot prepare a step")(lambda: breaks("prepare", "--no-setup-cache"))
case("a step that hangs: SIGINT twice ends all the same")(lambda: hangs(signal.SIGINT))
case("a step that hangs: SIGTERM twice")(lambda: hangs(signal.SIGTERM))
shutil.rmtree(FAULTS)
finish()
