"""Writes a picture of the browser as a PNG with a palette: a third of the size, same to the eye."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Browser

_PIXELS = """async (source) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const bytes = context.getImageData(0, 0, image.width, image.height).data;
  let text = '';
  for (let at = 0; at < bytes.length; at += 32768)
    text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return [image.width, image.height, btoa(text)];
}"""


def shrink(browser: Browser, picture: bytes, file: Path) -> None:
    page = browser.new_page()
    source = "data:image/png;base64," + base64.b64encode(picture).decode()
    width, height, pixels = page.evaluate(_PIXELS, source)
    page.close()
    points = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height * width, 4)[:, :3]
    palette, chosen = _quantize(points)
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = chosen.reshape(height, width)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"PLTE", palette.tobytes())
    data += _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")
    file.write_bytes(data)


def _quantize(points: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """At most 256 colours, and for every point the nearest of them."""
    colours, where, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts)
    wide = colours.astype(int)
    # The frequent ones first; then the ones that are far from all of these, such as a green word.
    kept = list(order[:160])
    near = np.abs(wide[:, None, :] - wide[kept][None, :, :]).sum(axis=2).min(axis=1)
    while len(kept) < min(256, len(colours)):
        kept.append(int((near * np.sqrt(counts)).argmax()))
        near = np.minimum(near, np.abs(wide - wide[kept[-1]]).sum(axis=1))
    distance = np.abs(wide[:, None, :] - wide[kept][None, :, :]).sum(axis=2)
    return colours[kept], distance.argmin(axis=1).astype(np.uint8)[where.reshape(-1)]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
