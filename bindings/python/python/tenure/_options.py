"""The options of an acquire, and the settings of a client. The blocking and the asynchronous API share them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from os import PathLike
from typing import Any, Callable, Mapping, Union

from ._errors import Busy, from_dict

#: An address: ``"vol:/a/b"``, ``"state.json"``, ``"repo:/mnt/backup"``, …, or a path object, which
#: always means the lock file beside that file.
Address = Union[str, "PathLike[str]"]

OnWait = Callable[[Busy], object]


@dataclass(frozen=True)
class Options:
    """What the callers of ``lock`` may set."""

    shared: bool = False
    shared_tree: bool = False
    permits: int | None = None
    wait: float | None = None
    ttl: float | None = None
    ask: bool = False
    purpose: str | None = None
    labels: Mapping[str, str] | None = None
    fenced: bool = False
    refuse_deadlock: bool = False
    on_wait: OnWait | None = None

    def native(self) -> tuple[Any, ...]:
        """Returns the arguments of the native call."""
        chosen = [self.shared, self.shared_tree, self.permits is not None]
        if sum(chosen) > 1:
            raise ValueError("shared, shared_tree and permits exclude each other: give one of them")
        mode = "shared" if self.shared else "shared-tree" if self.shared_tree else "exclusive"
        on_wait = None
        if self.on_wait is not None:
            tell = self.on_wait

            def on_wait(busy: str) -> None:
                fields = json.loads(busy)
                fields["kind"] = "busy"
                fields["message"] = fields.get("what", "")
                error = from_dict(fields)
                assert isinstance(error, Busy)
                tell(error)

        return (
            mode,
            self.permits,
            self.wait,
            self.ttl,
            self.ask,
            self.purpose,
            dict(self.labels) if self.labels else None,
            self.fenced,
            self.refuse_deadlock,
            on_wait,
        )


def program_name() -> str | None:
    """The name of this program as a holder. The interpreter's own name would say little."""
    if os.environ.get("TENURE_NAME"):
        return None
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    return script if script not in ("", "-c", "-m") else "python"
