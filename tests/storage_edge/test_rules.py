"""Properties of the pure rules: no field value breaks them, and no combination of directives leaks anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules import fields, freshness, selection, storing
from storage_edge.rules.freshness import RequestDirectives, Reuse, Times
from storage_edge.rules.storing import RequestFacts, Storage

NOW = 1_800_000_000.0
SECONDS = st.integers(0, 10_000)
DIRECTIVE = st.one_of(
    st.sampled_from(["no-store", "no-cache", "private", "public", "must-revalidate", "proxy-revalidate"]),
    st.builds("max-age={}".format, SECONDS),
    st.builds("s-maxage={}".format, SECONDS),
    st.builds("stale-while-revalidate={}".format, SECONDS),
    st.builds("stale-if-error={}".format, SECONDS),
    st.text(max_size=10),
)
CACHE_CONTROL = st.lists(DIRECTIVE, max_size=5).map(", ".join)
TAG = st.sampled_from(['"a"', '"b"', 'W/"a"', 'W/"b"', "a", "", 'W/"'])
VALIDATORS = st.fixed_dictionaries(
    {}, optional={"ETag": TAG, "Last_Modified": st.sampled_from(["Monday", "Tuesday"])}
)
STATUS = st.sampled_from([200, 203, 204, 206, 301, 302, 304, 401, 403, 404, 410, 416, 500, 503, 599])


def _headers(**values: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({name.replace("_", "-"): value for name, value in values.items()}))


def test_so_many_lines_of_what_a_request_asks_for_are_read() -> None:
    """A head may contain more lines than may be parsed in one step."""
    lines = ["max-age=1"] + ["min-fresh=2"] * (freshness.MAX_LINES - 1)
    asked = RequestDirectives(max_age=1, min_fresh=2)
    assert freshness.request_directives([*lines, "no-cache"]) == asked


@given(st.lists(st.text(max_size=50), max_size=3))
def test_no_field_value_breaks_a_parser(values: list[str]) -> None:
    fields.directives(values)
    fields.cdn_directives(values)
    fields.age_value(values)
    selection.selection(values, {})
    for value in values:
        fields.seconds(value)
        selection.is_not_modified(_headers(If_None_Match=value), _headers(ETag=value), NOW)


@given(CACHE_CONTROL, CACHE_CONTROL, STATUS, st.booleans())
def test_private_and_refusals_are_never_shared(plain: str, for_us: str, status: int, has_token: bool) -> None:
    headers = _headers(Cache_Control=plain, CDN_Cache_Control=for_us, ETag='"1"')
    policy = freshness.policy(status, headers, NOW)
    where = storing.decide_storage(RequestFacts(has_token=has_token), status, headers, policy)
    if "private" in fields.directives([plain]) or status in {401, 403} or (has_token and status != 200):
        assert where is not Storage.SHARED
    if where is Storage.PRIVATE:
        assert has_token
        assert status == 200


@given(CACHE_CONTROL, st.floats(0, 20_000), st.one_of(st.none(), SECONDS), st.one_of(st.none(), SECONDS))
def test_nothing_is_used_past_what_it_allows(
    cache_control: str, age: float, max_age: int | None, max_stale: int | None
) -> None:
    policy = freshness.policy(200, _headers(Cache_Control=cache_control), NOW)
    decision = freshness.decide_reuse(policy, age, RequestDirectives(max_age=max_age, max_stale=max_stale))
    if decision is Reuse.VALIDATE:
        return
    assert not policy.validate
    assert max_age is None or age <= max_age
    if age >= policy.lifetime:
        assert not policy.strict
        assert age - policy.lifetime <= max(policy.stale_while_revalidate, max_stale or 0)


@pytest.mark.parametrize("directive", ["must-revalidate", "proxy-revalidate", "s-maxage=10", "no-cache"])
def test_what_forbids_stale_use_counts_more_than_what_allows_it(directive: str) -> None:
    allows = "max-age=10, stale-while-revalidate=100, stale-if-error=100"
    policy = freshness.policy(200, _headers(Cache_Control=f"{allows}, {directive}"), NOW)
    assert freshness.decide_reuse(policy, 20) is Reuse.VALIDATE
    assert freshness.decide_reuse(policy, 20, RequestDirectives(max_stale=100)) is Reuse.VALIDATE
    assert not freshness.may_use_on_error(policy, 20)


@given(CACHE_CONTROL, st.floats(0, 20_000))
def test_an_error_is_covered_only_where_that_is_allowed(cache_control: str, age: float) -> None:
    policy = freshness.policy(200, _headers(Cache_Control=cache_control), NOW)
    if freshness.may_use_on_error(policy, age):
        assert not policy.strict
        assert age - policy.lifetime <= policy.stale_if_error


@given(SECONDS, SECONDS, st.integers(-5000, 5000), SECONDS, SECONDS)
def test_age_only_grows_and_never_below_what_is_known(
    age: int, delay: int, skew: int, wait: int, longer: int
) -> None:
    times = Times(requested=NOW, received=NOW + delay, date=NOW + skew, age=float(age))
    now = NOW + delay + wait
    assert times.current_age(now) >= max(age + delay + wait, 0)
    assert times.current_age(now) >= now - times.date
    assert times.current_age(now + longer) == times.current_age(now) + longer


@given(VALIDATORS, VALIDATORS)
def test_a_304_selects_what_has_its_validators_and_nothing_else(
    kept: dict[str, str], said: dict[str, str]
) -> None:
    stored, update = _headers(**kept), _headers(**said)
    selected = selection.is_about(stored, update)
    if selection.has_strong_tag(update):
        assert selected == (stored.get("ETag") == update["ETag"])
        return
    shared = [name for name in ("ETag", "Last-Modified") if name in stored and name in update]
    agree = all(stored[name].removeprefix("W/") == update[name].removeprefix("W/") for name in shared)
    assert selected == (agree and (bool(shared) or not said))


@given(VALIDATORS, VALIDATORS, CACHE_CONTROL)
def test_a_response_freshened_by_a_304_keeps_what_it_is_identified_by(
    kept: dict[str, str], said: dict[str, str], cache_control: str
) -> None:
    stored, update = _headers(**kept), _headers(**said, Cache_Control=cache_control)
    if selection.is_about(stored, update):
        new = CIMultiDictProxy(storing.freshened(stored, update))
        assert new.get("ETag") == stored.get("ETag")
        assert selection.is_about(new, stored)
        assert selection.is_about(stored, stored)


@given(st.integers(0, 1000), st.booleans())
def test_only_answers_to_what_was_asked_are_answers(status: int, conditional: bool) -> None:
    expected = status in range(200, 600) and status != 206 and (status != 304 or conditional)
    assert selection.can_answer(status, conditional=conditional) == expected
