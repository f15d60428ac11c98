"""Acquire + release a second: this package beside the Rust library and filelock, as ratios of one run.

Run it in an environment with a release build of the package (`maturin develop --release`) and `filelock`, on an idle
machine: `python bench/bench.py [--rounds 5] [--seconds 1]`. The programs take turns, so that a slow moment hits all
of them; the rate of each is the median of its rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import filelock

import tenure
from tenure.filelock import FileLock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from conftest import Daemon


def rate(once: Callable[[], object], seconds: float) -> float:
    once()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        once()
        count += 1
    return count / (time.perf_counter() - began)


def with_tenure(client: tenure.Client, address: str) -> Callable[[], object]:
    lock = client.lock(address)

    def once() -> None:
        with lock:
            pass

    return once


def with_filelock(lock: filelock.FileLock | FileLock) -> Callable[[], object]:
    def once() -> None:
        with lock:
            pass

    return once


def rust(address: str, seconds: float, durability: str, profile: str) -> float:
    command = ["cargo", "run", "--quiet", "--package", "tenure-bindings", "--example", "rates"]
    if profile == "release":
        command.append("--release")
    command += ["--", address, str(seconds), durability]
    output = subprocess.run(command, cwd=HERE.parents[1], check=True, capture_output=True, text=True)
    return float(output.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--profile", choices=["release", "dev"], default="release")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "daemon" / "data"
        data.mkdir(parents=True)
        daemon = Daemon(data)
        daemon.start()
        os.environ["TENURE_URL"] = daemon.url
        try:
            measure(Path(directory), options)
        finally:
            daemon.stop()


def measure(directory: Path, options: argparse.Namespace) -> None:
    durable, fast = tenure.Client(), tenure.Client(durable=False)
    file = str(directory / "file")
    programs: dict[str, Callable[[], float]] = {
        "file, Rust": lambda: rust(file, options.seconds, "durable", options.profile),
        "file, Python": lambda: rate(with_tenure(durable, file), options.seconds),
        "file not synced, Rust": lambda: rust(file, options.seconds, "fast", options.profile),
        "file not synced, Python": lambda: rate(with_tenure(fast, file), options.seconds),
        "file not synced, tenure.filelock": lambda: rate(
            with_filelock(FileLock(directory / "ours.lock")), options.seconds
        ),
        "file not synced, filelock": lambda: rate(
            with_filelock(filelock.FileLock(directory / "theirs.lock")), options.seconds
        ),
        "daemon, Rust": lambda: rust("bench:/a", options.seconds, "durable", options.profile),
        "daemon, Python": lambda: rate(with_tenure(durable, "bench:/a"), options.seconds),
    }
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            rates[name].append(program())
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print("acquire + release a second, medians:")
    for name, median in medians.items():
        print(f"  {name:<36}{median:>10,.0f}")
    print("ratios:")
    for kind in ("file", "file not synced", "daemon"):
        ratio = medians[f"{kind}, Rust"] / medians[f"{kind}, Python"]
        print(f"  {kind}: the Rust library is {ratio:.2f} times as fast (aim: at most 1.3)")
    ratio = medians["file not synced, Python"] / medians["file not synced, filelock"]
    print(f"  file not synced: {ratio:.2f} times as fast as filelock (aim: at least 1.1)")


if __name__ == "__main__":
    main()
