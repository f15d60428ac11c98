"""Mutual exclusion: two workers want one path; the second is queued and waits for its GRANT.

Run it beside a daemon (`tenure serve`). It prints:

    A holds vol:/mutex/file
    B is queued: WRITE_LOCKED by A
    A releases
    B was granted, its fence is larger
    B releases
"""

import threading

from tenure_client import TenureClient

client = TenureClient()
PATH = "vol:/mutex/file"

first = client.acquire("mutex-A", [PATH])
assert first["status"] == "OK", first
print(f"A holds {PATH}")

second = client.acquire("mutex-B", [PATH])
assert (second["status"], second["owner"]) == ("QUEUED", "mutex-A"), second
print(f"B is queued: {second['reason']} by A")

granted = threading.Thread(target=client.wait_for, args=("grant", "mutex-B"))
granted.start()
print("A releases")
client.release("mutex-A", [PATH])
granted.join(30)
assert not granted.is_alive(), "no GRANT"

# The same request again: it confirms the grant, and the lease counts from its sending.
second = client.acquire("mutex-B", [PATH])
assert second["status"] == "OK" and second["fencingToken"] > first["fencingToken"], second
print("B was granted, its fence is larger")
client.release("mutex-B", [PATH])
print("B releases")
