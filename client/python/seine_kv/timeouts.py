"""Times that callers give, in seconds."""

from __future__ import annotations

from typing import Optional

LONGEST = 100 * 365 * 86400.0  # clocks count nanoseconds in 64 bits: a longer time would not fit


def seconds_of(timeout: Optional[float], name: str = "timeout", *, zero: bool = False) -> Optional[float]:
    """A time as calls take it; None, without end, also for what is infinite or longer than a century. ValueError: nan,
    or not above 0 (with `zero`: below it)."""
    if timeout is None:
        return None
    if isinstance(timeout, (str, bytes)):
        raise TypeError(f"{name}: must be seconds, a number, not a {type(timeout).__name__}")
    try:
        seconds = float(timeout)
    except OverflowError:  # of a whole number that no float holds
        seconds = float("inf") if timeout > 0 else float("-inf")
    except TypeError:
        raise TypeError(f"{name}: must be seconds, a number, not a {type(timeout).__name__}") from None
    if not (seconds > 0 or zero and seconds == 0):
        raise ValueError(f"{name}: must be {'at least' if zero else 'above'} 0 s, not {seconds:g}")
    return None if seconds > LONGEST else seconds
