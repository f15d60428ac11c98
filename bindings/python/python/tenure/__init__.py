"""Locks for files, repositories and clusters behind one API.

.. code-block:: python

    import tenure

    with tenure.lock("vol:/a/b", wait=30) as guard:
        store.write(data, fence=guard.fence)

The address chooses the backend: ``state.json`` is a lock file beside that file, ``repo:/mnt/backup`` or
``s3://bucket/prefix`` a repository, ``vol:/a/b`` a path on the daemon of ``TENURE_URL``, ``mem:name`` a lock in
this process. :mod:`tenure.aio` has the same for asyncio.
"""

from __future__ import annotations

from typing import Iterable, Mapping

from . import _tenure
from ._blocking import (
    Client,
    Guard,
    Guards,
    Lock,
    LockAll,
    OnLost,
    OnReleaseRequest,
    Watch,
)
from ._errors import (
    Busy,
    Denied,
    Error,
    InvalidInput,
    Lost,
    Refused,
    TimedOut,
    Unavailable,
    Unsupported,
)
from ._options import Address, OnWait
from ._values import (
    Blocker,
    Broken,
    Capabilities,
    Change,
    Holder,
    LockState,
    ReleaseRequest,
    Waiter,
)

__version__ = _tenure.VERSION

__all__ = [
    "Address",
    "Blocker",
    "Broken",
    "Busy",
    "Capabilities",
    "Change",
    "Client",
    "Denied",
    "Error",
    "Guard",
    "Guards",
    "Holder",
    "InvalidInput",
    "Lock",
    "LockAll",
    "LockState",
    "Lost",
    "OnLost",
    "OnReleaseRequest",
    "OnWait",
    "Refused",
    "ReleaseRequest",
    "TimedOut",
    "Unavailable",
    "Unsupported",
    "Waiter",
    "Watch",
    "ask",
    "break_hold",
    "capabilities",
    "inspect",
    "list_locks",
    "lock",
    "lock_all",
    "session",
    "watch",
]

#: The client with the settings of the environment. Connects at its first use.
_default = Client()


def lock(
    address: Address,
    *,
    shared: bool = False,
    shared_tree: bool = False,
    permits: int | None = None,
    wait: float | None = None,
    ttl: float | None = None,
    ask: bool = False,
    purpose: str | None = None,
    labels: Mapping[str, str] | None = None,
    fenced: bool = False,
    refuse_deadlock: bool = False,
    on_wait: OnWait | None = None,
    on_lost: OnLost | None = None,
    on_release_request: OnReleaseRequest | None = None,
) -> Lock:
    """Returns a lock for ``with``, or for :meth:`Lock.acquire`. Nothing is locked before that.

    Args:
        address: what to lock. A path object always means the lock file beside that file.
        shared: together with other shared holders.
        shared_tree: shared, for a path and everything below it.
        permits: one of this many permits. All holders of a path must give the same number.
        wait: seconds to wait; 0 raises :class:`Busy` at once. Default: no limit.
        ttl: seconds after which the lease ends without a renewal. Tenure renews by itself.
        ask: asks the holder to release while this request waits.
        purpose: what the lock is for. Waiters see it.
        labels: labels for people.
        fenced: requests a fence from lock files; the other backends always give one.
        refuse_deadlock: fails instead of waiting in a cycle of owners (daemon only).
        on_wait: is called with a :class:`Busy` while the request waits.
        on_lost: is called once when the lock is lost.
        on_release_request: is called once when another client asks for the lock.

    Options that the backend does not support raise :class:`Unsupported` before anything changes.
    """
    return _default.lock(
        address,
        shared=shared,
        shared_tree=shared_tree,
        permits=permits,
        wait=wait,
        ttl=ttl,
        ask=ask,
        purpose=purpose,
        labels=labels,
        fenced=fenced,
        refuse_deadlock=refuse_deadlock,
        on_wait=on_wait,
        on_lost=on_lost,
        on_release_request=on_release_request,
    )


def lock_all(
    addresses: Iterable[Address],
    *,
    shared: bool = False,
    wait: float | None = None,
    ttl: float | None = None,
    ask: bool = False,
    purpose: str | None = None,
    labels: Mapping[str, str] | None = None,
    fenced: bool = False,
    refuse_deadlock: bool = False,
    on_wait: OnWait | None = None,
) -> LockAll:
    """Returns several locks that are acquired all or none, in a fixed order. See :func:`lock`."""
    return _default.lock_all(
        addresses,
        shared=shared,
        wait=wait,
        ttl=ttl,
        ask=ask,
        purpose=purpose,
        labels=labels,
        fenced=fenced,
        refuse_deadlock=refuse_deadlock,
        on_wait=on_wait,
    )


#: Returns a client whose locks all belong to one owner; see :meth:`Client.session`.
session = _default.session
#: Returns the state of a lock; see :meth:`Client.inspect`.
inspect = _default.inspect
#: Returns all locks at or below an address; see :meth:`Client.list`.
list_locks = _default.list
#: Asks the holders to release; see :meth:`Client.ask`.
ask = _default.ask
#: Breaks holds; see :meth:`Client.break_hold`.
break_hold = _default.break_hold
#: Returns the changes at or below an address; see :meth:`Client.watch`.
watch = _default.watch
#: Returns what a backend supports; see :meth:`Client.capabilities`.
capabilities = _default.capabilities
