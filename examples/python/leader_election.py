"""Leader election: three candidates, one leads; when it ends without a word, the next one leads with a larger fence.

Run it beside a daemon (`tenure serve`). It prints:

    a candidate leads
    the leader dies without a release
    another candidate leads, with a larger fence
"""

import threading

from tenure_client import TenureClient

client = TenureClient()
PATH, TTL = "election:/service/leader", 2
leads = threading.Semaphore(0)
leaders = []


def candidate(name):
    held = client.lock(PATH, wait=None, ttl=TTL, purpose=name)
    leaders.append((name, held))
    leads.release()


threads = [threading.Thread(target=candidate, args=(name,), daemon=True) for name in ("one", "two", "three")]
for thread in threads:
    thread.start()

assert leads.acquire(timeout=30)
print("a candidate leads")
first_name, first = leaders[0]
# A crash: no release, and no renewal. Its lease ends, and the daemon grants the next in the queue.
first._ended.set()
print("the leader dies without a release")
assert leads.acquire(timeout=30)
second_name, second = leaders[1]
assert second_name != first_name and second.fence > first.fence
print("another candidate leads, with a larger fence")
second.release()
assert leads.acquire(timeout=30)
leaders[2][1].release()
