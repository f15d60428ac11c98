"""The adapter in the shape of filelock.FileLock, beside the real one."""

from __future__ import annotations

import inspect
import pickle
import threading
from pathlib import Path

import filelock
import pytest

import tenure
from tenure.filelock import FileLock, Timeout


def test_it_has_the_names_and_arguments_of_the_original() -> None:
    for name in ("acquire", "release", "is_locked", "lock_file", "lock_counter", "timeout"):
        assert hasattr(filelock.FileLock, name)
        assert hasattr(FileLock("x"), name)
    for method in ("acquire", "release"):
        ours = inspect.signature(getattr(FileLock, method)).parameters
        theirs = inspect.signature(getattr(filelock.FileLock, method)).parameters
        assert set(ours) <= set(theirs) | {"poll_intervall"}
        assert [name for name in theirs if name not in ours and name != "cancel_check"] == []


def test_nested_acquires_count(tmp_path: Path) -> None:
    path = tmp_path / "state.json.lock"
    lock = FileLock(path)
    with lock:
        with lock.acquire():
            assert lock.is_locked and lock.lock_counter == 2
        assert lock.is_locked
        assert path.exists()
    assert not lock.is_locked
    assert not path.exists()
    lock.acquire()
    lock.acquire()
    lock.release(force=True)
    assert not path.exists()


def test_it_excludes_other_objects_and_times_out(tmp_path: Path) -> None:
    path = tmp_path / "state.json.lock"
    with FileLock(path):
        with pytest.raises(Timeout) as late:
            FileLock(path, timeout=0.05).acquire()
        with pytest.raises(Timeout):
            FileLock(path, blocking=False).acquire()
        with pytest.raises(TimeoutError):
            FileLock(path).acquire(timeout=0)
    assert late.value.lock_file == str(path)
    assert pickle.loads(pickle.dumps(late.value)).lock_file == str(path)


def test_it_is_the_lock_of_the_file_beside_it(tmp_path: Path) -> None:
    with FileLock(tmp_path / "state.json.lock"):
        with pytest.raises(tenure.Busy):
            tenure.lock(tmp_path / "state.json", wait=0).acquire()


@pytest.mark.parametrize("thread_local", [True, False])
def test_threads(tmp_path: Path, thread_local: bool) -> None:
    lock = FileLock(tmp_path / "x.lock", thread_local=thread_local)
    seen: list[bool] = []
    with lock:
        thread = threading.Thread(target=lambda: seen.append(lock.is_locked))
        thread.start()
        thread.join()
    assert seen == [not thread_local]
