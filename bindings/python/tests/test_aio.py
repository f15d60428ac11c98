"""The asyncio API on files, in memory and on a real daemon."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Coroutine

import pytest

import tenure
import tenure.aio


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, 60)

    asyncio.run(limited())


@pytest.fixture(params=["file", "memory", "daemon"])
def place(request: pytest.FixtureRequest, tmp_path: Path, path: str) -> str:
    places = {"file": str(tmp_path / "state.json"), "memory": f"mem:{path[6:]}", "daemon": path}
    return places[request.param]


def test_a_block_holds_and_releases(place: str) -> None:
    async def work() -> None:
        async with tenure.aio.lock(place, wait=30) as guard:
            assert guard.held
            await guard.check()
            with pytest.raises(tenure.Busy):
                await tenure.aio.lock(place, wait=0).acquire()
            with pytest.raises(tenure.TimedOut):
                await tenure.aio.lock(place, wait=0.05).acquire()
        assert not guard.held

    run(work())


def test_the_loop_runs_while_a_task_waits(place: str) -> None:
    async def work() -> None:
        guard = await tenure.aio.lock(place).acquire()
        waiter = asyncio.create_task(tenure.aio.lock(place).acquire())
        await asyncio.sleep(0.05)
        assert not waiter.done()
        await guard.release()
        second = await waiter
        assert second.held
        await second.release()

    run(work())


def test_a_cancelled_wait_leaves_nothing(place: str) -> None:
    async def work() -> None:
        guard = await tenure.aio.lock(place).acquire()
        waits = asyncio.Event()
        loop = asyncio.get_running_loop()
        lock = tenure.aio.lock(place, on_wait=lambda busy: loop.call_soon_threadsafe(waits.set))
        waiter = asyncio.create_task(lock.acquire())
        await waits.wait()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await guard.release()
        async with tenure.aio.lock(place, wait=30):
            pass

    run(work())


def test_tasks_on_one_counter_lose_no_update(place: str) -> None:
    counter = 0

    async def add() -> None:
        nonlocal counter
        for _ in range(10):
            async with tenure.aio.lock(place, wait=60):
                seen = counter
                await asyncio.sleep(0)
                counter = seen + 1

    async def work() -> None:
        await asyncio.gather(*(add() for _ in range(5)))

    run(work())
    assert counter == 50


def test_loss_and_release_requests_are_awaitable(path: str) -> None:
    async def work() -> None:
        called: list[str] = []
        lock = tenure.aio.lock(path, on_lost=lambda lost: called.append(lost.cause))
        guard = await lock.acquire()
        requested = asyncio.create_task(guard.release_requested())
        lost = asyncio.create_task(guard.lost())
        await asyncio.sleep(0)
        assert len(await tenure.aio.ask(path, "maintenance")) == 1
        assert await requested is not None
        await tenure.aio.break_hold(path, force=True, reason="test")
        loss = await lost
        assert loss is not None and loss.cause == "killed"
        with pytest.raises(tenure.Lost):
            await guard.release()
        while not called:
            await asyncio.sleep(0.001)
        assert called == ["killed"]

    run(work())


def test_waits_for_events_end_with_the_release(path: str) -> None:
    async def work() -> None:
        guard = await tenure.aio.lock(path).acquire()
        lost = asyncio.create_task(guard.lost())
        await asyncio.sleep(0)
        await guard.release()
        assert await lost is None

    run(work())


def test_several_locks_inspect_watch_and_sessions(path: str) -> None:
    async def work() -> None:
        changes = await tenure.aio.watch(path)
        assert (await anext(changes)).kind == "present-end"
        async with tenure.aio.lock_all([f"{path}/a", f"{path}/b"]) as guards:
            assert len(guards.fences) == 2
            assert {(await anext(changes)).kind for _ in range(2)} == {"granted"}
            await guards.add(f"{path}/c")
            await guards.remove(f"{path}/a")
            await guards.check()
            assert (await tenure.aio.inspect(f"{path}/a")).free
            assert len(await tenure.aio.list_locks(path)) == 2
        session = tenure.aio.session("worker-8")
        async with session.lock(path), session.lock(f"{path}/below", wait=0) as guard:
            assert guard.held

    run(work())


def test_a_program_ends_while_a_task_waits(path: str) -> None:
    """Neither the end of the loop nor the end of the interpreter hangs or crashes."""
    program = f"""
        import asyncio, tenure.aio
        async def main():
            guard = await tenure.aio.lock({path!r}).acquire()
            waiter = asyncio.create_task(tenure.aio.lock({path!r}).acquire())
            lost = asyncio.create_task(guard.lost())
            await asyncio.sleep(0.05)
            print("ends")
        asyncio.run(main())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")
