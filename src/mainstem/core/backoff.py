"""How long to wait before what has failed is tried again."""

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Each pause is twice as long as the one before it, up to the longest. Both are in seconds."""

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """Seconds after so many failures in a row; at least one."""
        doublings = min(failures - 1, 60)  # thousands of them are more than a float holds
        return min(self.first * 2.0**doublings, self.longest)
