"""A real daemon for the tests, and processes that use the package."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Iterator

import pytest

ROOT = Path(__file__).resolve().parents[3]


def command() -> str:
    """The path of the `tenure` command: `TENURE_BIN`, or what cargo built."""
    given = os.environ.get("TENURE_BIN")
    if given:
        return given
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for profile in ("debug", "release"):
        built = target / profile / "tenure"
        if built.exists():
            return str(built)
    raise RuntimeError("build the daemon first: cargo build -p tenure-cli, or set TENURE_BIN")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Daemon:
    """A daemon that can be stopped and started on the same data."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        self.port, self.web_port = free_port(), free_port()
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"tenure://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {
            **os.environ,
            "TENURE_LISTEN": f"127.0.0.1:{self.port}",
            "TENURE_WEB_LISTEN": f"127.0.0.1:{self.web_port}",
            "TENURE_DATA_DIR": str(self.directory),
            **self.environment,
        }
        log = open(self.directory.parent / "daemon.log", "ab")
        self.process = subprocess.Popen(
            [command(), "serve"], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    text = (self.directory.parent / "daemon.log").read_text()
                    raise RuntimeError(f"the daemon did not start:\n{text}") from None
                time.sleep(0.02)

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("daemon") / "data"
    directory.mkdir()
    server = Daemon(directory)
    server.start()
    before = os.environ.get("TENURE_URL")
    os.environ["TENURE_URL"] = server.url
    yield server
    server.stop()
    if before is None:
        del os.environ["TENURE_URL"]
    else:
        os.environ["TENURE_URL"] = before


@pytest.fixture
def path(daemon: Daemon) -> str:
    """A path on the daemon that no other test uses."""
    return f"test:/{uuid.uuid4().hex}"


class Worker:
    """A process that executes the requests of conformance_client.py."""

    def __init__(self, **environment: str) -> None:
        client = Path(__file__).with_name("conformance_client.py")
        self.process = subprocess.Popen(
            [sys.executable, str(client)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the client process ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def call(self, **request: Any) -> dict[str, Any]:
        self.send(**request)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def workers(daemon: Daemon) -> Iterator[Any]:
    started: list[Worker] = []

    def start(**environment: str) -> Worker:
        worker = Worker(**environment)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
