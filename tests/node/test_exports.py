"""What `from node import ...` offers: a short list, and nothing loaded before it is used."""

import subprocess
import sys

import node


def test_every_name_of_the_list_can_be_imported():
    assert len(node.__all__) <= 15
    assert sorted(node.__all__) == node.__all__ == list(node._HOMES)
    for name in node.__all__:
        assert getattr(node, name).__name__ == name


def test_importing_the_package_loads_neither_server_nor_websockets():
    code = "import node, sys; print([m for m in ('websockets', 'node.node') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_every_way_to_connect_is_in_the_list():
    """The blocking twins have modules of their own."""
    wanted = {"connect", "connect_rustlog", "connect_s3p", "connect_streams"}
    assert {name for name in node.__all__ if name.startswith("connect")} == wanted
