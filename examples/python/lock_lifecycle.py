"""The life of a lock: paths are added and removed during a lease, the fence is checked, the lease is renewed,
an operator ends the lock (KILLED), and a deadlock is found with DetectCycle.

Run it beside a daemon (`tenure serve`). It prints:

    amy holds vol:/life/a
    amy added vol:/life/b
    amy removed vol:/life/a and holds vol:/life/b
    the fence is current
    the lease was renewed
    amy was killed by an operator
    the fence of amy is stale: STALE_OWNER
    bob waits for cid
    cid waits for bob
    cycle found: bob, cid
    bob is the victim and releases; cid was granted
"""

import threading

from tenure_client import Lost, TenureClient

client = TenureClient()
A, B = "vol:/life/a", "vol:/life/b"

# Grow and shrink. `held` verifies in the same step that the earlier path is still held.
first = client.acquire("amy", [A])
assert first["status"] == "OK", first
print(f"amy holds {A}")
fence = client.call("incrFencingToken")["token"]
grown = client.acquire("amy", [B], held=[A], fencing_token=fence)
assert grown["status"] == "OK", grown
print(f"amy added {B}")
shrunk = client.acquire("amy", [], held=[B], release=[A], fencing_token=fence)
assert shrunk["status"] == "OK", shrunk
locks = client.call("listOwnerLocks", ownerId="amy")["locks"]
assert [lock["path"] for lock in locks] == [B], locks
print(f"amy removed {A} and holds {B}")

client.assert_fencing("amy", fence, [B])
print("the fence is current")
client.renew("amy")
print("the lease was renewed")

# An operator ends everything that amy has. Her event stream reports it.
killed = threading.Thread(target=client.wait_for, args=("killed", "amy"))
killed.start()
client.call("forceRelease", victimId="amy", idempotencyKey="operator-1")
killed.join(30)
assert not killed.is_alive(), "no KILLED event"
print("amy was killed by an operator")
try:
    client.assert_fencing("amy", fence, [B])
except Lost as lost:
    print(f"the fence of amy is stale: {str(lost).split(': ')[1]}")

# A deadlock of two owners. Each records for whom it waits.
assert client.acquire("bob", [A])["status"] == "OK"
assert client.acquire("cid", [B])["status"] == "OK"
for owner, path in (("bob", B), ("cid", A)):
    waiting = client.acquire(owner, [path])
    assert waiting["status"] == "QUEUED", waiting
    client.call(
        "setWaitEdge", ownerId=owner, conflictOwner=waiting["owner"], ttlMs=30_000,
        conflictPath=waiting["path"], reason=waiting["reasonCode"], idempotencyKey=f"edge-{owner}")
    print(f"{owner} waits for {waiting['owner']}")
found = client.call("detectCycle", startOwnerId="bob", maxDepth=0)
assert found["kind"] == 1, found
print(f"cycle found: {', '.join(found['chain'])}")
client.release("bob", [A, B])
client.call("clearWaitEdge", ownerId="bob", idempotencyKey="clear-bob")
client.wait_for("grant", "cid")
assert client.acquire("cid", [A])["status"] == "OK"
print("bob is the victim and releases; cid was granted")
client.call("releaseAll", ownerId="cid", delWaitKey=True, idempotencyKey="end")
