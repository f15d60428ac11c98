"""An adapter in the shape of ``filelock.FileLock``: change the import, keep the program.

.. code-block:: python

    from tenure.filelock import FileLock, Timeout

    with FileLock("state.json.lock", timeout=10):
        ...

The file is the same one that ``tenure run state.json`` and ``tenure.lock("state.json")`` use: a lock path that ends
in ``.lock`` protects the file without that ending. After a crash the next process gets the lock at once, and
``tenure why`` names the holder. It does not exclude programs that use the package ``filelock`` on the same path.
"""

from __future__ import annotations

import os
import threading
from os import PathLike
from types import TracebackType

from ._blocking import Client, Guard
from ._errors import Busy, TimedOut

__all__ = ["AcquireReturnProxy", "BaseFileLock", "FileLock", "Timeout"]


class Timeout(TimeoutError):
    """The lock was not acquired in time."""

    def __init__(self, lock_file: str) -> None:
        super().__init__(f"The file lock '{lock_file}' could not be acquired.")
        self._lock_file = lock_file

    @property
    def lock_file(self) -> str:
        """The path of the lock file."""
        return self._lock_file

    def __reduce__(self) -> tuple[type[Timeout], tuple[str]]:
        return (Timeout, (self._lock_file,))


class AcquireReturnProxy:
    """Releases at the end of ``with lock.acquire():``, without acquiring a second time."""

    def __init__(self, lock: FileLock) -> None:
        self.lock = lock

    def __enter__(self) -> FileLock:
        return self.lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lock.release()


class _State(threading.local):
    """What one thread holds. Without ``thread_local`` all threads share one of it."""

    def __init__(self) -> None:
        self.counter = 0
        self.guard: Guard | None = None


class _SharedState:
    def __init__(self) -> None:
        self.counter = 0
        self.guard: Guard | None = None


class FileLock:
    """A lock file that can be acquired again by its holder; the last release removes it.

    Args:
        lock_file: the path of the lock file.
        timeout: seconds to wait; negative: no limit; 0: one try.
        mode: ignored: the record's permissions follow its directory.
        thread_local: whether each thread acquires for itself.
        blocking: ``False``: one try.
        durable: sync the record to disk. ``filelock`` does not.
    """

    def __init__(
        self,
        lock_file: str | PathLike[str],
        timeout: float = -1,
        mode: int = 0o644,
        thread_local: bool = True,
        *,
        blocking: bool = True,
        durable: bool = False,
    ) -> None:
        self._lock_file = os.fspath(lock_file)
        self.timeout = float(timeout)
        self.blocking = blocking
        self._mode = mode
        self._thread_local = thread_local
        self._client = _client(durable)
        self._state: _State | _SharedState = _State() if thread_local else _SharedState()

    @property
    def lock_file(self) -> str:
        """The path of the lock file."""
        return self._lock_file

    @property
    def is_locked(self) -> bool:
        """Whether this object holds the lock."""
        return self._state.guard is not None

    @property
    def lock_counter(self) -> int:
        """How often the lock is acquired."""
        return self._state.counter

    def is_thread_local(self) -> bool:
        """Whether each thread acquires for itself."""
        return self._thread_local

    def _target(self) -> str:
        stem = self._lock_file.removesuffix(".lock")
        return stem if stem != self._lock_file else self._lock_file

    def acquire(
        self,
        timeout: float | None = None,
        poll_interval: float = 0.05,
        *,
        poll_intervall: float | None = None,
        blocking: bool | None = None,
    ) -> AcquireReturnProxy:
        """Acquires the lock. Waiting is by kernel events, so ``poll_interval`` has no effect.

        Raises:
            Timeout: the lock was not acquired in time.
        """
        state = self._state
        if state.guard is None:
            limit = self.timeout if timeout is None else timeout
            if not (self.blocking if blocking is None else blocking):
                limit = 0.0
            lock = self._client.lock(
                f"sidecar:{self._target()}", wait=None if limit < 0 else limit
            )
            try:
                state.guard = lock.acquire()
            except (Busy, TimedOut):
                raise Timeout(self._lock_file) from None
        state.counter += 1
        return AcquireReturnProxy(self)

    def release(self, force: bool = False) -> None:
        """Releases the lock; ``force`` ignores how often it was acquired."""
        state = self._state
        if state.guard is None:
            return
        state.counter = 0 if force else state.counter - 1
        if state.counter == 0:
            guard, state.guard = state.guard, None
            guard.release()

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if hasattr(self, "_state"):
            self.release(force=True)


BaseFileLock = FileLock

_clients: dict[bool, Client] = {}


def _client(durable: bool) -> Client:
    client = _clients.get(durable)
    if client is None:
        client = _clients.setdefault(durable, Client(durable=durable))
    return client
