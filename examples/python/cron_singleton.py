"""A cron job that runs on one machine at a time: start it everywhere, the others end at once.

    0 3 * * *  python3 cron_singleton.py nightly ./rollup.sh

Without arguments it shows itself with two runs beside a daemon (`tenure serve`). It prints:

    first run: working
    second run: nightly runs already, nothing to do
    first run: done
    third run: working
    third run: done
"""

import subprocess
import sys

from tenure_client import Busy, TenureClient

client = TenureClient()


def singleton(name, work):
    """Runs the work under the lock of its name; returns False if another machine runs it."""
    try:
        held = client.lock(f"cron:/jobs/{name}", wait=0, purpose=name)
    except Busy:
        return False
    with held:
        work(held)
    return True


def command(words):
    def run(held):
        child = subprocess.Popen(words)
        while child.poll() is None:
            if held.lost.wait(0.1):
                child.kill()  # Another machine may begin: this one must not go on.
        sys.exit(child.wait())
    return run


if len(sys.argv) > 2:
    if not singleton(sys.argv[1], command(sys.argv[2:])):
        print(f"{sys.argv[1]} runs already, nothing to do")
else:
    def first(_):
        print("first run: working")
        if not singleton("nightly", lambda _: print("never printed")):
            print("second run: nightly runs already, nothing to do")
        print("first run: done")

    singleton("nightly", first)
    singleton("nightly", lambda _: print("third run: working\nthird run: done"))
