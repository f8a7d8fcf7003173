"""Places that are held while work lasts."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.concurrency import ConcurrencyLimiter, ShareTaken, TooBusy


async def test_one_key_has_its_share_and_leaves_the_others_theirs() -> None:
    places = ConcurrencyLimiter(3, 2)
    async with places.place("a"), places.place("a"):
        with pytest.raises(ShareTaken):
            async with places.place("a"):
                pass
        async with places.place("b"):
            with pytest.raises(TooBusy) as refused:
                async with places.place("c"):
                    pass
            assert not isinstance(refused.value, ShareTaken)
    assert places.held == 0


async def test_all_keys_of_a_holder_count() -> None:
    places = ConcurrencyLimiter(9, 1)
    async with places.place("alice", "project"):
        with pytest.raises(TooBusy):
            async with places.place("bob", "project"):
                pass
        async with places.place("bob", "another"):
            pass


async def test_who_waits_is_admitted_in_order_and_past_those_whose_key_is_full() -> None:
    places = ConcurrencyLimiter(2, 1, patience=60)
    order = []

    async def work(key: str, name: str) -> None:
        async with places.place(key):
            order.append(name)
            await asyncio.sleep(0)

    async with AsyncExitStack() as held:
        await held.enter_async_context(places.place("a"))
        await held.enter_async_context(places.place("b"))
        tasks = [
            asyncio.create_task(work(*who)) for who in (("a", "a1"), ("c", "c1"), ("c", "c2"), ("a", "a2"))
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["c1", "a1", "c2", "a2"]
    assert places.held == 0


async def test_patience_ends() -> None:
    places = ConcurrencyLimiter(1, 1, patience=0.01)
    async with places.place("a"):
        with pytest.raises(TooBusy):
            async with places.place("b"):
                pass
    async with places.place("b"):
        assert places.held == 1


async def test_no_more_than_the_queue_wait() -> None:
    places = ConcurrencyLimiter(1, 1, patience=60, queue=0)
    async with places.place("a"):
        with pytest.raises(TooBusy):
            async with places.place("b"):
                pass


@pytest.mark.parametrize("freed_first", [False, True])
async def test_who_goes_away_while_waiting_leaves_nothing_behind(freed_first: bool) -> None:
    places = ConcurrencyLimiter(1, 1, patience=60)

    async def work() -> None:
        async with places.place("b"):
            await asyncio.sleep(60)

    async with AsyncExitStack() as held:
        await held.enter_async_context(places.place("a"))
        waiting = asyncio.create_task(work())
        await asyncio.sleep(0)
        if freed_first:
            await held.aclose()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert places.held == 0
    async with places.place("b"):
        pass


@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")))
)
def test_neither_bound_is_ever_passed(total: int, each: int, askers: list[tuple[str, str]]) -> None:
    places = ConcurrencyLimiter(total, each, patience=60)
    running: list[str] = []

    async def work(keys: tuple[str, str]) -> None:
        async with places.place(*keys):
            running.extend(keys)
            assert len(running) <= 2 * total
            assert all(running.count(key) <= each for key in keys)
            await asyncio.sleep(0)
            for key in keys:
                running.remove(key)

    async def everybody() -> None:
        await asyncio.gather(*(work(keys) for keys in askers))

    asyncio.run(everybody())
    assert places.held == 0
