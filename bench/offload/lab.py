"""Namespaces, an engine, and programs on the engine or on the kernel's stack, for scripts that test or measure the engine.

    namespace E                                    namespace K
    engine 10.79.0.1 on e0  =======veth=======  k0 10.79.0.2: the kernel's stack
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINE, KERNEL = "10.79.0.1", "10.79.0.2"
# The most seconds that a client may take. Only a hang takes so long.
LIMIT = 120


class Missing(Exception):
    """A program that is not installed."""


class Failed(Exception):
    """A wrong result."""


class NoNamespaces(Exception):
    """This machine does not let the script create network namespaces."""


def must(what, command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Failed(f"{what}: status {done.returncode}: {(done.stderr + done.stdout)[-2000:]}")
    return done.stdout


def find(program, package):
    """Returns the path of a program. Servers often lie in folders outside PATH."""
    folders = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin"
    folders += "".join(f":{folder}" for folder in sorted(Path("/").glob("usr/lib/postgresql/*/bin"), reverse=True))
    path = shutil.which(program, path=folders)
    if path is None:
        raise Missing(f"{program} is missing; apt-get install {package}")
    return path


def check(condition, text):
    if not condition:
        raise Failed(text)


class Lab:
    """The namespaces, the engine and the temporary folder. Processes are ended when the lab is closed."""

    def __init__(self, programs):
        self.folder = Path(tempfile.mkdtemp(prefix="inlane-lab-"))
        self.folder.chmod(0o755)
        # Other users may not enter the build folder, so the command and its library are copied.
        for name in ("inlane", "libinlane_preload.so"):
            shutil.copy2(programs / name, self.folder / name)
        self.inlane = self.folder / "inlane"
        self.socket = self.folder / "control"
        self.names = {side: f"inlane-lab-{side}-{os.getpid()}" for side in "ek"}
        self.running = []
        self.engine = None
        self.card = None
        self.port = 20000

    def namespaces(self):
        e, k = self.names["e"], self.names["k"]
        for name in (e, k):
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if done.returncode != 0:
                raise NoNamespaces(f"no network namespace: {done.stderr.strip()}")
        for line in (
            f"link add e0 netns {e} type veth peer name k0 netns {k}",
            f"-n {e} link set lo up", f"-n {k} link set lo up",
            f"-n {e} link set e0 up", f"-n {k} link set k0 up",
            f"-n {k} address add {KERNEL}/24 dev k0",
        ):
            must("creating namespaces", ["ip", *line.split()])

    def open(self, *more, side="e", port="af_xdp:e0", card=False):
        """Starts the engine, with more flags, or an engine whose card has the port. The namespaces must exist."""
        if card:
            link = f"ntb:{self.folder}/card"
            self.card = self.start_part("card", side, ["card", "--port", port, "--engine", f"{link},role=server"])
            port, more = link, ["--card", *more]
        self.engine = self.start_part(
            "engine", side, ["serve", "--port", port, "--address", f"{ENGINE}/24", "--socket", self.socket, *more])
        self.wait("the engine does not start", lambda: "engine ready" in (self.folder / "engine.log").read_text())

    def start_part(self, name, side, command):
        """Starts an engine or a card in a namespace, with a log of this name."""
        command = ["ip", "netns", "exec", self.names[side], self.inlane, "offload", *command]
        with open(self.folder / f"{name}.log", "w") as log:
            return subprocess.Popen([str(word) for word in command], stderr=log, stdout=log)

    def wait(self, what, condition):
        end = time.monotonic() + 60
        while not condition():
            if self.engine and self.engine.poll() is not None:
                raise Failed("the engine has ended: " + (self.folder / "engine.log").read_text()[-2000:])
            if time.monotonic() > end:
                raise Failed(what)
            time.sleep(0.05)

    def end_engine(self):
        for process in filter(None, (self.engine, self.card)):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.engine = self.card = None

    def close(self, keep=False):
        self.end_programs()
        self.end_engine()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        if keep:
            print(f"logs and data: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def status(self):
        text = must("inlane offload status", [self.inlane, "offload", "status", "--json", "-", "--socket", self.socket])
        return json.loads(text)["results"][0]

    def bytes(self):
        connections = self.status()["connections"]
        return connections["received_bytes"] + connections["sent_bytes"]

    def on(self, offloaded, command, user=None, require=False):
        """Returns a command that runs on the engine, or on the kernel's stack, as another user if one is given. None
        leaves the command as it is."""
        if offloaded is None:
            return [str(word) for word in command]
        # A socket that stayed with the kernel would have no peer, because no interface here has these addresses.
        run = [] if offloaded else ["ip", "netns", "exec", self.names["k"]]
        if user:
            run += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        if offloaded:
            run += [self.inlane, "offload", "run", "--socket", self.socket, *(["--require"] if require else []), "--"]
        return [str(word) for word in [*run, *command]]

    def start(self, offloaded, command, user=None, require=False, **more):
        log = open(self.folder / f"log-{len(self.running)}-{Path(str(command[0])).name}", "w+")
        # A session of its own, so that forked workers end with their server.
        process = subprocess.Popen(
            self.on(offloaded, command, user, require), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True, **more)
        self.running.append((process, log))
        return process

    def run(self, offloaded, command, user=None, input=b""):
        """Runs a client with `input` on its standard input. Returns its output."""
        try:
            done = subprocess.run(
                self.on(offloaded, command, user), capture_output=True, cwd=self.folder, timeout=LIMIT, input=input)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{command[0]} did not end within {LIMIT} s: {(error.stderr or b'')[-500:]}") from error
        if done.returncode != 0:
            text = (done.stdout[-1000:] + done.stderr[-1000:]).decode(errors="replace")
            raise Failed(f"{Path(str(command[0])).name}: status {done.returncode}: {text}")
        return done.stdout

    def end_programs(self):
        for process, _ in reversed(self.running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process, log in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass
            # Forked workers may outlive their server.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            log.close()
        self.running = []

    def logs(self):
        texts = []
        for process, log in self.running:
            log.seek(0)
            texts.append(f"{Path(log.name).name} (status {process.poll()}): {log.read()[-1500:]}")
        return "\n".join(text for text in texts if text)

    def listener(self, offloaded, port):
        """Waits until a server listens."""
        def listens():
            if offloaded:
                sockets = self.status()["sockets"]
                return any(one["state"] == "LISTEN" and one["local"].endswith(f":{port}") for one in sockets)
            return f":{port} " in must("ss", ["ip", "netns", "exec", self.names["k"], "ss", "-Hltn"])
        self.wait(f"no listener on port {port}", listens)


def build(profile="dev"):
    """Builds the command and the preloaded library. Returns their folder."""
    for what in (["--bin", "inlane"], ["--package", "inlane-preload"]):
        must("cargo build", ["cargo", "build", "--quiet", "--profile", profile, *what], cwd=ROOT)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / {"dev": "debug"}.get(profile, profile)
