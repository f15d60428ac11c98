"""gRPC with grpcio: Acquire, a Subscribe stream for the GRANT, release.

Needs `pip install -r requirements.txt`. The stubs are made from the proto file at the start.
Run it beside a daemon (`tenure serve`). It prints:

    ready
    A: OK
    B: QUEUED
    event for B: GRANT
    B: OK
"""

import asyncio
import os
import pathlib
import sys
import tempfile

import grpc
from grpc_tools import protoc

PROTOS = pathlib.Path(__file__).resolve().parents[2] / "crates/tenure-wire/proto"
stubs = tempfile.TemporaryDirectory()
made = protoc.main(["protoc", f"-I{PROTOS}", f"--python_out={stubs.name}", f"--grpc_python_out={stubs.name}", "pathlockd/v1/pathlock.proto"])
assert made == 0, "the stubs cannot be made"
sys.path.insert(0, stubs.name)
from pathlockd.v1 import pathlock_pb2 as pb
from pathlockd.v1 import pathlock_pb2_grpc

PATH = "vol:/grpc/file"


def acquire(owner):
    return pb.AcquireRequest(owner_id=owner, ttl_ms=30_000, requests=[pb.LockRequest(path=PATH)])


async def main():
    address = os.environ.get("TENURE_URL", "tenure://127.0.0.1:50051").removeprefix("tenure://")
    async with grpc.aio.insecure_channel(address) as channel:
        client = pathlock_pb2_grpc.PathLockStub(channel)
        print((await client.Health(pb.HealthRequest())).detail)

        def status(answer):
            return pb.AcquireStatus.Name(answer.status).removeprefix("ACQUIRE_STATUS_")

        print("A:", status(await client.Acquire(acquire("grpc-A"))))
        events = client.Subscribe(pb.SubscribeRequest(owner_id="grpc-B"))
        await events.initial_metadata()
        print("B:", status(await client.Acquire(acquire("grpc-B"))))
        path = pb.ReleaseRequest(path=PATH)
        await client.Release(pb.ReleaseLocksRequest(owner_id="grpc-A", requests=[path]))
        event = await events.read()
        print("event for B:", pb.EventType.Name(event.type).removeprefix("EVENT_TYPE_"))
        print("B:", status(await client.Acquire(acquire("grpc-B"))))
        await client.Release(pb.ReleaseLocksRequest(owner_id="grpc-B", requests=[path]))


asyncio.run(main())
