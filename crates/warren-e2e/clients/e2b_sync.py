"""Uses E2B's published SDK, as it is, against `warren e2b`: every call, and what goes wrong.

The environment says where the server is (E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL). Prints one line for each step.
"""

import time

import httpx
from e2b import (
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def step(name):
    print(name, flush=True)


def fails(expected, call, text=""):
    try:
        call()
    except expected as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return error
    raise AssertionError(f"did not raise {expected}")


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.05)


sandbox = Sandbox.create(timeout=600, metadata={"who": "a test", "kind": "x=y&z"}, envs={"FROM_CREATE": "yes"})
step("create")

info = sandbox.get_info()
assert info.sandbox_id == sandbox.sandbox_id and info.template_id == "base", info
assert info.metadata == {"who": "a test", "kind": "x=y&z"} and info.state == SandboxState.RUNNING, info
assert 0 < (info.end_at - info.started_at).total_seconds() < 700, info
assert sandbox.is_running()
sandbox.set_timeout(3000)
assert (sandbox.get_info().end_at - info.end_at).total_seconds() > 1000
step("info and timeout")

# Commands.
result = sandbox.commands.run("echo out; echo err >&2; echo $FROM_CREATE")
assert (result.stdout, result.stderr, result.exit_code) == ("out\nyes\n", "err\n", 0), result
assert sandbox.commands.run("id -un; pwd; echo $HOME").stdout == "user\n/home/user\n/home/user\n"
assert sandbox.commands.run("id -un", user="root").stdout == "root\n"
assert sandbox.commands.run("pwd; echo $A", cwd="/tmp", envs={"A": "b c"}).stdout == "/tmp\nb c\n"
failed = fails(CommandExitException, lambda: sandbox.commands.run("echo no; exit 7"))
assert (failed.exit_code, failed.stdout) == (7, "no\n"), failed
fails(Exception, lambda: sandbox.commands.run("true", cwd="/no/such"), "/no/such")
step("commands collected")

seen = []
sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.05; done; echo e >&2", on_stdout=seen.append, on_stderr=lambda text: seen.append("E" + text))
assert "".join(seen) == "1\n2\n3\nEe\n" and len(seen) >= 3, seen
big = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout
assert len(big) == 3000000
step("commands streamed")

closes = hasattr(sandbox.commands, "close_stdin")  # not in older versions
reader = "cat; echo end" if closes else "head -n 1; echo end"
background = sandbox.commands.run(reader, background=True, stdin=True)
listed = [process for process in sandbox.commands.list() if process.pid == background.pid]
assert listed and listed[0].args == ["-l", "-c", reader], listed
sandbox.commands.send_stdin(background.pid, "typed\n")
if closes:
    sandbox.commands.close_stdin(background.pid)
assert background.wait().stdout == "typed\nend\n"
step("background and stdin")

left = sandbox.commands.run("read line; echo got $line; sleep 0.2", background=True, stdin=True, timeout=0)
left.disconnect()
again = sandbox.commands.connect(left.pid, timeout=0)
sandbox.commands.send_stdin(left.pid, "word\n")
assert again.wait().stdout == "got word\n"
fails(NotFoundException, lambda: sandbox.commands.connect(left.pid))
step("a dropped stream does not end its process")

killed = sandbox.commands.run("sleep 1000 & wait", background=True, timeout=0)
assert killed.kill() and fails(CommandExitException, killed.wait).exit_code != 0
until("the process is gone", lambda: all(p.pid != killed.pid for p in sandbox.commands.list()))
assert not sandbox.commands.kill(killed.pid)
started = time.monotonic()
fails(TimeoutException, lambda: sandbox.commands.run("sleep 1000", timeout=3))
assert time.monotonic() - started < 60
until("a late process is killed", lambda: sandbox.commands.list() == [])
step("kill and timeout")

# A terminal.
written = []
terminal = sandbox.pty.create(PtySize(rows=10, cols=77), timeout=0)
sandbox.pty.resize(terminal.pid, PtySize(rows=20, cols=99))
sandbox.pty.send_stdin(terminal.pid, b"stty size; tty; id -un; exit 3\n")
assert fails(CommandExitException, lambda: terminal.wait(on_pty=written.append)).exit_code == 3
text = b"".join(written).decode()
assert "20 99" in text and "/dev/pts/" in text and "user" in text, text
step("terminal")

# Files.
files = sandbox.files
made = files.write("dir/one.txt", "first")
assert (made.name, made.path) == ("one.txt", "/home/user/dir/one.txt"), made
assert files.read("dir/one.txt") == "first" and files.read("/home/user/dir/one.txt", format="bytes") == b"first"
files.write("dir/one.txt", b"\x00\xff2")
assert bytes(files.read("dir/one.txt", format="bytes")) == b"\x00\xff2"
assert b"".join(files.read("dir/one.txt", format="stream")) == b"\x00\xff2"
many = files.write_files([{"path": "dir/two.txt", "data": "2"}, {"path": "/tmp/x/three.txt", "data": b"3"}])
assert [entry.path for entry in many] == ["/home/user/dir/two.txt", "/tmp/x/three.txt"], many
assert [(entry.name, entry.type.value) for entry in files.list("dir")] == [("one.txt", "file"), ("two.txt", "file")]
assert files.exists("dir") and not files.exists("no")
entry = files.get_info("dir/two.txt")
assert (entry.size, entry.owner, entry.group, entry.mode & 0o777) == (1, "user", "user", 0o644), entry
assert files.make_dir("deep/er") and not files.make_dir("deep/er")
assert [entry.path for entry in files.list("/home/user", depth=2) if "deep" in entry.path] == ["/home/user/deep", "/home/user/deep/er"]
assert files.rename("dir/two.txt", "deep/2.txt").path == "/home/user/deep/2.txt"
assert files.read("deep/2.txt") == "2" and not files.exists("dir/two.txt")
files.remove("dir")
assert not files.exists("dir")
fails(NotFoundException, lambda: files.read("no"))
fails(NotFoundException, lambda: files.list("no"))
fails(NotFoundException, lambda: files.rename("no", "yes"))
fails(Exception, lambda: files.read("deep"))
large = b"0123456789" * 1_000_000
files.write("large", large)
assert bytes(files.read("large", format="bytes")) == large
step("files")

watch = files.watch_dir("deep", recursive=True)
files.write("deep/new.txt", "x")
files.make_dir("deep/er/more")
events = []


def watched():
    events.extend((event.name, event.type.value) for event in watch.get_new_events())
    return {("new.txt", "create"), ("new.txt", "write"), ("er/more", "create")} <= set(events)


until("events", watched)
files.remove("deep/new.txt")
until("a remove", lambda: watched() and ("new.txt", "remove") in events)
watch.stop()
fails(Exception, watch.get_new_events)
step("watch")

# Ports.
server = sandbox.commands.run("cd /tmp/x && exec python3 -m http.server 8000 --bind 127.0.0.1", background=True, timeout=0)
host = sandbox.get_host(8000)
assert host.startswith(f"8000-{sandbox.sandbox_id}.localhost:"), host
port = host.rsplit(":", 1)[1]


def get(path):
    return httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": host})


until("the server answers", lambda: get("/three.txt").status_code == 200)
assert get("/three.txt").text == "3" and get("/none").status_code == 404
server.kill()
until("the port is closed", lambda: get("/").status_code == 502)
assert "port is not open" in get("/").text
link = sandbox.download_url("deep/2.txt").split("/files", 1)[1]
files_host = sandbox.get_host(49983)
got = httpx.get(f"http://127.0.0.1:{port}/files{link}", headers={"Host": files_host})
assert got.text == "2", got.text
forged = httpx.get(f"http://127.0.0.1:{port}/files{link}".replace("2.txt", "x"), headers={"Host": files_host})
assert forged.status_code == 401, forged
step("ports and links")

# Other sandboxes.
other = Sandbox.create(timeout=300, metadata={"who": "other"})
found = Sandbox.list(query=SandboxQuery(metadata={"kind": "x=y&z"})).next_items()
assert [item.sandbox_id for item in found] == [sandbox.sandbox_id], found
pages = Sandbox.list(limit=1)
ids = []
while pages.has_next:
    ids += [item.sandbox_id for item in pages.next_items()]
assert sorted(ids) == sorted([sandbox.sandbox_id, other.sandbox_id]), ids
connected = Sandbox.connect(sandbox.sandbox_id)
assert connected.files.read("deep/2.txt") == "2"
metrics = sandbox.get_metrics()
assert all(metric.mem_total > 0 for metric in metrics), metrics
step("list, connect, metrics")

# Pause.
pause = getattr(sandbox, "pause", None) or sandbox.beta_pause
pause()
assert sandbox.get_info().state == SandboxState.PAUSED and not sandbox.is_running()
assert [item.sandbox_id for item in Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()] == [sandbox.sandbox_id]
resumed = Sandbox.connect(sandbox.sandbox_id, timeout=120)
assert resumed.files.read("deep/2.txt") == "2"
assert resumed.commands.run("id -un; cat ~/deep/2.txt").stdout == "user\n2"
assert resumed.get_info().state == SandboxState.RUNNING
step("pause and connect")

# What is refused.
fails(SandboxException, lambda: Sandbox.create(template="no-such-template"), "no-such-template")
fails(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
fails(NotFoundException, lambda: Sandbox.connect("inosuchsandbox"))
assert not Sandbox.kill("inosuchsandbox")
offline = Sandbox.create(allow_internet_access=False, timeout=60)
assert offline.commands.run("echo $HTTP_PROXY").exit_code == 0
assert offline.kill()
step("refusals")

# The end.
waiting = other.commands.run("sleep 1000", background=True, timeout=0)
assert other.kill() and not other.kill()
fails(Exception, waiting.wait)
fails(Exception, lambda: other.commands.run("true"))
until("it does not run", lambda: not other.is_running())
short = Sandbox.create(timeout=1)
until("the timeout ends it", lambda: not short.kill() and not short.is_running())
assert sandbox.kill()
assert Sandbox.list().next_items() == []
step("done")
