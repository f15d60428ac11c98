"""Reads events with sseclient-py over HTTP/1.1: so many, from a position."""

import json
import sys

import requests
import sseclient


def main():
    wanted = json.load(sys.stdin)
    headers = {"Accept": "text/event-stream"}
    if wanted.get("last"):
        headers["Last-Event-ID"] = str(wanted["last"])
    with requests.get(wanted["url"], stream=True, headers=headers, timeout=60) as response:
        seen = []
        for event in sseclient.SSEClient(response).events():
            seen.append({"id": event.id, "event": event.event, "data": json.loads(event.data)})
            if len(seen) == wanted["count"]:
                break
        print(json.dumps({
            "status": response.status_code,
            "type": response.headers["content-type"],
            "cache": response.headers["cache-control"],
            "events": seen,
        }))


main()
