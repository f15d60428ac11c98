"""Checked by mypy, not run: what a typed program may write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import tenure
import tenure.aio
from tenure.filelock import FileLock
from tenure.testing import Script


def blocking(store: dict[str, int]) -> int | None:
    with tenure.lock("vol:/a/b", wait=30, purpose="reindex", labels={"build": "7"}) as guard:
        fence: int | None = guard.fence
        guard.on_lost(lambda lost: print(lost.cause, lost.seen))
        guard.check()
    try:
        tenure.lock(Path("x"), wait=0).acquire()
    except tenure.TimedOut as late:
        print(late.blocker.holder.pid if late.blocker else None, late.position)
    except tenure.Busy as busy:
        print(busy.next_step)
    with tenure.lock_all(["vol:/a", "vol:/b"]) as guards:
        fences: dict[str, int | None] = guards.fences
    with FileLock("state.json.lock") as lock:
        assert lock.is_locked
    script = Script()
    script.lose("expired")
    return fence or fences["vol:/a"]


async def asynchronous() -> None:
    async with tenure.aio.lock("vol:/a/b") as guard:
        lost = asyncio.create_task(guard.lost())
        request: tenure.ReleaseRequest | None = await guard.release_requested()
        print(request, await lost)
    async for change in await tenure.aio.watch("vol:/"):
        print(change.kind, change.address)
