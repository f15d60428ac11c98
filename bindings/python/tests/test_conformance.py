"""Runs the cases of conformance/ with this package on every backend that they name."""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path
from typing import Any, Callable

import pytest

from conftest import ROOT, Daemon, Worker

CASES = sorted((ROOT / "conformance").glob("*.json"))
assert CASES, "there are no cases"


def address(backend: str, name: str, directory: Path) -> str:
    if backend == "daemon":
        return f"conf:/{name}"
    if backend == "file":
        return str(directory / name.replace("/", "-"))
    repository = directory / name
    repository.mkdir(parents=True, exist_ok=True)
    return f"repo:{repository}"


PARAMETERS = [
    pytest.param(json.loads(file.read_text()), backend, id=f"{file.stem}-{backend}")
    for file in CASES
    for backend in json.loads(file.read_text())["backends"]
]


@pytest.mark.parametrize(("case", "backend"), PARAMETERS)
def test_case(
    case: dict[str, Any],
    backend: str,
    daemon: Daemon,
    workers: Callable[[], Worker],
    tmp_path: Path,
) -> None:
    # No wait of a case may last longer: the alarm raises and ends it.
    def too_long(*_: object) -> None:
        raise TimeoutError("the case took longer than 60 seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    try:
        run(case, backend, workers, tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(
    case: dict[str, Any], backend: str, workers: Callable[[], Worker], directory: Path
) -> None:
    clients: dict[str, Worker] = {}
    fences: dict[str, int] = {}
    prefix = uuid.uuid4().hex
    for step in case["steps"]:
        client = clients.get(step["client"]) or clients.setdefault(step["client"], workers())
        answer = perform(step, backend, client, prefix, directory)
        if answer is None:
            continue
        expected = step.get("expect", {})
        seen = {name: answer.get(name) for name in expected}
        assert seen == expected, f"{step} was answered with {answer}"
        if "fence_above" in step:
            assert answer["fence"] > fences[step["fence_above"]], f"{step}: {answer} {fences}"
        if "save" in step:
            fences[step["save"]] = answer["fence"]


def perform(
    step: dict[str, Any], backend: str, client: Worker, prefix: str, directory: Path
) -> dict[str, Any] | None:
    op = step["op"]
    if op == "join":
        return client.answer()
    if op == "crash":
        client.kill()
        return {"result": "crashed"}
    if op == "pause":
        client.process.send_signal(signal.SIGSTOP)
        return {"result": "paused"}
    if op == "resume":
        client.process.send_signal(signal.SIGCONT)
        return {"result": "resumed"}
    request = {name: step[name] for name in ("op", "mode", "wait_ms", "ask") if name in step}
    if "ttl_ms" in step and backend == "daemon":
        request["ttl_ms"] = step["ttl_ms"]
    request["address"] = address(backend, f"{prefix}/{step['path']}", directory)
    client.send(**request)
    return None if step.get("begin") else client.answer()
