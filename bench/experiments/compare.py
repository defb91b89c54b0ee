#!/usr/bin/env python3
"""Variants of one `plainsong bench` in turn, run after run, so that what else the machine does falls on all alike.

  compare.py PLAINSONG MODEL RUNS COLUMNS "name: bench options" ...

Prints a Markdown table, a line for each variant, width and path: the columns' medians, and least and most of the first. COLUMNS: names
of the JSON's fields, with commas between; phase_ms.wait for one inside, path=engine,device which paths."""
import json
import statistics
import subprocess
import sys


def value(run, name):
    for part in name.split("."):
        run = run[part]
    return run["median"] if isinstance(run, dict) else run


def main():
    plainsong, model, runs, columns, *variants = sys.argv[1:]
    columns = columns.split(",")
    paths = [c[5:] for c in columns if c.startswith("path=")] or ["engine"]
    columns = [c for c in columns if not c.startswith("path=")]
    seen, head = {}, None
    for _ in range(int(runs)):
        for variant in variants:
            name, _, options = variant.partition(":")
            text = subprocess.run([plainsong, "bench", "-m", model, "--json", "--runs", "1", *options.split()],
                                  check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
            head = json.loads(text)
            for run in head["runs"]:
                if run["path"] in paths:
                    seen.setdefault((name, run["streams"], run["path"]), []).append(run)
    print("%s; %s, %s, %d threads; commit %s; %s runs" % (head["model"], head["cpu"], head["isa"], head["threads"],
                                                         head["commit"], runs))
    print("\n| variant | B | path | %s | least | most |\n|%s" % (" | ".join(columns), "---|" * (len(columns) + 5)))
    for (name, streams, path), found in sorted(seen.items(), key=lambda k: (k[0][1], k[0][2])):
        first = [value(run, columns[0]) for run in found]
        cells = [name, streams, path, *("%.5g" % statistics.median(value(run, c) for run in found) for c in columns)]
        print("| %s | %.5g | %.5g |" % (" | ".join(map(str, cells)), min(first), max(first)))


main()
