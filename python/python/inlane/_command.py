"""Starts the command `inlane` and returns its results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._native import RunFailed, Unavailable, UsageError

if TYPE_CHECKING:
    import pandas

#: What a setting may be. Sequences become lists, such as [64, 1500] for `sizes`.
Setting = str | int | float | bool | None | Iterable[str | int | float] | os.PathLike[str]

# How long an interrupted command may take to write what it has measured.
_LAST_SECONDS = 20


class Row(dict[str, Any]):
    """A row of a result. Its values are keys and attributes: `row["tx"]["packets"]` and `row.tx.packets`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this row has no {name}; it has {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


class Result:
    """What a command has measured: the document that `inlane ... --json` writes, whose fields docs/json.md explains."""

    def __init__(self, document: dict[str, Any], messages: str = "") -> None:
        #: The whole document.
        self.document = document
        #: What the command has written to standard error.
        self.messages = messages

    @property
    def rows(self) -> list[Row]:
        """The rows of the result: one for each run, size or operation."""
        return self.document["results"]

    @property
    def notes(self) -> list[str]:
        """What a reader must know before comparing the figures with others."""
        return self.document.get("notes", [])

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the document to a file, for `inlane compare` and `inlane report`."""
        Path(file).write_text(json.dumps(self.document, indent=2) + "\n")

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the rows as a data frame. The columns of nested values have names such as `tx.packets`."""
        import pandas

        return pandas.json_normalize(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        command = self.document.get("command", {}).get("name", "inlane")
        return f"<inlane.Result of {command}: {len(self.rows)} row{'' if len(self.rows) == 1 else 's'}>"


# Only what a command has measured comes with its failure.
RunFailed.result = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the command. `result` has what was measured until then, if anything."""

    def __init__(self, result: Result | None) -> None:
        super().__init__("interrupted")
        self.result = result


def find_command() -> str:
    """Returns the path of the command: INLANE_COMMAND, else the one beside this Python, else the first in PATH."""
    if given := os.environ.get("INLANE_COMMAND"):
        return given
    beside = Path(sysconfig.get_path("scripts")) / "inlane"
    found = str(beside) if beside.exists() else shutil.which("inlane")
    if found is None:
        raise Unavailable("the command inlane was not found: install it, or set INLANE_COMMAND to its path")
    return found


def flags(settings: Mapping[str, Setting]) -> list[str]:
    """Returns the settings as flags of the command. `None` and `False` leave a setting out."""
    made = []
    for name, value in settings.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        match value:
            case None | False:
                pass
            case True:
                made.append(flag)
            case str() | int() | float() | os.PathLike():
                made.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
            case _:
                made.append(f"{flag}={','.join(str(part) for part in value)}")
    return made


def run(*command: str, progress: bool = False, **settings: Setting) -> Result:
    """Runs `inlane COMMAND --SETTING VALUE ... --json -` and returns its result.

    Underscores in the names of settings stand for hyphens, and one at the end is left out, as in `from_`. Every subcommand with `--json` can be
    run, and `inlane COMMAND --help` lists its settings. With `progress`, the command's messages appear on standard error while it runs.
    """
    arguments = [find_command(), *command, *flags(settings), "--json", "-"]
    try:
        # In a group of its own, the command does not get the terminal's Ctrl-C: it would get two with ours.
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, text=True
        )
    except OSError as error:
        raise Unavailable(error.errno, f"the command {arguments[0]} cannot be started: {error.strerror}") from error
    output: list[str] = []
    messages: list[str] = []

    def read_messages() -> None:
        for line in process.stderr:
            messages.append(line)
            if progress:
                print(line, end="", file=sys.stderr, flush=True)

    readers = [threading.Thread(target=lambda: output.append(process.stdout.read())), threading.Thread(target=read_messages)]
    for reader in readers:
        reader.start()
    interrupted = False
    try:
        try:
            process.wait()
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
            process.wait(_LAST_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
    return _outcome(process.returncode, output[0], "".join(messages), interrupted)


def _outcome(status: int, output: str, messages: str, interrupted: bool) -> Result:
    try:
        result = Result(json.loads(output, object_hook=Row), messages) if output else None
    except json.JSONDecodeError:
        result = None
    if interrupted:
        raise Interrupted(result)
    if status != 0:
        raise _failure(status, messages, result)
    if result is None:
        raise RunFailed("the command wrote no result; it has no setting json")
    return result


def _failure(status: int, messages: str, result: Result | None) -> Exception:
    # The last message says why the command failed. Progress and warnings come before it.
    lines = messages.splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith(("inlane: ", "error: "))]
    why = "\n".join(lines[starts[-1] :] if starts else lines).removeprefix("inlane: ").removeprefix("error: ")
    why = why or f"the command ended with status {status}"
    match status:
        case 2:
            return UsageError(why)
        case 3:
            return Unavailable(why)
        case _:
            failure = RunFailed(why)
            failure.result = result
            return failure


class Child:
    """The command forward beside this process. It moves packets between a port that only the command can open and a pipe."""

    def __init__(self, *arguments: str, receives: bool) -> None:
        #: The specification of the pipe's end in this process, as a capture.
        self.pipe = ""
        self._result = tempfile.TemporaryFile("w+")
        self._messages = tempfile.TemporaryFile("w+")
        read, write = os.pipe()
        ours, theirs = (read, write) if receives else (write, read)
        ends = {"stdin": subprocess.DEVNULL, "stdout": theirs} if receives else {"stdin": theirs, "stdout": subprocess.DEVNULL}
        json_file = self._result.fileno()
        command = [find_command(), "forward", *arguments, "--no-baseline", f"--json=/dev/fd/{json_file}"]
        try:
            self._process = subprocess.Popen(command, stderr=self._messages, process_group=0, pass_fds=[json_file], **ends)
        except OSError as error:
            os.close(ours)
            raise Unavailable(error.errno, f"the command {command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(theirs)
        self._ours = ours
        self.pipe = f"pcap:/dev/fd/{ours}"

    def close_pipe(self) -> None:
        """Closes this process's own descriptor of the pipe. Call it once the pipe was opened by its name."""
        if self._ours is not None:
            os.close(self._ours)
            self._ours = None

    def __del__(self) -> None:
        if hasattr(self, "_ours"):
            self.stop()
            self.close_pipe()

    def stop(self) -> None:
        """Stops receiving. The command still sends what it has received."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def finish(self) -> Row | None:
        """Waits for the command's end and returns the row of its result."""
        self.close_pipe()
        try:
            status = self._process.wait()
        except KeyboardInterrupt:
            self.stop()
            self._process.wait(_LAST_SECONDS)
            raise
        with self._result, self._messages:
            self._result.seek(0)
            self._messages.seek(0)
            output, messages = self._result.read(), self._messages.read()
        result = Result(json.loads(output, object_hook=Row), messages) if output else None
        if status != 0:
            raise _failure(status, messages, result)
        return result.rows[0] if result and result.rows else None


def forward(rx: str, tx: str | Iterable[str] = (), *, progress: bool = False, **settings: Setting) -> Result:
    """Receives packets from port `rx`, processes them, and sends them to the ports `tx`: `inlane forward`."""
    ports = [tx] if isinstance(tx, str) else list(tx)
    return run("forward", *(f"--tx={port}" for port in ports), rx=rx, progress=progress, **settings)


def copy(from_: str, to: str, *, progress: bool = False, **settings: Setting) -> Result:
    """Copies between two memories, such as `host` and `gpu:0`, and measures it: `inlane copy`."""
    return run("copy", from_=from_, to=to, progress=progress, **settings)


def nvme_bench(target: str, *, progress: bool = False, **settings: Setting) -> Result:
    """Reads or writes a drive over NVMe/TCP and measures it: `inlane nvme bench`."""
    return run("nvme", "bench", target, progress=progress, **settings)


def mix(*loads: str, progress: bool = False, **settings: Setting) -> Result:
    """Runs loads alone and together, and says what limits each: `inlane mix`."""
    return run("mix", *(f"--load={load}" for load in loads), progress=progress, **settings)
