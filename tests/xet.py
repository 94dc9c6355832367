"""Xet storage, as far as a hub needs it for whole files to be fetched.

See Hugging Face's specification of the Xet protocol: download protocol, CAS API, xorb format. A file is stored in
xorbs, and a xorb in chunks. Real hashes are made from the chunks' hashes; whoever fetches does not check them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

CHUNK = 1 << 16
XORB = 16 * CHUNK


def key(content: bytes) -> str:
    """By which a file or a xorb is known."""
    return hashlib.sha256(content).hexdigest()


def reconstruction(content: bytes, at: str) -> dict[str, Any]:
    """How a file is put together. Its xorbs can be had at the address ``at``, by their number."""
    terms, places = [], {}
    for number, xorb in enumerate(_xorbs(content)):
        chunks = list(_chunks(xorb))
        these = {"start": 0, "end": len(chunks)}
        whole = {"start": 0, "end": sum(map(len, chunks)) - 1}
        terms.append({"hash": key(xorb), "unpacked_length": len(xorb), "range": these})
        places[key(xorb)] = [{"range": these, "url": f"{at}/{number}", "url_range": whole}]
    return {"offset_into_first_range": 0, "terms": terms, "fetch_info": places}


def stored(content: bytes, number: int) -> bytes:
    """A file's xorb, as it is stored."""
    return b"".join(_chunks(_xorbs(content)[number]))


def _xorbs(content: bytes) -> list[bytes]:
    return [content[begin : begin + XORB] for begin in range(0, len(content), XORB)]


def _chunks(xorb: bytes) -> Iterator[bytes]:
    """Each with its head: version 0, length as it is stored, 0 for not compressed, length."""
    for begin in range(0, len(xorb), CHUNK):
        chunk = xorb[begin : begin + CHUNK]
        length = len(chunk).to_bytes(3, "little")
        yield b"\0" + length + b"\0" + length + chunk
