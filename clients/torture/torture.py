"""Twelve processes in five languages on one counter, through a cluster of three nodes, while processes and nodes are
killed and nodes are restarted. No update is lost, and fences only rise.

    python3 torture.py [--seconds 120]

Takes ../../target/debug/tenure, or $TENURE_BIN. The workers: the tenure command, Go, PHP, Python on the example's
helper module, and Node if the package in bindings/node is built.

Each worker holds vol:/torture/counter, appends "VALUE FENCE LANGUAGE" to a log and then replaces the counter's file.
A worker that is killed between the two leaves a line whose value the next worker writes again.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TARGET = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
BINARY = os.environ.get("TENURE_BIN", f"{TARGET}/debug/tenure")


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % listener.getsockname()[1]


class Node:
    def __init__(self, number, data, seeds):
        self.grpc, self.web, self.gossip = free_address(), free_address(), free_address()
        self.environment = {
            **os.environ, "TENURE_DATA_DIR": f"{data}/node-{number}", "TENURE_NODE_ID": f"node-{number}", "TENURE_LISTEN": self.grpc,
            "TENURE_PUBLIC_ADDR": f"http://{self.grpc}", "TENURE_WEB_LISTEN": self.web, "TENURE_H3_LISTEN": free_address(),
            "TENURE_RAFT_ADDR": f"http://{free_address()}", "TENURE_GOSSIP_ADDR": self.gossip, "TENURE_GROUP_COUNT": "4",
            "TENURE_INTERNAL_AUTH_TOKEN": "0123456789abcdef0123456789abcdef", "TENURE_STABILITY_WINDOW_SECS": "0",
            "TENURE_LEADER_BALANCE_INTERVAL_SECS": "1", "TENURE_MAX_CONCURRENT_RECONCILES": "64",
        }
        self.environment["TENURE_SEED_NODES" if seeds else "TENURE_BOOTSTRAP"] = seeds or "true"
        self.start()

    def start(self):
        self.process = subprocess.Popen([BINARY, "serve"], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if re.search(r"ready, grpc", line):
                # The rest must be read, or the node would block.
                subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)
                return
        sys.exit("a node does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()


def settled(node):
    status = subprocess.run([BINARY, "cluster", "status", "--json"], env={**os.environ, "TENURE_URL": f"tenure://{node.grpc}"}, capture_output=True, text=True)
    return status.returncode == 0 and status.stdout.count('"voters"') > 0 and '"healthy": true' in status.stdout.replace('":true', '": true')


def workers(work):
    """The command of each kind of worker."""
    kinds = {
        "command": ["sh", str(HERE / "worker.sh"), BINARY],
        "php": ["php", str(HERE / "worker.php")],
        "python": [sys.executable, str(HERE / "worker.py")],
    }
    go = work / "go-worker"
    subprocess.run(["go", "build", "-o", str(go), "./internal/tortureworker"], cwd=ROOT / "clients/go", check=True)
    kinds["go"] = [str(go)]
    if list((ROOT / "bindings/node").glob("*.node")):
        kinds["node"] = ["node", str(HERE / "worker.mjs")]
    return kinds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    seconds = parser.parse_args().seconds
    work = pathlib.Path(tempfile.mkdtemp(prefix="tenure-torture-"))
    counter, log = work / "counter", work / "log"
    counter.write_text("0\n")
    log.touch()
    nodes = []
    for number in range(3):
        nodes.append(Node(number, work, nodes[0].gossip if nodes else ""))
    deadline = time.monotonic() + 120
    while not settled(nodes[0]):
        assert time.monotonic() < deadline, "the cluster does not settle"
        time.sleep(0.2)
    environment = {
        **os.environ, "TENURE_URL": "tenure://" + ",".join(node.grpc for node in nodes),
        "TENURE_WEB_URLS": ",".join(f"http://{node.web}" for node in nodes), "COUNTER": str(counter), "LOG": str(log), "STEP": str(HERE / "step.sh"),
    }
    kinds = workers(work)
    names = [name for _, name in zip(range(12), sorted(kinds) * 12)]

    def begin(name):
        errors = open(work / f"{name}.err", "a")
        return name, subprocess.Popen(kinds[name], env=environment, start_new_session=True, stdout=errors, stderr=errors)

    running = [begin(name) for name in names]
    counted = collections.Counter()
    end = time.monotonic() + seconds
    next_node = time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(random.uniform(0.5, 2.5))
        at = random.randrange(len(running))
        name, process = running[at]
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        counted[f"killed {name}" if process.wait() == -9 else f"ended {name}"] += 1
        running[at] = begin(name)
        if time.monotonic() > next_node:
            node = random.choice(nodes)
            node.kill()
            time.sleep(random.uniform(0.2, 2))
            node.start()
            counted["restarted nodes"] += 1
            next_node = time.monotonic() + random.uniform(8, 15)
    for _, process in running:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    for node in nodes:
        node.kill()

    last_value, last_fence, by_language = 0, 0, collections.Counter()
    lines = log.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        value, fence, language = line.split()
        value, fence = int(value), int(fence)
        assert value in (last_value, last_value + 1) and value > 0, f"line {number}: {line!r} after {last_value}: an update is lost"
        assert fence > last_fence, f"line {number}: {line!r}: the fence was {last_fence} before"
        last_value, last_fence = value, fence
        by_language[language] += 1
    final = int(counter.read_text())
    assert final in (last_value, last_value - 1), f"the counter is {final}, the log ends with {last_value}"
    missing = [name for name in kinds if not by_language[name]]
    assert not missing, f"no update by {missing}: see {work}"
    print(f"{len(names)} processes, {seconds:.0f} s: counter {final}, {len(lines)} grants, fences rise to {last_fence}")
    print("grants:", dict(by_language))
    print("faults:", dict(counted))
    shutil.rmtree(work)


main()
