"""The blocking API on files, in memory and on a real daemon."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest

import tenure
from conftest import Daemon, Worker, command


@pytest.fixture(params=["file", "memory", "daemon"])
def place(request: pytest.FixtureRequest, tmp_path: Path, path: str) -> str:
    places = {"file": str(tmp_path / "state.json"), "memory": f"mem:{path[6:]}", "daemon": path}
    return places[request.param]


def test_a_with_block_holds_and_releases(place: str) -> None:
    with tenure.lock(place, wait=30) as guard:
        assert guard.held
        guard.check()
        with pytest.raises(tenure.Busy) as busy:
            tenure.lock(place, wait=0).acquire()
        assert busy.value.address is not None
        assert busy.value.blocker is not None
        assert busy.value.blocker.holder.pid == os.getpid()
    assert not guard.held
    assert guard.valid_for == 0
    tenure.lock(place, wait=0).acquire().release()


def test_a_wait_times_out_with_the_blocker(place: str) -> None:
    with tenure.lock(place, purpose="a long job"):
        with pytest.raises(tenure.TimedOut) as late:
            tenure.lock(place, wait=0.1).acquire()
    assert isinstance(late.value, TimeoutError)
    assert isinstance(late.value, tenure.Busy)
    assert late.value.blocker is not None
    assert late.value.blocker.holder.purpose == "a long job"


def test_a_waiter_gets_the_lock_when_another_thread_releases_it(place: str) -> None:
    """The GIL is released while a thread waits: otherwise the holder could never release."""
    waits = threading.Event()
    guard = tenure.lock(place).acquire()
    got: list[tenure.Guard] = []

    def wait() -> None:
        got.append(tenure.lock(place, on_wait=lambda busy: waits.set()).acquire())

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert waits.wait(30)
    guard.release()
    waiter.join(30)
    assert got[0].held
    got[0].release()


def test_fences_grow(tmp_path: Path, path: str) -> None:
    for place, fenced in ((str(tmp_path / "x"), True), (path, False), (f"mem:{path[6:]}", False)):
        fences = []
        for _ in range(3):
            with tenure.lock(place, fenced=fenced) as guard:
                assert guard.fence is not None
                fences.append(guard.fence)
        assert fences == sorted(set(fences))
    with tenure.lock(str(tmp_path / "x")) as guard:
        assert guard.fence is None


def test_shared_locks_coexist(path: str) -> None:
    with tenure.lock(path, shared=True) as one, tenure.lock(path, shared=True, wait=0) as two:
        assert one.mode == two.mode == "shared"
        with pytest.raises(tenure.Busy):
            tenure.lock(path, wait=0).acquire()


def test_permits_are_counted(daemon: Daemon) -> None:
    namespace = f"gpu{os.getpid()}:/pool"
    subprocess.run([command(), "policy", "set", namespace, "semaphore"], check=True, stdout=subprocess.DEVNULL)
    with tenure.lock(f"{namespace}/a", permits=2), tenure.lock(f"{namespace}/a", permits=2) as guard:
        assert guard.mode == "permit"
        with pytest.raises(tenure.Busy):
            tenure.lock(f"{namespace}/a", permits=2, wait=0).acquire()


def test_a_repository_has_shared_and_exclusive_locks(tmp_path: Path) -> None:
    client = tenure.Client(tenure_only=True)
    with client.lock(f"repo:{tmp_path}", shared=True) as guard:
        assert guard.valid_for < 600
        with pytest.raises(tenure.Busy):
            client.lock(f"repo:{tmp_path}", wait=0).acquire()
    with client.lock(f"repo:{tmp_path}") as guard:
        assert guard.fence is not None


def test_a_path_object_is_always_a_lock_file(tmp_path: Path) -> None:
    target = tmp_path / "vol:" / "a"
    with tenure.lock(target) as guard:
        assert guard.lock_file == Path(f"{target}.lock")
        record = json.loads(guard.lock_file.read_text())
        assert record["pid"] == os.getpid()


def test_wrong_arguments_change_nothing(tmp_path: Path) -> None:
    with pytest.raises(tenure.InvalidInput) as wrong:
        tenure.lock("vol:a").acquire()
    assert isinstance(wrong.value, ValueError)
    with pytest.raises(tenure.Unsupported):
        tenure.lock(tmp_path / "x", shared=True).acquire()
    with pytest.raises(ValueError, match="exclude each other"):
        tenure.lock(tmp_path / "x", shared=True, permits=2)
    with pytest.raises(ValueError, match="seconds"):
        tenure.lock(tmp_path / "x", wait=-1).acquire()
    with pytest.raises(TypeError, match="address"):
        tenure.lock(7).acquire()  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_exception_of_the_block_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        with tenure.lock(tmp_path / "x"):
            raise KeyError("the block")
    tenure.lock(tmp_path / "x", wait=0).acquire().release()


def test_a_second_release_has_no_effect(place: str) -> None:
    guard = tenure.lock(place).acquire()
    guard.release()
    guard.release()
    with pytest.raises(tenure.Refused):
        guard.check()


def test_a_guard_without_references_releases(place: str) -> None:
    guard = tenure.lock(place).acquire()
    del guard
    tenure.lock(place, wait=30).acquire().release()


def test_loss_reaches_callback_waiter_check_and_release(path: str) -> None:
    seen: list[tenure.Lost] = []
    heard = threading.Event()

    def lost(error: tenure.Lost) -> None:
        seen.append(error)
        heard.set()

    guard = tenure.lock(path, on_lost=lost).acquire()
    broken = tenure.break_hold(path, force=True, reason="test")
    assert len(broken.victims) == 1
    assert heard.wait(30)
    assert [error.cause for error in seen] == ["killed"]
    waited = guard.wait_lost(30)
    assert waited is not None and waited.cause == "killed" and waited.seen is not None
    assert not guard.held
    assert guard.valid_for == 0
    with pytest.raises(tenure.Lost) as error:
        guard.check()
    assert error.value.address == path
    with pytest.raises(tenure.Lost):
        guard.release()


def test_a_block_whose_lock_is_lost_raises(path: str) -> None:
    with pytest.raises(tenure.Lost):
        with tenure.lock(path) as guard:
            tenure.break_hold(path, force=True, reason="test")
            assert guard.wait_lost(30) is not None


def test_waits_for_events_end_with_the_time_limit_and_with_the_release(path: str) -> None:
    guard = tenure.lock(path).acquire()
    assert guard.wait_lost(0.01) is None
    assert guard.wait_release_request(0.01) is None
    threading.Timer(0.05, guard.release).start()
    assert guard.wait_lost() is None


def test_a_holder_learns_that_another_client_asks(path: str) -> None:
    heard = threading.Event()
    guard = tenure.lock(path, on_release_request=lambda request: heard.set()).acquire()
    asked = tenure.ask(path, "maintenance")
    assert [blocker.holder.pid for blocker in asked] == [os.getpid()]
    assert heard.wait(30)
    assert guard.wait_release_request(30) is not None
    assert guard.release_request is not None
    assert guard.held
    guard.release()


def test_inspect_names_holders_and_waiters(path: str, workers: Callable[[], Worker]) -> None:
    assert tenure.inspect(path).free
    with tenure.lock(path, purpose="reindex"):
        waiter = workers()
        changes = tenure.watch(path)
        waiter.send(op="lock", address=path)
        assert next(change for change in changes if change.kind == "queued")
        state = tenure.inspect(path)
        assert not state.free
        assert [holder.holder.purpose for holder in state.holders] == ["reindex"]
        assert len(state.waiters) == 1
        assert [one.address for one in tenure.list_locks(path)] == [path]
    assert waiter.answer()["result"] == "held"


def test_watch_reports_grants_and_releases(place: str) -> None:
    changes = tenure.watch(place)
    assert changes.next(30).kind == "present-end"  # type: ignore[union-attr]
    with tenure.lock(place):
        granted = changes.next(30)
        assert granted is not None and granted.kind == "granted"
    released = changes.next(30)
    assert released is not None and released.kind == "released"
    assert changes.next(0.01) is None


def test_several_locks_are_acquired_all_or_none(path: str, tmp_path: Path) -> None:
    places = [f"{path}/b", f"{path}/a", tmp_path / "x"]
    with tenure.lock(f"{path}/a"):
        with pytest.raises(tenure.Busy):
            tenure.lock_all(places, wait=0).acquire()
        assert tenure.inspect(f"{path}/b").free
    with tenure.lock_all(places) as guards:
        assert guards.addresses == [f"{path}/b", f"{path}/a", f"sidecar:{tmp_path / 'x'}"]
        assert all(fence for address, fence in guards.fences.items() if address.startswith("test:"))
        guards.add(f"{path}/c")
        assert not tenure.inspect(f"{path}/c").free
        guards.remove(f"{path}/b")
        assert tenure.inspect(f"{path}/b").free
        guards.check()
        assert guards.wait_lost(0.01) is None
    assert tenure.inspect(f"{path}/a").free
    assert tenure.inspect(f"{path}/c").free


def test_locks_of_one_session_do_not_exclude_each_other(path: str) -> None:
    session = tenure.session("worker-7")
    with session.lock(path), session.lock(f"{path}/below", wait=0) as guard:
        assert guard.held
        with pytest.raises(tenure.Busy):
            tenure.lock(f"{path}/below", wait=0).acquire()


def test_capabilities_differ_by_backend(tmp_path: Path) -> None:
    assert tenure.capabilities(tmp_path / "x").modes == "exclusive"
    daemon = tenure.capabilities("vol:/a")
    assert daemon.order == "fair" and daemon.ask and daemon.lease is not None


def test_a_daemon_that_cannot_be_reached_is_unavailable() -> None:
    client = tenure.Client(url="tenure://127.0.0.1:1")
    with pytest.raises((tenure.Unavailable, tenure.TimedOut)) as error:
        client.lock("vol:/a", wait=0.2).acquire()
    assert error.value.address is not None


def test_wrong_credentials_are_denied(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("guarded") / "data"
    directory.mkdir()
    server = Daemon(
        directory, TENURE_CLIENT_AUTH_TOKEN="open sesame", TENURE_LOOPBACK="authenticated"
    )
    server.start()
    try:
        with tenure.Client(url=server.url, token="open sesame").lock("vol:/a", wait=5) as guard:
            assert guard.held
        with pytest.raises(tenure.Denied) as denied:
            tenure.Client(url=server.url, token="wrong").lock("vol:/a", wait=5).acquire()
        assert isinstance(denied.value, PermissionError)
        assert denied.value.what
    finally:
        server.stop()


def test_exceptions_cross_process_borders(tmp_path: Path) -> None:
    with tenure.lock(tmp_path / "x", purpose="a test"):
        with pytest.raises(tenure.Busy) as busy:
            tenure.lock(tmp_path / "x", wait=0).acquire()
    again = pickle.loads(pickle.dumps(busy.value))
    assert type(again) is tenure.Busy
    assert str(again) == str(busy.value)
    assert again.blocker == busy.value.blocker


def test_the_daemon_sees_the_name_of_the_program(path: str) -> None:
    with tenure.lock(path):
        names = [holder.holder.name for holder in tenure.inspect(path).holders]
    assert names == [os.path.basename(sys.argv[0])]


@pytest.mark.parametrize("where", ["file", "daemon"])
def test_ctrl_c_ends_a_wait_and_leaves_nothing(where: str, tmp_path: Path, path: str) -> None:
    place = str(tmp_path / "x") if where == "file" else path
    program = f"""
        import sys, tenure
        try:
            tenure.lock({place!r}, on_wait=lambda busy: print("waits", flush=True)).acquire()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.stdin.readline()
    """
    with tenure.lock(place):
        changes = tenure.watch(place)
        waiter = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "waits\n"
        waiter.send_signal(signal.SIGINT)
        assert waiter.stdout.readline() == "interrupted\n"
        if where == "daemon":
            # The queue entry is withdrawn, although the process still runs.
            assert next(change for change in changes if change.kind == "dequeued")
            assert tenure.inspect(place).waiters == ()
    # The interrupted process still runs, and does not hold the lock.
    tenure.lock(place, wait=30).acquire().release()
    waiter.communicate("\n")


def child(place: str, results: Any) -> None:
    try:
        tenure.lock(place, wait=0).acquire()
        results.put("held")
    except tenure.Busy:
        results.put("busy")


def child_of(place: str, guard: tenure.Guard, results: Any) -> None:
    results.put(guard.held)
    try:
        guard.release()
        results.put("released")
    except tenure.Error as error:
        results.put(error.kind)
    with tenure.lock(place + "-of-the-child", wait=30) as own:
        own.check()
        results.put(own.held)


@pytest.mark.parametrize("where", ["file", "daemon"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_lock_of_the_parent_excludes_its_children(
    where: str, method: str, tmp_path: Path, path: str
) -> None:
    place = str(tmp_path / "x") if where == "file" else path
    context = multiprocessing.get_context(method)
    results = context.Queue()
    with tenure.lock(place) as guard:
        process = context.Process(target=child, args=(place, results))
        process.start()
        assert results.get(timeout=30) == "busy"
        process.join()
        guard.check()


@pytest.mark.parametrize("where", ["file", "daemon"])
def test_a_forked_child_cannot_release_and_makes_its_own_connection(
    where: str, tmp_path: Path, path: str
) -> None:
    place = str(tmp_path / "x") if where == "file" else path
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tenure.lock(place) as guard:
        process = context.Process(target=child_of, args=(place, guard, results))
        process.start()
        assert [results.get(timeout=30) for _ in range(3)] == [False, "NotHeld", True]
        process.join()
        assert process.exitcode == 0
        guard.check()


def add(place: str, counter: str, rounds: int) -> None:
    for _ in range(rounds):
        with tenure.lock(place, wait=60):
            file = Path(counter)
            file.write_text(str(int(file.read_text()) + 1))


@pytest.mark.parametrize("where", ["file", "daemon"])
def test_processes_on_one_counter_lose_no_update(where: str, tmp_path: Path, path: str) -> None:
    place = str(tmp_path / "x") if where == "file" else path
    counter = tmp_path / "counter"
    counter.write_text("0")
    # The library is in use when the processes are forked.
    tenure.lock(path + "-before").acquire().release()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(place, str(counter), 25)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert counter.read_text() == "100"


def test_a_lock_outlives_a_restart_of_the_daemon(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("restarted") / "data"
    directory.mkdir()
    server = Daemon(directory)
    server.start()
    try:
        client = tenure.Client(url=server.url)
        with client.lock("vol:/a", ttl=30) as guard:
            server.stop(signal.SIGKILL)
            server.start()
            guard.check()
            with pytest.raises(tenure.Busy):
                client.lock("vol:/a", wait=0).acquire()
    finally:
        server.stop()


def test_a_waiting_thread_stops_no_other_thread(path: str) -> None:
    """The interpreter runs other threads while one waits in the library."""
    with tenure.lock(path):
        began = threading.Event()
        waiter = threading.Thread(
            target=lambda: pytest.raises(
                tenure.TimedOut, tenure.lock(path, wait=0.5, on_wait=lambda busy: began.set()).acquire
            )
        )
        waiter.start()
        assert began.wait(30)
        turns = 0
        while waiter.is_alive():
            turns += 1
            time.sleep(0)
        assert turns > 100
