"""Which bit it was that flipped, by what a CRC-32C was and what it is now.

A CRC is linear: the two differ by what the flipped bit alone has put into the register, and every byte behind it has
moved that on as a zero does. So the difference is moved back, byte by byte from the end, until it is what one bit
leaves. No two bits leave the same within 2**31 - 1 bits, the period of the polynomial.
"""

from crc32c import crc32c

_BY_ZERO = crc32c(b"\0")
_TABLE = [crc32c(bytes([byte])) ^ _BY_ZERO for byte in range(256)]
"""What a byte leaves in a register that is empty."""
_BEFORE = [0] * 256
"""The highest byte of what is left to the byte that has left it."""
for _byte, _left in enumerate(_TABLE):
    _BEFORE[_left >> 24] = _byte
_BITS = {_TABLE[1 << number]: 1 << number for number in range(8)}


def flipped_bit(difference: int, size: int) -> tuple[int, int] | None:
    """The byte of `size`, and the bit of it, whose flip makes their CRC-32C differ so (`^`); None: no single bit does.

    It takes a second or two for what a million batches have that no CRC of theirs covers.
    """
    for place in range(size - 1, -1, -1):
        bit = _BITS.get(difference)
        if bit is not None:
            return place, bit
        byte = _BEFORE[difference >> 24]
        difference = (difference ^ _TABLE[byte]) << 8 | byte
    return None
