"""Which workers are left alone because they answer nothing, on a clock that is a number."""

from __future__ import annotations

import pytest

from tensorway.silence import LEAST_SECONDS, PAUSE_SECONDS, Silence, patience

# 256 tokens in 0.3 s, over and over.
ANSWERS = [(256.0, 0.3)] * 20


def asked(*times: float, work: float = 256.0) -> Silence:
    """A worker that got a request at each of these times and answered none."""
    silence = Silence()
    for now in times:
        silence.begin(now, work)
    return silence


@pytest.mark.parametrize(
    ("work", "answers", "seconds"),
    [
        (1.0, [], float("inf")),
        (100.0, [(100.0, 0.01)], LEAST_SECONDS),
        (100.0, [(100.0, 1.0)], 4.0),
        (300.0, [(100.0, 1.0)], 12.0),
        (10.0, [(100.0, 1.0)], 4.0),
        (100.0, [(100.0, 1.0), (100.0, 1.0), (100.0, 60.0)], 4.0),
    ],
)
def test_how_long_a_request_is_waited_for(
    work: float, answers: list[tuple[float, float]], seconds: float
) -> None:
    """Some times as long as others take, longer for a larger request, whatever one of them took."""
    assert patience(work, answers) == pytest.approx(seconds)


def test_a_worker_that_leaves_a_request_unanswered_is_overdue() -> None:
    """Not before its peers' time is long over, and not any more once it answers."""
    silence = asked(10.0, 10.5)

    assert not silence.overdue(11.0, ANSWERS)
    assert silence.overdue(11.5, ANSWERS)
    silence.hear(11.5)
    assert not silence.overdue(12.0, ANSWERS)
    assert silence.overdue(13.0, ANSWERS)


def test_a_worker_without_a_request_is_never_overdue() -> None:
    """An idle night is no silence."""
    silence = asked(10.0)
    silence.hear(10.1)
    silence.end(10.1)

    assert not silence.overdue(9999.0, ANSWERS)
    silence.begin(9999.0, 256.0)
    assert not silence.overdue(9999.9, ANSWERS)


def test_a_large_request_may_take_long_and_the_small_ones_behind_it_too() -> None:
    """What it was asked counts, not only how long others took for less."""
    silence = asked(10.0, work=2560.0)
    silence.begin(11.0, 1.0)

    assert not silence.overdue(20.0, ANSWERS)
    assert silence.overdue(23.0, ANSWERS)


def test_callers_who_give_up_do_not_clear_a_silence() -> None:
    """Deadlines of 0.7 s, one after the other, add up."""
    silence = asked(10.0)
    silence.end(10.7)
    silence.begin(11.0, 256.0)

    assert silence.seconds(11.1) == pytest.approx(0.8)
    assert silence.overdue(11.6, ANSWERS)


def test_a_silent_worker_gets_one_request_again_after_a_pause() -> None:
    """Nothing else could show that it is well again; while it has that one it gets no more."""
    silence = asked(10.0)
    silence.end(20.0)

    assert silence.overdue(20.0 + PAUSE_SECONDS, ANSWERS)
    assert not silence.overdue(20.1 + PAUSE_SECONDS, ANSWERS)
    silence.begin(30.0, 256.0)
    assert silence.overdue(30.0, ANSWERS)
    silence.hear(30.1)
    assert not silence.overdue(30.1, ANSWERS)


def test_a_worker_that_was_late_beside_others_is_left_alone_until_it_answers() -> None:
    """They had the same to do."""
    silence = asked(10.0)
    silence.late = True

    assert silence.overdue(10.1, ANSWERS)
    silence.hear(10.2)
    assert not silence.overdue(10.2, ANSWERS)
