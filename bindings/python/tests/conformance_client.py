"""A client process of the conformance cases: conformance/README.md describes its lines."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tenure

NAMES = {
    tenure.TimedOut: "timed-out",
    tenure.Busy: "busy",
    tenure.Lost: "lost",
    tenure.Denied: "denied",
    tenure.Unavailable: "unavailable",
    tenure.Unsupported: "unsupported",
    tenure.InvalidInput: "input",
    tenure.Refused: "refused",
}


class Process:
    def __init__(self) -> None:
        self.client = tenure.Client(tenure_only=True)
        self.held: dict[str, tenure.Guard] = {}

    def lock(self, request: dict[str, Any]) -> dict[str, Any]:
        wait, ttl = request.get("wait_ms"), request.get("ttl_ms")
        lock = self.client.lock(
            request["address"],
            shared=request.get("mode") == "shared",
            wait=None if wait is None else wait / 1000,
            ttl=None if ttl is None else ttl / 1000,
            ask=request.get("ask", False),
        )
        guard = lock.acquire()
        self.held[request["address"]] = guard
        return {"result": "held", "fence": guard.fence}

    def release(self, request: dict[str, Any]) -> dict[str, Any]:
        self.held.pop(request["address"]).release()
        return {"result": "released"}

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        self.held[request["address"]].check()
        return {"result": "held"}

    def lost(self, request: dict[str, Any]) -> dict[str, Any]:
        lost = self.held[request["address"]].wait_lost()
        assert lost is not None
        return {"result": "lost", "cause": lost.cause}

    def requested(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = self.held[request["address"]].wait_release_request()
        assert asked is not None
        return {"result": "requested"}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"result": "asked", "asked": len(self.client.ask(request["address"]))}

    def break_(self, request: dict[str, Any]) -> dict[str, Any]:
        self.client.break_hold(request["address"], force=True, reason="conformance")
        return {"result": "broken"}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request["op"]
        try:
            answer: dict[str, Any] = getattr(self, "break_" if op == "break" else op)(request)
            return answer
        except tenure.Error as error:
            name = next((name for kind, name in NAMES.items() if isinstance(error, kind)), "error")
            answer = {"result": name, "message": str(error)}
            if isinstance(error, tenure.Lost):
                answer["cause"] = error.cause
            return answer


def main() -> None:
    process = Process()
    for line in sys.stdin:
        print(json.dumps(process.answer(json.loads(line))), flush=True)
    # The guards that are left end with the process, as those of a program that exits.
    os._exit(0)


if __name__ == "__main__":
    main()
