"""The program as a process: signals, two drivers, pipes, terminals and plain locales."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelbraid.events.store import open_store
from tests.ops.conftest import CAMPAIGN, call

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE_S = 60
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")


def begun(store: Path, *arguments: str, audit_s: float = 0.3, **options: object) -> "subprocess.Popen[bytes]":
    """The program, started on a store."""
    environment = {**os.environ, "AUDIT_S": str(audit_s), "KERNELBRAID_STORE": f"sqlite:///{store}"}
    environment.update(options.pop("environment", {}))  # type: ignore[call-overload]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, str(PROGRAM), *arguments], env=environment, **pipes)  # type: ignore[call-overload]


def until(condition: Callable[[], bool]) -> None:
    """Waits for it, not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def position(store: Path, campaign: str = CAMPAIGN) -> int:
    """The campaign's last position; 0 before it is there."""
    if not store.exists():
        return 0
    log = open_store(f"sqlite:///{store}")
    try:
        return next((row.position for row in log.campaigns() if row.name == campaign), 0)
    finally:
        log.close()


def last_types(store: Path) -> list[str]:
    """Types of the campaign's last events."""
    return [json.loads(line)["type"] for line in call(store, "log", CAMPAIGN, "--json").stdout.splitlines()[-2:]]


def summary(store: Path) -> dict[str, object]:
    """`show --json` of the campaign."""
    found: dict[str, object] = json.loads(call(store, "show", CAMPAIGN, "--json").stdout)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_pauses_after_the_running_audit(tmp_path: Path, number: int) -> None:
    store = tmp_path / "kernelbraid.db"
    program = begun(store, "run", "linear", "--audits", "30")
    until(lambda: position(store) >= 8)

    program.send_signal(number)
    stdout, stderr = program.communicate(timeout=PATIENCE_S)

    assert program.returncode == 130
    assert b"pausing after the running audit" in stderr
    assert b"Traceback" not in stderr
    found = summary(store)
    assert found["status"] == "paused"
    assert found["in_flight"] == []
    assert f"kernelbraid resume {CAMPAIGN}".encode() in stdout
    assert call(store, "resume", CAMPAIGN).exit_code == 0


def test_the_second_signal_ends_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    store = tmp_path / "kernelbraid.db"
    program = begun(store, "run", "linear", "--audits", "3", audit_s=30)
    until(lambda: "ImplementationSubmitted" in last_types(store))
    time.sleep(0.2)

    program.send_signal(signal.SIGINT)
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    started = time.monotonic()
    program.communicate(timeout=PATIENCE_S)

    assert program.returncode == 130
    assert time.monotonic() - started < 10
    assert summary(store)["status"] == "interrupted"
    assert call(store, "resume", CAMPAIGN).exit_code == 0


def test_a_second_driver_exits_5_while_notes_and_stops_get_through(tmp_path: Path) -> None:
    store = tmp_path / "kernelbraid.db"
    program = begun(store, "run", "linear", "--audits", "200")
    until(lambda: position(store) >= 4)

    second = call(store, "resume", CAMPAIGN)
    assert second.exit_code == 5
    assert "driver" in second.stderr
    assert summary(store)["status"] == "running"
    assert call(store, "note", CAMPAIGN, "from elsewhere").exit_code == 0
    assert call(store, "stop", CAMPAIGN).exit_code == 0

    _, stderr = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0, stderr
    assert summary(store)["stop_reason"] == "user"


def test_a_plain_locale_gets_ascii_and_never_an_encoding_error(store: Path) -> None:
    call(store, "note", CAMPAIGN, "snow ☃")
    plain = {"LC_ALL": "C"}

    shown = begun(store, "show", CAMPAIGN, environment=plain).communicate(timeout=PATIENCE_S)
    logged = begun(store, "log", CAMPAIGN, environment=plain).communicate(timeout=PATIENCE_S)
    helped = begun(store, "--help", environment=plain).communicate(timeout=PATIENCE_S)

    assert shown[0].isascii()
    assert b"`- i0" in shown[0]
    assert b"snow \\u2603" in logged[0]
    assert helped[0].isascii()
    assert b"Traceback" not in shown[1] + logged[1] + helped[1]


def test_a_reader_that_leaves_is_no_failure(store: Path) -> None:
    program = begun(store, "log", CAMPAIGN, "--json")
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()

    assert program.stderr.read() == b""
    program.stderr.close()
    assert program.wait(PATIENCE_S) == 0


def test_a_terminal_gets_the_live_view_and_a_pipe_gets_lines(tmp_path: Path) -> None:
    store = tmp_path / "kernelbraid.db"
    master, slave = pty.openpty()
    program = begun(store, "run", "linear", "--audits", "3", stderr=slave, audit_s=0.1)
    os.close(slave)
    shown = _drained(master)
    stdout, _ = program.communicate(timeout=PATIENCE_S)

    assert program.returncode == 0
    assert b"audits per minute" in shown
    assert b"\x1b[" in shown
    assert b"\x1b[" not in stdout
    assert b"weighted sum" in stdout


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_leaves_colours_out(tmp_path: Path, no_color: str) -> None:
    terminal = {"TERM": "xterm-256color", "NO_COLOR": no_color}
    master, slave = pty.openpty()
    program = begun(
        tmp_path / "kernelbraid.db", "run", "linear", "--audits", "2", stderr=slave, environment=terminal, audit_s=0.1
    )
    os.close(slave)
    shown = _drained(master)
    program.communicate(timeout=PATIENCE_S)

    assert b"audits per minute" in shown
    assert bool(COLOUR.search(shown)) is not bool(no_color)


def test_follow_prints_what_is_appended_later(store: Path) -> None:
    program = begun(store, "log", CAMPAIGN, "--follow", "--json")
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(position(store))]
    call(store, "note", CAMPAIGN, "later")

    assert json.loads(lines[0])["type"] == "CampaignOpened"
    assert json.loads(program.stdout.readline())["payload"] == {"text": "later"}
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 130


def _drained(master: int) -> bytes:
    """All that is written to a terminal until its last writer leaves."""
    found = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(master)
    return found


@pytest.mark.soak
def test_ctrl_c_on_a_terminal_is_no_verdict_on_the_candidate(tmp_path: Path) -> None:
    """A terminal signals the whole foreground group; compiler and candidates must not be in it."""
    store = f"sqlite:///{tmp_path / 'kernelbraid.db'}"
    command = [sys.executable, "-m", "kernelbraid.ops.cli", "--store", store, "run", "rms_norm", "--audits", "40"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stderr is not None
        while b"root qualified" not in program.stderr.readline():
            assert program.poll() is None
        time.sleep(4)
        os.killpg(program.pid, signal.SIGINT)
        _, stderr = program.communicate(timeout=PATIENCE_S)

    assert program.returncode == 130
    assert b"paused: interrupted by SIGINT" in stderr
    assert b"crashed" not in stderr
    assert b"build_failed" not in stderr


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("log", CAMPAIGN), ("show", CAMPAIGN, "--json"), ("list",)])
def test_an_output_that_takes_nothing_is_told_without_a_traceback(store: Path, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        process = begun(store, *words, stdout=full)
        _, told = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert b"No space left" in told
    assert b"Traceback" not in told


def test_a_closed_output_is_no_failure(store: Path) -> None:
    line = f"exec {sys.executable} {PROGRAM} --store sqlite:///{store} show {CAMPAIGN} >&-"
    process = subprocess.run(["sh", "-c", line], capture_output=True, env={**os.environ, "AUDIT_S": "0"})

    assert (process.returncode, process.stderr) == (0, b"")
