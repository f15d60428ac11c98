"""HTTP/3 with aioquic: a list of requests over one connection, in early data, or one event stream."""

import asyncio
import json
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamReset


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.answers = {}
        self.is_silent = False

    def transmit(self):
        # A silent client does not finish the handshake, so its requests stay early.
        if not self.is_silent:
            super().transmit()

    def be_silent(self, seconds):
        """Sends nothing for a while, then what is due."""
        self.is_silent = True
        asyncio.get_running_loop().call_later(seconds, self.speak)

    def speak(self):
        self.is_silent = False
        self.transmit()

    def quic_event_received(self, event):
        if isinstance(event, StreamReset) and event.stream_id in self.answers:
            answer = self.answers[event.stream_id]
            answer["reset"] = event.error_code
            answer["changed"].set()
        for found in self.http.handle_event(event):
            answer = self.answers.get(getattr(found, "stream_id", None))
            if answer is None:
                continue
            if isinstance(found, HeadersReceived):
                answer["headers"].update((k.decode(), v.decode()) for k, v in found.headers)
            elif isinstance(found, DataReceived):
                answer["body"] += found.data
            if found.stream_ended:
                answer["ended"] = True
            answer["changed"].set()

    def begin(self, request):
        body = request.get("body")
        body = body.encode() if isinstance(body, str) else b" " * request.get("spaces", 0)
        headers = [
            (b":method", request.get("method", "POST").encode()),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", request["path"].encode()),
        ]
        named = request.get("headers", {"content-type": "application/json"})
        headers += [(key.encode(), value.encode()) for key, value in named.items()]
        stream = self._quic.get_next_available_stream_id()
        changed = asyncio.Event()
        self.answers[stream] = {
            "headers": {}, "body": b"", "ended": False, "reset": None, "changed": changed,
        }
        self.http.send_headers(stream, headers, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=not request.get("unfinished", False))
        self.transmit()
        return self.answers[stream]


async def finished(answer, seconds=60):
    async def all_of_it():
        while not answer["ended"] and answer["reset"] is None:
            await answer["changed"].wait()
            answer["changed"].clear()

    await asyncio.wait_for(all_of_it(), seconds)
    return shown(answer)


def shown(answer):
    status = answer["headers"].get(":status")
    return {
        "status": int(status) if status else None,
        "headers": answer["headers"],
        "body": answer["body"].decode(),
        "reset": answer["reset"],
    }


def configuration(ticket=None):
    return QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE,
        server_name="localhost", session_ticket=ticket,
    )


async def requests(port, wanted):
    async with connect("127.0.0.1", port, configuration=configuration(), create_protocol=Client) as client:
        return [await finished(client.begin(request)) for request in wanted["requests"]]


async def early(port, wanted):
    """Each request is the first flight of a connection of its own."""
    answers = []
    for request in wanted["requests"]:
        tickets = []
        got = asyncio.Event()

        def keep(ticket):
            tickets.append(ticket)
            got.set()

        async with connect(
            "127.0.0.1", port, configuration=configuration(), create_protocol=Client,
            session_ticket_handler=keep,
        ) as client:
            await finished(client.begin({"method": "GET", "path": "/v1/health", "headers": {}}))
            await asyncio.wait_for(got.wait(), 20)
        ticket = tickets[-1]
        async with connect(
            "127.0.0.1", port, configuration=configuration(ticket), create_protocol=Client,
            wait_connected=False,
        ) as client:
            answer = client.begin(request)
            # Long enough for a server that answers early. One that does not accept early data waits
            # for the rest of the handshake.
            client.be_silent(1)
            answer = await finished(answer)
            client.speak()
            answer["accepted"] = client._quic.tls.early_data_accepted
            answer["offered"] = (ticket.max_early_data_size or 0) > 0
            answers.append(answer)
    return answers


async def events(port, wanted):
    """Reads one stream until it has so many events."""
    async with connect("127.0.0.1", port, configuration=configuration(), create_protocol=Client) as client:
        answer = client.begin({"method": "GET", "path": wanted["path"], "headers": wanted.get("headers", {})})

        async def until(reached):
            while not reached():
                await answer["changed"].wait()
                answer["changed"].clear()

        # Streams of one connection have no order: it listens once it has answered.
        await asyncio.wait_for(until(lambda: answer["headers"]), 60)
        for request in wanted.get("then", []):
            await finished(client.begin(request))
        await asyncio.wait_for(until(lambda: answer["body"].count(b"data:") >= wanted["count"]), 60)
        return shown(answer)


async def flood(port, wanted):
    """Many requests at once over one connection, all of them read."""
    async with connect("127.0.0.1", port, configuration=configuration(), create_protocol=Client) as client:
        answers = [client.begin(wanted["request"]) for _ in range(wanted["count"])]
        return [(await finished(answer))["status"] for answer in answers]


def main():
    wanted = json.load(sys.stdin)
    mode = {"requests": requests, "early": early, "events": events, "flood": flood}[wanted["mode"]]
    print(json.dumps(asyncio.run(mode(wanted["port"], wanted))))


main()
