"""How long to wait before what has failed is tried again: one policy for sources, sinks, jobs and processes."""

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """Each pause is twice as long as the one before it, up to the longest. Both are in seconds."""

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """Seconds after so many failures in a row; at least one."""
        doublings = min(failures - 1, 60)  # thousands of them are more than a float holds
        return min(self.first * 2.0**doublings, self.longest)


PASSING = Backoff(first=0.5, longest=30.0)
"""After an error that may pass by itself."""
FOR_A_PERSON = Backoff(first=5.0, longest=60.0)
"""Where a person has to mend something: nobody is as fast as a broker that comes back."""
HEALTHY_AFTER_SECONDS = 60.0
"""What ran for so long starts over with the first pause."""
WORKS_AFTER_SECONDS = 15.0
"""What failed and runs again for so long is no longer said to wait: also a start of Spark that fails takes less."""
