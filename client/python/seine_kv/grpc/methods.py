"""The methods of the wire contract by name, and their messages as dicts in protobuf's JSON form.

Everything comes from the descriptors of the generated stubs, so that a new method needs no line here.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, json_format, message_factory

from seine.v1 import (
    admin_service_pb2,
    eviction_service_pb2,
    index_service_pb2,
    retrieval_service_pb2,
    sequence_service_pb2,
    shared_memory_service_pb2,
    status_pb2,
    subspace_service_pb2,
)

_SERVICE_FILES = (
    index_service_pb2,
    sequence_service_pb2,
    retrieval_service_pb2,
    eviction_service_pb2,
    subspace_service_pb2,
    admin_service_pb2,
    shared_memory_service_pb2,
)


class Method(NamedTuple):
    name: str  # "seine.v1.RetrievalService/Retrieve"
    request: Any  # the messages' classes
    response: Any
    streams_requests: bool
    streams_responses: bool


def _read(descriptor: Any) -> Method:
    proto = descriptor_pb2.MethodDescriptorProto()
    descriptor.CopyToProto(proto)
    return Method(
        f"{descriptor.containing_service.full_name}/{descriptor.name}",
        message_factory.GetMessageClass(descriptor.input_type),
        message_factory.GetMessageClass(descriptor.output_type),
        proto.client_streaming,
        proto.server_streaming,
    )


METHODS = [
    _read(method)
    for file in _SERVICE_FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@functools.lru_cache
def find(name: str) -> Method:
    """By the whole name, or its end after a / or a dot: "Retrieve", "RetrievalService/Retrieve"."""
    if not isinstance(name, str):
        raise TypeError(f"method: must be its name, a str, not a {type(name).__name__}")
    wanted = name.removeprefix("/").replace("/", ".")
    found = [method for method in METHODS if f".{method.name}".replace("/", ".").endswith(f".{wanted}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"several methods are called {name}: {', '.join(method.name for method in found)}")
    known = [method.name if "." in wanted else method.name.rpartition("/")[2] for method in METHODS]
    near = difflib.get_close_matches(wanted, known, n=1)
    raise ValueError(f"unknown method {name}{f'; did you mean {near[0]}?' if near else ''}")


def message_of(method: Method, request: Mapping[str, Any]) -> Any:
    if not isinstance(request, Mapping):
        raise TypeError(f"request: must be a dict of {method.request.DESCRIPTOR.name}, not a {type(request).__name__}")
    try:
        return json_format.ParseDict(dict(request), method.request())
    except json_format.ParseError as error:
        raise ValueError(f"request: {error}") from None


# What writes fields that hold their default: the option's name since protobuf 26, and before.
_NAMES = ("always_print_fields_with_no_presence", "including_default_value_fields")
_DEFAULTS = {next(name for name in _NAMES if name in inspect.signature(json_format.MessageToDict).parameters): True}


def dict_of(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=_POOL, **_DEFAULTS)


def _details_pool() -> Any:
    """The types of errors' details, which travel under google.rpc's names: status.proto is wire-identical."""
    pool = descriptor_pool.DescriptorPool()
    for file in (any_pb2, duration_pb2):
        pool.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
    status = descriptor_pb2.FileDescriptorProto.FromString(status_pb2.DESCRIPTOR.serialized_pb)
    status.name, status.package = "google/rpc/status.proto", "google.rpc"
    for message in status.message_type:
        for field in filter(lambda field: field.type_name, message.field):
            field.type_name = field.type_name.replace(".seine.v1.", ".google.rpc.")
    pool.AddSerializedFile(status.SerializeToString())
    return pool


_POOL = _details_pool()
