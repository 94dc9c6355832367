"""The code to join a workshop, and the key to lead it."""

import hashlib
import hmac
import secrets
import socket
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit, urlunsplit

import psutil
import segno

from lab.errors import LabError
from visualize.options import EVERYWHERE, LOOPBACK, in_address

LETTERS = "BCDFGHJKMNPQRTVWXYZ3479"
"""None can be mistaken for another, and without vowels no code is a word."""
LENGTH = 5
SALT = b"decode-lab workshop code"
MOST_PAGE = 500
"""Most characters of a page's address. A QR code holds 2,331 bytes; from across a room far fewer can be read."""


class WorkshopAuthError(LabError):
    """A code or a key that is not this workshop's."""


class WorkshopAuth:
    """A code for everybody in the room, who see it on the wall, and a key for those who lead.

    The code keeps out people who are not in the room; it is not secret. The key is.

    Args:
        key: None: one is generated. The code follows from the key: a server restarted with a chosen key has the same
            code, and nobody has to join again. By scrypt (RFC 7914): to find the key by trial from the code takes a
            twentieth of a second per attempt.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key or secrets.token_urlsafe(16)
        number = int.from_bytes(hashlib.scrypt(self.key.encode(), salt=SALT, n=2**14, r=8, p=1))
        self.code = "".join(LETTERS[number // len(LETTERS) ** place % len(LETTERS)] for place in range(LENGTH))

    def join(self, code: object) -> None:
        """Raises WorkshopAuthError if the code is wrong. Case and spaces do not matter."""
        if not _same("".join(str(code).split()).upper(), self.code):
            raise WorkshopAuthError(
                f"That is not this workshop's code: it is {LENGTH} letters and digits, on the presenter's screen."
            )

    def lead(self, key: object) -> None:
        """Raises WorkshopAuthError if the key is wrong. It may come as it stands in an address, where the browser may
        have written some of its characters as %20 and the like."""
        if not any(_same(text, self.key) for text in (str(key), unquote(str(key)))):
            raise WorkshopAuthError(
                "That is not this workshop's key. It is in the link that the server printed when it was started, or in "
                "its variable DECODE_LAB_PRESENTER_KEY."
            )


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def joining(page: str, code: str, host: str, names: Collection[str] | None = None) -> str:
    """The address at which people join.

    Args:
        page: the Lab's address, as the presenter's browser has it.
        host: what the server listens on. A loopback or wildcard host in ``page`` is of no use to others: it is
            replaced by this machine's address in its network.
        names: those that the server answers to. None: any.

    Raises:
        WorkshopAuthError: ``page`` is not a web address, nobody else can reach the server, or its address is not known,
            or is none that it answers to.
    """
    try:
        parts = urlsplit(page)
        name, port = parts.hostname, parts.port
    except ValueError:
        name = None
    if not name or len(page) > MOST_PAGE or parts.scheme not in ("http", "https"):
        raise WorkshopAuthError(
            f"{page[:80]!r} is not a page's address: http or https, a host, at most {MOST_PAGE} characters."
        )
    if name in (*LOOPBACK, *EVERYWHERE):
        if host not in EVERYWHERE:
            raise WorkshopAuthError(
                "Others cannot connect yet. Restart with --host 0.0.0.0 or --share, or lead from the address by which "
                "others reach this server."
            )
        name = _own_address(host)
        if not name:
            raise WorkshopAuthError(
                "This machine has no address at which others could reach it: connect it to their network. Or, if they "
                "can reach it, open this page by the address that they use, such as http://192.168.1.5:7860/room."
            )
        if names is not None and name not in names:
            raise WorkshopAuthError(
                "The server answers others only by the names in --allowed-hosts: lead from the address at which a "
                f"proxy serves it, or add this machine's own to them, {name}."
            )
    host_and_port = in_address(name) + (f":{port}" if port else "")
    return urlunsplit((parts.scheme, host_and_port, parts.path or "/", f"join={code}", ""))


def here(page: str) -> str:
    """The page's address for a browser on this machine."""
    for everywhere, itself in EVERYWHERE.items():
        page = page.replace(f"//{in_address(everywhere)}:", f"//{in_address(itself)}:")
    return page


def qr_code(text: str) -> str:
    """A QR code of ``text``, as a data URI for an image element. Always dark on light."""
    return segno.make(text, error="m", micro=False).svg_data_uri(scale=8, border=3, dark="#000", light="#fff")


def _own_address(host: str) -> str | None:
    """This machine's address in its network, IPv6 if ``host`` is, else IPv4: the one that leads out of that network or,
    where no way does (a hotspot, a switch on a table), that of the first interface; last those it gave itself (RFC
    3927). Nothing is sent: a datagram socket only looks up the route to a host that does not exist (RFC 5737 and 3849
    reserve these addresses for documentation).
    """
    family, nobody = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect((nobody, 9))
            return way.getsockname()[0]
    except OSError:
        states = psutil.net_if_stats()
        up = [known for name, known in psutil.net_if_addrs().items() if name in states and states[name].isup]
        # Those of IPv6 with a % (fe80::) mean something only on one machine's interface.
        found = [one.address for known in up for one in known if one.family == family and "%" not in one.address]
        usable = [address for address in found if not ip_address(address).is_loopback]
        return min(usable, key=lambda address: ip_address(address).is_link_local, default=None)
