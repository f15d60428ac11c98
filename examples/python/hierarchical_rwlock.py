"""A tree of locks: a write takes everything below its path, a read only its path.

Run it beside a daemon (`tenure serve`). It prints:

    writer holds vol:/tree/projects and everything below
    reader of vol:/tree/projects/42 is queued: ANCESTOR_LOCKED
    reader of vol:/tree/archive is not in the way: OK
    writer releases
    reader of vol:/tree/projects/42 was granted
    a writer of vol:/tree must wait for the readers below: DESCENDANT_READ_LOCKED
"""

from tenure_client import TenureClient

client = TenureClient()
ROOT = "vol:/tree"

assert client.acquire("tree-writer", [f"{ROOT}/projects"])["status"] == "OK"
print(f"writer holds {ROOT}/projects and everything below")

below = client.acquire("tree-reader", [f"{ROOT}/projects/42"], mode="read")
assert below["status"] == "QUEUED", below
print(f"reader of {ROOT}/projects/42 is queued: {below['reason']}")

beside = client.acquire("tree-other-reader", [f"{ROOT}/archive"], mode="read")
print(f"reader of {ROOT}/archive is not in the way: {beside['status']}")

print("writer releases")
client.release("tree-writer", [f"{ROOT}/projects"])
client.wait_for("grant", "tree-reader")
assert client.acquire("tree-reader", [f"{ROOT}/projects/42"], mode="read")["status"] == "OK"
print(f"reader of {ROOT}/projects/42 was granted")

above = client.acquire("tree-writer", [ROOT], noWait=True)
assert above["status"] == "CONFLICT", above
print(f"a writer of {ROOT} must wait for the readers below: {above['reason']}")

client.release("tree-reader", [f"{ROOT}/projects/42"], mode="read")
client.release("tree-other-reader", [f"{ROOT}/archive"], mode="read")
