"""Starting the server: its options, where they may be given, and what is refused."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lab.models.devices import best_device
from visualize.options import (
    LOOPBACK,
    MAX_USERS,
    ask_directly,
    can_listen,
    in_address,
    is_private,
    known_hosts,
    read_options,
    source_address,
)

ROOT = Path(__file__).parents[2]


def test_by_default_only_this_machine_is_served() -> None:
    options = read_options([], {})
    assert vars(options) == {
        "host": "127.0.0.1",
        "port": 7860,
        "allowed_hosts": (),
        "share": False,
        "max_users": MAX_USERS,
        "target": None,
        "draft": None,
        "head": None,
        "device": best_device(),
        "dtype": "auto",
        "attach": None,
        "workshop": False,
        "repository": None,
    }


def test_every_option_is_also_an_environment_variable() -> None:
    said = {
        "host": "0.0.0.0",
        "port": "8123",
        "allowed_hosts": "Lab.example.org, [::1]",
        "max_users": "3",
        "target": "a folder",
        "draft": "-odd",
        "head": "another folder",
        "device": "cpu",
        "dtype": "float32",
        "repository": "https://example.org/lab",
    }
    variables = {f"DECODE_LAB_{name.upper()}": value for name, value in said.items()}
    hosts = ("lab.example.org", "::1")
    expected = said | {
        "port": 8123,
        "allowed_hosts": hosts,
        "max_users": 3,
        "share": True,
        "attach": None,
        "workshop": True,
    }
    assert vars(read_options([], variables | {"DECODE_LAB_SHARE": "Yes", "DECODE_LAB_WORKSHOP": "1"})) == expected
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in said.items()]
    assert vars(read_options([*arguments, "--share", "--workshop"], {})) == expected


def test_the_command_line_overrides_variables_and_gradios_come_last() -> None:
    gradio = {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": "9000"}
    assert read_options([], gradio).port == 9000
    own = gradio | {"DECODE_LAB_PORT": "9001", "DECODE_LAB_SHARE": "1", "DECODE_LAB_MAX_USERS": ""}
    assert read_options([], own).port == 9001
    options = read_options(["--port", "9002", "--no-share"], own)
    assert (options.port, options.share, options.host, options.max_users) == (9002, False, "0.0.0.0", MAX_USERS)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--port", "0"], {}, "app.py: argument --port: it must be a whole number from 1 to 65,535, not '0'"),
        (["--port", "9" * 5000], {}, "from 1 to 65,535"),
        (["--max-users", "-1"], {}, "whole number from 1"),
        (["--allowed-hosts", "https://lab.example.org"], {}, "names of hosts, separated by commas, such as"),
        (["--allowed-hosts", "lab.example.org:8443"], {}, "not 'lab.example.org:8443'"),
        (["--max-users", "²"], {}, "whole number from 1"),
        (["--device", "tpu"], {}, "device must be 'cpu', 'cuda'"),
        (["--device", "cuda:99"], {}, "device='cuda:99' is not there"),
        (["--attach", "gpu:8000"], {}, "argument --attach: The address of a vLLM server is like http://127.0.0.1:8000"),
        (["--dtype", "int3"], {}, "dtype must be 'auto', 'float32'"),
        (["--speed", "11"], {}, "unrecognized arguments: --speed"),
        ([], {"DECODE_LAB_PORT": "many"}, "app.py: DECODE_LAB_PORT: it must be a whole number from 1 to 65,535"),
        (
            [],
            {"GRADIO_SERVER_PORT": "abc"},
            "app.py: GRADIO_SERVER_PORT: it must be a whole number from 1 to 65,535, not",
        ),
        ([], {"DECODE_LAB_ATTACH": "gpu:8000"}, "app.py: DECODE_LAB_ATTACH: The address of a vLLM server is like"),
        ([], {"SSL_CERT_FILE": "missing.pem"}, "The file that SSL_CERT_FILE names, 'missing.pem', has no certificates"),
        ([], {"DECODE_LAB_SHARE": "perhaps"}, "DECODE_LAB_SHARE must be one of 1, true"),
    ],
)
def test_invalid_options_are_explained_in_one_line(arguments, environment, said, capsys, monkeypatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)  # where libraries look
    with pytest.raises(SystemExit) as end:
        read_options(arguments, environment)
    line = capsys.readouterr().err
    assert end.value.code == 2
    assert said in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "host"),
    [("[::1]", "::1"), ("0:0:0:0:0:0:0:1", "::1"), ("[::]", "::"), ("LocalHost", "localhost"), ("", "127.0.0.1")],
)
def test_a_host_is_recognised_however_it_is_written(said: str, host: str) -> None:
    options = read_options(["--host", said], {})
    assert options.host == host
    assert is_private(options, {}) == (host != "::")
    assert in_address(host) == (f"[{host}]" if ":" in host else host)


def test_a_taken_port_and_another_machines_address_are_known_beforehand() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        assert not can_listen("127.0.0.1", port)
        assert not can_listen("0.0.0.0", port)
    assert can_listen("127.0.0.1", port)
    assert can_listen("localhost", port)
    assert not can_listen("192.0.2.1", port), "nobody's (RFC 5737)"
    assert not can_listen("no.such.host.invalid", port)


def test_only_requests_to_this_machine_bypass_the_proxy() -> None:
    environment = {"http_proxy": "http://proxy:3128", "NO_PROXY": "corp.example, 10.0.0.1", "no_proxy": "localhost"}
    ask_directly("192.168.1.7", environment)
    assert environment.pop("http_proxy") == "http://proxy:3128"
    reported = "localhost,corp.example,10.0.0.1,127.0.0.1,::1,192.168.1.7"
    assert environment == {"NO_PROXY": reported, "no_proxy": reported}
    nobody = {"no_proxy": "*"}
    ask_directly("127.0.0.1", nobody)
    assert nobody == {"no_proxy": "*"}


@pytest.mark.parametrize(
    ("arguments", "environment", "known"),
    [
        ([], {}, LOOPBACK),
        (["--allowed-hosts", "lab.example.org"], {}, (*LOOPBACK, "lab.example.org")),
        (["--host", "10.0.0.7", "--allowed-hosts", "a.example,::2"], {}, (*LOOPBACK, "10.0.0.7", "a.example", "::2")),
        (["--host", "0.0.0.0"], {}, None),
        (["--share"], {}, None),
        (["--share", "--allowed-hosts", "lab.example.org"], {}, None),  # nobody knows the public link's name beforehand
        ([], {"SPACE_ID": "somebody/lab"}, None),  # which has a name of its own
        ([], {"GRADIO_SERVER_NAME": "10.0.0.7"}, None),
    ],
)
def test_the_server_answers_to_the_names_that_it_was_reported_and_is_private_where_there_are_none(
    arguments: list[str], environment: dict[str, str], known: tuple[str, ...] | None
) -> None:
    options = read_options(arguments, environment)
    assert known_hosts(options, environment) == known
    assert is_private(options, environment) == (known == LOOPBACK)


def test_a_librarys_variable_that_is_empty_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's often are. OpenMP would complain and take every core, the hub's library would report usage, and
    Gradio would fail at a number."""
    names = ("OMP_NUM_THREADS", "HF_HUB_DISABLE_TELEMETRY", "GRADIO_ANALYTICS_ENABLED", "GRADIO_ANALYTICS_MAX_EVENTS")
    without = ("GRADIO_SERVER_PORT", "GRADIO_NUM_PORTS")  # which the lab has no value of its own for
    for chosen in ("", "7"):
        for name in (*names, *without):
            monkeypatch.setenv(name, chosen)
        runpy.run_path(str(ROOT / "app.py"))
        found = [os.environ.get(name) for name in names]
        assert all(found) if not chosen else found == ["7"] * len(names)
        assert [os.environ.get(name) for name in without] == [chosen or None] * 2


@pytest.mark.parametrize("arguments", [["--help"], ["--port", "none"]])
def test_help_and_mistyped_options_do_not_import_torch(arguments) -> None:
    hidden = "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['gradio'] = None; "
    code = hidden + f"import runpy; sys.argv[1:] = {arguments}; runpy.run_path('app.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "--port" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if arguments == ["--help"] else 2)


@pytest.mark.parametrize(
    ("cloned", "address"),
    [
        ("https://forge.example.org/someone/lab.git", "https://forge.example.org/someone/lab"),
        ("https://someone:secret@forge.example.org/someone/lab", "https://forge.example.org/someone/lab"),
        ("git@forge.example.org:someone/lab.git", "https://forge.example.org/someone/lab"),
        ("ssh://git@forge.example.org:2222/someone/lab.git/", "https://forge.example.org/someone/lab"),
        ("/home/someone/lab", None),
        ("../lab", None),
        ("file:///home/someone/lab", None),
        ("http://127.0.0.1:8080/lab.git", None),
    ],
)
def test_help_links_to_where_a_clone_came_from_without_any_password(tmp_path: Path, cloned: str, address: str) -> None:
    assert source_address(tmp_path, {}) is None, "no clone"
    config = (
        f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {cloned}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
    )
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(config)
    assert source_address(tmp_path, {}) == address
    assert source_address(tmp_path, {"SPACE_ID": "someone/lab"}).endswith("/spaces/someone/lab")
