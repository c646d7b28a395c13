"""The CRC-32C of any bytes of a file, for little more than one reading of it, however many ranges are asked about.

The CRC of what begins at `start` is kept for every few kilobytes. That of two pieces together is that of the first,
moved on over as many zeros as the second is long, xor that of the second: so the second's is known from the other two.
To move it on is to multiply by a power of x, modulo the polynomial: https://www.zlib.net/crc_v3.txt
"""

from array import array

from crc32c import crc32c

from mainstem.log.disk import File

_BLOCK_BYTES = 1 << 12
_READ_BYTES = 1 << 20
_POLYNOMIAL = 0x82F63B78
"""Of CRC-32C. Here as everywhere below the highest bit is that of x to the power of 0."""


def _times(left: int, right: int) -> int:
    product = 0
    while left:
        if left & 0x8000_0000:
            product ^= right
        left = left << 1 & 0xFFFF_FFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product


_OVER_ZEROS = [1 << 23]
"""x to the power of 8, of 16, of 32, and so on: they move a CRC on over 1, 2, 4 bytes."""
for _ in range(63):
    _OVER_ZEROS.append(_times(_OVER_ZEROS[-1], _OVER_ZEROS[-1]))


class RangeCrcs:
    """Of a file that does not change meanwhile."""

    def __init__(self, file: File, start: int) -> None:
        """No range begins before `start`."""
        self._file = file
        self._start = start
        self._blocks = array("L", [0])
        """The CRC of all from `start` up to each block's beginning."""

    def of(self, begin: int, end: int) -> int:
        """The CRC-32C of the bytes [begin, end), all of which the file has (blocking)."""
        first, length, number = self._up_to(begin), end - begin, 0
        while length >> number:
            if length >> number & 1:
                first = _times(first, _OVER_ZEROS[number])
            number += 1
        return first ^ self._up_to(end)

    def _up_to(self, position: int) -> int:
        block = (position - self._start) // _BLOCK_BYTES
        while len(self._blocks) <= block:
            self._read_on()
        begin = self._start + block * _BLOCK_BYTES
        return crc32c(self._file.read(position - begin, begin), self._blocks[block])

    def _read_on(self) -> None:
        data = memoryview(self._file.read(_READ_BYTES, self._start + (len(self._blocks) - 1) * _BLOCK_BYTES))
        for begin in range(0, _READ_BYTES, _BLOCK_BYTES):  # of those behind the end nobody asks
            self._blocks.append(crc32c(data[begin : begin + _BLOCK_BYTES], self._blocks[-1]))
