"""Version 1 of the official client, with the methods and the names of version 2."""

import contextlib
import datetime

from mcp import ClientSession, StdioServerParameters, stdio_client
from pydantic import BaseModel


class Named:
    """A result whose fields are found by the names of version 2: `is_error` for `isError`."""

    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        first, *rest = name.split("_")
        return named(getattr(self.value, first + "".join(word.capitalize() for word in rest)))

    def __repr__(self):
        return repr(self.value)


def named(value):
    if isinstance(value, BaseModel):
        return Named(value)
    return [named(part) for part in value] if isinstance(value, list) else value


class Client:
    def __init__(self, server, mode, read_timeout_seconds):
        self.transport = stdio_client(server) if isinstance(server, StdioServerParameters) else server
        self.timeout = datetime.timedelta(seconds=read_timeout_seconds)
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self):
        read, write, *_ = await self.stack.enter_async_context(self.transport)
        session = ClientSession(read, write, read_timeout_seconds=self.timeout)
        self.session = await self.stack.enter_async_context(session)
        await self.session.initialize()
        return self

    async def __aexit__(self, *error):
        return await self.stack.__aexit__(*error)

    async def list_tools(self):
        return named(await self.session.list_tools())

    async def call_tool(self, tool, arguments):
        return named(await self.session.call_tool(tool, arguments))

    async def list_resource_templates(self):
        return named(await self.session.list_resource_templates())

    async def read_resource(self, uri):
        return named(await self.session.read_resource(uri))
