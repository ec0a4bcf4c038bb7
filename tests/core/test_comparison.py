"""A verdict says no more than every tensor supports, and the gravest engine's is the comparison's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.core.comparison import Comparison, State, Verdict, verdict, worst
from registry.core.digest import Digest

S, V = State, Verdict
TABLE: list[tuple[set[State], Verdict]] = [
    ({S.IDENTICAL}, V.IDENTICAL),
    ({S.IDENTICAL, S.UNTOUCHED}, V.IDENTICAL),
    ({S.IDENTICAL, S.VACUOUS}, V.IDENTICAL),
    ({S.WITHIN_ULP}, V.WITHIN_ULP),
    ({S.WITHIN_ULP, S.IDENTICAL, S.VACUOUS, S.UNTOUCHED}, V.WITHIN_ULP),
    ({S.VACUOUS}, V.VACUOUS),
    ({S.VACUOUS, S.UNTOUCHED}, V.VACUOUS),
    ({S.BASE}, V.BASE_ONLY),
    ({S.BASE, S.UNTOUCHED, S.VACUOUS}, V.BASE_ONLY),
    ({S.BASE, S.MISSING}, V.BASE_ONLY),
    ({S.BASE, S.UNMATCHED}, V.BASE_ONLY),
    ({S.BASE, S.IDENTICAL}, V.PARTIAL),
    ({S.BASE, S.WITHIN_ULP}, V.PARTIAL),
    ({S.BASE, S.IDENTICAL, S.MISSING}, V.PARTIAL),
    ({S.IDENTICAL, S.UNMATCHED}, V.PARTIAL),
    ({S.WITHIN_ULP, S.UNMATCHED}, V.PARTIAL),
    ({S.VACUOUS, S.UNMATCHED}, V.INCOMPLETE),
    ({S.IDENTICAL, S.MISSING}, V.INCOMPLETE),
    ({S.IDENTICAL, S.UNSUPPORTED}, V.INCOMPLETE),
    ({S.WITHIN_ULP, S.MISSING}, V.INCOMPLETE),
    ({S.VACUOUS, S.MISSING}, V.INCOMPLETE),
    ({S.MISSING}, V.INCOMPLETE),
    ({S.UNTOUCHED}, V.INCOMPLETE),
    (set(), V.INCOMPLETE),
    ({S.DIFFERENT}, V.DIFFERENT),
    ({S.ALTERED}, V.DIFFERENT),
    ({S.IDENTICAL, S.ALTERED}, V.DIFFERENT),
    ({S.IDENTICAL, S.DIFFERENT}, V.DIFFERENT),
    ({S.BASE, S.DIFFERENT}, V.DIFFERENT),
    ({S.BASE, S.IDENTICAL, S.MISSING, S.ALTERED}, V.DIFFERENT),
]
states = st.lists(st.sampled_from(State))


@pytest.mark.parametrize(("seen", "expected"), TABLE, ids=lambda each: "+".join(sorted(each)) or "nothing")
def test_the_verdict_over_these_states(seen: set[State], expected: Verdict) -> None:
    assert verdict(seen) is expected


@given(states)
def test_identical_is_said_only_where_every_targeted_tensor_is_the_merge_or_cannot_tell(seen: list[State]) -> None:
    clean = set(seen) <= {S.IDENTICAL, S.VACUOUS, S.UNTOUCHED} and S.IDENTICAL in seen
    assert (verdict(seen) is V.IDENTICAL) == clean


@given(states)
def test_what_passes_has_no_tensor_that_is_wrong_missing_or_unknown(seen: list[State]) -> None:
    if verdict(seen) in {V.IDENTICAL, V.WITHIN_ULP, V.VACUOUS}:
        assert set(seen) <= {S.IDENTICAL, S.WITHIN_ULP, S.VACUOUS, S.UNTOUCHED}


@given(states, st.randoms())
def test_order_and_repetition_do_not_matter(seen: list[State], random: object) -> None:
    shuffled = seen * 2
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert verdict(shuffled) is verdict(seen)


def test_the_gravest_verdict_wins() -> None:
    from_mild = [V.IDENTICAL, V.WITHIN_ULP, V.VACUOUS, V.INCOMPLETE, V.PARTIAL, V.DIFFERENT, V.BASE_ONLY]
    assert set(from_mild) == set(Verdict)
    for index, grave in enumerate(from_mild):
        for mild in from_mild[: index + 1]:
            assert worst([mild, grave, mild]) is worst([grave, mild]) is grave


@pytest.mark.parametrize("found", Verdict)
def test_only_the_adapter_or_one_that_changes_nothing_passes(found: Verdict) -> None:
    comparison = Comparison(found, (), "fp32", Digest("0" * 64), {}, all_b_zero=False)
    assert comparison.passed == (found in {V.IDENTICAL, V.WITHIN_ULP})
    excused = replace(comparison, all_b_zero=True)
    assert excused.passed == (found in {V.IDENTICAL, V.WITHIN_ULP, V.VACUOUS})
