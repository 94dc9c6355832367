"""The server's options: from the command line, or from environment variables.

``--max-users`` is ``DECODE_LAB_MAX_USERS``, and likewise for the others; the command line takes precedence. Gradio's
own ``GRADIO_SERVER_NAME`` and ``GRADIO_SERVER_PORT`` have the lowest precedence.
"""

import argparse
import re
import socket
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from lab.cli.arguments import Parser, add_pair
from lab.errors import ConfigError
from lab.vllm.client import Server, trusted
from visualize.url_settings import SWITCHED

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""This machine's names for itself."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The wildcard addresses of IPv4 and IPv6, which no browser can open, and for each the address to open on this
machine."""
NAME = re.compile(r"[\w.-]+|[\da-f]*:[\da-f]*:[\da-f:.]*", re.ASCII)
"""A host's name, or an address of IPv4 or IPv6."""
HOST = r"((?:[\w-]+\.)+[a-z]{2,})"
CLONED = re.compile(
    rf"(?:(?:https?|ssh|git)://(?:[^@/]*@)?{HOST}(?::\d+)?/|(?:[^@/]+@)?{HOST}:)(.+?)(?:\.git)?/*", re.ASCII
)
"""An address that Git clones from, on another machine: its host, and its path there."""
PREFIX = "DECODE_LAB_"
GRADIO = {"GRADIO_SERVER_NAME": "host", "GRADIO_SERVER_PORT": "port"}
MAX_USERS = 64
KEY = f"{PREFIX}PRESENTER_KEY"
SWITCHES = ("share", "workshop")
SHARED = (
    "Sharing: anyone with the public link, which passes through Gradio's servers, can use this machine's models and "
    "read what the pages show. There is no password. The link ends with this process, or after a week."
)


def read_options(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> argparse.Namespace:
    """``target``, ``draft``, ``device``, ``dtype``, ``host``, ``port``, ``allowed_hosts``, ``share``, ``max_users``,
    ``workshop``, ``repository``, and ``attach``: a ``Server``, whose key is the environment's ``VLLM_API_KEY``, or
    None.

    An invalid value ends the process with a sentence and status 2.
    """
    parser = Parser(description="Watch a language model decode, in the browser.")
    parser.add_argument(
        "--host",
        type=_host,
        default="127.0.0.1",
        help="Default: 127.0.0.1, this machine alone; 0.0.0.0: all of IPv4, :: of IPv6.",
    )
    parser.add_argument("--port", type=partial(_whole, low=1, high=65535), default=7860, help="Default: 7860.")
    parser.add_argument(
        "--allowed-hosts",
        type=_hosts,
        default=(),
        metavar="NAME,NAME",
        help="names under which a proxy on this machine serves the lab, such as lab.example.org: the server answers to "
        "them, too, and need not listen to any other machine.",
    )
    parser.add_argument("--share", action=argparse.BooleanOptionalAction, default=False, help=SHARED)
    parser.add_argument(
        "--max-users",
        type=partial(_whole, low=1, high=100_000),
        default=MAX_USERS,
        help=f"most visitors with runs going or waiting at once; others are asked to come back. Default: {MAX_USERS}.",
    )
    parser.add_argument(
        "--attach",
        metavar="URL",
        type=partial(_server, key=environment.get("VLLM_API_KEY")),
        help="a vLLM server to watch on a page of its own, such as http://127.0.0.1:8000. Its key, if it needs one, "
        "is read from the variable VLLM_API_KEY.",
    )
    parser.add_argument(
        "--repository",
        metavar="URL",
        type=_url,
        help="where this lab's source can be read, such as https://example.org/decode-lab: pages link to it.",
    )
    parser.add_argument(
        "--workshop",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="many people on one engine: their runs share its batch and its blocks instead of taking turns, a page "
        f"shows all of them, and anyone with the presenter's key ({KEY}, or one that is printed) can lead the others.",
    )
    add_pair(parser)
    options = argparse.Namespace()
    parser.prog = "app.py"
    parser.exit_on_error = False
    for variable, argument in _from_environment(parser, environment):
        try:
            parser.parse_args([argument], options)
        except argparse.ArgumentError as error:
            parser.error(f"{variable}: {error.message}")
    parser.exit_on_error = True
    parser.parse_args(arguments, options)
    if options.workshop and borrows_a_gpu(environment):
        parser.error("a ZeroGPU Space lends its GPU to one run at a time: there is nothing for a workshop to share.")
    # These import torch, so they come after --help and errors in other options.
    from lab.models.devices import resolve_device
    from lab.models.loader import resolve_dtype

    try:
        options.device = resolve_device(options.device)
        resolve_dtype(options.dtype, options.device)
        if environment.get("SSL_CERT_FILE"):
            trusted()  # Gradio reads them when it is imported
    except ConfigError as error:
        parser.error(str(error))
    return options


def borrows_a_gpu(environment: Mapping[str, str]) -> bool:
    """True on the server of a ZeroGPU Space, a kind of Hugging Face Space."""
    return SWITCHED.get(environment.get("SPACES_ZERO_GPU", "").lower(), False)


def is_private(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """True if only this machine can reach the server: no other host, no proxy, no public link, no Space."""
    return options.host in LOOPBACK and not (options.allowed_hosts or options.share or "SPACE_ID" in environment)


def known_hosts(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The names that the server answers to. None: any, as where a public link will have a name of its own."""
    if options.allowed_hosts and not options.share:
        return tuple(dict.fromkeys((*LOOPBACK, options.host, *options.allowed_hosts)))
    return LOOPBACK if is_private(options, environment) else None


def source_address(folder: Path, environment: Mapping[str, str]) -> str | None:
    """The address of this ``folder``'s source: the Space that it runs as, or where its clone came from, without the
    name or password that Git may know. None: nothing says."""
    if "SPACE_ID" in environment:
        from huggingface_hub.constants import ENDPOINT

        return f"{ENDPOINT}/spaces/{environment['SPACE_ID']}"
    config = ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    with suppress(ConfigParserError, UnicodeDecodeError):
        config.read(folder / ".git" / "config", "utf-8")
    found = CLONED.fullmatch(config.get('remote "origin"', "url", fallback=None) or "")
    return found and f"https://{found[1] or found[2]}/{found[3]}"


def in_address(host: str) -> str:
    """``host`` as it is written in a page's address."""
    return f"[{host}]" if ":" in host else host


def can_listen(host: str, port: int) -> bool:
    """True if this machine has such an address, and no other program listens there. Of several addresses that a name
    has, one is enough."""
    with suppress(OSError):
        for family, *_ in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.create_server((host, port), family=family):
                return True
    return False


def ask_directly(host: str, environment: MutableMapping[str, str]) -> None:
    """Bypass any proxy for this machine: Gradio sends requests to its own address when it starts and to call a tool."""
    there = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    if "*" not in there:
        names = dict.fromkeys(name for name in (*map(str.strip, there), *LOOPBACK, host) if name)
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(names)


def _from_environment(parser: Parser, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that are set, each with the equivalent argument. An empty one counts as unset."""
    names = GRADIO | {PREFIX + name.upper(): name for name in vars(parser.parse_args([]))}
    for variable, name in names.items():
        value = environment.get(variable, "")
        if value and name not in SWITCHES:
            yield variable, f"--{name.replace('_', '-')}={value}"
        elif value and value.lower() not in SWITCHED:
            parser.error(f"{variable} must be one of {', '.join(SWITCHED)}, not {value!r}.")
        elif value:
            yield variable, f"--{name}" if SWITCHED[value.lower()] else f"--no-{name}"


def _host(text: str) -> str:
    """A host in its canonical form, without the brackets that it has in an address."""
    name = text.strip().removeprefix("[").removesuffix("]").lower()
    try:
        return str(ip_address(name))
    except ValueError:
        return name or LOOPBACK[0]


def _hosts(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(_host(name) for name in text.split(",") if name.strip())
    for name in names:
        if not NAME.fullmatch(name):
            raise argparse.ArgumentTypeError(
                f"it must be names of hosts, separated by commas, such as lab.example.org, not {name!r}"
            )
    return names


def _url(text: str) -> str:
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise argparse.ArgumentTypeError(
            f"it must be an address without a name or a password, such as https://example.org/decode-lab, not {text!r}"
        )
    return parts.geturl()


def _server(text: str, key: str | None) -> Server:
    try:
        return Server(text, key)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _whole(text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdecimal() or not low <= int(text[:20]) <= high:
        raise argparse.ArgumentTypeError(f"it must be a whole number from {low:,} to {high:,}, not {text!r}")
    return int(text)
