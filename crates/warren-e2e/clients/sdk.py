"""Uses the published agent-sandbox SDK the way its users do, and prints one line for each thing seen.

Run with a way to connect (direct, tunnel, in-cluster), `sync` or `async`, and the name of a warm pool;
KUBECONFIG and, for `direct`, ROUTER_URL are in the environment. Nothing here knows which server it talks to.
"""

import asyncio
import inspect
import json
import os
import sys

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox import models


def say(what, *values):
    print(what, json.dumps(values, sort_keys=True, default=str), flush=True)


def connection(way):
    if way == "direct":
        return models.SandboxDirectConnectionConfig(api_url=os.environ["ROUTER_URL"])
    if way == "tunnel":
        return models.SandboxLocalTunnelConnectionConfig()
    return models.SandboxInClusterConnectionConfig()


async def done(value):
    """Makes one script of both clients: waits for what has to be waited for."""
    return await value if inspect.isawaitable(value) else value


async def refused(what, call):
    try:
        await done(call())
        say(what, "not refused")
    except Exception as error:
        say(what, type(error).__name__)


async def use(client, pool):
    box = await done(client.create_sandbox(warmpool=pool, labels={"team": "blue"}))
    say("active", box.is_active)
    say("named after the claim", box.sandbox_id == box.claim_name)

    result = await done(box.commands.run("echo hello"))
    say("run", result.exit_code, result.stdout, result.stderr)
    result = await done(box.commands.run("sh -c 'echo out; echo err >&2; exit 3'"))
    say("run and fail", result.exit_code, result.stdout, result.stderr)
    result = await done(box.commands.run("no-such-program"))
    say("run nothing", result.exit_code, bool(result.stderr))

    await done(box.files.write("notes/a b.txt", "first"))
    say("read", (await done(box.files.read("notes/a b.txt"))).decode())
    data = bytes(range(256)) * 4096
    await done(box.files.write("data.bin", data))
    say("read bytes", (await done(box.files.read("data.bin"))) == data)
    entries = await done(box.files.list("notes"))
    say("list", [(entry.name, entry.size, entry.type) for entry in entries])
    root = {entry.name for entry in await done(box.files.list("."))}
    say("list the root", {"notes", "data.bin"} <= root)
    say("exists", await done(box.files.exists("data.bin")), await done(box.files.exists("nothing")))
    await refused("read what is not there", lambda: box.files.read("nothing"))

    listed = await done(client.list_all_sandboxes(label_selector="team=blue"))
    say("listed", listed == [box.claim_name])
    say("listed by another label", await done(client.list_all_sandboxes(label_selector="team=red")))

    name = box.claim_name
    await done(box.close_connection())
    again = await done(client.get_sandbox(name))
    result = await done(again.commands.run("cat data.bin"))
    say("the same after reconnecting", again.sandbox_id == box.sandbox_id, result.exit_code)

    await done(client.delete_sandbox(name))
    say("listed after deletion", await done(client.list_all_sandboxes(label_selector="team=blue")))
    await refused("get what is deleted", lambda: client.get_sandbox(name, resolve_timeout=5))
    await refused("create from no pool", lambda: client.create_sandbox(warmpool="no-such-pool"))
    await done(client.create_sandbox(warmpool=pool))
    await done(client.create_sandbox(warmpool=pool))
    await done(client.delete_all())
    say("listed after deleting all", await done(client.list_all_sandboxes()))


async def main():
    way, kind, pool = sys.argv[1:4]
    if kind == "sync":
        await use(SandboxClient(connection_config=connection(way)), pool)
    else:
        from k8s_agent_sandbox import AsyncSandboxClient

        async with AsyncSandboxClient(connection_config=connection(way)) as client:
            await use(client, pool)
    say("end")


asyncio.run(main())
