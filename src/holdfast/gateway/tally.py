"""How turns went, in numbers that an operator can watch."""

from bisect import bisect_left
from collections import Counter

from holdfast.core.messages import Answer, Outcome

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class Tally:
    """Counts the turns of a process. Everything happens on one loop, so counting needs no lock."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.seconds = 0.0
        """From acceptance to answer, summed up."""
        self.buckets = [0] * (len(BOUNDS) + 1)
        """How many took at most each of `BOUNDS`, and longer than the one before."""

    def __repr__(self) -> str:
        return f"<Tally: {dict(self.outcomes)}>"

    def count(self, answer: Answer, received: float) -> None:
        seconds = max(0.0, answer.created - received)
        self.outcomes[answer.outcome] += 1
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
