"""Lengths of time as Spark writes them: `10 minutes`, `1 hour 30 minutes`."""

import re

_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


def milliseconds(duration: str) -> int | None:
    """`10 minutes`, `1 hour 30 minutes`; None if it is no such duration."""
    duration = duration.strip().lower().removeprefix("interval ")
    parts = re.findall(r"(\d+)\s*([a-z]+)", duration)
    if not parts or re.sub(r"(\d+)\s*([a-z]+)|\s|,", "", duration):
        return None
    total = 0
    for number, unit in parts:
        unit = unit if unit.endswith("s") else f"{unit}s"
        if unit == "milliseconds":
            total += int(number)
        elif unit in _SECONDS:
            total += int(number) * _SECONDS[unit] * 1000
        else:
            return None
    return total
