"""Where a server listens, and who calls: the addresses that people write and those that gRPC takes, what is said where
none listens, and Security."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Optional, Union

VARIABLE = "SEINE_SERVER"  # of the environment; the programs honour it too
FORMS = "expected unix:///path/to/socket, /path/to/socket or host:port"
MAX_PATH_BYTES = 107  # of a Unix socket's path, as Linux has it


def default_address() -> str:
    """What the environment variable SEINE_SERVER says, else where seined listens unless told otherwise:
    unix://$XDG_RUNTIME_DIR/seine.sock where that folder is one's own and nobody else may write to it, else
    unix:///tmp/seine-<uid>/seine.sock."""
    stated = os.environ.get(VARIABLE, "")
    if stated:
        return target_of(stated, VARIABLE)
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if folder.startswith("/") and os.path.isdir(folder) and is_own_folder(os.stat(folder)):
        return f"unix://{folder}/seine.sock"
    return f"unix://{folder_in_tmp()}/seine.sock"


def folder_in_tmp() -> str:
    """Where the default address lies on a machine without XDG_RUNTIME_DIR; seined makes it."""
    return f"/tmp/seine-{os.getuid()}"


def is_own_folder(info: os.stat_result) -> bool:
    """Whether it is a folder of this user, which nobody else may write to; as client/channel/channel.cc has it."""
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def why_not_trusted(address: str) -> str:
    """The text of an error where the address is the default one in /tmp, and its folder is another's, who would be sent
    everything; else ""."""
    folder = folder_in_tmp()
    if socket_path(address) != f"{folder}/seine.sock" or not os.path.lexists(folder) or is_own_folder(os.lstat(folder)):
        return ""
    return (
        f"nothing is sent to {address}: {folder} is no folder of this user alone; start seined with another --listen, "
        f"and say where it is in {VARIABLE}"
    )


def target_of(address: str, what: str = "address") -> str:
    """The address as gRPC takes it: unix:///absolute/path or host:port. ValueError, naming `what`, for any other."""
    path = socket_path(address)
    if path is not None:
        if not path:
            raise ValueError(f"{what}: {FORMS}, not {address!r}")
        path = os.path.abspath(path)
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ValueError(f"{what}: a socket's path has at most {MAX_PATH_BYTES} bytes, not {address!r}")
        return f"unix://{path}"
    host, colon, port = address.rpartition(":")
    if not (colon and host and "/" not in host and port.isdecimal() and 1 <= int(port) <= 65535):
        raise ValueError(f"{what}: {FORMS}, not {address!r}")
    return address


def socket_path(address: str) -> Optional[str]:
    """The path of a Unix socket's address; None for any other."""
    if not isinstance(address, str):
        raise TypeError(f"address: must be a str, not {type(address).__name__}")
    if address.startswith("unix:"):
        path = address[len("unix:") :]
        return path[2:] if path.startswith("//") else path
    return address if "/" in address and "://" not in address else None


def no_server(address: str, why: str) -> str:
    """The text of an error: nobody listens there."""
    return f"no server at {address} ({why}); start one with seined, or say where it is: Client(address) or {VARIABLE}"


def unavailable(address: str, said: str) -> str:
    """The text of an error, in a line of ours. `said`: what gRPC or the C++ client says of a missing server."""
    path, lower = socket_path(address), said.lower()
    stated = re.match(r"no server at .*? \(([^()]*)\)", said)
    if stated:
        return no_server(address, stated[1])
    if path is not None and not os.path.exists(path):
        return no_server(address, "there is no such socket")
    if "connection refused" in lower:
        return no_server(address, "the connection was refused")
    if "failed to connect" in lower or "resol" in lower:
        return no_server(address, said.rpartition("error: ")[2])
    return f"lost the server at {address}: {said}"


Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Security:
    """TLS is used on TCP where tls_ca is given; a Unix socket takes none. What is "" comes from the environment:
    SEINE_TLS_CA, SEINE_TLS_CERT, SEINE_TLS_KEY, and, where neither token nor token_file is given, SEINE_TOKEN or
    SEINE_TOKEN_FILE.

    tls_ca: PEM file of the authority that the server's certificate comes from. tls_cert, tls_key: PEM files of this
    client's certificate and key, where the server asks for them. token: the bearer token itself; token_file: a file
    that holds it, read for each connection.
    """

    tls_ca: Path = ""
    tls_cert: Path = ""
    tls_key: Path = ""
    token: str = ""
    token_file: Path = ""

    def __repr__(self) -> str:
        return f"Security(tls_ca={self.tls_ca!r}, tls_cert={self.tls_cert!r}, token={'...' if self.token else ''!r})"

    def resolved(self) -> dict[str, str]:
        """The five fields as text, with what the environment adds."""
        fields = {
            name: os.fspath(getattr(self, name)) or os.environ.get(f"SEINE_{name.upper()}", "")
            for name in ("tls_ca", "tls_cert", "tls_key")
        }
        fields["token"], fields["token_file"] = self.token, os.fspath(self.token_file)
        if not fields["token"] and not fields["token_file"]:
            fields["token"] = os.environ.get("SEINE_TOKEN", "")
            fields["token_file"] = os.environ.get("SEINE_TOKEN_FILE", "")
        return fields
