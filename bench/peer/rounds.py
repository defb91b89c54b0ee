#!/usr/bin/env python3
"""`plainsong bench` and llama.cpp in turns, width after width and round after round, so that what else the machine does
falls on both alike; who begins changes with every round. Prints Markdown: medians with least and most, and the ratio
of each round's two neighbours. run.sh starts it.

llama.cpp lives on in one process (peer.c) that has read its prompts before; plainsong is started for each turn, as its
users would, and warms itself up. Neither uses the cores in the other's turn."""
import argparse
import json
import signal
import statistics
import subprocess
import sys
import time

PROMPT, LONG_PROMPT = 128, 512
ALL_SETTINGS = ["separate", "separate+fa", "unified", "unified+fa"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def steps_at(width):
    """Tokens a stream makes: 64, fewer where steps are long, so that a turn stays within seconds."""
    return min(64, max(8, 256 // width))


def stop(_signal, _frame):
    raise KeyboardInterrupt


class Peer:
    def __init__(self, o):
        self.process = subprocess.Popen([o.peer, o.model, o.backends, str(o.threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        self.facts, self.chosen = {}, {}
        while True:
            name, _, value = self.line().partition(" ")
            if name == "ready":
                break
            self.facts.setdefault(name, []).append(value)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("rounds.py: llama.cpp's side ended")
        return line.strip()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        return self.line().split()

    def choose(self, widths):
        """The fastest of its settings for each width. As reading the prompts takes long, from 8 streams on only the two
        that were fastest at the width before are tried, and above 16 the faster of them."""
        left = ALL_SETTINGS
        for width in widths:
            tried = left[:2] if width == 1 else left  # one stream: separate and unified are the same
            mask = sum(1 << ALL_SETTINGS.index(s) for s in tried)
            answer = self.ask("choose %d %d %d %d" % (width, PROMPT, steps_at(width), mask))
            self.chosen[width] = answer[1]
            rates = {s: float(r) for s, r in (word.split("=") for word in answer[2:])}
            say("llama.cpp, B=%d: %s" % (width, ", ".join("%s %.1f" % x for x in rates.items())))
            if width >= 4:
                left = sorted(rates, key=rates.get)[-1 if width >= 16 else -2:]
        answer = self.ask("prompt %d" % LONG_PROMPT)
        self.chosen["prompt"] = answer[1]
        say("llama.cpp, prompt of %d: %s" % (LONG_PROMPT, " ".join(answer[2:])))

    def turn(self, width):
        if width == "prompt":
            return float(self.ask("prompt %d" % LONG_PROMPT)[1])
        # As plainsong: n tokens are made by n - 1 steps, the first one comes from the prompt.
        return float(self.ask("decode %d %d %d" % (width, PROMPT, steps_at(width) - 1))[1])


class Ours:
    def __init__(self, o):
        self.o, self.head = o, None

    def turn(self, width):
        """The JSON of both paths."""
        one = width == "prompt"
        sizes = (1, LONG_PROMPT, 4) if one else (width, PROMPT, steps_at(width))
        text = subprocess.run([self.o.plainsong, "bench", "-m", self.o.model, "--json", "--runs", "1", "--threads",
                               str(self.o.threads), "--streams", str(sizes[0]), "--prompt", str(sizes[1]), "--gen",
                               str(sizes[2])] + (["--isa", self.o.isa] if self.o.isa else []),
                              check=True, stdout=subprocess.PIPE).stdout
        self.head = json.loads(text)
        runs = {run["path"]: run for run in self.head["runs"]}
        field = "prompt_tok_s" if one else "aggregate_tok_s"
        return {"engine": runs["engine"][field]["median"], "device": runs["device"][field]["median"],
                "bytes": runs["device"]["bytes_per_step"], "peak": self.head["peak_gb_s"]}


def spread(values, form):
    return "%s (%s-%s)" % tuple(form % x for x in (statistics.median(values), min(values), max(values)))


def row(name, theirs, ours, peak):
    """One line of the table; the roofline is what reading `bytes` at the best measured speed would allow."""
    cells = [name]
    for path in ("engine", "device"):
        cells.append(spread([x[path] for x in ours], "%.1f"))
    cells.append(spread(theirs, "%.1f"))
    for path in ("engine", "device"):
        cells.append(spread([x[path] / t for x, t in zip(ours, theirs)], "%.2f"))
    if name.isdigit():
        bytes_per_step = statistics.median(x["bytes"] for x in ours)
        roof = 1e9 * peak / bytes_per_step * int(name)
        cells += ["%.0f" % (1e-6 * bytes_per_step), "%.0f" % roof]
        cells += ["%.0f %%" % (100 * statistics.median(rates) / roof)
                  for rates in ([x["device"] for x in ours], theirs)]
    else:
        cells += ["", "", "", ""]
    return "| " + " | ".join(cells) + " |"


def print_table(o, peer, ours, seen):
    head, facts = ours.head, peer.facts
    if not seen:
        sys.exit("rounds.py: no turn was complete")
    peak = max(x["peak"] for found in seen.values() for x in found["ours"])
    rounds = max(len(found["ours"]) for found in seen.values())
    print("`%s`, rounds: %d, threads: %d each. %s; memory read at %.1f GB/s.\\"
          % (o.model.rsplit("/", 1)[-1], rounds, o.threads, head["cpu"], peak))
    print("plainsong %s: %s, %s keys and values.\\" % (head["commit"], head["isa"], head["kv"]))
    print("%s: CPU variant %s, f16 keys and values, repacking %s:\n%s.\\"
          % (o.peer_version, ", ".join(facts.get("variant", ["unknown"])), facts["repacking"][0],
             ", ".join(facts.get("buffer", ["buffers unknown"]))))
    print("Its fastest settings: %s.\n" % ", ".join("%s %s" % x for x in peer.chosen.items()))
    print("| B | plainsong engine | device loop | llama.cpp | ratio, engine | ratio, device loop | MB/step "
          "| roofline | plainsong's share | llama.cpp's |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for width, found in seen.items():
        name = "prompt of %d" % LONG_PROMPT if width == "prompt" else str(width)
        print(row(name, found["theirs"], found["ours"], peak))


def play(width, found, run, ours, peer):
    """A turn of each; both or neither is kept."""
    turns = {}
    for who in (["ours", "theirs"] if run % 2 == 0 else ["theirs", "ours"]):
        turns[who] = ours.turn(width) if who == "ours" else peer.turn(width)
    for who, figures in turns.items():
        found[who].append(figures)


def main():
    signal.signal(signal.SIGTERM, stop)
    p = argparse.ArgumentParser()
    for name in ("plainsong", "peer", "backends", "peer-version"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int, required=True)
    p.add_argument("--widths", default="1,2,4,8,16,32", help="numbers of streams; 0: none")
    p.add_argument("--isa", help="of plainsong: --isa of `plainsong bench`")
    p.add_argument("--json", help="a file for every single figure")
    p.add_argument("model")
    o = p.parse_args()
    widths = [int(w) for w in o.widths.split(",") if int(w)]
    begin = time.monotonic()
    peer, ours = Peer(o), Ours(o)
    say("llama.cpp: variant %s, repacking %s, %s" % (peer.facts.get("variant"), peer.facts["repacking"],
                                                     peer.facts.get("buffer")))
    peer.choose(widths)
    say("chosen after %.0f s" % (time.monotonic() - begin))
    seen = {w: {"ours": [], "theirs": []} for w in widths + ["prompt"]}
    try:
        for run in range(o.runs):
            for width, found in seen.items():
                play(width, found, run, ours, peer)
            say("round %d of %d after %.0f s" % (run + 1, o.runs, time.monotonic() - begin))
    except KeyboardInterrupt:
        say("stopped: the table has what was complete")
    print_table(o, peer, ours, {w: found for w, found in seen.items() if found["ours"]})
    if o.json:
        with open(o.json, "w") as out:
            json.dump({str(w): found for w, found in seen.items()}, out)


main()
