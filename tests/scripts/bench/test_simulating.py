"""The simulation against what is known without it: nothing is lost, Little's law, Erlang's and a cache's formula."""

from random import Random

import pytest

simpy = pytest.importorskip("simpy")  # of the extra `test`, which an older environment has without it

from scripts.bench.simulating import checking, closed_forms, edges, jobs, times  # noqa: E402
from scripts.bench.simulating.stations import Station, Steps  # noqa: E402
from scripts.bench.simulating.times import Times  # noqa: E402

#: Seconds on average.
SERVICE = 1.0


def station(servers: int, rate: float, seconds: float, seed: int = 7) -> Station:
    """Poisson arrivals of which each takes an exponential time."""
    environment, random = simpy.Environment(), Random(seed)
    found = Station(environment, servers)

    def arrivals() -> Steps:
        while True:
            yield environment.timeout(random.expovariate(rate))
            environment.process(found.work(random.expovariate(1 / SERVICE)))

    environment.process(arrivals())
    environment.run(until=seconds)
    return found


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (2, 0.7), (8, 0.8), (8, 0.9)])
def test_a_station_is_what_erlang_says(servers: int, load: float) -> None:
    """On average of several runs: one alone is off by a fifth where much waits."""
    runs = [station(servers, servers * load, 6_000 / servers, seed) for seed in range(8)]
    waited = sum(one.waited / one.done for one in runs) / len(runs)
    assert waited == pytest.approx(closed_forms.mean_wait(servers * load, SERVICE, servers), rel=0.15)
    assert sum(one.load for one in runs) / len(runs) == pytest.approx(load, rel=0.03)


def test_littles_law_holds_at_a_station() -> None:
    found = station(2, 1.6, 12_000)
    assert found.mean_inside == pytest.approx(found.done / 12_000 * (found.stayed / found.done), rel=0.02)
    assert found.arrived == found.done + found.inside


def test_a_station_without_a_line_is_known() -> None:
    assert closed_forms.mean_wait(0.5, 1.0, 1) == pytest.approx(1.0)  # M/M/1: load / (1 - load)
    assert closed_forms.mean_wait(1.0, 1.0, 2) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="there are 2"):
        closed_forms.mean_wait(2.0, 1.0, 2)


def test_no_job_is_lost_and_each_waits_in_the_line_or_in_a_runners_hands() -> None:
    wanted = jobs.Wanted(machines=3, processors=2, database=2, runners=30, jobs=2.0, seconds=10.0, reads=20.0)
    fleet = jobs.Jobs(wanted, times.measured(), seed=3)
    story = fleet.run()
    assert story.made > 60
    assert story.made == story.handed_out + len(story.pending)
    assert len(story.waited) == story.handed_out
    stations = [fleet.servers.database, *fleet.servers.machines]
    stations += [process.loop for process in fleet.servers.processes]
    for one in stations:
        assert one.arrived == one.done + one.inside
        assert one.mean_inside * wanted.simulated == pytest.approx(one.stayed, rel=0.05, abs=0.1)


def test_more_jobs_than_runners_can_do_stay_in_the_line() -> None:
    wanted = jobs.Wanted(
        machines=1, processors=2, database=2, runners=5, jobs=2.0, seconds=30.0, reads=0, simulated=120.0
    )
    story = jobs.Jobs(wanted, times.measured(), seed=3).run()
    assert story.made == story.handed_out + len(story.pending)
    assert len(story.pending) > story.made / 2


def test_the_same_seed_tells_the_same_story() -> None:
    wanted = jobs.Wanted(machines=2, runners=20, jobs=3.0, seconds=5.0, reads=10.0, simulated=20.0)
    first, second = (jobs.Jobs(wanted, times.measured(), seed=11).run() for _ in range(2))
    assert first == second


def test_every_request_to_an_edge_is_a_hit_a_flight_or_one_who_waits_for_it() -> None:
    wanted = edges.Wanted(edges=5, rate=40.0, objects=300, lifetime=5.0, purges=5.0, simulated=20.0)
    fleet = edges.Edges(wanted, times.measured(), seed=5)
    story = fleet.run()
    at_origin = story.fetched + story.validated + story.allowed
    assert story.asked == story.hits + story.joined + at_origin
    assert (
        abs(at_origin - len(story.waited) - story.under_way) <= 10
    )  # and what was under way at the beginning
    assert story.fetched > 0
    assert story.purged > 50


def test_edges_without_purges_hit_as_often_as_lifetimes_say() -> None:
    wanted = edges.Wanted(
        edges=2, rate=100.0, objects=200, private=0.0, purges=0, lifetime=10.0, simulated=60.0
    )
    story = edges.Edges(wanted, {name: Times(0.0, 0.0) for name in ("fetch", "validate")}, seed=5).run()
    weights = [1 / n**wanted.skew for n in range(1, wanted.objects + 1)]
    rates = [wanted.rate * weight / sum(weights) for weight in weights]
    assert story.hit_ratio == pytest.approx(closed_forms.hit_ratio(rates, wanted.lifetime), abs=0.01)
    assert story.fetched == 0


def test_two_processes_do_twice_as_much_while_processors_are_idle() -> None:
    one = Times(api=4.0, database=0.0, client=0.0)
    alone = checking.simulated([one], 1, 0.0, processors=2, seconds=5.0)
    both = checking.simulated([one], 2, 0.0, processors=2, seconds=5.0)
    crowd = checking.simulated([one], 16, 0.0, processors=2, seconds=5.0)
    assert alone.rate == pytest.approx(250, rel=0.02)
    assert both.rate == pytest.approx(500, rel=0.02)
    assert crowd.rate == pytest.approx(500, rel=0.02)
    assert crowd.mean == pytest.approx(32, rel=0.05)
