"""A worker of the benchmark that uses `filelock`: worker.py DIRECTORY

Says "ready", hears for how many milliseconds to work, answers with one JSON object.
"""

import json
import os
import sys
import time

from filelock import FileLock

lock = FileLock(os.path.join(sys.argv[1], "lock"))
print("ready", flush=True)
limit = int(sys.stdin.readline()) / 1000

started = asked = time.perf_counter()
pairs, longest = 0, 0.0
while asked - started < limit:
    lock.acquire()
    longest = max(longest, time.perf_counter() - asked)
    lock.release()
    pairs += 1
    asked = time.perf_counter()
print(json.dumps({"pairs": pairs, "seconds": asked - started, "longest": longest}), flush=True)
