"""Locks that a test controls: refused, delayed, asked for or lost on command.

They show how a program reacts, without a daemon and without waiting. The pytest fixture ``tenure_script`` makes one:

.. code-block:: python

    def test_the_job_stops_when_its_lock_is_lost(tenure_script):
        job = start_job(lock=tenure_script.address)
        tenure_script.lose("expired")
        assert job.wait() == "stopped"
"""

from __future__ import annotations

import threading
from types import TracebackType

from . import _tenure

__all__ = ["Script"]


class Script:
    """A lock in this process with a random name. Give :attr:`address` to the program under test."""

    def __init__(self) -> None:
        self._native = _tenure.Script()
        self._timers: list[threading.Timer] = []

    @property
    def address(self) -> str:
        """The address for the program under test."""
        return self._native.address

    @property
    def held(self) -> bool:
        """Whether the lock is held, by the program or by :meth:`refuse`."""
        return self._native.held

    def refuse(self, purpose: str = "a test") -> None:
        """Another owner holds the lock from now on: a request that does not wait raises ``Busy``."""
        self._native.occupy(purpose)

    def allow(self) -> None:
        """Ends :meth:`refuse`: the next waiter gets the lock."""
        self._native.vacate()

    def delay(self, seconds: float, purpose: str = "a test") -> None:
        """Another owner holds the lock for ``seconds``: a request waits so long."""
        self.refuse(purpose)
        timer = threading.Timer(seconds, self.allow)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def lose(self, cause: str = "expired", what: str = "a test") -> int:
        """The holders lose the lock; afterwards it is free. Returns how many there were.

        ``cause`` is ``expired``, ``unconfirmed``, ``broken``, ``killed`` or ``overwritten``.
        """
        return self._native.lose(cause, what)

    def ask(self, reason: str = "a test") -> None:
        """Sends a release request to the holders."""
        self._native.ask(reason)

    def lease(self, ttl: float) -> None:
        """Gives the holders a lease of ``ttl`` seconds that is not renewed."""
        self._native.lease(ttl)

    def close(self) -> None:
        """Ends what :meth:`refuse` and :meth:`delay` began."""
        for timer in self._timers:
            timer.cancel()
        self._native.vacate()

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
