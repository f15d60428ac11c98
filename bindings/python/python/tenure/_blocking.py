"""The blocking API."""

from __future__ import annotations

import json
import threading
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Callable, Iterable, Iterator, Mapping

from . import _tenure
from ._errors import Error, Lost, from_json
from ._options import Address, OnWait, Options, program_name
from ._values import Blocker, Broken, Capabilities, Change, LockState, ReleaseRequest

OnLost = Callable[[Lost], object]
OnReleaseRequest = Callable[[ReleaseRequest], object]


def _lost(text: str | None) -> Lost | None:
    if text is None:
        return None
    error = from_json(text)
    assert isinstance(error, Lost)
    return error


def _request(text: str | None) -> ReleaseRequest | None:
    return None if text is None else ReleaseRequest._from(json.loads(text))


def listener_of(
    on_lost: OnLost | None, on_release_request: OnReleaseRequest | None
) -> Callable[[str, str], None]:
    """Makes the native listener of two callbacks. The first event of each kind counts."""
    pending: dict[str, Callable[[str], object]] = {}
    if on_lost is not None:
        tell_lost = on_lost

        def lost(text: str) -> None:
            error = _lost(text)
            assert error is not None
            tell_lost(error)

        pending["lost"] = lost
    if on_release_request is not None:
        tell_request = on_release_request

        def asked(text: str) -> None:
            request = _request(text)
            assert request is not None
            tell_request(request)

        pending["asked"] = asked

    def listen(kind: str, event: str) -> None:
        # The library may report a present fact twice.
        callback = pending.pop(kind, None)
        if callback is not None:
            callback(event)

    return listen


class Guard:
    """A lock that is held.

    Leaving the ``with`` block releases it, and so does :meth:`release`. A guard that is garbage collected
    releases too, but reports no error. In a child of ``fork`` a guard of the parent does nothing.
    """

    __slots__ = ("_native", "__weakref__")

    def __init__(self, native: _tenure.Guard) -> None:
        self._native = native

    @property
    def address(self) -> str:
        """The address of the lock."""
        return self._native.address

    @property
    def mode(self) -> str:
        """``exclusive``, ``shared``, ``shared-tree`` or ``permit``."""
        return self._native.mode

    @property
    def owner(self) -> str:
        """The id of the holder: the token of a lock file, the owner on the daemon."""
        return self._native.owner

    @property
    def fence(self) -> int | None:
        """The fencing token, a number that grows with every exclusive grant.

        Send it with every write; a store that refuses smaller ones is safe from paused writers. ``None``
        where the backend gives none (shared locks, permits, lock files without ``fenced=True``).
        """
        return self._native.fence

    @property
    def held(self) -> bool:
        """Whether the lock is held, as far as this process knows. Does no I/O; :meth:`check` asks."""
        return self._native.held

    @property
    def lock_file(self) -> Path | None:
        """The path of the lock file, if the lock is one."""
        return self._native.lock_file

    @property
    def valid_for(self) -> float:
        """Seconds that the protected work may continue without another renewal.

        Infinite without a lease; zero when the lock is lost or released.
        """
        return self._native.valid_for

    @property
    def release_request(self) -> ReleaseRequest | None:
        """The first release request, if there is one."""
        return _request(self._native.requested)

    def check(self) -> None:
        """Asks the backend whether the lock is held now.

        Raises:
            Lost: the lock is lost.
            Error: the state is unknown, for example because the daemon cannot be reached.
        """
        self._native.check()

    def wait_lost(self, timeout: float | None = None) -> Lost | None:
        """Blocks until the lock is lost. Returns ``None`` after ``timeout`` seconds or a release."""
        return _lost(self._native.lost(timeout))

    def wait_release_request(self, timeout: float | None = None) -> ReleaseRequest | None:
        """Blocks until another client asks for the lock. Returns ``None`` after ``timeout`` seconds or a release."""
        return _request(self._native.release_requested(timeout))

    def on_lost(self, callback: OnLost) -> None:
        """Calls ``callback`` once when the lock is lost, at once if it is lost already.

        Callbacks run on a thread of their own, one after the other.
        """
        self._native.listen(listener_of(callback, None))

    def on_release_request(self, callback: OnReleaseRequest) -> None:
        """Calls ``callback`` once when another client asks for the lock. The lock stays held."""
        self._native.listen(listener_of(None, callback))

    def release(self) -> None:
        """Releases the lock. A second call has no effect.

        Raises:
            Lost: the lock was lost before.
        """
        self._native.release()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self.release, error)

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<tenure.Guard {self.address} {self.mode} {state}>"


def _leave(release: Callable[[], None], error: BaseException | None) -> None:
    """Ends a ``with`` block. The exception of the block counts more than the one of the release."""
    if error is None:
        release()
        return
    try:
        release()
    except Error as also:
        if hasattr(error, "add_note"):
            error.add_note(f"the release failed too: {also}")


class Lock:
    """A lock that can be acquired any number of times, from any thread. Nothing is locked before that."""

    __slots__ = ("_client", "_address", "_options", "_on_lost", "_on_request", "_entered")

    def __init__(
        self,
        client: _tenure.Client,
        address: Address,
        options: Options,
        on_lost: OnLost | None,
        on_release_request: OnReleaseRequest | None,
    ) -> None:
        self._client = client
        self._address = address
        self._options = options.native()
        self._on_lost = on_lost
        self._on_request = on_release_request
        self._entered: dict[int, list[Guard]] = {}

    @property
    def address(self) -> Address:
        """The address to lock."""
        return self._address

    def acquire(self) -> Guard:
        """Acquires the lock.

        Ctrl-C ends the wait and leaves nothing behind. Other threads run meanwhile.

        Raises:
            Busy: the lock is held, and ``wait`` is 0.
            TimedOut: the lock was still held after ``wait`` seconds.
            Denied: the credentials do not allow it.
            Unavailable: the daemon or the store cannot be reached.
        """
        native = self._client.acquire(self._address, *self._options)
        if self._on_lost is not None or self._on_request is not None:
            native.listen(listener_of(self._on_lost, self._on_request))
        return Guard(native)

    def __enter__(self) -> Guard:
        guard = self.acquire()
        self._entered.setdefault(threading.get_ident(), []).append(guard)
        return guard

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = threading.get_ident()
        guards = self._entered[thread]
        guard = guards.pop()
        if not guards:
            del self._entered[thread]
        _leave(guard.release, error)


class Guards:
    """Several locks that are held together. The loss of one is the loss of all."""

    __slots__ = ("_native", "__weakref__")

    def __init__(self, native: _tenure.Guards) -> None:
        self._native = native

    @property
    def fences(self) -> dict[str, int | None]:
        """The fence of each lock, by address."""
        return {address: fence for address, _, fence in self._native.entries}

    @property
    def addresses(self) -> list[str]:
        """The addresses, in the order of the request. Duplicates appear once."""
        return [address for address, _, _ in self._native.entries]

    @property
    def valid_for(self) -> float:
        """The shortest :attr:`Guard.valid_for` of all locks."""
        return self._native.valid_for

    def add(self, address: Address) -> None:
        """Acquires one more lock with the options of the others."""
        self._native.add(address)

    def remove(self, address: Address) -> None:
        """Releases one of the locks; the others stay held."""
        self._native.remove(address)

    def check(self) -> None:
        """Asks the backends whether all locks are held now. Raises :class:`Lost` otherwise."""
        self._native.check()

    def wait_lost(self, timeout: float | None = None) -> Lost | None:
        """Blocks until one of the locks is lost. Returns ``None`` after ``timeout`` seconds or a release."""
        return _lost(self._native.lost(timeout))

    def release(self) -> None:
        """Releases all locks in reverse order. Tries all of them and raises the first error."""
        self._native.release()

    def __enter__(self) -> Guards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _leave(self.release, error)


class LockAll:
    """Several locks that are acquired all or none, in a fixed order, so that two callers cannot deadlock."""

    __slots__ = ("_client", "_addresses", "_options", "_entered")

    def __init__(
        self, client: _tenure.Client, addresses: Iterable[Address], options: Options
    ) -> None:
        self._client = client
        self._addresses = list(addresses)
        self._options = options.native()
        self._entered: dict[int, list[Guards]] = {}

    def acquire(self) -> Guards:
        """Acquires all locks or none. The time limit applies to all of them together."""
        return Guards(self._client.acquire_all(self._addresses, *self._options))

    def __enter__(self) -> Guards:
        guards = self.acquire()
        self._entered.setdefault(threading.get_ident(), []).append(guards)
        return guards

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = threading.get_ident()
        entered = self._entered[thread]
        guards = entered.pop()
        if not entered:
            del self._entered[thread]
        _leave(guards.release, error)


class Watch(Iterator[Change]):
    """A stream of changes. It begins with the present holds and ``present-end``."""

    def __init__(self, native: _tenure.Watch) -> None:
        self._native = native

    def next(self, timeout: float | None = None) -> Change | None:
        """Returns the next change, or ``None`` at the end or after ``timeout`` seconds."""
        text = self._native.next(timeout)
        return None if text is None else Change._from(json.loads(text))

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        change = self.next()
        if change is None:
            raise StopIteration
        return change


class Client:
    """Settings that are given once; locks are made from them.

    What is not given comes from the environment: ``TENURE_URL``, ``TENURE_CLIENT_AUTH_TOKEN``,
    ``TENURE_CLIENT_AUTH_TOKEN_FILE``, ``TENURE_CA_FILE``, ``TENURE_PIN``, ``TENURE_CLIENT_CERT_FILE``,
    ``TENURE_CLIENT_KEY_FILE``, ``TENURE_NAME``. Only addresses of a daemon read it.

    Args:
        url: the nodes of the daemon, ``tenure://host:port,host:port``, or ``tenure+tls://…``.
        name: the name of this holder. Default: the name of the program.
        token: the bearer token.
        token_file: the file with the bearer token, read again for each connection.
        ca_file: a PEM file with the certificate authorities to trust; enables TLS.
        pin: the fingerprint of the only certificate to accept, ``sha256:…``; enables TLS.
        cert_file: the client certificate for mutual TLS, a PEM file.
        key_file: its key.
        allow_plaintext: the token may be sent to other machines without TLS.
        durable: lock files are synced to disk before they count as held. ``False`` is faster.
        reclaim_by_age: a lock file may be reclaimed by its age alone, without proof of death.
        stale: the age in seconds from which a lock file may count as stale.
        tenure_only: only Tenure uses the repositories, so waiting times for other programs are skipped.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        name: str | None = None,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        ca_file: str | PathLike[str] | None = None,
        pin: str | None = None,
        cert_file: str | PathLike[str] | None = None,
        key_file: str | PathLike[str] | None = None,
        allow_plaintext: bool = False,
        durable: bool = True,
        reclaim_by_age: bool = False,
        stale: float | None = None,
        tenure_only: bool = False,
    ) -> None:
        self._native = _tenure.Client(
            url=url,
            name=name or program_name(),
            token=token,
            token_file=token_file,
            ca_file=ca_file,
            pin=pin,
            cert_file=cert_file,
            key_file=key_file,
            allow_plaintext=allow_plaintext,
            durable=durable,
            reclaim_by_age=reclaim_by_age,
            stale=stale,
            tenure_only=tenure_only,
        )

    def session(self, owner: str) -> Client:
        """Returns a client whose locks all belong to ``owner``.

        Locks of one owner never exclude each other. On the daemon they share leases and renewals.
        """
        session = Client.__new__(Client)
        session._native = self._native.session(owner)
        return session

    def lock(
        self,
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
        """Returns a lock for ``with``, or for :meth:`Lock.acquire`. See :func:`tenure.lock`."""
        options = Options(
            shared,
            shared_tree,
            permits,
            wait,
            ttl,
            ask,
            purpose,
            labels,
            fenced,
            refuse_deadlock,
            on_wait,
        )
        return Lock(self._native, address, options, on_lost, on_release_request)

    def lock_all(
        self,
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
        """Returns several locks that are acquired all or none."""
        options = Options(
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
        return LockAll(self._native, addresses, options)

    def inspect(self, address: Address) -> LockState:
        """Returns the holders, the waiters and the conflict rule of a lock. Changes nothing."""
        return LockState._from(json.loads(self._native.inspect(address)))

    def list(self, address: Address) -> list[LockState]:
        """Returns all locks at or below ``address``."""
        return [LockState._from(one) for one in json.loads(self._native.list(address))]

    def ask(self, address: Address, reason: str | None = None) -> tuple[Blocker, ...]:
        """Asks the holders to release. Returns the holders that were asked."""
        asked = json.loads(self._native.ask(address, reason))
        return tuple(Blocker._from(one) for one in asked)

    def break_hold(
        self, address: Address, id: str | None = None, *, force: bool = False, reason: str = ""
    ) -> Broken:
        """Breaks the hold ``id``, or all holds that block ``address``.

        Without ``force`` only dead or stale holds are broken.
        """
        return Broken._from(json.loads(self._native.break_hold(address, id, force, reason)))

    def watch(self, address: Address) -> Watch:
        """Returns the changes at or below ``address`` as an iterator that does not end."""
        return Watch(self._native.watch(address))

    def capabilities(self, address: Address) -> Capabilities:
        """Returns what the backend of ``address`` supports. Does no I/O."""
        return Capabilities._from(json.loads(self._native.capabilities(address)))
