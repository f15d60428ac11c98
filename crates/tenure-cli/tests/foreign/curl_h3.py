"""HTTP/3 with libcurl, whose ClientHello takes two datagrams, through a relay that delays each client's
second datagram. Reads {"port", "rounds", "delay_ms"}; prints the status of each request, 0 for none."""

import json
import select
import socket
import sys
import threading
import time

import pycurl


def relay(port, delay):
    """Forwards datagrams; the second one of each client comes late. Returns the relay's port."""
    front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    front.bind(("127.0.0.1", 0))

    def run():
        clients, late = {}, []
        while True:
            ready, _, _ = select.select([front, *(c["back"] for c in clients.values())], [], [], 0.001)
            for one in ready:
                if one is not front:
                    client = next(a for a, c in clients.items() if c["back"] is one)
                    front.sendto(one.recv(65536), client)
                    continue
                data, address = front.recvfrom(65536)
                if address not in clients:
                    back = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    back.connect(("127.0.0.1", port))
                    clients[address] = {"back": back, "seen": 0}
                client = clients[address]
                client["seen"] += 1
                if client["seen"] == 2:
                    late.append((time.monotonic() + delay, client["back"], data))
                else:
                    client["back"].send(data)
            now = time.monotonic()
            for due in [entry for entry in late if entry[0] <= now]:
                late.remove(due)
                due[1].send(due[2])

    threading.Thread(target=run, daemon=True).start()
    return front.getsockname()[1]


def request(port):
    curl = pycurl.Curl()
    body = []
    curl.setopt(curl.URL, f"https://127.0.0.1:{port}/v1/health")
    curl.setopt(curl.HTTP_VERSION, curl.CURL_HTTP_VERSION_3ONLY if hasattr(curl, "CURL_HTTP_VERSION_3ONLY") else 31)
    curl.setopt(curl.SSL_VERIFYPEER, 0)
    curl.setopt(curl.SSL_VERIFYHOST, 0)
    curl.setopt(curl.TIMEOUT_MS, 10_000)
    curl.setopt(curl.WRITEFUNCTION, body.append)
    try:
        curl.perform()
        return curl.getinfo(curl.RESPONSE_CODE)
    except pycurl.error as error:
        print(error, file=sys.stderr)
        return 0
    finally:
        curl.close()


given = json.load(sys.stdin)
through = relay(given["port"], given["delay_ms"] / 1000)
print(json.dumps({
    "version": pycurl.version,
    "statuses": [request(through) for _ in range(given["rounds"])],
}))
