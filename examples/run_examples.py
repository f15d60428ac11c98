"""Runs the examples of a directory beside a real daemon, and compares what each prints with what its header promises.

    python3 run_examples.py python [--python INTERPRETER]

Takes ../target/debug/tenure, or $TENURE_BIN. A header's promise is the indented block after "It prints:".
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 120


def promised(text):
    """The indented lines after "It prints:", without the comment marks of the language."""
    lines = [re.sub(r"^(//|#|\s\*) ?", "", line) for line in text.splitlines()]
    start = next(at for at, line in enumerate(lines) if line.rstrip().endswith("It prints:")) + 2
    block = []
    for line in lines[start:]:
        if not line.startswith(("    ", "\t")):
            break
        block.append(line.removeprefix("    ").removeprefix("\t"))
    assert block, "the header promises nothing"
    return block


class Daemon:
    def __init__(self):
        target = os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")
        binary = os.environ.get("TENURE_BIN", f"{target}/debug/tenure")
        self.data = tempfile.mkdtemp(prefix="tenure-examples-")
        environment = {
            **os.environ, "TENURE_DATA_DIR": f"{self.data}/data", "TENURE_LISTEN": "127.0.0.1:0",
            "TENURE_WEB_LISTEN": "127.0.0.1:0", "TENURE_H3_LISTEN": "127.0.0.1:0", "TENURE_GROUP_COUNT": "4",
        }
        self.process = subprocess.Popen([binary, "serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"ready, grpc ([^,\s]+), web ([^,\s]+), h3 ([^,\s]+)", line)
            if found:
                self.environment = {
                    **os.environ, "TENURE_URL": f"tenure://{found[1]}", "TENURE_WEB_URL": f"http://{found[2]}", "TENURE_H3": found[3],
                }
                return
        sys.exit(f"the daemon does not start: {binary}")

    def end(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.data, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("language", choices=["python", "php", "go"])
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the Python examples")
    given = parser.parse_args()
    pattern, command = {
        "python": ("python/*.py", lambda file: [given.python, str(file)]),
        "php": ("php/*.php", lambda file: ["php", str(file)]),
        "go": ("go/*/main.go", lambda file: ["go", "run", f"./{file.parent.name}"]),
    }[given.language]
    failed = []
    files = [file for file in sorted(HERE.glob(pattern)) if "It prints:" in file.read_text()]
    assert files, pattern
    for file in files:
        daemon = Daemon()
        try:
            ran = subprocess.run(command(file), cwd=HERE / given.language, env=daemon.environment, capture_output=True, text=True, timeout=LIMIT)
        finally:
            daemon.end()
        said, wanted = ran.stdout.splitlines(), promised(file.read_text())
        name = file.relative_to(HERE)
        if ran.returncode == 0 and said == wanted:
            print(f"ok: {name}")
            continue
        failed.append(str(name))
        print(f"FAILED: {name}, exit code {ran.returncode}\n--- promised\n" + "\n".join(wanted) + "\n--- printed\n" + ran.stdout + ran.stderr)
    if failed:
        sys.exit(f"{len(failed)} of {len(files)} failed: {' '.join(failed)}")


main()
