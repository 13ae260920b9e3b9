"""What Google's clients send besides ordinary requests lets nobody in who could not come by one."""

from __future__ import annotations

import asyncio
import gzip
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from serving.gateway.access.policy import ADMIN
from serving.gateway.api.batch_requests import BatchRequestsApi
from serving.gateway.api.in_process import InProcessApi
from tests.serving.gateway.access.world import Api, run

PROJECT, MODELS, MODEL = "/v1/projects/p", "/v1/projects/p/models", "/v1/projects/p/models/m"
ANN, BOB = "user:ann@example.com", "user:bob@example.com"
OWN = ADMIN.principal
FORM = "application/x-www-form-urlencoded"


async def override(api: Api, who: str, verb: str, path: str, body: Any = None, **headers: str) -> Any:
    """A POST that means another verb."""
    headers = {"x-http-method-override": verb, **headers}
    return await api.send(who, "POST", path, body, **headers)


async def send_batch(api: Api, who: str, *parts: str, **headers: str) -> list[tuple[int, str]]:
    """The status and the rest of what each part is answered with."""
    text = "".join(f"--b\r\nContent-Type: application/http\r\n\r\n{part}\r\n" for part in parts) + "--b--"
    headers["content-type"] = "multipart/mixed; boundary=b"
    if who:
        headers["authorization"] = f"Bearer {await api.token(who)}"
    response = await api.client.post("/batch", content=text, headers=headers)
    assert response.status_code == 200, response.text
    boundary = response.headers["content-type"].partition("boundary=")[2]
    found = response.text.split(f"--{boundary}")[1:-1]
    return [(int(one.split("HTTP/1.1 ")[1][:3]), one.split("HTTP/1.1 ")[1]) for one in found]


def get(path: str, *headers: str) -> str:
    return "\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""])


def post(path: str, body: str, *headers: str) -> str:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Content-Type: application/json", *headers, "", body])


def test_a_verb_in_a_header_takes_the_permission_of_that_verb(tmp_path: Path) -> None:
    """Neither more nor less: who may make models may not delete one by a POST, who may look may look."""

    async def main(api: Api) -> None:
        await api.call(OWN, "POST", MODELS, {"name": "m"})
        await api.bind("projects/p", ml_developer=ANN, ml_viewer=BOB)
        body = {"description": "changed"}
        for who, verb, status in (
            (OWN, "PATCH", 200),
            (BOB, "PATCH", 403),
            ("", "PATCH", 401),
            (ANN, "DELETE", 403),
            (BOB, "GET", 200),
            ("", "GET", 401),
        ):
            path = f"{MODEL}?updateMask=description" if verb == "PATCH" else MODEL
            answer = await override(api, who, verb, path, body if verb == "PATCH" else None)
            assert answer.status_code == status, (who, verb, answer.text)
            if status == 403:
                needed = {"PATCH": "ml.models.update", "DELETE": "ml.models.delete"}[verb]
                assert needed in answer.json()["error"]["message"]
        assert (await api.call(OWN, "GET", MODEL))["description"] == "changed"
        # What is a POST alone is no GET, and what has no POST takes none.
        assert (await override(api, OWN, "GET", f"{MODEL}:setIamPolicy")).status_code == 405
        assert (await override(api, OWN, "PUT", MODEL)).status_code == 405
        assert (await override(api, BOB, "POST", MODELS, {"name": "n"})).status_code == 403

    run(tmp_path, main)


@pytest.mark.parametrize("verb", ["HEAD", "OPTIONS", "CONNECT", "TRACE", "patch", "", "PATCH, GET"])
def test_not_every_verb_can_be_meant(tmp_path: Path, verb: str) -> None:
    """And only a POST can mean another one."""

    async def main(api: Api) -> None:
        answer = await override(api, OWN, verb, MODEL)
        assert answer.status_code == 400
        assert "X-HTTP-Method-Override" in answer.json()["error"]["message"]
        assert answer.headers["x-request-id"]
        other = await api.send(OWN, "GET", MODELS, **{"x-http-method-override": "DELETE"})
        assert other.status_code == 400
        twice = httpx.Headers([("x-http-method-override", "GET"), ("x-http-method-override", "DELETE")])
        assert (await api.client.post(MODEL, headers=twice)).status_code == 400

    run(tmp_path, main)


def test_a_long_query_comes_as_a_body(tmp_path: Path) -> None:
    """Packed or not, as a form and not as anything else; it is as long as a head may be."""

    async def main(api: Api) -> None:
        await api.call(OWN, "POST", MODELS, {"name": "m"})
        token = f"Bearer {await api.token(OWN)}"
        absent = " OR ".join(f"name:absent_for_a_long_time_{number}" for number in range(70))
        query = str(httpx.QueryParams({"filter": f"name:m OR {absent}", "pageSize": "1"})).encode()
        assert len(query) > 2048
        about = {"x-http-method-override": "GET", "authorization": token, "content-type": FORM}
        for content, more in ((query, {}), (gzip.compress(query), {"content-encoding": "gzip"})):
            answer = await api.client.post(MODELS, content=content, headers={**about, **more})
            assert [model["name"] for model in answer.json()["models"]] == ["projects/p/models/m"]
        both = await api.client.post(f"{MODELS}?fields=models/etag", content=query, headers=about)
        assert [list(model) for model in both.json()["models"]] == [["etag"]]
        for content, more, status in (
            (query, {"content-type": "application/json"}, 400),
            ("name=ö".encode(), {}, 400),
            (b"a" * (1 << 17), {}, 413),
            (gzip.compress(b"a" * (1 << 20)), {"content-encoding": "gzip"}, 413),
            (query, {"content-encoding": "gzip"}, 400),
            (query, {"content-encoding": "zstd"}, 415),
        ):
            answer = await api.client.post(MODELS, content=content, headers={**about, **more})
            assert answer.status_code == status, answer.text

    run(tmp_path, main)


def test_packed_bodies_are_read_for_those_who_may_send_one(tmp_path: Path) -> None:
    """Up to the limit, which counts what is unpacked; nobody else's is unpacked at all."""

    async def main(api: Api) -> None:
        own, nobody = [f"Bearer {await api.token(who)}" for who in (OWN, BOB)]
        for content, encoding, token, status in (
            (gzip.compress(b'{"name": "m"}'), "gzip", own, 200),
            (b'{"name": "n"}', "identity", own, 200),
            (gzip.compress(b'{"name": "o"}'), "gzip", nobody, 403),
            (b"no gzip", "gzip", nobody, 403),
            (b"no gzip", "gzip", own, 400),
            (gzip.compress(b" " * ((4 << 20) + 1)), "gzip", own, 413),
            (b"x", "br", own, 415),
        ):
            headers = {"content-encoding": encoding, "authorization": token}
            answer = await api.client.post(MODELS, content=content, headers=headers)
            assert answer.status_code == status, (encoding, answer.text)
            assert api.gateway._prediction_proxy.held_bytes == 0
        assert answer.headers["accept-encoding"] == "gzip, deflate"
        api.gateway._prediction_proxy.queue_bytes = 1000
        api.gateway._prediction_proxy.held_bytes = 900
        full = await api.client.post(
            MODELS, content=gzip.compress(b" " * 200 + b"{}"), headers={**headers, "content-encoding": "gzip"}
        )
        assert (full.status_code, api.gateway._prediction_proxy.held_bytes) == (429, 900)
        api.gateway._prediction_proxy.held_bytes = 0

    run(tmp_path, main)


def test_each_part_of_a_batch_is_let_in_by_itself(tmp_path: Path) -> None:
    """By its own token, or by that of the batch; a batch of somebody unknown is not even read."""

    async def main(api: Api) -> None:
        await api.call(OWN, "POST", MODELS, {"name": "m"})
        await api.bind("projects/p", ml_viewer=BOB)
        own = f"Authorization: Bearer {await api.token(OWN)}"
        make, change = post(MODELS, '{"name": "n"}'), "X-HTTP-Method-Override: PATCH"
        mask = f"{MODEL}?updateMask=description"
        answers = await send_batch(
            api,
            BOB,
            get(MODEL),
            make,
            make.replace("\r\n\r\n", f"\r\n{own}\r\n\r\n"),
            get(MODEL, "Authorization: Bearer nonsense"),
            post(mask, '{"description": "d"}', change),
            post(mask, '{"description": "d"}', change, own),
            post(f"{MODEL}:predict", "{}"),
            post(f"{MODEL}:predict", "{}", own),
            get("/v1/nothing"),
            get(f"{MODELS}?fields=models/name&pageSize=1"),
        )
        assert [status for status, _ in answers] == [200, 403, 200, 401, 403, 200, 403, 400, 404, 200]
        assert "ml.models.create" in answers[1][1]
        assert "ml.models.update" in answers[4][1]
        assert "ml.models.predict" in answers[6][1]
        assert answers[9][1].endswith(
            '{"models":[{"name":"projects/p/models/m"}],"nextPageToken":"x"}\r\n'
        ) or ('"models":[{"name":"projects/p/models/m"}]' in answers[9][1])
        anonymous = await send_batch(api, "", get(MODEL), get(MODEL, own))
        assert [status for status, _ in anonymous] == [401, 200]
        refused = await api.send("", "POST", "/batch", authorization="Bearer nonsense")
        assert refused.status_code == 401

    run(tmp_path, main)


def request_of(body: bytes, *, asked_before_leaving: int | None = None) -> Request:
    """A batch as its endpoint gets it; the client may leave once it has been asked for more so many times."""
    asked = 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            return {"type": "http.request", "body": body, "more_body": False}
        if asked_before_leaving is None or asked <= asked_before_leaving + 1:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    headers = [(b"content-type", b"multipart/mixed; boundary=b")]
    return Request({"type": "http", "method": "POST", "path": "/batch", "headers": headers}, receive)


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    """By the size of its body, of its answers and by its time; what is left then says so."""

    async def main(api: Api) -> None:
        await api.call(OWN, "POST", MODELS, {"name": "m"})
        headers = {"content-type": "multipart/mixed; boundary=b"}
        for content, status in ((b"x" * (4 << 20) + b"x", 413), (b"--b", 400)):
            answer = await api.client.post("/batch", content=content, headers=headers)
            assert answer.status_code == status
        for seconds, most, most_of_all, statuses in (
            (60.0, 1 << 20, 1 << 20, [200, 200]),
            (0.0, 1 << 20, 1 << 20, [504, 504]),
            (60.0, 1, 1 << 20, [200, 429]),
            (60.0, 1 << 20, 1, [200, 429]),
        ):
            batches = BatchRequestsApi(
                InProcessApi(api.gateway, api.gateway.prediction_handler),
                seconds=seconds,
                max_answer_bytes=most,
                unsent_bytes=most_of_all,
            )
            body = f"--b\r\nContent-Type: application/http\r\n\r\n{get('/v2/health/live')}\r\n" * 2 + "--b--"
            for _ in range(2):  # what was counted is free again
                response = await batches.answer_batch(request_of(body.encode()))
                found = re.findall(rb"^HTTP/1.1 (\d+) ", bytes(response.body), re.MULTILINE)
                assert [int(status) for status in found] == statuses

    run(tmp_path, main)


def test_nothing_is_done_for_a_client_that_has_left(tmp_path: Path) -> None:
    """The parts that are left are not begun."""

    async def main(api: Api) -> None:
        token = f"Authorization: Bearer {await api.token(OWN)}"
        parts = (post(MODELS, f'{{"name": "m{number}"}}', token) for number in range(5))
        body = "".join(f"--b\r\nContent-Type: application/http\r\n\r\n{part}\r\n" for part in parts) + "--b--"
        batches = BatchRequestsApi(
            InProcessApi(api.gateway, api.gateway.prediction_handler),
            seconds=60,
            max_answer_bytes=1 << 20,
            unsent_bytes=1 << 20,
        )
        await batches.answer_batch(request_of(body.encode(), asked_before_leaving=2))
        made = (await api.call(OWN, "GET", MODELS))["models"]
        assert [model["name"].rpartition("/")[2] for model in made] == ["m0", "m1"]

    run(tmp_path, main)


def test_the_log_of_a_job_is_for_those_who_may_see_the_job(tmp_path: Path) -> None:
    """Whatever a filter says: it names one job."""

    async def main(api: Api) -> None:
        await api.bind("projects/p", ml_viewer=BOB)
        asked = {"resourceNames": ["projects/p"], "filter": 'resource.labels.job_id="j"'}
        assert await api.call(BOB, "POST", "/v2/entries:list", asked) == {}
        refused = await api.call(ANN, "POST", "/v2/entries:list", asked, 403)
        assert "ml.jobs.get" in refused["error"]["message"]
        await api.call("", "POST", "/v2/entries:list", asked, 401)
        others = {**asked, "resourceNames": ["projects/p", "projects/q"]}
        await api.call(BOB, "POST", "/v2/entries:list", others, 403)
        wrongs: list[dict[str, Any]] = [
            {"filter": ""},
            {"filter": 'resource.labels.job_id="j" OR severity>=ERROR'},
            {"resourceNames": []},
            {"resourceNames": ["folders/1"]},
            {"resourceNames": ["projects/p/logs/x"]},
            {"orderBy": "severity"},
            {"pageSize": -1},
            {"pageToken": "x"},
        ]
        for wrong in wrongs:
            await api.call(BOB, "POST", "/v2/entries:list", {**asked, **wrong}, 400)

    run(tmp_path, main)


def test_bad_fields_change_nothing(tmp_path: Path) -> None:
    """They are refused before anything is done, and after the caller is known."""

    async def main(api: Api) -> None:
        await api.call("", "POST", f"{MODELS}?fields=name(", {"name": "m"}, 401)
        for fields in ("name(", "wings", "defaultVersion/wings"):
            await api.call(OWN, "POST", f"{MODELS}?fields={fields}", {"name": "m"}, 400)
        assert await api.call(OWN, "GET", MODELS) == {}
        assert list(await api.call(OWN, "POST", f"{MODELS}?fields=etag", {"name": "m"})) == ["etag"]
        await api.call(OWN, "GET", f"{PROJECT}/models/absent?fields=name", None, 404)

    run(tmp_path, main)
