"""Web pages in Chromium: those of other origins neither change nor read anything; the server's own works."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.chromium import needs_chromium, running_chromium
from tests.end_to_end.conftest import Files
from tests.server import Server, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MODEL = "projects/local/models/flowers"
VICTIM = "victim.example"
# Leads to this machine, as the name of an attacker's page may from one request to the next.
FLAGS = (
    f"--host-resolver-rules=MAP {VICTIM} 127.0.0.1, MAP evil.example 127.0.0.1",
    # What a later Chromium asks its user before a page reaches this machine must not stand in for the server.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)

pytestmark = needs_chromium

# What a page tries; each answers what it could read, null if that was nothing.
READ = """async ([url, options]) => {
  try {
    const response = await fetch(url, options);
    return response.type === 'opaque' ? null : [response.status, await response.text()];
  } catch { return null; }
}"""
FORM = """([action, method, enctype]) => new Promise(done => {
  const frame = document.createElement('iframe');
  frame.name = 'target' + Math.random();
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, { action, method, enctype, target: frame.name });
  const field = document.createElement('input');
  // As text/plain it is JSON: {"name": "made_by_a_page", "description": "="}
  field.name = '{"name": "made_by_a_page", "description": "';
  field.value = '"}';
  form.append(field);
  document.body.append(form);
  frame.onload = () => {
    try {
      done(frame.contentDocument?.body.innerText || null);
    } catch { done(null); }
  };
  form.submit();
})"""
TAG = """([tag, url]) => new Promise(done => {
  const element = document.createElement(tag);
  element.onload = () => done('loaded');
  element.onerror = () => done(null);
  if (tag === 'link') { element.rel = 'stylesheet'; element.href = url; } else { element.src = url; }
  document.body.append(element);
})"""
SOCKET = """url => new Promise(done => {
  const socket = new WebSocket(url);
  socket.onopen = () => done('open');
  socket.onerror = () => done(null);
})"""


@dataclass
class Site:
    """An attacker's web site: an empty page."""

    port: int

    def url(self, host: str) -> str:
        return f"http://{host}:{self.port}/"


@contextmanager
def running_site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><title>evil</title><body></body>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield Site(site.server_port)
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("browser") / "state") as server:
        server.create_model(MODEL)
        server.create_version(f"{MODEL}/versions/v1", deploymentUri=str(files.root / "sklearn"))
        yield server


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium(FLAGS) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(30_000)
    yield page
    page.close()


@pytest.fixture
def unchanged(server: Server) -> Iterator[None]:
    """Nothing is changed, and nothing is predicted."""

    def state() -> tuple[Any, Any]:
        metrics = server.http.get(f"{server.url}/metrics").text.splitlines()
        counted = [line for line in metrics if line.startswith("pilotlight_predictions_total")]
        return server.call("GET", "projects/local/models").json, counted

    before = state()
    yield
    assert state() == before


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.example"])
def test_a_page_of_another_origin_reads_and_changes_nothing(
    server: Server, site: Site, page: Page, unchanged: None, host: str
) -> None:
    """On another port of this machine, or elsewhere: with fetch, forms, tags and sockets."""
    page.goto(site.url(host))
    reads = ("/docs", "/openapi.json", "/metrics", "/nodes", "/v1/projects/local/models", "/v2", "/healthz")
    writes = {
        "/v1/projects/local/models": {"name": "made_by_a_page"},
        f"/v1/{MODEL}/versions": {"name": "v2", "deploymentUri": "/tmp/pickle"},
        f"/v1/{MODEL}:predict": {"instances": [[1, 2, 3, 4]]},
        "/v1/models/flowers:predict": {"instances": [[1, 2, 3, 4]]},
        "/v2/models/flowers/infer": {"inputs": []},
    }
    tried: list[tuple[str, dict[str, Any]]] = [
        *((path, {"mode": mode}) for path in reads for mode in ("cors", "no-cors", "same-origin")),
        *(
            (
                path,
                {"method": "POST", "mode": mode, "body": json.dumps(body), "headers": {"content-type": kind}},
            )
            for path, body in writes.items()
            for mode in ("cors", "no-cors")
            for kind in ("text/plain", "application/json")
        ),
        *((f"/v1/{MODEL}", {"method": method, "mode": "cors"}) for method in ("DELETE", "PATCH", "PUT")),
    ]
    for path, options in tried:
        assert page.evaluate(READ, [server.url + path, options]) is None, (path, options)
    for path in writes:
        for enctype in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
            assert page.evaluate(FORM, [server.url + path, "post", enctype]) is None
    for tag in ("img", "script", "link"):
        for path in ("/docs", "/openapi.json", "/v1/projects/local/models"):
            assert page.evaluate(TAG, [tag, server.url + path]) is None
    assert page.evaluate(SOCKET, server.url.replace("http", "ws") + "/docs") is None


def test_a_page_whose_name_was_made_to_lead_here_reads_and_changes_nothing(
    server: Server, page: Page, unchanged: None
) -> None:
    """To the browser it is of the server's origin."""
    url = server.url.replace("127.0.0.1", VICTIM)
    answer = page.goto(f"{url}/docs")
    assert answer is not None
    assert answer.status == 403
    assert "allowed_hosts" in answer.text()
    body = json.dumps({"name": "made_by_a_page"})
    for path, options in (
        ("/openapi.json", {}),
        ("/v1/projects/local/models", {}),
        ("/v1/projects/local/models", {"method": "POST", "body": body}),
        (f"/v1/{MODEL}", {"method": "DELETE"}),
    ):
        status, text = page.evaluate(READ, [url + path, options])
        assert (status, "allowed_hosts" in text) == (403, True)


def test_the_servers_own_page_works(server: Server, page: Page) -> None:
    """It is opened, tells of the model and predicts, by either name of loopback."""
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        answer = page.goto(f"{url}/docs")
        assert answer is not None
        assert answer.status == 200
        page.get_by_role("button", name="flowers").click()
        page.get_by_role("button", name="Send").click()
        page.get_by_text("200 after").wait_for()
        assert "predictions" in page.locator("#answer").inner_text()
