"""E2B's published SDK against `warren e2b` by its asynchronous client: what it does by other calls than the synchronous one.

The environment says where the server is (E2B_API_KEY, E2B_API_URL, E2B_SANDBOX_URL). Prints one line for each step.
"""

import asyncio

from e2b import AsyncSandbox, CommandExitException, NotFoundException, PtySize, TimeoutException


def step(name):
    print(name, flush=True)


async def fails(expected, work):
    try:
        await work
    except expected as error:
        return error
    raise AssertionError(f"did not raise {expected}")


async def until(what, condition):
    async def wait():
        while not condition():
            await asyncio.sleep(0.05)

    try:
        await asyncio.wait_for(wait(), 60)
    except TimeoutError as error:
        raise AssertionError(f"in vain: {what}") from error


async def main():
    sandbox = await AsyncSandbox.create(timeout=600, metadata={"who": "async"})
    result = await sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n"), result
    failed = await fails(CommandExitException, sandbox.commands.run("exit 9"))
    assert failed.exit_code == 9
    step("create and commands")

    seen = []
    background = await sandbox.commands.run("cat", background=True, stdin=True, on_stdout=seen.append)
    await sandbox.commands.send_stdin(background.pid, "a\n")
    await until("an echo", lambda: "".join(seen) == "a\n")
    if hasattr(sandbox.commands, "close_stdin"):  # not in older versions
        await sandbox.commands.close_stdin(background.pid)
        assert (await background.wait()).stdout == "a\n"
    else:
        assert await background.kill()
        await fails(CommandExitException, background.wait())
    late = await fails(TimeoutException, sandbox.commands.run("sleep 1000", timeout=3))
    assert late is not None
    step("background, stdin, timeout")

    written = []
    terminal = await sandbox.pty.create(PtySize(rows=10, cols=77), on_data=written.append, timeout=0)
    await sandbox.pty.resize(terminal.pid, PtySize(rows=20, cols=99))
    await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    await until("the size", lambda: b"20 99" in b"".join(written))
    assert await sandbox.pty.kill(terminal.pid)
    step("terminal")

    many = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(20)))
    assert [result.stdout for result in many] == [f"{number}\n" for number in range(20)]
    step("twenty at once")

    events = []
    await sandbox.files.make_dir("watched")
    watch = await sandbox.files.watch_dir("watched", events.append, recursive=True)
    await sandbox.files.write("watched/new.txt", "x")
    await until("events", lambda: {("new.txt", "create"), ("new.txt", "write")} <= {(e.name, e.type.value) for e in events})
    await watch.stop()
    assert await sandbox.files.read("watched/new.txt") == "x"
    assert [entry.name for entry in await sandbox.files.list("watched")] == ["new.txt"]
    await fails(NotFoundException, sandbox.files.read("no"))
    step("files and a streamed watch")

    connected = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert (await connected.get_info()).metadata == {"who": "async"}
    assert await connected.is_running()
    listed = await AsyncSandbox.list().next_items()
    assert sandbox.sandbox_id in [item.sandbox_id for item in listed]
    assert await sandbox.kill() and not await connected.is_running()
    step("done")


asyncio.run(main())
