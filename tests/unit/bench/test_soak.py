"""Whether something grew in a long run, though it goes up and down all the time."""

from bench.pipeline.soak import has_grown


def test_what_goes_up_and_down_has_not_grown() -> None:
    # As state does that has one window or two; the last third begins and ends with the larger.
    assert not has_grown([2000, 4000] * 19 + [4000], 1000)


def test_what_grows_is_noticed_although_it_goes_up_and_down() -> None:
    assert has_grown([each * 100 + (each % 2) * 2000 for each in range(120)], 1000)


def test_too_little_says_nothing() -> None:
    assert not has_grown([1, 100], 0)
