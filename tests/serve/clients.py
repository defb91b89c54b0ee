"""Starts a server and lets clients.mjs ask it.
usage: python3 tests/serve/clients.py PLAINSONG MODULES"""
import subprocess
import sys

from server import Server

binary, modules = sys.argv[1:3]
with Server(binary) as s:
    status = subprocess.run(["node", "tests/serve/clients.mjs", s.url, modules], stdin=subprocess.DEVNULL).returncode
    ended = s.stop()
    if ended != 0:
        print(f"not ok the server ends with status 0: {ended}")
        print("\n".join("# " + line for line in s.lines[-30:]))
        status = 1
sys.exit(status)
