from __future__ import annotations

import asyncio

from serving.config import MIB, ServerSettings
from serving.errors import ClientTooSlow, ServingError, Unavailable
from serving.transport.grpc_server.incoming_messages import IncomingMessages


class Call:
    """One whose message is on its way."""

    def __init__(self) -> None:
        self.error: ServingError | None = None

    def interrupt(self, error: ServingError) -> None:
        self.error = error


def test_what_arrives_for_long_is_bounded_in_number_and_time() -> None:
    """Short messages, however many, are nobody's concern; of long ones those that are the longest end."""

    async def main() -> None:
        now = 0.0
        settings = ServerSettings(max_body_bytes=64 * MIB, arriving_bytes=200 * MIB, body_timeout=30)
        arrivals = IncomingMessages(settings, lambda: now)
        calls = [Call() for _ in range(5)]
        for call in calls:
            arrivals.add(call)
        arrivals.enforce_limits(0.9)
        assert not [call for call in calls if call.error]

        arrivals.enforce_limits(1.0)
        assert [type(call.error) for call in calls[:3]] == [Unavailable, Unavailable, type(None)]
        assert "setting arriving_bytes" in str(calls[0].error)
        arrivals.remove(calls[2])
        arrivals.remove(calls[2])
        arrivals.enforce_limits(30.0)
        assert [type(call.error) for call in calls[2:]] == [type(None), ClientTooSlow, ClientTooSlow]
        assert "setting body_timeout" in str(calls[3].error)
        assert len(arrivals) == 0

    asyncio.run(main())
