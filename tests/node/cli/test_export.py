"""`millpond export` and `import`: what goes out comes in, from a node or a stopped one's folder."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from millpond.actors.errors import NotAllowed
from millpond.actors.messages import Mode
from millpond.actors.store.changes import AttemptsSet, MessageRemoved, ModeSet, Origin
from millpond.node.cli.main import main
from millpond.sync import connect
from tests.node.folders import LATER_S, row, rows, stopped
from tests.node.processes import Serving, command, environment, serving

BINARY = bytes(range(256))
NO_TEXT = b"box/\xff\xfe"


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--channel", "jobs/*=queue,attempts=1") as ready:
        yield ready


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving("--data", str(tmp_path_factory.mktemp("other"))) as ready:
        yield ready


def run(*words: str | bytes | Path) -> int:
    return main([os.fsdecode(word) for word in words])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def put_all(node: Serving, name: bytes, messages: list[bytes]) -> list[int]:
    """Several in flight: one after the other would take long."""
    ids = []
    with connect(node.urls["tcp"], channel=name, role="producer") as channel:
        for start in range(0, len(messages), 500):
            some = messages[start : start + 500]
            pending = [channel.put_nowait(data, ttl=3600) for data in some]
            ids += [each.wait().id for each in pending]
    return ids


def kept(node: Serving, name: bytes) -> list[bytes]:
    with connect(node.urls["tcp"], channel=name, role="consumer", window=0) as channel:
        return [channel.get(each) for each in channel.ids()]


def test_a_line_tells_all_that_is_kept(node: Serving, tmp_path: Path):
    """P2P-30, PA-33: u64 are strings, what is no text is base64."""
    before = time.time()
    ids = put_all(node, NO_TEXT, [b"hello", BINARY])
    file = tmp_path / "kept.jsonl"
    assert run("export", NO_TEXT, "-o", file, "--connect", node.urls["tcp"]) == 0
    first, second = lines(file)
    assert first == {
        "channel_base64": "Ym94L//+",
        "mode": "pair",
        "id": str(ids[0]),
        "key": first["key"],
        "ttl": 3600,
        "expires_at": first["expires_at"],
        "attempts": 0,
        "data": "hello",
    }
    assert isinstance(first["key"], str) and int(first["key"]) < 2**32
    assert before + 3600 <= first["expires_at"] <= time.time() + 3601
    assert "data" not in second and "data_base64" in second
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_what_one_node_exports_another_imports(
    node: Serving, other: Serving, tmp_path: Path, scheme: str
):
    name = f"trip/{scheme}".encode()
    messages = [b"hello", BINARY, b"\n", b"\xff" * 900_000, b"x" * 200_000, "\u20ac".encode()]
    put_all(node, name, messages)
    file = tmp_path / "kept.jsonl"
    assert run("export", name, "-o", file, "--connect", node.urls[scheme]) == 0
    for _ in range(2):  # PA-09: the same file again changes nothing
        assert run("import", file, "--connect", other.urls[scheme]) == 0
        assert kept(other, name) == messages
    assert kept(node, name) == messages
    elsewhere = f"elsewhere/{scheme}".encode()
    assert run("import", elsewhere, file, "--connect", other.urls[scheme]) == 0
    assert kept(other, elsewhere) == messages


def test_ten_thousand_messages_through_a_pipe(node: Serving, other: Serving):
    messages = [b"message %d" % number for number in range(10_000)]
    put = command(
        "put", "many", "--lines", "--connect", node.urls["tcp"], input=b"\n".join(messages)
    )
    assert put.returncode == 0
    done = command("export", "many", "--connect", node.urls["tcp"])
    assert done.returncode == 0 and b"10000 messages" in done.stderr
    told = command("import", "--json", "--connect", other.urls["tcp"], input=done.stdout)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["imported"] == 10_000
    exported = command("export", "many", "--connect", other.urls["tcp"])
    assert [json.loads(line)["data"].encode() for line in exported.stdout.splitlines()] == messages


@pytest.mark.parametrize("mode", ["pair", "queue"])
def test_what_was_there_already_is_counted_apart(
    node: Serving, other: Serving, mode: str, tmp_path: Path
):
    """A file that is imported twice, with more messages the second time."""
    name, file = f"twice/{mode}", tmp_path / "kept.jsonl"
    here, there = ("--connect", node.urls["tcp"]), ("--connect", other.urls["tcp"])
    with connect(node.urls["tcp"], name, role="producer", mode=mode) as channel:
        for number in range(20):
            channel.put(b"%d" % number)
        assert run("export", name, "-o", file, *here) == 0
        for number in range(5):
            channel.put(b"more %d" % number)
    assert command("import", str(file), *there).stderr == b"20 messages imported\n"
    assert command("import", str(file), *there).stderr == b"0 messages imported, 20 already there\n"
    assert command("import", str(file), *here).stderr == b"0 messages imported, 20 already there\n"
    assert run("export", name, "-o", file, *here) == 0
    told = command("import", str(file), *there, "--json")
    assert json.loads(told.stdout) == {
        "imported": 5,
        "already_there": 20,
        "expired": 0,
        "refused": 0,
    }


def test_small_packets_carry_large_channels(tmp_path: Path):
    messages = [b"%03d" % number * 40 for number in range(100)] + [b"y" * 900]
    with serving(env=environment(MILLPOND_PACKET_BYTES_MAX="1024")) as node:
        put_all(node, b"small", messages)
        file = tmp_path / "kept.jsonl"
        assert run("export", "small", "-o", file, "--connect", node.urls["tcp"]) == 0
    assert [each["data"].encode() for each in lines(file)] == messages


def test_a_dead_letter_goes_out_with_its_origin_and_comes_in_as_it_was(
    node: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """PS-14."""
    url, file, folder = node.urls["tcp"], tmp_path / "dead.jsonl", tmp_path / "data"
    [job] = put_all(node, b"jobs/1", [b"hard"])
    with connect(url, channel="jobs/1", role="worker") as worker:
        worker.receive(5).nack(reject=True)
    with connect(url, channel="jobs/1!dead", role="consumer", window=0) as dead:
        while not dead.list():
            time.sleep(0.01)
    assert run("export", "jobs/1!dead", "-o", file, "--connect", url) == 0
    [dead_letter] = lines(file)
    assert dead_letter["origin"] == {"id": str(job), "attempts": 1, "reason": "reject"}
    assert dead_letter["key"] == str(job)
    assert run("import", file, "--data", folder) == 0
    again = tmp_path / "again.jsonl"
    assert run("export", "jobs/1!dead", "--data", folder, "-o", again) == 0
    assert lines(again) == [dead_letter]
    capfd.readouterr()
    assert run("import", file, "--connect", url) == 1  # clients do not write there
    assert "line 1" in capfd.readouterr().err
    assert run("import", "jobs/2", file, "--connect", url) == 0
    assert kept(node, b"jobs/2") == [b"hard"]


def test_a_stopped_folder_round_trips_to_the_last_field(tmp_path: Path):
    """P2P-30, PS-05: ids, keys, deadlines, attempts, origins and the mode."""
    folder, file = tmp_path / "one", tmp_path / "kept.jsonl"
    changes = [ModeSet(Mode.QUEUE), *rows(500)[1:], row(600, BINARY), AttemptsSet(row(3).id, 2)]
    with stopped(folder) as store:
        store.write(b"jobs/1", [*changes, row(700, b"dead", origin=Origin(7, 3, "later"))])
        store.write(b"jobs/1", [MessageRemoved(row(5).id, 5, None, len(row(5).data))])
    assert run("export", "jobs/1", "--data", folder, "-o", file) == 0
    told = lines(file)
    assert len(told) == 501
    assert (told[3]["attempts"], told[3]["mode"], told[3]["expires_at"]) == (2, "queue", LATER_S)
    copy, again = tmp_path / "two", tmp_path / "again.jsonl"
    assert run("import", file, "--data", copy) == 0
    assert run("import", file, "--data", copy) == 0
    assert run("export", "jobs/1", "--data", copy, "-o", again) == 0
    assert again.read_bytes() == file.read_bytes()
    with serving("--data", str(copy)) as node:
        assert len(kept(node, b"jobs/1")) == 501
        fresh = put_all(node, b"jobs/1", [b"new"])
        assert fresh[0] > int(told[-1]["id"])


def test_import_into_a_folder_leaves_alone_what_is_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    folder, file = tmp_path / "data", tmp_path / "kept.jsonl"
    with stopped(folder) as store:
        store.write(b"box", rows(10))
    assert run("export", "box", "--data", folder, "-o", file) == 0
    with stopped(folder) as store:
        store.write(b"box", [MessageRemoved(row(4).id, 4, None, len(row(4).data))])
    capfd.readouterr()
    assert run("import", file, "--data", folder, "--json") == 0
    assert json.loads(capfd.readouterr().out) == {
        "imported": 1,
        "already_there": 9,
        "expired": 0,
        "refused": 0,
    }


def test_whose_key_it_was_there_means_nothing_in_another_folder(tmp_path: Path):
    """PA-18: the number of a sender there may be somebody else's here."""
    folder, file, again = tmp_path / "data", tmp_path / "kept.jsonl", tmp_path / "again.jsonl"
    file.write_text(_line(1, key=str(1 << 32 | 7)) + _line(2, key=str(2 << 32 | 7)))
    assert run("import", file, "--data", folder) == 0
    assert run("export", "box", "--data", folder, "-o", again) == 0
    keys = [int(each["key"]) for each in lines(again)]
    assert len(set(keys)) == 2 and max(keys) < 2**32


def _line(number: int, **fields: Any) -> str:
    whole = {"channel": "box", "id": str(row(number).id), "key": str(number), "ttl": 60}
    return json.dumps(whole | {"expires_at": LATER_S, "data": "x"} | fields) + "\n"


@pytest.mark.parametrize("where", ["node", "folder"])
def test_what_has_expired_is_left_out_and_counted(
    where: str, other: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """P2P-14."""
    file = tmp_path / "kept.jsonl"
    gone = time.time() - 1
    file.write_text(_line(1, expires_at=gone) + _line(2) + "\n" + _line(3, expires_at=gone))
    to = ["--connect", other.urls["tcp"]] if where == "node" else ["--data", str(tmp_path / "d")]
    assert run("import", f"expired/{where}", file, "--json", *to) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["imported"], told["expired"]) == (1, 2)


def test_the_rest_of_the_ttl_is_kept(other: Serving, tmp_path: Path):
    file, again = tmp_path / "kept.jsonl", tmp_path / "again.jsonl"
    file.write_text(_line(1, ttl=3600, expires_at=time.time() + 100))
    assert run("import", "ttl", file, "--connect", other.urls["tcp"]) == 0
    assert run("export", "ttl", "-o", again, "--connect", other.urls["tcp"]) == 0
    [told] = lines(again)
    assert 98 <= told["ttl"] <= 100 and told["key"] == "1"


def test_a_refused_message_is_told_and_the_others_go_on(
    other: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """PA-10."""
    file = tmp_path / "kept.jsonl"
    file.write_text(_line(1) + _line(1, data="other") + _line(2) + _line(3, data=""))
    assert run("import", "refused", file, "--connect", other.urls["tcp"]) == 1
    told = capfd.readouterr().err
    assert "line 2: the idempotency key was used before" in told and "line 4" in told
    assert "2 messages imported, 2 refused" in told
    assert kept(other, b"refused") == [b"x", b"x"]


BAD = {
    "not json": "line 2",
    "{}": "line 2",
    _line(1, id=1).strip(): "id",
    _line(1, id="0").strip(): "id is 0",
    _line(1, id="-1").strip(): "id",
    _line(1, key="18446744073709551616").strip(): "key",
    _line(1, ttl=0).strip(): "ttl is 0",
    _line(1, data_base64="AAAA").strip(): "one of data and data_base64",
    _line(1, channel="").strip(): "channel",
    _line(1, channel=256 * "c").strip(): "channel",
    _line(1, mode="tree").strip(): "mode",
    _line(1, attempts=-1).strip(): "attempts",
    '{"id": ' * 100_000: "line 2",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_line_that_is_no_message_is_named(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = tmp_path / "kept.jsonl"
    file.write_text(_line(9) + text + "\n")
    assert run("import", file, "--data", tmp_path / "data") == 1
    told = capfd.readouterr().err
    assert "line 2 is not an exported message" in told and BAD[text] in told
    assert "Traceback" not in told


def test_ids_from_the_future_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """PA-31: the node would begin with it, and ids end in 2080."""
    file = tmp_path / "kept.jsonl"
    file.write_text(_line(1, id=str(2**62)))
    assert run("import", file, "--data", tmp_path / "data") == 1
    assert "line 1: the id is a year ahead" in capfd.readouterr().err


def test_a_channel_that_keeps_nothing_exits_4_and_leaves_no_file(
    node: Serving, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file, folder = tmp_path / "kept.jsonl", tmp_path / "data"
    with stopped(folder) as store:
        store.write(b"box", rows(1))
    for where in (("--connect", node.urls["tcp"]), ("--data", folder)):
        assert run("export", "nothing/here", "-o", file, *where) == 4
        assert "'nothing/here' is empty" in capfd.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["data"]
    assert run("export", "box", "--data", tmp_path / "absent") == 4
    assert not (tmp_path / "absent").exists()
    assert run("export", "box", "--data", tmp_path) == 4
    assert not (tmp_path / "lock").exists()


def test_a_failed_export_leaves_the_old_file(node: Serving, tmp_path: Path):
    file = tmp_path / "kept.jsonl"
    file.write_text("precious")
    assert run("export", "nothing/here", "-o", file, "--connect", node.urls["tcp"]) == 4
    assert file.read_text() == "precious"


@pytest.mark.parametrize("mode", ["queue", "fanout"])
def test_messages_that_left_are_not_imported_again(node: Serving, tmp_path: Path, mode: str):
    """The node knows their keys, and answers each put with the receipt of the first."""
    at, name, file = ("--connect", node.urls["tcp"]), f"left-{mode}", tmp_path / "left.jsonl"
    assert command("channel", "create", name, "--mode", mode, *at).returncode == 0
    for n in range(3):
        assert command("put", name, f"{n}", *at).returncode == 0
    file.write_bytes(command("export", name, *at).stdout)
    assert len(file.read_text().splitlines()) == 3
    assert command("channel", "purge", name, "--yes", *at).returncode == 0
    told = command("import", str(file), *at).stderr
    assert told == b"0 messages imported, 3 already there\n"
    assert command("channel", "rm", name, "--yes", *at).returncode == 0
    assert command("import", str(file), *at).stderr == b"3 messages imported\n"


def test_what_is_in_a_file_twice_is_imported_once(node: Serving, tmp_path: Path):
    """Two exports in one file: the same message may differ in what is left of its ttl."""
    file, url = tmp_path / "twice.jsonl", node.urls["tcp"]
    file.write_text("".join(_line(1, channel="twice", expires_at=LATER_S - n) for n in (0, 9, 20)))
    assert run("import", file, "--connect", url) == 0
    with connect(url, channel="twice", window=0) as channel:
        assert len(list(channel.ids())) == 1


def test_a_folder_is_no_file_to_export_to(node: Serving, tmp_path: Path, capfd):
    put_all(node, b"box/folder", [b"x"])
    assert run("export", "box/folder", "-o", tmp_path, "--connect", node.urls["tcp"]) == 1
    assert f"cannot write {tmp_path}: it is a folder" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_no_import_of_nothing(node: Serving, tmp_path: Path):
    """A backup script with a wrong path must not look like a success."""
    connected = ("--connect", node.urls["tcp"])
    absent = tmp_path / "absent.jsonl"
    done = command("import", str(absent), *connected, stdin=subprocess.DEVNULL)
    assert done.returncode == 4 and f"no file '{absent}'" in done.stderr.decode()
    done = command("import", str(tmp_path), *connected, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and "is a folder" in done.stderr.decode()


def test_a_pipe_can_be_imported(node: Serving, tmp_path: Path):
    """As a shell's <(zcat kept.jsonl.gz) gives it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=(_line(1),))
    writer.start()
    assert run("import", pipe, "--data", tmp_path / "data") == 0
    writer.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_no_files_where_a_node_runs_as_somebody_else(tmp_path: Path, capfd):
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(b"box", rows(1))
    os.chown(folder / "lock", 65534, 65534)
    before = sorted(folder.rglob("*"))
    for words in (["export", "box"], ["import", os.devnull], ["doctor", "--repair", "box"]):
        assert run(*words, "--data", folder) == 1
        assert "run this command as that user" in capfd.readouterr().err
    assert sorted(folder.rglob("*")) == before
    assert main(["doctor", "--data", str(folder)]) == 0  # looking changes nothing


def test_a_folder_in_use_is_not_touched(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with serving("--data", str(tmp_path)) as node:
        put_all(node, b"box", [b"x"])
        for words in (["export", "box"], ["import", os.devnull]):
            assert run(*words, "--data", tmp_path) == 1
            told = capfd.readouterr().err
            assert str(tmp_path) in told and str(node.process.pid) in told


def test_export_needs_admin_and_get_in_the_channel_itself(tmp_path: Path):
    """PA-39: who may watch the node may not read everybody's messages."""
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    for file, text in (
        (tokens, "root all\nwatch admin watch/*\nwatch put,get,list box\n"),
        (mine, "watch\n"),
    ):
        file.touch(0o600)
        file.write_text(text)
    with serving("--token-file", str(tokens)) as node:
        url = node.urls["tcp"]
        with connect(url, channel="box", role="producer", token="root") as box:
            box.put(b"secret")
        assert run("export", "box", "--connect", url, "--token-file", mine) == 5
        with (
            connect(url, channel="watch/1", token="watch") as watch,
            pytest.raises(NotAllowed),
        ):
            watch.admin(2, {"channel": b"box"})


@pytest.mark.parametrize("words", ["export", "export c --data d --connect tcp://h", "import a b c"])
def test_usage_errors_exit_2(words: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split()) == 2
    assert capsys.readouterr().out == ""
