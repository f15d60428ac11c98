"""Exceptions. Every one of them carries the fields of the failure, so that programs need not read texts."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from ._values import Blocker

__all__ = [
    "Busy",
    "Denied",
    "Error",
    "InvalidInput",
    "Lost",
    "Refused",
    "TimedOut",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """The reason why an operation on a lock failed. The base of all exceptions of this package."""

    #: The class of the failure: ``Held``, ``Timeout``, ``Stale``, ``NotALock``, ``Compromised``, …
    kind: str
    #: The address of the lock, if the failure concerns one.
    address: str | None

    def __init__(self, message: str = "", *, address: str | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.address = address
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process borders (multiprocessing, concurrent.futures).
        return (_restore, (type(self), self.args, self.__dict__))


class Busy(Error):
    """The lock is held, and the caller did not want to wait."""

    #: The hold or the earlier waiter that is in the way, if it is known.
    blocker: Blocker | None = None
    #: The place in the queue, counted from 1, if there is a queue.
    position: int | None = None
    #: The cycle of owners that wait for each other, with ``refuse_deadlock``.
    deadlock: tuple[str, ...] = ()
    #: What a person can do next.
    next_step: str = ""


class TimedOut(Busy, TimeoutError):
    """The lock was still held when the time limit ended."""


class Lost(Error):
    """The lock was held and is lost. The work that it protected must stop."""

    #: ``expired``, ``unconfirmed``, ``broken``, ``killed`` or ``overwritten``.
    cause: str = ""
    #: What was observed.
    what: str = ""
    #: When this process noticed it.
    seen: datetime | None = None


class Denied(Error, PermissionError):
    """The caller is not authorized."""

    #: The message of the daemon or the store.
    what: str = ""


class Refused(Error):
    """The request was refused, and waiting does not help."""

    #: What is wrong.
    what: str = ""
    #: What a person can do next, if it is known.
    next_step: str = ""


class InvalidInput(Error, ValueError):
    """An argument is invalid. Nothing was changed."""

    #: The argument.
    about: str = ""
    #: What is wrong with it.
    what: str = ""


class Unsupported(Error):
    """The backend does not support the request. Nothing was changed."""

    #: What is not supported.
    what: str = ""


class Unavailable(Error, ConnectionError):
    """The daemon or the store could not be reached. A retry may succeed."""

    #: What happened.
    what: str = ""
    #: When a retry makes sense, in seconds.
    retry_after: float = 0.0


_KINDS: dict[str, type[Error]] = {
    "busy": Busy,
    "timed-out": TimedOut,
    "lost": Lost,
    "refused": Refused,
    "input": InvalidInput,
    "unsupported": Unsupported,
    "unavailable": Unavailable,
    "denied": Denied,
}


def _restore(kind: type[Error], args: tuple[Any, ...], fields: dict[str, Any]) -> Error:
    error = kind(*args)
    error.__dict__.update(fields)
    return error


def from_dict(fields: dict[str, Any]) -> Error:
    """Makes the exception of a failure."""
    kind = _KINDS.get(fields.get("kind", ""), Error)
    error = kind(
        fields.get("message", ""), address=fields.get("place"), kind=fields.get("class", "")
    )
    if isinstance(error, Busy):
        blocker = fields.get("blocker")
        error.blocker = Blocker._from(blocker) if blocker else None
        error.position = fields.get("position")
        error.deadlock = tuple(fields.get("deadlock", ()))
        error.next_step = fields.get("next", "")
    elif isinstance(error, Lost):
        error.cause = fields.get("cause", "")
        error.what = fields.get("what", "")
        error.seen = datetime.fromtimestamp(fields.get("seen_ms", 0) / 1000, timezone.utc)
    elif isinstance(error, Refused):
        error.what = fields.get("what", "")
        error.next_step = fields.get("next") or ""
    elif isinstance(error, InvalidInput):
        error.about = fields.get("about", "")
        error.what = fields.get("what", "")
    elif isinstance(error, Unavailable):
        error.what = fields.get("what", "")
        error.retry_after = fields.get("retry_after_ms", 0) / 1000
    elif isinstance(error, (Denied, Unsupported)):
        error.what = fields.get("what", "")
    return error


def from_json(text: str) -> Error:
    """Makes the exception of a failure that the native module reports."""
    return from_dict(json.loads(text))
