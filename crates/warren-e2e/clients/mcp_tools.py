"""Calls every tool of `warren mcp` with the official client, over standard input and output or HTTP.

Arguments: what to do, the `warren` program, and arguments for `warren mcp`. For HTTP: a URL and two keys.
A protocol (`legacy`, or a version) calls every tool and checks the answers; `hold` creates a sandbox, prints its name and
waits. The client may be of version 1 or 2.
"""

import asyncio
import base64
import contextlib
import http.client
import os
import sys
from urllib.parse import urlsplit

from mcp import StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

try:
    from mcp import Client
except ImportError:
    from mcp_version_1 import Client

TOOLS = {
    "create_sandbox", "list_sandboxes", "delete_sandbox", "execute_command", "start_command", "poll_command",
    "kill_command", "upload_file", "download_file", "edit_file", "list_files", "file_exists", "search_files",
    "run_code", "restart_context", "open_port",
}

# Smaller than any real one; what begins like a PNG is one to the server.
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"

# What `run_code` uses of matplotlib, which is not on every machine.
PYPLOT = f"""
open_figures = []
class Figure:
    def savefig(self, file, **_): file.write({PNG!r})
def plot(*_): open_figures.append(Figure())
def get_fignums(): return list(range(len(open_figures)))
def figure(number): return open_figures[number]
def close(_): open_figures.clear()
"""


@contextlib.asynccontextmanager
async def over_http(url, key):
    headers = {"Authorization": f"Bearer {key}"}
    async with create_mcp_http_client(headers=headers) as http_client:
        async with streamable_http_client(url, http_client=http_client) as streams:
            yield streams


def client(program, arguments, mode="auto"):
    if is_url(program):
        return Client(over_http(program, arguments[0]), mode=mode, read_timeout_seconds=300)
    environment = {name: value for name, value in os.environ.items() if name in ("WARREN_HOME", "PATH", "HOME")}
    server = StdioServerParameters(command=program, args=["mcp", *arguments], env=environment)
    return Client(server, mode=mode, read_timeout_seconds=300)


def is_url(program):
    return program.startswith("http:")


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, f"{tool} {arguments}: {result.content}"
    return result.structured_content


async def refused(client, word, tool, **arguments):
    """Expects an error that the model can read, with a word in it."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, f"{tool} {arguments} was not refused: {result.structured_content}"
    text = result.content[0].text
    assert word in text, f"{tool} {arguments}: {text}"


async def lifecycle(client):
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == TOOLS, set(listed) ^ TOOLS
    assert listed["delete_sandbox"].annotations.destructive_hint is True
    assert listed["list_files"].annotations.read_only_hint is True

    await refused(client, "`image`", "create_sandbox", image="x", warmpool="y")
    await refused(client, "SandboxWarmPool `missing`", "create_sandbox", warmpool="missing")
    await refused(client, "SandboxTemplate `missing`", "create_sandbox", template="missing")
    await refused(client, "`pod_annotations`", "create_sandbox", pod_annotations={"warren.dev/network": "full"})
    await refused(client, "`namespace`", "create_sandbox", namespace="kube-system")
    await refused(client, "unknown field `imge`", "create_sandbox", imge="x")
    made = await call(client, "create_sandbox", env={"GREETING": "hello"}, labels={"team": "a"})
    name = made["sandbox_claim_name"]
    (only,) = (await call(client, "list_sandboxes"))["sandboxes"]
    assert only["sandbox_claim_name"] == name and only["ready"], only
    return name


async def commands(client, name):
    ran = await call(client, "execute_command", sandbox_claim_name=name, command="echo $GREETING; echo bad >&2; exit 3")
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "hello\n", "bad\n"), ran
    hostile = "; touch /tmp/injected; $(touch /tmp/injected) `touch /tmp/injected`"
    ran = await call(client, "execute_command", sandbox_claim_name=name, command=["printf", "%s", hostile])
    assert ran["stdout"] == hostile, ran
    ran = await call(
        client, "execute_command", sandbox_claim_name=name, command="pwd; echo $K", workdir="/usr/bin", env={"K": hostile}
    )
    assert ran["stdout"] == f"/usr/bin\n{hostile}\n", ran
    ran = await call(client, "execute_command", sandbox_claim_name=name, command="echo begun; sleep 600", timeout=2)
    assert ran["timed_out"] and ran["exit_code"] is None and ran["stdout"] == "begun\n", ran
    await refused(client, "`timeout`", "execute_command", sandbox_claim_name=name, command="true", timeout=601)
    await refused(client, "no-such-program", "execute_command", sandbox_claim_name=name, command=["no-such-program"])

    # More output than is shown: both ends come back, and the rest can be read.
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"
    whole = "".join(f"line {number}\n" for number in range(20000))
    ran = await call(client, "execute_command", sandbox_claim_name=name, command=script, max_output_bytes=2000)
    assert ran["truncated"] and len(ran["stdout"]) < 3000, len(ran["stdout"])
    assert ran["stdout"].startswith("line 0\n") and ran["stdout"].endswith("line 19999\n"), ran["stdout"]
    text, offset = "", 0
    while offset < len(whole):
        part = await call(
            client, "poll_command", command_id=ran["command_id"], stdout_offset=offset, max_output_bytes=50000
        )
        assert part["stdout_next_offset"] > offset and len(part["stdout"]) <= 50000, part["stdout_next_offset"]
        text, offset = text + part["stdout"], part["stdout_next_offset"]
    assert text == whole

    # In the background: its output comes while it runs, and killing it ends its processes in the sandbox.
    started = await call(client, "start_command", sandbox_claim_name=name, command="echo ready; exec sleep 98765")
    for _ in range(600):
        part = await call(client, "poll_command", command_id=started["command_id"])
        if part["stdout"]:
            break
        await asyncio.sleep(0.1)
    assert part["running"] and part["stdout"] == "ready\n", part
    assert (await call(client, "kill_command", command_id=started["command_id"]))["killed"]
    part = await call(client, "poll_command", command_id=started["command_id"], wait=60)
    assert not part["running"] and part["exit_code"] is None, part
    look = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null | grep -c '^sleep 98765'; done | grep -c 1"
    for _ in range(600):
        found = await call(client, "execute_command", sandbox_claim_name=name, command=look)
        if found["stdout"] == "0\n":
            break
        await asyncio.sleep(0.1)
    assert found["stdout"] == "0\n", found
    await refused(client, "`command_id`", "poll_command", command_id="command-999")


async def code(client, name):
    async def run(code, **arguments):
        result = await client.call_tool("run_code", {"sandbox_claim_name": name, "code": code, **arguments})
        assert not result.is_error, f"{code}: {result.content}"
        images = [(part.mime_type, base64.b64decode(part.data)) for part in result.content if part.type == "image"]
        assert len(images) == result.structured_content["images"], result.structured_content
        return result.structured_content, images

    # State stays in a context, and only there.
    ran, _ = await run("import sys\nx = 20\nprint('größe'); print('bad', file=sys.stderr)\nx + 1")
    assert (ran["text"], ran["stdout"], ran["stderr"], ran["context_started"]) == ("21", "größe\n", "bad\n", True), ran
    ran, _ = await run("x += 1\nx")
    assert (ran["text"], ran["context_started"]) == ("21", False), ran
    ran, _ = await run("x", context="other")
    assert ran["error"]["name"] == "NameError" and "line 1" in ran["error"]["traceback"], ran
    ran, _ = await run("cd /usr; f() { echo \"<$1>\"; }", language="shell")
    assert ran["exit_code"] == 0, ran
    ran, _ = await run("pwd; f 'a b'; cat; echo bad >&2; (exit 3)", language="shell")
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "/usr\n<a b>\n", "bad\n"), ran

    # Images: of values, and the open figures of matplotlib.
    _, images = await run(f"class Image:\n    def _repr_png_(self): return {PNG!r}\ndisplay(Image())\nImage()")
    assert images == [("image/png", PNG)] * 2, images
    _, images = await run("class Image:\n    def _repr_png_(self): return b'<svg>'\nImage()")
    assert images == [], images
    for file, content in [("__init__.py", ""), ("pyplot.py", PYPLOT)]:
        path = f"/tmp/matplotlib/{file}"
        await call(client, "upload_file", sandbox_claim_name=name, path=path, content=content)
    ran, images = await run("sys.path.insert(0, '/tmp')\nfrom matplotlib import pyplot\npyplot.plot([1, 2])")
    assert images == [("image/png", PNG)], ran
    assert (await run("pyplot.get_fignums()"))[0]["text"] == "[]"

    # Python is interrupted at its time limit and keeps its state; a shell ends.
    ran, _ = await run("print('begun')\nwhile True: pass", timeout=2)
    assert ran["timed_out"] and ran["error"]["name"] == "KeyboardInterrupt" and ran["stdout"] == "begun\n", ran
    assert (await run("x"))[0]["text"] == "21"
    ran, _ = await run("echo begun; sleep 98766", language="shell", timeout=2)
    assert ran["timed_out"] and ran["context_ended"] and ran["stdout"] == "begun\n", ran
    ran, _ = await run("pwd", language="shell")
    assert ran["context_started"] and ran["stdout"] != "/usr\n", ran

    # A context that ends is reported, and starts again. One is restarted while it runs code.
    ran, _ = await run("import os\nos._exit(7)")
    assert (ran["exit_code"], ran["context_ended"]) == (7, "it ended with exit code 7"), ran
    assert (await run("1"))[0]["context_started"]
    await run("y = 5", context="slow")
    sleeper = "import time; open('/tmp/asleep', 'w').close(); time.sleep(600)"
    sleeper = asyncio.create_task(run(sleeper, context="slow", timeout=300))
    for _ in range(600):
        if (await call(client, "file_exists", sandbox_claim_name=name, path="/tmp/asleep"))["exists"]:
            break
        await asyncio.sleep(0.1)
    assert (await call(client, "restart_context", sandbox_claim_name=name, context="slow"))["ended"]
    ran, _ = await sleeper
    assert ran["context_ended"] == "it was ended", ran
    assert (await run("y", context="slow"))[0]["error"]["name"] == "NameError"

    # Output beyond the limit is read like that of a command.
    ran, _ = await run("for n in range(20000): print('line', n)", max_output_bytes=2000)
    assert ran["truncated"] and ran["stdout"].endswith("line 19999\n") and len(ran["stdout"]) < 3000, ran
    part = await call(client, "poll_command", command_id=ran["command_id"], stdout_offset=178890)
    assert part["stdout"].endswith("line 19999\n") and part["exit_code"] == 0, part
    await refused(client, "`context`", "run_code", sandbox_claim_name=name, code="1", context="../x")
    await refused(client, "NUL", "run_code", sandbox_claim_name=name, code="a\0b")

    # An image without Python.
    await call(client, "execute_command", sandbox_claim_name=name, command="rm -f $(command -v python3)")
    await refused(client, "`python:3.13`", "run_code", sandbox_claim_name=name, code="1", context="late")


async def files(client, name):
    binary = bytes(range(256)) * 300
    content = base64.b64encode(binary).decode()
    path = "/tmp/work/deep/a $(touch injected);'\"\n.bin"
    wrote = await call(client, "upload_file", sandbox_claim_name=name, path=path, content=content, binary=True)
    assert wrote["bytes_written"] == len(binary)
    read = await call(client, "download_file", sandbox_claim_name=name, path=path, binary=True)
    assert base64.b64decode(read["content"]) == binary and read["size"] == len(binary), read["size"]
    await refused(client, "`binary`", "download_file", sandbox_claim_name=name, path=path)
    await refused(client, "no such file", "download_file", sandbox_claim_name=name, path="/tmp/none")
    await refused(client, "not a regular file", "download_file", sandbox_claim_name=name, path="/dev/zero")
    await refused(client, "`path`", "download_file", sandbox_claim_name=name, path="a\0b")
    await refused(client, "is a directory", "upload_file", sandbox_claim_name=name, path="/tmp", content="")

    text = "".join(f"{number} größer\n" for number in range(1000))
    await call(client, "upload_file", sandbox_claim_name=name, path="/tmp/work/-n.txt", content=text)
    read, offset = "", 0
    while offset is not None:
        part = await call(
            client, "download_file", sandbox_claim_name=name, path="/tmp/work/-n.txt", offset=offset, max_bytes=997
        )
        read, offset = read + part["content"], part.get("next_offset")
    assert read == text

    edited = await call(
        client, "edit_file", sandbox_claim_name=name, path="/tmp/work/-n.txt", old_text="\n500 größer", new_text="\n500 $(less)"
    )
    assert edited["replacements"] == 1
    await refused(
        client, "1000 times", "edit_file", sandbox_claim_name=name, path="/tmp/work/-n.txt", old_text="\n", new_text=""
    )
    found = await call(client, "search_files", sandbox_claim_name=name, path="/tmp/work", pattern="$(less)", name="*.txt")
    assert found["matches"] == [{"path": "/tmp/work/-n.txt", "line": 501, "text": "500 $(less)"}], found
    found = await call(
        client, "search_files", sandbox_claim_name=name, path="/tmp/work", pattern="^9+ ", regex=True, max_results=2
    )
    assert [found["total_matches"], len(found["matches"]), found["truncated"]] == [3, 2, True], found

    listed = await call(client, "list_files", sandbox_claim_name=name, path="/tmp/work")
    assert [(entry["name"], entry["type"]) for entry in listed["entries"]] == [("-n.txt", "file"), ("deep", "directory")]
    listed = await call(client, "list_files", sandbox_claim_name=name, path="/tmp/work/deep")
    assert listed["entries"][0]["name"] == os.path.basename(path), listed
    listed = await call(client, "list_files", sandbox_claim_name=name, path="/usr/bin", max_entries=5)
    assert len(listed["entries"]) == 5 and listed["truncated"] and listed["total_entries"] > 5, listed
    for path, there in [("/tmp/work", True), ("/tmp/work/none", False), ("/tmp/injected", False), ("injected", False)]:
        assert (await call(client, "file_exists", sandbox_claim_name=name, path=path))["exists"] == there, path


async def ports(client, name):
    serve = "mkdir /tmp/site && cd /tmp/site && echo hello > index.html && exec python3 -m http.server 8123"
    await call(client, "start_command", sandbox_claim_name=name, command=serve)
    opened = await call(client, "open_port", sandbox_claim_name=name, port=8123)

    def get(headers):
        connection = http.client.HTTPConnection(urlsplit(opened["router_url"]).netloc, timeout=60)
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    # Names below `localhost` are known to browsers and not to every resolver.
    host = urlsplit(opened["url"]).netloc
    assert host.startswith(f"8123-{name}.default.localhost:"), opened
    for headers in [opened["headers"], {"Host": host}]:
        for _ in range(600):
            answer = await asyncio.to_thread(get, headers)
            if answer[0] == 200:
                break
            await asyncio.sleep(0.1)
        assert answer == (200, b"hello\n"), (headers, answer)
    await refused(client, "`port`", "open_port", sandbox_claim_name=name, port=0)


async def resources(client, name):
    templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == ["warren://{sandbox_claim_name}/{+path}"], templates
    await call(client, "upload_file", sandbox_claim_name=name, path="/tmp/a b.txt", content="größer\n")
    image = base64.b64encode(PNG).decode()
    await call(client, "upload_file", sandbox_claim_name=name, path="/tmp/i.png", content=image, binary=True)
    (file,) = (await client.read_resource(f"warren://{name}/tmp/a%20b.txt")).contents
    assert (file.mime_type, file.text) == ("text/plain", "größer\n"), file
    (file,) = (await client.read_resource(f"warren://{name}/tmp/i.png")).contents
    assert (file.mime_type, base64.b64decode(file.blob)) == ("image/png", PNG), file
    for uri, word in [
        (f"warren://{name}/tmp/none", "no such file"), (f"warren://{name}/dev/zero", "not a regular file"),
        ("warren://other/tmp/a", "you have no sandbox"), (f"warren://{name}/tmp/%2", "hexadecimal"),
    ]:
        try:
            file = await client.read_resource(uri)
        except Exception as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"{uri} was not refused: {file}")


async def scope(program, arguments, name, mode):
    """Another client does not see the sandbox, unless it is started with `--all` or has the same key."""
    async with client(program, arguments[1:] if is_url(program) else arguments, mode) as other:
        assert (await call(other, "list_sandboxes"))["sandboxes"] == []
        for tool, more in [("execute_command", {"command": "true"}), ("delete_sandbox", {}), ("list_files", {"path": "/"})]:
            await refused(other, "you have no sandbox", tool, sandbox_claim_name=name, **more)
        await refused(other, "`sandbox_claim_name`", "delete_sandbox", sandbox_claim_name="../pods/" + name)
    async with client(program, arguments if is_url(program) else [*arguments, "--all"], mode) as other:
        names = [sandbox["sandbox_claim_name"] for sandbox in (await call(other, "list_sandboxes"))["sandboxes"]]
        assert name in names, names
        ran = await call(other, "execute_command", sandbox_claim_name=name, command=["echo", "mine too"])
        assert ran["stdout"] == "mine too\n", ran


async def from_template(client):
    """A pool and a template of the namespace, which the test has put there."""
    for source in [{"template": "host"}, {"warmpool": "host"}]:
        name = (await call(client, "create_sandbox", **source))["sandbox_claim_name"]
        ran = await call(client, "execute_command", sandbox_claim_name=name, command=["echo", "up"])
        assert ran["stdout"] == "up\n", ran
        await call(client, "delete_sandbox", sandbox_claim_name=name)


async def tools(program, arguments, mode):
    async with client(program, arguments, mode) as connected:
        name = await lifecycle(connected)
        await commands(connected, name)
        await files(connected, name)
        await ports(connected, name)
        await resources(connected, name)
        await code(connected, name)
        await scope(program, arguments, name, mode)
        await from_template(connected)
        await call(connected, "delete_sandbox", sandbox_claim_name=name)
        await refused(connected, "you have no sandbox", "execute_command", sandbox_claim_name=name, command="true")
        # These are left to the end of the connection.
        for _ in range(2):
            await call(connected, "create_sandbox")
        limited = [sandbox["ready"] for sandbox in (await call(connected, "list_sandboxes"))["sandboxes"]]
        assert limited == [True, True], limited
        await refused(connected, "which is the limit", "create_sandbox")
    print("done")


async def hold(program, arguments):
    async with client(program, arguments) as connected:
        print((await call(connected, "create_sandbox"))["sandbox_claim_name"], flush=True)
        await asyncio.sleep(3600)


def main():
    action, program, *arguments = sys.argv[1:]
    if action == "hold":
        asyncio.run(hold(program, arguments))
    else:
        asyncio.run(tools(program, arguments, action))


main()
