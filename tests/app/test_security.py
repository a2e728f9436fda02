"""Who is refused: no token, other sites, other names, other paths, large bodies, markup."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from annotators import Client, in_thread
from light_server import CLASSES, Chooser

from jurygcn.app import routes
from jurygcn.app.guard import LARGEST_BODY, Guard
from jurygcn.app.rounds import Source
from jurygcn.app.server import Settings

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = Settings(Source("ring"), tmp_path_factory.mktemp("security") / "answers.sqlite", batch=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes, "Background", Chooser)
        with in_thread(settings) as made:
            made.client().wait_until_ready()
            yield made


@pytest.fixture
def client(server) -> Client:
    return server.client()


def asked(**fields: object) -> bytes:
    return json.dumps({"annotator": "ann", "tab": "1", **fields}).encode()


def test_it_listens_on_loopback_only(server):
    """Another address of this machine does not answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells the address of this machine
            own = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but loopback")
    if own.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
        socket.create_connection((own, server.parts.port), timeout=5)


@pytest.mark.parametrize(
    "path",
    ["/", "/wrong/", "/wrong/api/state", "/api/state?annotator=a", "//", "/%00/", "/%C3%BC"],
)
def test_without_the_token_nothing_is_found(client, path):
    status, text, _ = client.send("GET", path[1:], token=False)
    assert status == 404
    assert text == "Open the address that jurygcn printed."


def test_a_part_of_the_token_is_not_enough(client, server):
    token = server.parts.path.strip("/")
    for wrong in (token[:-1], token + "x", token.swapcase()):
        assert client.send("GET", f"{wrong}/", token=False)[0] == 404
    assert client.send("GET", f"{token}/", token=False)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1.evil:{port}"]
)
def test_other_hosts_are_refused(client, server, host):
    """A site whose name is pointed at 127.0.0.1 (DNS rebinding) sends its own name."""
    status, _, _ = client.send("GET", "", headers={"Host": host.format(port=server.parts.port)})
    assert status == 421


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_own_names_are_accepted(client, server, name):
    assert client.send("GET", "", headers={"Host": f"{name}:{server.parts.port}"})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_requests_of_other_sites_are_refused(client, headers):
    before = client.state()["labels"]
    body = asked(node=3, kind="label", label=0)
    assert client.send("POST", "api/answer", body, {**JSON, **headers})[0] == 403
    assert client.send("GET", "api/state?annotator=ann", headers=headers)[0] == 403
    assert client.send("GET", "export/labels.csv", headers=headers)[0] == 403
    assert client.state()["labels"] == before


def test_a_link_to_the_page_may_be_followed(client):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.send("GET", "", headers=headers)[0] == 200
    assert client.send("GET", "", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})[0] == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_forms_are_refused(client, kind):
    assert client.send("POST", "api/answer", asked(node=3, kind="label", label=0), {"Content-Type": kind})[0] == 400


def test_no_cross_origin_permission_is_given(client):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    status, _, found = client.send("OPTIONS", "api/answer", headers=headers)
    assert status == 403
    assert not [name for name in found if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "../../../../etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "export/../../answers.sqlite",
        "export/answers.sqlite",
        "export/..%2fanswers.sqlite",
        "picture/0/0",
        "picture/-1/0",
        "picture/99999999999999999999/0",
        "picture/0/..%2f",
        "label.js",
        "%2e%2e/",
    ],
)
def test_no_file_can_be_reached(client, path):
    status, text, _ = client.send("GET", path)
    assert status in (404, 405)
    assert "root:" not in text


def peak_memory() -> int:
    """The most memory of this process so far, in kilobytes; 0 where the system does not tell."""
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def test_a_hundred_megabytes_are_refused(server):
    """By the stated length, and without one while they arrive; the server goes on."""
    before = peak_memory()
    for header in (b"Content-Length: 104857600", b"Transfer-Encoding: chunked"):
        with socket.create_connection((server.parts.hostname, server.parts.port), timeout=20) as line:
            start = f"POST {server.parts.path}api/answer HTTP/1.1\r\nHost: {server.parts.netloc}\r\n"
            line.sendall(start.encode() + b"Content-Type: application/json\r\n" + header + b"\r\n\r\n")
            piece, sent = b"x" * 65536, 0
            try:
                while sent < 100 << 20:
                    line.sendall(b"10000\r\n" + piece + b"\r\n" if b"chunked" in header else piece)
                    sent += len(piece)
                    line.settimeout(0.0 if sent >= 8 << 20 else 20)
            except OSError:  # the server has closed the connection, or does not read on
                pass
            line.settimeout(20)
            try:
                answer = line.recv(100)
            except OSError:
                answer = b""
            assert answer == b"" or b" 413 " in answer
            assert sent < 100 << 20
    assert server.client().state()["ready"]
    assert peak_memory() - before < 60_000


def test_the_limit_of_a_body(client):
    body = asked(node=1, kind="skip", padding="x" * (LARGEST_BODY - 200))
    assert client.send("POST", "api/answer", body, JSON)[0] == 200
    assert client.send("POST", "api/answer", body + b" " * 300, JSON)[0] == 413


@pytest.mark.parametrize(
    "fields",
    [
        {"node": -1},
        {"node": 60},
        {"node": True},
        {"node": "1"},
        {"node": None},
        {"label": 3},
        {"label": -1},
        {"label": 0.5},
        {"kind": "other"},
        {"kind": "label", "label": None},
        {"annotator": ""},
        {"annotator": "x" * 61},
        {"annotator": "a\u0000b"},
        {"annotator": ["ann"]},
        {"comment": "x" * 2001},
        {"comment": "\ud800"},
        {"request": 5},
    ],
)
def test_impossible_answers_are_refused(client, fields):
    before = client.state()["labels"]
    status, found = client.post("answer", **{"node": 5, "kind": "label", "label": 1, "request": "r", **fields})
    assert status == 400
    assert found["error"].startswith("expected")
    assert client.state()["labels"] == before


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"[" * 30000, b"\xff", b"NaN"])
def test_bodies_that_are_no_objects(client, body):
    assert client.send("POST", "api/next", body, JSON)[0] == 400


def test_unknown_actions(client):
    assert client.post("delete")[0] == 400
    assert client.send("PUT", "api/answer", b"{}", JSON)[0] == 405


def test_headers_of_every_reply(client):
    for path in ("", "api/state?annotator=ann", "nowhere", "export/labels.csv"):
        _, _, headers = client.send("GET", path)
        found = {name.lower(): value for name, value in headers.items()}
        policy = found["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert "unsafe" not in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"
        assert found["cache-control"] == "no-store"
        assert "server" not in found


def test_markup_in_names_and_comments_is_data(client):
    words = "</script><script>alert(1)</script> =1+1"
    status, _ = client.answer(7, 2, comment=words, request="m")
    assert status == 200
    _, found = client.post("look", node=7)
    assert found["page"]["before"]["comment"] == words
    assert found["page"]["name"] == "<b>node</b> 7"
    status, text, headers = client.send("GET", "export/answers.csv")
    assert headers["content-type"].startswith("text/csv")
    assert headers["content-disposition"] == 'attachment; filename="answers.csv"'
    assert words in text
    assert CLASSES[2] in text
    page = client.send("GET", "")[1]
    assert "onerror" not in page


@pytest.mark.parametrize(
    ("host", "name", "accepted"),
    [
        ("127.0.0.1", "192.168.0.9", False),
        ("0.0.0.0", "192.168.0.9", True),
        ("0.0.0.0", "evil.example", False),
        ("lab.example", "lab.example", True),
        ("lab.example", "evil.example", False),
        ("::", "[fe80::1]", True),
    ],
)
def test_hosts_of_a_shared_server(host, name, accepted):
    guard = Guard(None, "token", host, 80 if name.endswith("80") else 8000)  # type: ignore[arg-type]
    assert guard.right_host(f"{name}:8000") is accepted
    assert not guard.right_host(f"{name}:8001")
