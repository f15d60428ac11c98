"""The same API for asyncio.

.. code-block:: python

    import tenure.aio

    async with tenure.aio.lock("vol:/a/b", wait=30) as guard:
        await store.write(data, fence=guard.fence)

A cancelled ``await`` leaves nothing behind: no record, no pending request, no place in the queue.
"""

from __future__ import annotations

import asyncio
import json
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, Iterable, Mapping

from . import _tenure
from ._blocking import OnLost, OnReleaseRequest, _lost, _request, listener_of
from ._errors import Error, Lost
from ._options import Address, OnWait, Options, program_name
from ._values import Blocker, Broken, Capabilities, Change, LockState, ReleaseRequest

__all__ = [
    "Client",
    "Guard",
    "Guards",
    "Lock",
    "LockAll",
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


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    # A cancelled future drops the value: a guard that was granted meanwhile is released.
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


async def _call(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a native call in the background and awaits it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def done(value: Any, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(_settle, future, value, error)
        except RuntimeError:
            # The loop is closed: no task waits for the value any more.
            pass

    operation = call(*arguments, done)
    try:
        return await future
    except asyncio.CancelledError:
        operation.cancel()
        raise


async def _leave(release: Callable[[], Awaitable[None]], error: BaseException | None) -> None:
    if error is None:
        await release()
        return
    try:
        await release()
    except Error as also:
        if hasattr(error, "add_note"):
            error.add_note(f"the release failed too: {also}")


class Guard:
    """A lock that is held. See :class:`tenure.Guard`."""

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
        """The id of the holder."""
        return self._native.owner

    @property
    def fence(self) -> int | None:
        """The fencing token. See :attr:`tenure.Guard.fence`."""
        return self._native.fence

    @property
    def held(self) -> bool:
        """Whether the lock is held, as far as this process knows. Does no I/O."""
        return self._native.held

    @property
    def lock_file(self) -> Path | None:
        """The path of the lock file, if the lock is one."""
        return self._native.lock_file

    @property
    def valid_for(self) -> float:
        """Seconds that the protected work may continue without another renewal."""
        return self._native.valid_for

    @property
    def release_request(self) -> ReleaseRequest | None:
        """The first release request, if there is one."""
        return _request(self._native.requested)

    async def check(self) -> None:
        """Asks the backend whether the lock is held now. Raises :class:`tenure.Lost` if it is lost."""
        await _call(self._native.check)

    async def lost(self) -> Lost | None:
        """Completes when the lock is lost, or with ``None`` when it is released."""
        return _lost(await _call(self._native.lost, None))

    async def release_requested(self) -> ReleaseRequest | None:
        """Completes when another client asks for the lock, or with ``None`` when it is released."""
        return _request(await _call(self._native.release_requested, None))

    def on_lost(self, callback: OnLost) -> None:
        """Calls ``callback`` once in the event loop when the lock is lost."""
        self._native.listen(_in_loop(listener_of(callback, None)))

    def on_release_request(self, callback: OnReleaseRequest) -> None:
        """Calls ``callback`` once in the event loop when another client asks for the lock."""
        self._native.listen(_in_loop(listener_of(None, callback)))

    async def release(self) -> None:
        """Releases the lock. A second call has no effect. Raises :class:`tenure.Lost` if it was lost."""
        await _call(self._native.release)

    async def __aenter__(self) -> Guard:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _leave(self.release, error)


def _in_loop(listener: Callable[[str, str], None]) -> Callable[[str, str], None]:
    loop = asyncio.get_running_loop()

    def listen(kind: str, event: str) -> None:
        try:
            loop.call_soon_threadsafe(listener, kind, event)
        except RuntimeError:
            # The loop is closed.
            pass

    return listen


class Lock:
    """A lock that can be acquired any number of times, from any task."""

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
        self._entered: dict[object, list[Guard]] = {}

    @property
    def address(self) -> Address:
        """The address to lock."""
        return self._address

    async def acquire(self) -> Guard:
        """Acquires the lock. See :meth:`tenure.Lock.acquire`."""
        native = await _call(self._client.acquire, self._address, *self._options)
        if self._on_lost is not None or self._on_request is not None:
            native.listen(_in_loop(listener_of(self._on_lost, self._on_request)))
        return Guard(native)

    async def __aenter__(self) -> Guard:
        guard = await self.acquire()
        self._entered.setdefault(asyncio.current_task(), []).append(guard)
        return guard

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = asyncio.current_task()
        guards = self._entered[task]
        guard = guards.pop()
        if not guards:
            del self._entered[task]
        await _leave(guard.release, error)


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
        """The addresses, in the order of the request."""
        return [address for address, _, _ in self._native.entries]

    @property
    def valid_for(self) -> float:
        """The shortest :attr:`Guard.valid_for` of all locks."""
        return self._native.valid_for

    async def add(self, address: Address) -> None:
        """Acquires one more lock with the options of the others."""
        await _call(self._native.add, address)

    async def remove(self, address: Address) -> None:
        """Releases one of the locks; the others stay held."""
        await _call(self._native.remove, address)

    async def check(self) -> None:
        """Asks the backends whether all locks are held now."""
        await _call(self._native.check)

    async def lost(self) -> Lost | None:
        """Completes when one of the locks is lost, or with ``None`` when they are released."""
        return _lost(await _call(self._native.lost, None))

    async def release(self) -> None:
        """Releases all locks in reverse order."""
        await _call(self._native.release)

    async def __aenter__(self) -> Guards:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _leave(self.release, error)


class LockAll:
    """Several locks that are acquired all or none, in a fixed order."""

    __slots__ = ("_client", "_addresses", "_options", "_entered")

    def __init__(
        self, client: _tenure.Client, addresses: Iterable[Address], options: Options
    ) -> None:
        self._client = client
        self._addresses = list(addresses)
        self._options = options.native()
        self._entered: dict[object, list[Guards]] = {}

    async def acquire(self) -> Guards:
        """Acquires all locks or none."""
        return Guards(await _call(self._client.acquire_all, self._addresses, *self._options))

    async def __aenter__(self) -> Guards:
        guards = await self.acquire()
        self._entered.setdefault(asyncio.current_task(), []).append(guards)
        return guards

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = asyncio.current_task()
        entered = self._entered[task]
        guards = entered.pop()
        if not entered:
            del self._entered[task]
        await _leave(guards.release, error)


class Watch(AsyncIterator[Change]):
    """A stream of changes. It begins with the present holds and ``present-end``."""

    def __init__(self, native: _tenure.Watch) -> None:
        self._native = native

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        text = await _call(self._native.next, None)
        if text is None:
            raise StopAsyncIteration
        return Change._from(json.loads(text))


class Client:
    """Settings that are given once; locks are made from them. See :class:`tenure.Client`."""

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
        """Returns a client whose locks all belong to ``owner``."""
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
        """Returns a lock for ``async with``, or for :meth:`Lock.acquire`. See :func:`tenure.lock`."""
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

    async def inspect(self, address: Address) -> LockState:
        """Returns the holders, the waiters and the conflict rule of a lock. Changes nothing."""
        return LockState._from(json.loads(await _call(self._native.inspect, address)))

    async def list(self, address: Address) -> list[LockState]:
        """Returns all locks at or below ``address``."""
        return [LockState._from(one) for one in json.loads(await _call(self._native.list, address))]

    async def ask(self, address: Address, reason: str | None = None) -> tuple[Blocker, ...]:
        """Asks the holders to release. Returns the holders that were asked."""
        asked = json.loads(await _call(self._native.ask, address, reason))
        return tuple(Blocker._from(one) for one in asked)

    async def break_hold(
        self, address: Address, id: str | None = None, *, force: bool = False, reason: str = ""
    ) -> Broken:
        """Breaks the hold ``id``, or all holds that block ``address``."""
        return Broken._from(
            json.loads(await _call(self._native.break_hold, address, id, force, reason))
        )

    async def watch(self, address: Address) -> Watch:
        """Returns the changes at or below ``address`` as an asynchronous iterator that does not end."""
        return Watch(await _call(self._native.watch, address))

    def capabilities(self, address: Address) -> Capabilities:
        """Returns what the backend of ``address`` supports. Does no I/O."""
        return Capabilities._from(json.loads(self._native.capabilities(address)))


_default = Client()

lock = _default.lock
lock_all = _default.lock_all
session = _default.session
inspect = _default.inspect
list_locks = _default.list
ask = _default.ask
break_hold = _default.break_hold
watch = _default.watch
capabilities = _default.capabilities
