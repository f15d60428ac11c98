"""Walks a table of calls with grpcio and generated stubs; finds the service by reflection on the way."""

import base64
import json
import sys

import grpc
from google.protobuf import json_format
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from pathlockd.v1 import pathlock_pb2 as pb
from pathlockd.v1 import pathlock_pb2_grpc as stubs

SERVICE = "pathlockd.v1.PathLock"


def answer(message):
    """A message as the facade would write it: numbers for enums and integers, every field."""
    fields = json_format.MessageToDict(
        message,
        always_print_fields_with_no_presence=True,
        use_integers_for_enums=True,
    )
    return numbers(fields, message.DESCRIPTOR)


def numbers(fields, descriptor):
    for field in descriptor.fields:
        name = field.json_name
        if name not in fields:
            fields[name] = None
        elif field.message_type and field.message_type.GetOptions().map_entry:
            pass
        elif field.message_type and isinstance(fields[name], list):
            fields[name] = [numbers(item, field.message_type) for item in fields[name]]
        elif field.message_type:
            fields[name] = numbers(fields[name], field.message_type)
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            fields[name] = int(fields[name])
        elif field.type == field.TYPE_BYTES:
            fields[name] = list(base64.b64decode(fields[name]))
    return fields


def call(channel, step):
    method = pb.DESCRIPTOR.services_by_name["PathLock"].methods_by_name[step["rpc"]]
    fields = dict(step["request"])
    if "cursor" in fields:
        fields["cursor"] = base64.b64encode(bytes(fields["cursor"])).decode()
    request = json_format.ParseDict(fields, getattr(pb, method.input_type.name)())
    try:
        response = getattr(stubs.PathLockStub(channel), step["rpc"])(request, timeout=20)
        return {"code": "OK", "answer": answer(response)}
    except grpc.RpcError as error:
        return {"code": error.code().name, "message": error.details()}


def reflected(channel):
    """The methods as reflection v1 and v1alpha tell them, without a file."""
    v1alpha = ProtoReflectionDescriptorDatabase(channel)
    found = v1alpha.FindFileContainingSymbol(SERVICE)
    names = [method.name for service in found.service for method in service.method]
    v1 = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (listed,) = list(v1(iter([asked]), timeout=20))
    return {
        "methods": sorted(names),
        "v1alpha": sorted(v1alpha.get_services()),
        "v1": sorted(service.name for service in listed.list_services_response.service),
    }


def main():
    wanted = json.load(sys.stdin)
    with grpc.insecure_channel(wanted["address"]) as channel:
        steps = [call(channel, step) for step in wanted["steps"]]
        print(json.dumps({"steps": steps, "reflected": reflected(channel)}))


main()
