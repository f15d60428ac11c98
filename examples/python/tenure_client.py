"""A small client of the Tenure daemon's JSON interface, for programs that want no package.

Needs only the standard library. It is a starting point for your own client:

    from tenure_client import TenureClient

    client = TenureClient("http://127.0.0.1:8443")
    answer = client.acquire("worker-1", ["vol:/a/b"], ttl_ms=30_000)
    if answer["status"] == "QUEUED":
        client.wait_for("grant", "worker-1")
        answer = client.acquire("worker-1", ["vol:/a/b"], ttl_ms=30_000)
    client.assert_fencing("worker-1", answer["fencingToken"], ["vol:/a/b"])
    client.release("worker-1", ["vol:/a/b"])

or, with renewals in a thread:

    with client.lock("vol:/a/b", wait=30) as held:
        work(held.fence, stop=held.lost)        # held.lost is a threading.Event
"""

import contextlib
import json
import os
import random
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

STATUSES = ["OK", "CONFLICT", "LOST", "QUEUED"]
MODES = {"write": 0, "read": 1, "read_tree": 2}
ALGORITHMS = {"recursive_rw": 0, "point_rw": 1, "recursive_write": 2, "point_write": 3, "semaphore": 4}
REASONS = [
    "", "ANCESTOR_LOCKED", "WRITE_LOCKED", "READ_LOCKED", "DESCENDANT_WRITE_LOCKED", "DESCENDANT_READ_LOCKED",
    "READ_LOCKS_DISABLED", "STALE_FENCING_TOKEN", "INVALID_PERMITS", "SEMAPHORE_FULL", "MISSING_SEMAPHORE",
    "MISSING_WRITE", "MISSING_READ", "MISSING_FENCE", "MISSING_ALIVE", "MISSING_OWNER_SET", "EMPTY_OWNER_SET",
    "QUEUED", "STALE_OWNER",
]


class TenureError(Exception):
    """The daemon refused a call. `code` is the name of the gRPC code."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Busy(Exception):
    """The lock is held by another owner."""


class Lost(Exception):
    """The lock is no longer held."""


def boottime():
    """Seconds since boot, including suspended time: leases count by this clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class TenureClient:
    """Calls of one daemon. `url` is http:// on the own machine, https:// elsewhere."""

    def __init__(self, url=None, token=None, cafile=None, insecure=False):
        self.url = (url or os.environ.get("TENURE_WEB_URL", "http://127.0.0.1:8443")).rstrip("/")
        self.token = token or os.environ.get("TENURE_TOKEN")
        self.tls = None
        if self.url.startswith("https://"):
            self.tls = ssl.create_default_context(cafile=cafile)
            if insecure:
                self.tls.check_hostname = False
                self.tls.verify_mode = ssl.CERT_NONE

    def _open(self, path, body=None, timeout=35, accept="application/json"):
        headers = {"content-type": "application/json", "accept": accept}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)
        return urllib.request.urlopen(request, timeout=timeout, context=self.tls)

    def call(self, rpc, **fields):
        """One call, for example call("explain", path="vol:/a"). A call with an effect gets a key, so that its
        repeat after a broken connection has no second effect."""
        last = None
        for pause in (0, 0.05, 0.2, 0.5, 1, 2):
            time.sleep(pause * random.uniform(0.5, 1.5))
            try:
                with self._open(f"/v1/{rpc}", fields) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refused:
                error = json.loads(refused.read() or b"{}").get("error", {})
                last = TenureError(error.get("code", str(refused.code)), error.get("message", refused.reason))
                if last.code not in ("UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED"):
                    raise last from None
            except OSError as broken:
                last = broken
        raise last

    def acquire(self, owner, paths, mode="write", ttl_ms=30_000, queue_ttl_ms=60_000, permits=0, held=(), release=(), fencing_token=0, **more):
        """Acquires paths of one namespace in one step. `held` are paths to verify, `release` paths to release."""
        requests = [{"path": path, "mode": MODES[mode], "permits": permits} for path in paths]
        requests += [{"path": path, "mode": MODES[mode], "state": 1} for path in held]
        answer = self.call(
            "acquire", ownerId=owner, ttlMs=ttl_ms, queueTtlMs=queue_ttl_ms, requests=requests, fencingToken=fencing_token,
            releaseRequests=[{"path": path, "mode": MODES[mode]} for path in release], idempotencyKey=uuid.uuid4().hex, **more)
        return {**answer, "status": STATUSES[answer["status"]], "reasonCode": answer["reason"], "reason": REASONS[answer["reason"]]}

    def release(self, owner, paths, mode="write"):
        self.call("release", ownerId=owner, requests=[{"path": path, "mode": MODES[mode]} for path in paths], idempotencyKey=uuid.uuid4().hex)

    def renew(self, owner, ttl_ms=30_000, domains=()):
        """Returns the answer; raises Lost if a lease has ended. Without a key: a repeat only extends the lease."""
        answer = self.call("renew", ownerId=owner, ttlMs=ttl_ms, domains=list(domains))
        if answer["status"] != 0:
            raise Lost(f"{owner}: {REASONS[answer['reason']]}")
        return answer

    def assert_fencing(self, owner, fence, paths):
        """Raises Lost unless the owner holds the paths at this fence."""
        answer = self.call("assertFencing", ownerId=owner, fencingToken=fence, paths=list(paths))
        if answer["status"] != 0:
            raise Lost(f"{answer['path']}: {REASONS[answer['reason']]}")

    def set_policy(self, namespace, algorithm):
        self.call("setNamespacePolicy", namespace=namespace, algorithm=ALGORITHMS[algorithm], idempotencyKey=uuid.uuid4().hex)

    def stream_events(self, owner, after=0):
        """Yields the events of an owner: dicts with id and type (grant, killed, revoke). `after=0` includes the
        grant that came between the answer QUEUED and this call. A broken stream is opened again."""
        while True:
            try:
                query = urllib.parse.urlencode({"owner_id": owner, "after": after})
                with self._open(f"/v1/events/sse?{query}", accept="text/event-stream") as stream:
                    for line in stream:
                        if line.startswith(b"data:"):
                            event = json.loads(line[5:])
                            after = event["id"]
                            yield event
            except urllib.error.HTTPError:
                raise
            except OSError:
                time.sleep(random.uniform(0.05, 0.2))

    def wait_for(self, kind, owner):
        """Waits for an event of a kind; raises Lost if the owner is killed meanwhile."""
        events = self.stream_events(owner)
        with contextlib.closing(events):
            for event in events:
                if event["type"] == kind:
                    return event
                if event["type"] == "killed":
                    raise Lost(f"{owner} was killed")

    def lock(self, path, wait=0, ttl=30, owner=None, mode="write", permits=0, purpose=""):
        """Acquires a path and renews it in a thread. wait=0 does not wait, wait=None has no limit."""
        return HeldLock(self, path, wait, ttl, owner or f"python-{uuid.uuid4().hex}", mode, permits, purpose)


class HeldLock:
    """A held lock; a context manager. `lost` is set when the lock is lost: stop the work then."""

    def __init__(self, client, path, wait, ttl, owner, mode, permits, purpose):
        self.client, self.path, self.ttl, self.owner, self.mode = client, path, ttl, owner, mode
        self.lost, self._ended = threading.Event(), threading.Event()
        until = None if wait is None else boottime() + wait
        holder = {"name": "python", "pid": os.getpid(), "purpose": purpose}
        while True:
            # The lease counts from the sending of the request that is answered OK.
            self._sent = boottime()
            answer = client.acquire(
                owner, [path], mode, ttl_ms=int(ttl * 1000), queue_ttl_ms=10_000, permits=permits, noWait=wait == 0, holder=holder)
            if answer["status"] == "OK" and boottime() < self._sent + 0.8 * ttl:
                break
            if answer["status"] == "CONFLICT" or (until is not None and boottime() >= until):
                client.release(owner, [path], mode)
                raise Busy(f"{answer['path']} is held by {answer['owner']}")
            # Sending the same request again keeps its place in the queue.
            time.sleep(random.uniform(0.05, 0.15))
        self.fence, self.namespace = answer["fencingToken"], answer["namespace"]
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self):
        while not self._ended.wait(min(self.ttl / 10, 1)):
            if boottime() > self._sent + 0.8 * self.ttl:
                return self.lost.set()
            if boottime() < self._sent + self.ttl / 3:
                continue
            sent = boottime()
            try:
                self.client.renew(self.owner, int(self.ttl * 1000), [self.namespace])
                self._sent = sent
            except Lost:
                return self.lost.set()
            except (TenureError, OSError):
                pass  # The lease limits the work; the next round tries again.

    def check(self):
        """Raises Lost unless the lock is held now. The fence protects what happens after this call."""
        if self.lost.is_set() or boottime() > self._sent + 0.8 * self.ttl:
            raise Lost(self.path)
        if self.fence:
            self.client.assert_fencing(self.owner, self.fence, [self.path])

    def release(self):
        self._ended.set()
        self.client.release(self.owner, [self.path], self.mode)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
