"""HTTP/3 with early data (0-RTT): a read is answered in the first round trip, a change gets 425 Too Early and is
repeated after the handshake.

Needs `pip install -r requirements.txt`. The certificate of the daemon's default is self-signed and not verified here.
Run it beside a daemon (`tenure serve`). It prints:

    GET /v1/health 200, in the first round trip
    POST /v1/incrFencingToken 200, after a 425 or after the handshake
"""

import asyncio
import os
import ssl

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

HOST, PORT = os.environ.get("TENURE_H3", "127.0.0.1:8443").rsplit(":", 1)


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.waiting = {}

    def quic_event_received(self, event):
        for found in self.http.handle_event(event):
            if isinstance(found, (HeadersReceived, DataReceived)):
                status, done = self.waiting[found.stream_id]
                if isinstance(found, HeadersReceived):
                    status.append(int(dict(found.headers)[b":status"]))
                if found.stream_ended and not done.done():
                    done.set_result(status[0])

    def request(self, method, path, body=b""):
        """Sends a request and returns a future of its status."""
        stream = self._quic.get_next_available_stream_id()
        headers = [(b":method", method.encode()), (b":scheme", b"https"), (b":authority", HOST.encode()), (b":path", path.encode())]
        if body:
            headers.append((b"content-type", b"application/json"))
        self.http.send_headers(stream, headers, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        done = asyncio.get_running_loop().create_future()
        self.waiting[stream] = ([], done)
        self.transmit()
        return done


def settings(ticket=None):
    return QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, server_name=HOST, session_ticket=ticket)


async def new_ticket():
    """A connection that ends with a session ticket. The daemon accepts early data once per ticket."""
    tickets = asyncio.Queue()
    async with connect(HOST, int(PORT), configuration=settings(), create_protocol=Client, session_ticket_handler=tickets.put_nowait) as client:
        await client.request("GET", "/v1/health")
        return await asyncio.wait_for(tickets.get(), 10)


async def first_flight(method, path, body=b""):
    """Sends a request with the first packets of a connection, before the handshake; repeats it after a 425."""
    ticket = await new_ticket()
    async with connect(HOST, int(PORT), configuration=settings(ticket), create_protocol=Client, wait_connected=False) as client:
        status = await client.request(method, path, body)
        if status == 425:
            await client.ping()  # Answered after the handshake.
            status = await client.request(method, path, body)
        return f"{method} {path} {status}"


async def main():
    print(await first_flight("GET", "/v1/health") + ", in the first round trip")
    # The daemon may accept the request a moment after the handshake: then there is no 425.
    print(await first_flight("POST", "/v1/incrFencingToken", b"{}") + ", after a 425 or after the handshake")


asyncio.run(main())
