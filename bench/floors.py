#!/usr/bin/env python3
"""The two floors of a step, as a Markdown table: bytes over the measured bandwidth, multiply-adds over the measured peak.

    plainsong bench -m FILE --json | python3 bench/floors.py PEAK

PEAK: GMAC/s of all threads together: what `check_bench machine` prints, times the threads."""
import json
import sys

peak = float(sys.argv[1])
bench = json.load(sys.stdin)
print("| B | MB a step | reading, ms | GMAC a step | multiplying, ms | floor, tok/s | measured, tok/s | of the floor |")
print("|---|---|---|---|---|---|---|---|")
for run in bench["runs"]:
    if run["path"] != "device":
        continue
    mb, gmac = run["bytes_per_step"] / 1e6, run["macs_per_step"] / 1e9
    read, multiply = mb / bench["peak_gb_s"], gmac / peak * 1e3
    floor = run["streams"] / max(read, multiply) * 1e3
    rate = run["aggregate_tok_s"]["median"]
    print(f"| {run['streams']} | {mb:.0f} | {read:.1f} | {gmac:.2f} | {multiply:.1f} | {floor:.0f} | {rate:.1f} | {100 * rate / floor:.0f} % |")
print(f"\n{bench['cpu']}, memory read at {bench['peak_gb_s']:.1f} GB/s, {peak:.0f} GMAC/s; commit {bench['commit']}")
