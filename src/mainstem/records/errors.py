"""What can be wrong with the bytes of a record batch.

CorruptData
├── CorruptBatch             cut short, not magic 2, or its CRC does not match
├── CorruptRecords           the batch's CRC is right, but what it holds is not a list of records
│   └── UnpackedTooLarge     they are more, decompressed, than the reader takes
└── UnknownCompression       the attributes name a codec that Kafka does not have
"""

from mainstem.core import CorruptData


class CorruptBatch(CorruptData):
    """Bytes that are not a whole record batch of format 2 with a matching CRC."""


class CorruptRecords(CorruptData):
    """A batch with a matching CRC whose records cannot be decoded: its writer is broken."""


class UnpackedTooLarge(CorruptRecords):
    """Records that are larger, decompressed, than their reader takes: a few kilobytes can be made to hold gigabytes."""


class UnknownCompression(CorruptData):
    """A compression codec that the record format does not define."""
