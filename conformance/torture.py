"""Clients of several languages on one counter, with SIGKILL of clients and of the daemon.

    python3 conformance/torture.py --seconds 120 --client "python3 bindings/python/tests/conformance_client.py" …

Each client process gets its requests by the lines that README.md describes. One thread per client acquires the lock
through it, adds one to the counter and releases; at random it kills the process while it waits or holds. The command
`tenure run` takes part too. The daemon is killed and started again meanwhile. At the end no update may be lost, and the fences
must have risen with every addition. With `--file` all of them use one lock file instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


class Daemon:
    """A daemon that is killed and started on the same data."""

    def __init__(self, command: str, directory: Path) -> None:
        self.command = command
        self.directory = directory
        self.ports = [free_port(), free_port()]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "TENURE_LISTEN": f"127.0.0.1:{self.ports[0]}",
            "TENURE_WEB_LISTEN": f"127.0.0.1:{self.ports[1]}",
            "TENURE_DATA_DIR": str(self.directory / "data"),
        }
        with open(self.directory / "daemon.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.command, "serve"], env=environment, stdout=log, stderr=log
            )
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.ports[0]), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit((self.directory / "daemon.log").read_text()) from None
                time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Counter:
    """What the lock protects: a file of numbered lines without any protection of its own.

    An addition reads the last number and appends the next one with its fence, in one write, so that a kill leaves no
    half of it. A lost update writes a number twice.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(self, fence: int | None) -> None:
        lines = self.file.read_bytes().splitlines()
        value = int(lines[-1].split()[0]) if lines else 0
        # Another client must get its chance to break in.
        time.sleep(random.random() * 0.002)
        with open(self.file, "ab", buffering=0) as file:
            file.write(f"{value + 1} {fence or 0}\n".encode())

    def verdict(self, has_fences: bool) -> str:
        lines = [line.split() for line in self.file.read_text().splitlines()]
        for expected, (number, _) in enumerate(lines, 1):
            if int(number) != expected:
                raise SystemExit(f"lost update: line {expected} has the number {number}")
        fences = [int(fence) for _, fence in lines]
        for before, after in zip(fences, fences[1:]):
            if has_fences and after <= before:
                raise SystemExit(f"the fence {after} came after {before}")
        return f"{len(lines)} additions, none lost"


class Client(threading.Thread):
    """Adds through one client process, which is replaced after each kill."""

    def __init__(self, number: int, command: str, address: str, counter: Counter, until: float, ttl: bool) -> None:
        super().__init__(name=f"{number} {command}")
        self.command = command
        self.address = address
        self.counter = counter
        self.until = until
        self.lease = {"ttl_ms": 2000} if ttl else {}
        self.additions = 0
        self.kills = 0
        self.failure: BaseException | None = None
        self.process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                self.turn()
        except BaseException as error:
            self.failure = error
        finally:
            self.kill()

    def turn(self) -> None:
        process = self.process or self.start_process()
        self.send(process, op="lock", wait_ms=5000, **self.lease)
        if random.random() < 0.02:
            # While it waits, or holds without having learned it.
            time.sleep(random.random() * 0.02)
            self.kill(counted=True)
            return
        answer = self.answer(process)
        if answer["result"] != "held":
            assert answer["result"] in ("timed-out", "busy", "unavailable"), answer
            return
        # The work begins only while the lock is surely held. It takes a few milliseconds of a lease of 2 s.
        self.send(process, op="check")
        if self.answer(process)["result"] != "held":
            self.send(process, op="release")
            self.answer(process)
            return
        self.counter.add(answer.get("fence"))
        self.additions += 1
        if random.random() < 0.03:
            self.kill(counted=True)
            return
        self.send(process, op="release")
        self.answer(process)

    def start_process(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            shlex.split(self.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self.process

    def send(self, process: subprocess.Popen[str], **request: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"address": self.address, **request}) + "\n")
        process.stdin.flush()

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{self.command} ended by itself"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self, counted: bool = False) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            self.kills += counted


#: What `Counter.add` does.
ADD = """last=$(tail -n 1 "$1" | cut -d ' ' -f 1); printf '%s %s\\n' $((${last:-0} + 1)) "${TENURE_FENCE:-0}" >> "$1\""""


class Command(threading.Thread):
    """Adds with `tenure run`; the program under the lock is a line of shell, which starts quickly."""

    def __init__(self, number: int, command: str, address: str, counter: Counter, until: float, ttl: bool) -> None:
        super().__init__(name=f"{number} tenure run")
        # A killed command leaves its lease, which must end soon. Lock files have none.
        lease = ["--ttl", "2s"] if ttl else []
        self.line = [command, "run", "-w", "5s", *lease, address, "--"]
        self.line += ["sh", "-c", ADD, "add", str(counter.file)]
        self.until = until
        self.additions = 0
        self.kills = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.until:
                process = subprocess.Popen(self.line, stderr=subprocess.PIPE)
                if random.random() < 0.05:
                    # The command and its program die together, so that no addition is done without the lock.
                    time.sleep(random.random() * 0.05)
                    process.kill()
                    self.kills += 1
                _, text = process.communicate()
                self.additions += process.returncode == 0
                # 75: held; 120: lost; 124: timed out; 125: no node answered.
                assert process.returncode in (0, -9, 75, 120, 124, 125), (process.returncode, text)
        except BaseException as error:
            self.failure = error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--client", action="append", default=[], help="the command of a client process")
    parser.add_argument("--of-each", type=int, default=3, help="how many processes of each kind")
    parser.add_argument("--file", action="store_true", help="a lock file instead of the daemon")
    options = parser.parse_args()
    command = os.environ.get("TENURE_BIN", "tenure")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        daemon = Daemon(command, directory)
        if not options.file:
            daemon.start()
        os.environ["TENURE_URL"] = f"tenure://127.0.0.1:{daemon.ports[0]}"
        try:
            torture(command, directory, daemon, options)
        finally:
            daemon.kill()


def torture(command: str, directory: Path, daemon: Daemon, options: argparse.Namespace) -> None:
    counter = Counter(directory / "counter")
    counter.file.touch()
    address = str(directory / "shared") if options.file else "torture:/counter"
    until = time.monotonic() + options.seconds
    clients: list[Client | Command] = []
    for _ in range(options.of_each):
        for line in options.client:
            clients.append(Client(len(clients), line, address, counter, until, ttl=not options.file))
        clients.append(Command(len(clients), command, address, counter, until, ttl=not options.file))
    for client in clients:
        client.start()
    restarts = 0
    while not options.file and time.monotonic() < until - 5:
        time.sleep(random.uniform(2, 6))
        daemon.kill()
        daemon.start()
        restarts += 1
    for client in clients:
        client.join()
    for client in clients:
        if client.failure is not None:
            raise SystemExit(f"{client.name}: {client.failure!r}")
        if client.additions == 0:
            raise SystemExit(f"{client.name} never got the lock")
        print(f"  {client.name}: {client.additions} additions, {client.kills} kills")
    print(f"{counter.verdict(has_fences=not options.file)}; {restarts} restarts of the daemon")


if __name__ == "__main__":
    main()
