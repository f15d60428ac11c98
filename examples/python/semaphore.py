"""A counting semaphore: three permits; the fourth worker waits for one.

Run it beside a daemon (`tenure serve`). It prints:

    worker-1 has one of 3 permits
    worker-2 has one of 3 permits
    worker-3 has one of 3 permits
    worker-4 is queued: SEMAPHORE_FULL
    worker-2 gives its permit back
    worker-4 was granted
"""

from tenure_client import TenureClient

client = TenureClient()
NAMESPACE, POOL = "pool:/semaphore", "pool:/semaphore/gpu"
client.set_policy(NAMESPACE, "semaphore")

for worker in ("worker-1", "worker-2", "worker-3"):
    assert client.acquire(worker, [POOL], permits=3)["status"] == "OK"
    print(f"{worker} has one of 3 permits")

fourth = client.acquire("worker-4", [POOL], permits=3)
assert fourth["status"] == "QUEUED", fourth
print(f"worker-4 is queued: {fourth['reason']}")

client.release("worker-2", [POOL])
print("worker-2 gives its permit back")
client.wait_for("grant", "worker-4")
assert client.acquire("worker-4", [POOL], permits=3)["status"] == "OK"
print("worker-4 was granted")

for worker in ("worker-1", "worker-3", "worker-4"):
    client.release(worker, [POOL])
