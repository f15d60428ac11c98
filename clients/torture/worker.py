"""A worker on the helper module of the examples."""

import os
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples/python"))
from tenure_client import Busy, Lost, TenureClient, TenureError

while True:
    # The helper knows one node; a new one for each lock is its failover.
    client = TenureClient(random.choice(os.environ["TENURE_WEB_URLS"].split(",")))
    try:
        with client.lock("vol:/torture/counter", wait=20, ttl=2) as held:
            held.check()
            subprocess.run(["sh", str(HERE / "step.sh"), str(held.fence), "python"], check=True)
    except (Busy, Lost, TenureError, OSError) as error:
        print(error, file=sys.stderr)
