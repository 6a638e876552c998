"""What `from millpond import ...` offers: a short list, and nothing loaded before it is used."""

import subprocess
import sys

import millpond


def test_every_name_of_the_list_can_be_imported():
    assert len(millpond.__all__) <= 15
    assert sorted(millpond.__all__) == millpond.__all__ == list(millpond._HOMES)
    for name in millpond.__all__:
        assert getattr(millpond, name).__name__ == name


def test_importing_the_package_loads_neither_server_nor_websockets():
    heavy = {"anyio", "cryptography", "h2", "msgspec", "uvloop", "websockets", "millpond.node.node"}
    code = f"import millpond, sys; print([m for m in {sorted(heavy)} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_every_way_to_connect_is_in_the_list():
    """The blocking twins have modules of their own."""
    wanted = {"connect", "connect_rustlog", "connect_s3p", "connect_streams"}
    assert {name for name in millpond.__all__ if name.startswith("connect")} == wanted
