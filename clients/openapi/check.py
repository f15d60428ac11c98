"""Generates a client from docs/reference/openapi.json with openapi-python-client and makes real calls with it.

    python3 check.py

Needs requirements.txt. Takes ../../target/debug/tenure, or $TENURE_BIN. A schema that the generator skips is a failure.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/reference/openapi.json"


def generate(into):
    bin_directory = pathlib.Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    words = [str(bin_directory / "openapi-python-client"), "generate", "--path", str(DOCUMENT), "--output-path", str(into)]
    made = subprocess.run(words, env=environment, capture_output=True, text=True)
    said = made.stdout + made.stderr
    skipped = re.findall(r"WARNING parsing.*|unable to parse.*|Cannot parse.*|will not be generated.*|unsupported.*", said, re.I)
    if made.returncode != 0 or skipped:
        sys.exit(f"the document is not accepted:\n{said}")


def daemon(data):
    binary = os.environ.get("TENURE_BIN", ROOT / "target/debug/tenure")
    environment = {
        **os.environ, "TENURE_DATA_DIR": f"{data}/data", "TENURE_LISTEN": "127.0.0.1:0", "TENURE_WEB_LISTEN": "127.0.0.1:0",
        "TENURE_H3_LISTEN": "127.0.0.1:0", "TENURE_GROUP_COUNT": "4",
    }
    process = subprocess.Popen([str(binary), "serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"web ([^,\s]+)", line)
        if "ready" in line and found:
            return process, f"http://{found[1]}"
    sys.exit("the daemon does not start")


with tempfile.TemporaryDirectory() as work:
    generate(pathlib.Path(work) / "made")
    sys.path.insert(0, f"{work}/made")
    from tenure_client import Client, models
    from tenure_client.api.default import acquire, explain, release

    process, url = daemon(work)
    try:
        client = Client(base_url=url)
        wanted = models.LockRequestInput(path="vol:/a")
        request = models.AcquireRequestInput(owner_id="amy", ttl_ms=30_000, requests=[wanted])
        taken = acquire.sync(client=client, body=request)
        assert taken.status == 0 and taken.fencing_token > 0, taken
        request = models.AcquireRequestInput(owner_id="bob", ttl_ms=30_000, requests=[wanted], no_wait=True)
        refused = acquire.sync(client=client, body=request)
        assert (refused.status, refused.owner) == (1, "amy"), refused
        why = explain.sync(client=client, body=models.ExplainRequestInput(path="vol:/a", owner_id="bob"))
        assert not why.free and why.blockers[0].blocker.owner == "amy", why
        gone = models.ReleaseLocksRequestInput(owner_id="amy", requests=[models.ReleaseRequestInput(path="vol:/a")])
        release.sync(client=client, body=gone)
        request = models.AcquireRequestInput(owner_id="bob", ttl_ms=30_000, requests=[wanted], no_wait=True)
        assert acquire.sync(client=client, body=request).status == 0
        print("ok: a generated client acquires, is refused, explains and releases")
    finally:
        process.kill()
        process.wait()
