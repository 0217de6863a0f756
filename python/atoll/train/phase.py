"""The phases of a worker, and the only ways between them."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What a worker is doing."""

    APART = "it has not joined the run"
    BETWEEN = "it has joined, and has no round"
    TRAINING = "it trains a round"
    LOST = "it trains on to the end of a round that the run went on without (several processes)"
    DUE = "the last step of the round is taken: a sync point is due"
    LOST_DUE = "the run went on without the round: a sync point is due"
    EXCHANGING = "it hands over the round and waits for the next one"
    DONE = "the run is complete"
    CLOSED = "it has left the run"


APART, BETWEEN, TRAINING, LOST = Phase.APART, Phase.BETWEEN, Phase.TRAINING, Phase.LOST
DUE, LOST_DUE, EXCHANGING, DONE, CLOSED = Phase.DUE, Phase.LOST_DUE, Phase.EXCHANGING, Phase.DONE, Phase.CLOSED

_MOVES: dict[str, dict[Phase, Phase]] = {
    "exchange": {APART: EXCHANGING, BETWEEN: EXCHANGING, DUE: EXCHANGING, LOST_DUE: EXCHANGING},
    "not joined": {EXCHANGING: APART},  # an error before the join
    "interrupted": {EXCHANGING: BETWEEN},  # an error or Ctrl-C after it
    "round": {EXCHANGING: TRAINING},
    "run done": {EXCHANGING: DONE},
    "round lost": {TRAINING: LOST},
    "last step": {TRAINING: DUE, LOST: LOST_DUE},
    "leave round": {LOST: LOST_DUE},  # one process need not go on to its end
    "close": {phase: CLOSED for phase in Phase},
}


def moved(phase: Phase, event: str) -> Phase:
    """The phase after an event. Raises RuntimeError for an event that cannot happen in this phase."""
    after = _MOVES[event].get(phase)
    if after is None:
        raise RuntimeError(f"a worker that is {phase.name} cannot have the event {event!r}")
    return after


def in_round(phase: Phase) -> bool:
    """Steps count."""
    return phase in (TRAINING, LOST)


def is_due(phase: Phase) -> bool:
    """A sync point is due."""
    return phase in (DUE, LOST_DUE)
