"""Which requests of browsers are answered, as a table."""

from __future__ import annotations

import pytest

from serving.config import ServerSettings
from serving.errors import InvalidArgument
from serving.transport.cross_origin import CrossOriginPolicy


def policy(
    listening: str | None = "127.0.0.1", *, hosts: str = "", origins: str = "", scheme: str = "http"
) -> CrossOriginPolicy:
    settings = ServerSettings(allowed_hosts=hosts, allowed_origins=origins)
    return CrossOriginPolicy.from_settings(settings, listening, enforced=True, scheme=scheme)


def refused(
    found: CrossOriginPolicy, host: str | None, origin: str | None = None, fetch_site: str | None = None
) -> str:
    """The setting that a refusal names; "" if there is none."""
    told = [None if value is None else value.encode() for value in (host, origin, fetch_site)]
    error = found.find_violation(*told)
    if error is None:
        return ""
    (setting,) = (
        name for name in ("allowed_hosts", "allowed_origins") if f"(setting {name})" in error.message
    )
    assert f"--{setting.replace('_', '-')}" in error.message
    return setting


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "localhost.", "a.localhost:8080", "127.0.0.1", "127.8.9.1:1", "[::1]:8080"],
)
def test_loopback_is_always_the_server(host: str) -> None:
    """By its names and its addresses, with any port: a proxy may stand in front."""
    assert refused(policy(), host) == ""
    assert refused(policy("0.0.0.0"), host) == ""
    assert refused(policy("192.0.2.1"), host) == ""


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
        ),
        *(
            "192.0.2.7",
            "[2001:db8::1]",
            "0.0.0.0",
            "",
            "a b",
            "localhost,evil.example",
            "user@localhost",
            "é",
        ),
        *("localhost:port", "x" * 70_000),
    ],
)
def test_other_hosts_are_refused(host: str) -> None:
    """A page can have its own name lead here."""
    assert refused(policy(), host) == "allowed_hosts"


def test_addresses_are_the_server_where_it_listens_on_all() -> None:
    """No page can have its name lead to an address, because it has none; a name needs the setting."""
    for listening in ("0.0.0.0", "::"):
        assert refused(policy(listening), "192.0.2.7:8080") == ""
        assert refused(policy(listening), "[2001:db8::1]") == ""
        assert refused(policy(listening), "pilotlight.internal") == "allowed_hosts"
    assert refused(policy("192.0.2.7"), "192.0.2.7:8080") == ""
    assert refused(policy("192.0.2.7"), "192.0.2.8:8080") == "allowed_hosts"
    assert refused(policy("::1"), "[::1]:8080") == ""
    assert refused(policy("ml.internal"), "ml.internal:8080") == ""


def test_hosts_can_be_allowed() -> None:
    """By name, by domain, by address, or all; on a unix socket no name leads to the server."""
    some = policy(hosts="pilotlight.internal, *.ml.example,192.0.2.7, [2001:db8::1]")
    for host in ("Pilotlight.internal:80", "a.b.ml.example", "192.0.2.7:1", "[2001:DB8::1]:80"):
        assert refused(some, host) == ""
    for host in ("ml.example", "evil-ml.example", "a.pilotlight.internal", "192.0.2.8"):
        assert refused(some, host) == "allowed_hosts"
    assert refused(policy(hosts="*"), "evil.example") == ""
    assert refused(policy(None), "anything") == ""


def test_who_is_no_browser_tells_nothing() -> None:
    """Not even a host, in HTTP/1.0."""
    assert refused(policy(), None) == ""
    assert refused(policy(), "127.0.0.1:8080") == ""


@pytest.mark.parametrize(
    ("origin", "fetch_site"),
    [
        *((None, site) for site in ("none", "same-origin")),
        *(("http://127.0.0.1:8080", site) for site in (None, "none", "same-origin")),
        # A proxy in front that speaks TLS.
        ("https://127.0.0.1:8080", "same-origin"),
    ],
)
def test_the_servers_own_pages_are_answered(origin: str | None, fetch_site: str | None) -> None:
    """And what is typed into the address bar."""
    assert refused(policy(), "127.0.0.1:8080", origin, fetch_site) == ""


@pytest.mark.parametrize(
    ("origin", "fetch_site"),
    [
        *((None, site) for site in ("cross-site", "same-site", "", "none, cross-site", "else")),
        *(("http://127.0.0.1:8080", site) for site in ("cross-site", "same-site", "else")),
        *((origin, None) for origin in ("http://evil.example", "null", "", "http://127.0.0.1:8081")),
        *(
            (origin, None)
            for origin in ("http://127.0.0.1", "http://localhost:8080", "https://127.0.0.1:8080")
        ),
        *((origin, None) for origin in ("file://", "http://127.0.0.1:8080/", "http://127.0.0.1:8080, null")),
        *((origin, "same-origin") for origin in ("http://evil.example", "null")),
    ],
)
def test_pages_of_others_are_refused(origin: str | None, fetch_site: str | None) -> None:
    """Whoever says so: the browser's word about the site, or the origin."""
    assert refused(policy(), "127.0.0.1:8080", origin, fetch_site) == "allowed_origins"


def test_ports_that_need_not_be_said_are_the_same() -> None:
    """Those of the schemes."""
    assert refused(policy(hosts="a.example"), "a.example", "http://a.example:80") == ""
    assert refused(policy(hosts="a.example"), "a.example:80", "http://a.example") == ""
    secure = policy(hosts="a.example", scheme="https")
    assert refused(secure, "a.example", "https://a.example") == ""
    assert refused(secure, "a.example", "http://a.example") == "allowed_origins"


def test_origins_can_be_allowed() -> None:
    """To the letter; only their scripts may read answers."""
    some = policy(origins="https://app.example, http://localhost:3000")
    for origin in ("https://app.example", "http://localhost:3000"):
        assert refused(some, "localhost:8080", origin, "cross-site") == ""
        assert (b"access-control-allow-origin", origin.encode()) in some.response_headers(origin.encode())
    for origin in ("http://app.example", "https://app.example:444", "http://localhost:3001"):
        assert refused(some, "localhost:8080", origin) == "allowed_origins"
        assert some.response_headers(origin.encode()) == ()
    assert refused(some, "evil.example", "https://app.example") == "allowed_hosts"


def test_with_access_control_nothing_is_refused() -> None:
    """A token in a header is not the browser's to give; scripts of allowed origins may read answers."""
    settings = ServerSettings(allowed_origins="https://app.example")
    found = CrossOriginPolicy.from_settings(settings, "0.0.0.0", enforced=False)
    assert refused(found, "evil.example", "http://evil.example", "cross-site") == ""
    assert found.response_headers(b"https://app.example")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("hosts", value) for value in ("a:80", "http://a", "a b", "*a", "a.*", "*.")),
        *(("origins", value) for value in ("*", "null", "a.example", "https://a/", "ftp://a", "https://a b")),
    ],
)
def test_what_is_no_host_or_origin_is_told(setting: str, value: str) -> None:
    """At the start."""
    with pytest.raises(InvalidArgument, match=f"^allowed_{setting}: "):
        policy(**{setting: value})
