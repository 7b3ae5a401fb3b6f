"""TLS and tokens, by both clients of a server."""

import codecs
import hashlib
import socket
import subprocess

import pytest

from conftest import start
from seine_kv.address import Security
from seine_kv.client import SeineError

TOKEN = "s3cret"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"SEINE_{name}", raising=False)


@pytest.fixture
def tokens(tmp_path):
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    path = tmp_path / "tokens.yaml"
    path.write_text(f"- {{sha256: {digest}, tenant: acme, role: admin}}\n")
    return path


@pytest.fixture
def unix_server(tmp_path, tokens):
    path = tmp_path / "seine.sock"
    process = start(path, "--auth-tokens-file", str(tokens), "--auth-unix", "token")
    yield f"unix://{path}"
    process.terminate()
    assert process.wait(timeout=20) == 0


@pytest.fixture
def certificates(tmp_path):
    """A folder with ca.pem, other.pem, and server.pem and .key of ca."""

    def run(*words):
        subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)

    def key(name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key"]

    for name in ("ca", "other"):
        run("req", "-x509", *key(name), "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}")
    (tmp_path / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    run("req", *key("server"), "-out", "server.csr", "-subj", "/CN=server")
    authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    run("x509", "-req", "-in", "server.csr", *authority, "-days", "1", "-extfile", "san", "-out", "server.pem")
    return tmp_path


@pytest.fixture
def tls_server(certificates, tokens):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = ["--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key"]
    process = start(None, *map(str, flags), "--auth-tokens-file", str(tokens), address=address)
    yield address
    process.terminate()
    assert process.wait(timeout=20) == 0


def error_of(connect, address, security):
    with connect(address, 10.0, security=security) as client:
        with pytest.raises(SeineError) as caught:
            client.list_indexes()
    return caught.value


def ready(connect, address, security):
    client = connect(address, 10.0, security=security)
    client.wait_until_ready(20)
    return client


def test_a_token_over_a_unix_socket(connect, unix_server, tmp_path, monkeypatch):
    with ready(connect, unix_server, Security(token=TOKEN)) as client:
        client.create_index("x", num_layers=1, num_q_heads=2, num_kv_heads=1, head_dim=64)
        sequence = client.create_sequence("x", "s")
        with client.decode_stream() as stream:
            assert stream.step().error is None
        assert sequence.id == "s"
    assert error_of(connect, unix_server, Security()).code == "UNAUTHENTICATED"
    assert error_of(connect, unix_server, Security(token="wrong")).code == "UNAUTHENTICATED"
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with connect(unix_server, 10.0, security=Security(token_file=tmp_path / "token")) as client:
        assert [index["spec"]["name"] for index in client.list_indexes()] == ["x"]
    monkeypatch.setenv("SEINE_TOKEN", TOKEN)
    with connect(unix_server, 10.0) as client:
        assert len(client.list_indexes()) == 1
    assert error_of(connect, unix_server, Security(token="wrong")).code == "UNAUTHENTICATED"


def test_tls(connect, tls_server, certificates, monkeypatch):
    trusted = Security(tls_ca=certificates / "ca.pem", token=TOKEN)
    with ready(connect, tls_server, trusted) as client:
        assert client.list_indexes() == []
    other = error_of(connect, tls_server, Security(tls_ca=certificates / "other.pem", token=TOKEN))
    assert other.code == "UNAVAILABLE"
    assert error_of(connect, tls_server, Security(tls_ca=certificates / "ca.pem")).code == "UNAUTHENTICATED"
    assert error_of(connect, tls_server, Security(token=TOKEN)).code == "UNAVAILABLE"
    monkeypatch.setenv("SEINE_TLS_CA", str(certificates / "ca.pem"))
    monkeypatch.setenv("SEINE_TOKEN", TOKEN)
    with connect(tls_server, 10.0) as client:
        assert client.list_indexes() == []


@pytest.mark.parametrize("mark, says", [(codecs.BOM_UTF8, None), (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16")])
def test_a_byte_order_mark_is_passed_over_or_named(connect, unix_server, tmp_path, mark, says):
    """As editors of Windows save a file."""
    (tmp_path / "marked").write_bytes(mark + (TOKEN + "\r\n").encode("utf-8" if says is None else "utf-16-le"))
    security = Security(token_file=tmp_path / "marked")
    with ready(connect, unix_server, Security(token=TOKEN)):  # the server serves
        pass
    if says is None:
        with connect(unix_server, 10.0, security=security) as client:
            assert client.list_indexes() == []
    else:
        with pytest.raises((ValueError, SeineError), match=f"token_file: .*marked: is {says} by its byte order mark"):
            with connect(unix_server, 10.0, security=security) as client:
                client.list_indexes()


def test_what_cannot_be_right_is_said(connect, tmp_path):
    for security, says in [
        (Security(tls_cert="a.pem"), "tls_key"),
        (Security(tls_cert="a.pem", tls_key="a.key"), "tls_ca"),
        (Security(tls_ca=tmp_path / "none.pem"), "tls_ca"),
        (Security(token="a", token_file="b"), "token"),
        (Security(token="a b"), "token"),
        (Security(token_file=tmp_path / "none"), "token_file"),
    ]:
        with pytest.raises((ValueError, SeineError), match=says):
            with connect("127.0.0.1:1", 1.0, security=security) as client:
                client.list_indexes()
    with pytest.raises((ValueError, SeineError), match="for all to read"):
        with connect("192.0.2.1:50051", 1.0, security=Security(token="a")) as client:
            client.list_indexes()


def test_a_token_is_not_shown():
    assert TOKEN not in repr(Security(token=TOKEN))
