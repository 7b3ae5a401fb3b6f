"""The client over grpcio: seine_kv.client's calls for machines where the native module cannot be had.

    from seine_kv.grpc import Client

Needs grpcio and protobuf (the extra `grpc`), and the stubs of proto/seine/v1, which the package brings. The calls are
those of seine_kv.client, whose docstrings hold here. Only a server can be called: there is no Client.in_process.
"""

from seine_kv.grpc.client import Client
from seine_kv.grpc.stream import DecodeStream

__all__ = ["Client", "DecodeStream"]
