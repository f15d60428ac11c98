"""The types of the package, as a strict type checker sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_a_strict_type_checker_accepts_the_package_and_a_program() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary"],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout + checked.stderr


def test_a_wrong_argument_is_a_type_error(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text('import tenure\ntenure.lock("vol:/a", wait="soon")\n')
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", str(program)], capture_output=True, text=True
    )
    assert checked.returncode == 1
    assert '"wait"' in checked.stdout
