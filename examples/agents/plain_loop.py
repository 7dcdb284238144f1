"""An agent as a plain loop: a model that asks for tools, and `warren mcp` that has them.

    pip install mcp openai
    OPENAI_API_KEY=… python plain_loop.py "Add the numbers below 10 in a sandbox"

Without OPENAI_BASE_URL and OPENAI_API_KEY a stand-in plays the model.
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI

import stand_in_model

WARREN = StdioServerParameters(command=os.environ.get("WARREN", "warren"), args=["mcp"], env=dict(os.environ))


async def main(task):
    if "OPENAI_API_KEY" in os.environ:
        model = AsyncOpenAI()
    else:
        model = AsyncOpenAI(base_url=stand_in_model.start(), api_key="none")
    async with stdio_client(WARREN) as streams, ClientSession(*streams) as warren:
        await warren.initialize()
        tools = [
            {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.inputSchema}}
            for tool in (await warren.list_tools()).tools
        ]
        messages = [{"role": "user", "content": task}]
        while True:
            answer = await model.chat.completions.create(
                model=os.environ.get("MODEL", "stand-in"), messages=messages, tools=tools
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                print(message.content)
                return
            for call in message.tool_calls:
                result = await warren.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "".join(part.text for part in result.content if part.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Add the numbers below 10 in a sandbox"))
