"""A grpcio channel with TLS and a token, as seine_kv.Security has them."""

from __future__ import annotations

import codecs
import collections
import re
from collections.abc import Callable
from typing import Any

import grpc

from seine_kv.address import socket_path


_FIELDS = ("method", "timeout", "metadata", "credentials", "wait_for_ready", "compression")


class _Details(collections.namedtuple("_Details", _FIELDS), grpc.ClientCallDetails):
    """What grpcio wants of an interceptor, which it offers no class for."""


class _Token(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to each call. Where it is in a file, that is read anew, so that it may change."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def _add(self, proceed: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._token()}")]
        added = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            getattr(details, "wait_for_ready", None),
            getattr(details, "compression", None),
        )
        return proceed(added, request)

    intercept_unary_unary = intercept_unary_stream = _add
    intercept_stream_unary = intercept_stream_stream = _add


def _read(what: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f"{what}: {path}: {error.strerror}") from None


def _token_of(security: dict[str, str]) -> str:
    where, token = "token", security["token"]
    if security["token_file"]:
        where = "token_file"
        read = _read(where, security[where])
        if read.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError(f"{where}: {security[where]}: is UTF-16 by its byte order mark; save it as UTF-8")
        token = read.removeprefix(codecs.BOM_UTF8).decode("latin-1").strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise ValueError(f"{where}: expected printable ASCII characters without spaces")
    return token


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0]
    return host in ("localhost", "[::1]") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def channel(address: str, security: dict[str, str], options: list[tuple[str, Any]]) -> grpc.Channel:
    """`security`: Security.resolved(). ValueError naming what is missing or cannot be read."""
    if bool(security["tls_cert"]) != bool(security["tls_key"]):
        raise ValueError("tls_cert and tls_key: one is given without the other")
    if security["tls_cert"] and not security["tls_ca"]:
        raise ValueError("tls_ca: is missing beside tls_cert; it says which server is trusted")
    if security["token"] and security["token_file"]:
        raise ValueError("token: given beside token_file; one of them is enough")
    over_unix, with_token = socket_path(address) is not None, bool(security["token"] or security["token_file"])
    if security["tls_ca"] and not over_unix:
        own = [_read(name, security[name]) if security[name] else None for name in ("tls_key", "tls_cert")]
        credentials = grpc.ssl_channel_credentials(_read("tls_ca", security["tls_ca"]), *own)
        made = grpc.secure_channel(address, credentials, options)
    else:
        if with_token and not over_unix and not _is_loopback(address):
            raise ValueError(f"token: would travel to {address} for all to read; tls_ca makes it TLS")
        made = grpc.insecure_channel(address, options)
    if not with_token:
        return made
    _token_of(security)  # said now, not at the first call
    return grpc.intercept_channel(made, _Token(lambda: _token_of(security)))
