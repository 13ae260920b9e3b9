"""How many servers there should be, told as stories on a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoscaler.placement.server_count import (
    LivingServer,
    ServerCountDecision,
    ServerCountSpec,
    ServerCountState,
    decide_server_count,
)


@dataclass
class Story:
    """A number of servers that becomes what is decided, and one clock."""

    current: int
    spec: ServerCountSpec = field(default_factory=ServerCountSpec)
    now: float = 1000.0
    state: ServerCountState = field(init=False)

    def __post_init__(self) -> None:
        self.state = ServerCountState(known_since=self.now)

    def decide(
        self, load: float, *, living: int | None = None, changing: int = 0, after: float = 0.0
    ) -> ServerCountDecision:
        """All of them are `living` unless that is given, and `changing` more start or drain."""
        self.now += after
        count = self.current if living is None else living
        servers = [LivingServer(load=load / count)] * count
        servers += [LivingServer(load=0.0, is_changing=True)] * changing
        decision = decide_server_count(self.spec, servers, self.current, self.state, self.now)
        self.state, self.current = decision.state, decision.servers
        return decision

    def pass_time(self, load: float, seconds: float, *, living: int | None = None) -> list[int]:
        """What is decided every five seconds."""
        return [self.decide(load, living=living, after=5.0).servers for _ in range(round(seconds / 5))]


def test_as_many_come_at_once_as_the_loads_need() -> None:
    story = Story(current=1)
    assert story.decide(0.75).servers == 1
    decision = story.decide(3.1)
    assert decision.servers == 5
    assert decision.reason == "their loads add up to 3.10, and 0.75 is the aim for each"


def test_sums_of_floats_need_no_server_more() -> None:
    assert sum([0.1] * 3) > 0.3
    assert Story(current=3, spec=ServerCountSpec(target_load=0.1)).decide(0.3).servers == 3


def test_more_come_while_others_start() -> None:
    """The number does not depend on how many there are: it cannot run away."""
    story = Story(current=2)
    assert story.decide(2.9, living=1, changing=1).servers == 4
    assert story.decide(2.9, living=1, changing=3).servers == 4


def test_one_goes_at_a_time_when_fewer_were_enough_for_five_minutes() -> None:
    story = Story(current=4)
    story.decide(2.8)
    assert story.pass_time(0.4, 300) == [4] * 60
    assert story.pass_time(0.4, 130) == [3] * 12 + [2] * 12 + [1] * 2
    assert set(story.pass_time(0.4, 300)) == {1}


def test_a_short_calm_takes_none_away() -> None:
    story = Story(current=3)
    for _ in range(5):
        assert set(story.pass_time(0.3, 290)) == {3}
        assert set(story.pass_time(2.1, 10)) == {3}
    assert "3 were needed within the last 300 s" in story.decide(0.3).reason


def test_only_as_many_go_as_were_needed_at_most() -> None:
    story = Story(current=4)
    story.pass_time(0.4, 250)
    story.pass_time(1.6, 5)
    assert story.pass_time(0.4, 295) == [4] * 8 + [3] * 51
    assert story.pass_time(0.4, 10) == [3, 2]


def test_none_goes_while_one_starts_or_drains() -> None:
    story = Story(current=3)
    held = story.decide(0.3, living=2, changing=1, after=400.0)
    assert held.servers == 3
    assert held.reason.endswith("but one starts or drains")
    assert story.decide(0.3, after=1.0).servers == 2


def test_who_takes_the_work_over_waits_for_the_whole_delay() -> None:
    """It does not know what was needed before."""
    story = Story(current=2)
    assert story.decide(0.2, after=299.0).reason.endswith("is not known yet")
    assert story.decide(0.2, after=2.0).servers == 1


def test_a_missing_server_is_taken_for_busy_before_another_goes() -> None:
    """Four that are cut off from the database serve on: that one has little to do means nothing."""
    assert set(Story(current=5).pass_time(0.1, 1200, living=1)) == {5}


def test_servers_that_the_cluster_has_no_room_for_go() -> None:
    story = Story(current=10)
    story.pass_time(0.7, 600, living=7)
    assert story.current == 4
    story.pass_time(0.7, 600)
    assert story.current == 1


def test_a_missing_server_calls_for_no_other() -> None:
    assert Story(current=3).decide(1.5, living=2).servers == 3


def test_limits() -> None:
    """At once, for who sets them wants that."""
    spec = ServerCountSpec(minimum=2, maximum=4)
    assert Story(current=1, spec=spec).decide(0.0).servers == 2
    assert Story(current=5, spec=spec).decide(2.9).servers == 4
    full = Story(current=1, spec=spec).decide(9.0)
    assert full.servers == 4
    assert full.reason.endswith("; at most 4 are allowed")


def test_what_is_set_to_zero_stays_so() -> None:
    """The last server, which goes then, would bring itself back."""
    decision = Story(current=0).decide(0.9, living=1)
    assert decision.servers == 0
    assert decision.reason.startswith("somebody has set it to 0")
