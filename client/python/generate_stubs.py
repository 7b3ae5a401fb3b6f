"""Generates the Python code of the wire contract (proto/seine/v1) with grpcio-tools: never by hand, never committed.

    python generate_stubs.py PROTO_FOLDER OUT_FOLDER

writes OUT_FOLDER/seine/v1/*_pb2.py and *_pb2_grpc.py. CMake calls it when a wheel is built, and for the tests.
"""

import sys
from pathlib import Path


def generate(proto_folder, out_folder):
    from grpc_tools import protoc

    proto_folder, out_folder = Path(proto_folder), Path(out_folder)
    protos = sorted(proto_folder.glob("seine/v1/*.proto"))
    if not protos:
        raise SystemExit(f"generate_stubs.py: no seine/v1/*.proto in {proto_folder}; build from a whole checkout")
    out_folder.mkdir(parents=True, exist_ok=True)
    well_known = Path(protoc.__file__).parent / "_proto"  # google/protobuf/any.proto
    flags = [f"-I{proto_folder}", f"-I{well_known}", f"--python_out={out_folder}", f"--grpc_python_out={out_folder}"]
    if protoc.main(["protoc", *flags, *map(str, protos)]) != 0:
        raise SystemExit("generate_stubs.py: protoc failed")
    for package in ("seine", "seine/v1"):
        (out_folder / package / "__init__.py").touch()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    generate(sys.argv[1], sys.argv[2])
