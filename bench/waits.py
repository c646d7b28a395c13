"""What many waits come to: the middle, and the long ones."""

import msgspec


class Waits(msgspec.Struct, frozen=True):
    """Of one measurement, in ms."""

    count: int
    p50: float
    p99: float
    p999: float
    highest: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Waits":
        """`seconds`: at least one, in any order."""
        ordered = sorted(seconds)

        def at(share: float) -> float:
            return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000

        return cls(len(ordered), at(0.5), at(0.99), at(0.999), ordered[-1] * 1000)

    def figures(self, what: str) -> dict[str, float]:
        """Each with its name for a table."""
        return {
            f"{what}: p50 (ms)": self.p50,
            f"{what}: p99 (ms)": self.p99,
            f"{what}: p99.9 (ms)": self.p999,
            f"{what}: max (ms)": self.highest,
        }
