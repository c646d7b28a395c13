"""Pictures of pages with 256 colours: 40 in a hundred of their size. The browser reads and counts; Python would need
libraries for it that nothing else here does.
"""

import base64
import json
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.browser import Page

# The 256 most frequent colours, of those that differ in more than the last two bits; others become the nearest of them.
REDUCE = """(async (text) => {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes]));
  const { width, height } = image;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const pixels = new Uint32Array(canvas.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const each of pixels) counts.set(each, (counts.get(each) ?? 0) + 1);
  const palette = new Map();
  for (const [colour] of [...counts].sort((a, b) => b[1] - a[1])) {
    if (palette.size < 256 && !palette.has(colour & 0xfcfcfc)) palette.set(colour & 0xfcfcfc, colour);
  }
  const colours = [...palette.values()];
  const parts = (colour) => [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  const split = colours.map(parts);
  const nearest = new Map();
  const find = (colour) => {
    if (!nearest.has(colour)) {
      const [r, g, b] = parts(colour);
      const far = split.map((each) => (each[0] - r) ** 2 + (each[1] - g) ** 2 + (each[2] - b) ** 2);
      nearest.set(colour, far.indexOf(Math.min(...far)));
    }
    return nearest.get(colour);
  };
  let indexes = "";
  for (const each of pixels) indexes += String.fromCharCode(find(each));
  return { width, height, palette: split.flat(), indexes: btoa(indexes) };
})"""


def reduced(page: "Page", png: bytes) -> bytes:
    """The picture `png` with a palette: https://www.w3.org/TR/png-3/

    Args:
        page: any that is open.
        png: of a page.
    """
    found = page.run(f"{REDUCE}({json.dumps(base64.b64encode(png).decode())})")
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["indexes"])
    rows = b"".join(b"\0" + pixels[at : at + width] for at in range(0, len(pixels), width))
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(found["palette"])),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
