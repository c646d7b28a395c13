"""What a connection has instead of its transport once its client has gone.

A transport of TLS refers to its connection, with buffers of up to half a megabyte. In a ring of the two they would stay
until the collector of garbage comes by, which is hours where nothing else is left behind.
"""

import asyncio
from typing import Final


class Gone(asyncio.Transport):
    """Closed, and nothing is in it."""

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


GONE: Final = Gone()
