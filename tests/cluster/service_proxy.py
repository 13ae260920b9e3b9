"""What kube-proxy does, for one Service: it passes connections on to the ready endpoints, in turn.

python -m tests.cluster.service_proxy URL TOKEN NAMESPACE SERVICE PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

_SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
_RETRY_SECONDS = 0.5
_READ_BYTES = 1 << 16


class ServiceProxy:
    def __init__(self, url: str, token: str, namespace: str, service: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            verify=False,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(10, read=None),
        )
        self._path = _SLICES.format(namespace=namespace)
        self._selector = {"labelSelector": f"kubernetes.io/service-name={service}"}
        self._slices: dict[str, Sequence[tuple[str, int]]] = {}
        self._turn = 0

    async def watch_endpoints(self) -> None:
        """While the API server is away, those that were known stay."""
        while True:
            with contextlib.suppress(httpx.HTTPError):
                listed = (await self._client.get(self._path, params=self._selector)).json()
                self._slices = {one["metadata"]["name"]: list_endpoints(one) for one in listed["items"]}
                version = listed["metadata"]["resourceVersion"]
                watch = {**self._selector, "watch": "1", "resourceVersion": version}
                async with self._client.stream("GET", self._path, params=watch) as lines:
                    async for line in lines.aiter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        name = event["object"]["metadata"]["name"]
                        gone = event["type"] == "DELETED"
                        self._slices[name] = () if gone else list_endpoints(event["object"])
            await asyncio.sleep(_RETRY_SECONDS)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection goes to the next endpoint, and stays there."""
        endpoints = sorted(one for some in self._slices.values() for one in some)
        if not endpoints:
            writer.transport.abort()
            return
        self._turn += 1
        host, port = endpoints[self._turn % len(endpoints)]
        try:
            other_reader, other_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pass_on(reader, other_writer), pass_on(other_reader, writer))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has ended or broken."""
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()


def list_endpoints(found: Mapping[str, Any]) -> Sequence[tuple[str, int]]:
    """Those of an EndpointSlice that are ready."""
    (port,) = [one["port"] for one in found["ports"] or [{"port": 0}]]
    return [
        (address, port)
        for endpoint in found["endpoints"] or []
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    ]


async def main(arguments: Sequence[str], port: int) -> None:
    proxy = ServiceProxy(*arguments)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", port)
    async with server:
        await asyncio.gather(server.serve_forever(), proxy.watch_endpoints())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:5], int(sys.argv[5])))
