"""A fenced write to a database: the row remembers the largest fence, so a writer that was paused and lost its lock
cannot overwrite its successor.

Run it beside a daemon (`tenure serve`). It prints:

    A writes with its fence: stored
    A is paused, and its lease ends
    B writes with a larger fence: stored
    A wakes up and writes with its old fence: refused
    the balance is B's
"""

import sqlite3

from tenure_client import TenureClient

client = TenureClient()
PATH = "account:/fenced/7"
database = sqlite3.connect(":memory:")
database.execute("create table account (id integer primary key, balance text, fence integer not null default 0)")
database.execute("insert into account (id) values (7)")


def write(fence, balance):
    """One statement checks the fence and writes: there is no moment between the two."""
    with database:
        changed = database.execute("update account set balance = ?, fence = ? where id = 7 and fence <= ?", (balance, fence, fence))
    return "stored" if changed.rowcount == 1 else "refused"


a = client.acquire("fenced-A", [PATH], ttl_ms=1000)
print("A writes with its fence:", write(a["fencingToken"], "A's"))
b = client.acquire("fenced-B", [PATH])
assert b["status"] == "QUEUED", b
client.wait_for("grant", "fenced-B")
print("A is paused, and its lease ends")
b = client.acquire("fenced-B", [PATH])
assert b["status"] == "OK" and b["fencingToken"] > a["fencingToken"]
print("B writes with a larger fence:", write(b["fencingToken"], "B's"))
print("A wakes up and writes with its old fence:", write(a["fencingToken"], "A's again"))
print("the balance is", database.execute("select balance from account").fetchone()[0])
client.release("fenced-B", [PATH])
