"""Values that calls return. Texts in them come from other processes: do not trust them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

__all__ = [
    "Blocker",
    "Broken",
    "Capabilities",
    "Change",
    "Holder",
    "LockState",
    "ReleaseRequest",
    "Waiter",
]


def _seconds(fields: Mapping[str, Any], name: str) -> float | None:
    millis = fields.get(name)
    return None if millis is None else millis / 1000


@dataclass(frozen=True)
class Holder:
    """The description of a holder, for people."""

    name: str = ""
    host: str = ""
    pid: int | None = None
    purpose: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> Holder:
        return cls(
            name=fields.get("name", ""),
            host=fields.get("host", ""),
            pid=fields.get("pid"),
            purpose=fields.get("purpose", ""),
            labels=dict(fields.get("labels", {})),
        )


@dataclass(frozen=True)
class Blocker:
    """A hold, or an earlier waiter, that blocks a request."""

    #: The held address. It may be an ancestor or a descendant of the requested one.
    address: str
    holder: Holder
    #: ``holds`` or ``waits``.
    standing: str
    #: ``exclusive``, ``shared``, ``shared-tree`` or ``permit``.
    mode: str
    #: Seconds since it acquired the lock.
    held_for: float | None
    #: Seconds until its lease ends; ``None`` without leases.
    lease_left: float | None
    fence: int | None
    #: ``alive``, ``dead`` or ``unknown``.
    life: str
    #: The evidence for ``life``.
    because: str
    #: The id of exactly this hold, for :func:`tenure.break_hold`.
    id: str | None

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> Blocker:
        verdict = fields.get("verdict", {})
        return cls(
            address=fields["place"],
            holder=Holder._from(fields.get("holder", {})),
            standing=fields.get("standing", "holds"),
            mode=fields.get("mode", "exclusive"),
            held_for=_seconds(fields, "held_ms"),
            lease_left=_seconds(fields, "lease_left_ms"),
            fence=fields.get("fence"),
            life=verdict.get("life", "unknown"),
            because=verdict.get("because", ""),
            id=fields.get("id"),
        )


@dataclass(frozen=True)
class Waiter:
    """A request in the queue."""

    address: str
    holder: Holder
    owner: str
    mode: str
    #: Seconds that it has waited.
    waited: float | None

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> Waiter:
        return cls(
            address=fields["place"],
            holder=Holder._from(fields.get("holder", {})),
            owner=fields.get("owner", ""),
            mode=fields.get("mode", "exclusive"),
            waited=_seconds(fields, "waited_ms"),
        )


@dataclass(frozen=True)
class LockState:
    """The state of one lock."""

    address: str
    #: Whether an exclusive request would be granted now.
    free: bool
    holders: tuple[Blocker, ...]
    waiters: tuple[Waiter, ...]
    #: The last fence, if the backend keeps it without a holder.
    fence: int | None
    #: The conflict rule of the namespace, on the daemon.
    rule: str | None
    deadlock: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> LockState:
        return cls(
            address=fields["place"],
            free=fields["free"],
            holders=tuple(Blocker._from(one) for one in fields.get("holders", ())),
            waiters=tuple(Waiter._from(one) for one in fields.get("waiters", ())),
            fence=fields.get("fence"),
            rule=fields.get("rule"),
            deadlock=tuple(fields.get("deadlock", ())),
            notes=tuple(fields.get("notes", ())),
        )


@dataclass(frozen=True)
class Broken:
    """The result of a break."""

    victims: tuple[Blocker, ...]
    fence: int | None

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> Broken:
        victims = tuple(Blocker._from(one) for one in fields.get("victims", ()))
        return cls(victims=victims, fence=fields.get("fence"))


@dataclass(frozen=True)
class Change:
    """A change at or below a watched address."""

    #: ``present``, ``present-end``, ``granted``, ``queued``, ``released``, ``expired``, ``killed``,
    #: ``dequeued``, ``asked`` or ``policy``.
    kind: str
    address: str
    owner: str
    holder: Holder
    mode: str
    fence: int | None

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> Change:
        return cls(
            kind=fields["kind"],
            address=fields["place"],
            owner=fields.get("owner", ""),
            holder=Holder._from(fields.get("holder", {})),
            mode=fields.get("mode", "exclusive"),
            fence=fields.get("fence"),
        )


@dataclass(frozen=True)
class ReleaseRequest:
    """A request to the holder to release."""

    by: Holder
    reason: str | None

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> ReleaseRequest:
        return cls(by=Holder._from(fields.get("by", {})), reason=fields.get("reason"))


@dataclass(frozen=True)
class Capabilities:
    """What the backend of an address supports."""

    #: ``exclusive``, ``shared`` (and exclusive) or ``all``.
    modes: str
    #: ``fair`` or ``none``.
    order: str
    #: ``always`` or ``on-request``.
    fence: str
    #: The allowed lengths of a lease in seconds; ``None`` if a lock lasts as long as its holder.
    lease: tuple[float, float] | None
    #: ``shared``, ``kernel`` or ``lease``.
    liveness: str
    #: Whether a holder can be asked to release.
    ask: bool
    #: ``process``, ``machine``, ``store`` or ``cluster``.
    across: str

    @classmethod
    def _from(cls, fields: Mapping[str, Any]) -> Capabilities:
        lease = fields.get("lease")
        return cls(
            modes=fields["modes"],
            order=fields["order"],
            fence=fields["fence"],
            lease=None if lease is None else (lease[0] / 1000, lease[1] / 1000),
            liveness=fields["liveness"],
            ask=fields["ask"],
            across=fields["across"],
        )
