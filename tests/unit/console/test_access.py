"""Who may ask the console what: hosts, origins, tokens, passwords, read-only."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hightide.console.access import POLICY, Access, is_loopback, is_same_origin
from hightide.console.logins import FREE_TRIES, Logins
from hightide.console.pages import page_routes
from hightide.console.password import hash_of
from tests.unit.console.quiet_console import ORIGIN, browser, token

SECRET = "correct horse"
CHANGE = "/api/v1/topics"
PASSWORD = hash_of(SECRET)


def test_every_reply_has_the_policy():
    with browser() as client:
        for path in ("/", "/api/v1/session", "/api/v1/nothing", "/static/js/app.js", "/static/no"):
            headers = client.get(path).headers
            assert headers["content-security-policy"] == POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
    assert "unsafe" not in POLICY


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8088", 200),
        ("127.0.0.1:8088", 200),
        ("[::1]:8088", 200),
        ("10.0.0.7", 200),
        ("kafka.example", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_only_names_of_the_console_are_answered(host, status):
    with browser(allowed_hosts=("kafka.example",)) as client:
        for path in ("/", "/api/v1/session", "/livez"):
            assert client.get(path, headers={"Host": host}).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_change_needs_the_token(method):
    with browser() as client:
        answer = client.request(method, CHANGE)
        assert (answer.status_code, answer.json()["code"]) == (403, "token")
        for wrong in ("", "x", "ü"):
            headers = {"X-Hightide-Token": wrong.encode()}
            assert client.request(method, CHANGE, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Origin": "file://localhost"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing_even_with_the_token(headers):
    with browser() as client:
        answer = client.post(CHANGE, headers={"X-Hightide-Token": token(client), **headers})
        assert (answer.status_code, answer.json()["code"]) == (403, "origin")


def test_a_page_of_the_console_may_change():
    with browser() as client:
        headers = {"X-Hightide-Token": token(client), "Origin": ORIGIN}
        # There is no cluster: the request has come through to the route.
        assert client.post(CHANGE, headers=headers, json={}).status_code == 400
        assert client.post("/api/v1/logout", headers=headers).status_code == 200


def test_each_process_has_another_token():
    with browser() as one, browser() as other:
        assert token(one) != token(other)


def test_read_only_refuses_every_change_and_shows_everything():
    with browser(read_only=True) as client:
        session = client.get("/api/v1/session").json()
        assert session["read_only"]
        headers = {"X-Hightide-Token": session["token"]}
        for method in ("POST", "PUT", "DELETE"):
            answer = client.request(method, CHANGE, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (
                403,
                "The console is read-only.",
            )
        assert client.get("/").status_code in {200, 503}  # 503 without the libraries


def test_without_a_session_only_the_page_and_the_login_are_there():
    with browser(PASSWORD) as client:
        assert client.get("/static/js/app.js").status_code == 200
        assert client.get("/livez").status_code == 200
        assert client.get("/api/v1/session").json() == {"login": True}
        for path in ("/api/v1/topics", "/api/v1/overview", "/api/v1/live", "/metrics"):
            assert client.get(path).status_code == 401
        assert client.post(CHANGE).status_code == 401


def test_the_right_password_gives_a_session_that_ends_with_the_logout():
    with browser(PASSWORD) as client:
        wrong = client.post("/api/v1/login", json={"password": "wrong"})
        assert (wrong.status_code, wrong.cookies) == (403, {})
        answer = client.post("/api/v1/login", json={"password": SECRET})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        kept = dict(client.cookies)
        session = client.get("/api/v1/session").json()
        assert (session["login"], session["password"]) == (False, True)
        headers = {"X-Hightide-Token": session["token"]}
        assert client.post("/api/v1/logout", headers=headers).status_code == 200
        # The server has forgotten it, not only the browser.
        for name, value in kept.items():
            client.cookies.set(name, value)
        assert client.get("/api/v1/session").json() == {"login": True}


def test_another_site_cannot_log_in():
    with browser(PASSWORD) as client:
        body = {"password": SECRET}
        answer = client.post("/api/v1/login", json=body, headers={"Origin": "http://evil.example"})
        assert answer.status_code == 403


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"password": 7}', b'{"password": null}'])
def test_a_login_that_is_not_one_is_refused(body):
    with browser(PASSWORD) as client:
        assert client.post("/api/v1/login", content=body).status_code == 400


def test_many_wrong_passwords_have_to_wait():
    with browser(PASSWORD) as client:
        for _ in range(FREE_TRIES):
            assert client.post("/api/v1/login", json={"password": "wrong"}).status_code == 403
        # The right one too: a try tells nothing while the address waits.
        answer = client.post("/api/v1/login", json={"password": SECRET})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0


def test_a_cookie_that_makes_no_sense_is_no_session():
    access = Access(Logins(PASSWORD), port=8088)
    with browser(PASSWORD) as client:
        for cookie in ("hightide_8088=x", "\x00", "=;=;", f"{access.cookie}=" + "a" * 5000):
            answer = client.get("/api/v1/topics", headers={"Cookie": cookie})
            assert answer.status_code == 401


def test_the_session_shows_no_secret():
    with browser(PASSWORD) as client:
        client.post("/api/v1/login", json={"password": SECRET})
        text = client.get("/api/v1/session").text
        assert SECRET not in text
        assert PASSWORD.hash.hex() not in text


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("localhost.example", False),
    ],
)
def test_what_only_this_machine_can_reach(host, expected):
    assert is_loopback(host) is expected


def test_an_origin_is_compared_with_its_port():
    assert is_same_origin("http://localhost:8088", "LOCALHOST:8088")
    assert not is_same_origin("http://localhost:8088", "localhost")
    assert not is_same_origin("http://[", "localhost")


def test_paths_of_pages_get_the_page_and_others_do_not():
    with browser() as client:
        page = client.get("/")
        assert client.get("/t/some.topic.name").content == page.content
        assert client.get("/api/v1/nothing").json() == {"error": "There is nothing here."}
        assert client.get("/favicon.ico").status_code == 404
        assert client.get("/static/../context.py").status_code == 404
        assert client.get("/static/%2e%2e/context.py").status_code == 404


def test_a_file_that_has_not_changed_is_not_sent_again():
    with browser() as client:
        first = client.get("/static/js/app.js")
        assert first.headers["content-type"].startswith("text/javascript")
        assert first.headers["cache-control"] == "no-cache"
        again = client.get("/static/js/app.js", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_without_the_libraries_a_plain_page_says_what_is_missing(tmp_path):
    app = Starlette(routes=page_routes(tmp_path))
    with TestClient(app) as client:
        page = client.get("/t/orders")
        assert page.status_code == 503
        assert "npm" in page.text
        assert "<script" not in page.text
