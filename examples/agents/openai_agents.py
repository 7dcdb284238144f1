"""An agent of the OpenAI Agents SDK with sandboxes from `warren mcp`.

    pip install openai-agents
    OPENAI_API_KEY=… MODEL=… python openai_agents.py "Add the numbers below 10 in a sandbox"

Without OPENAI_API_KEY a stand-in plays the model.
"""

import asyncio
import os
import sys

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

import stand_in_model


async def main(task):
    if "OPENAI_API_KEY" in os.environ:
        client = AsyncOpenAI()
    else:
        client = AsyncOpenAI(base_url=stand_in_model.start(), api_key="none")
        set_tracing_disabled(True)
    command = {"command": os.environ.get("WARREN", "warren"), "args": ["mcp"], "env": dict(os.environ)}
    # The first call starts the local home.
    async with MCPServerStdio(params=command, client_session_timeout_seconds=120) as warren:
        agent = Agent(
            name="engineer",
            instructions="Work in a sandbox, and delete it at the end.",
            model=OpenAIChatCompletionsModel(os.environ.get("MODEL", "stand-in"), client),
            mcp_servers=[warren],
        )
        print((await Runner.run(agent, task)).final_output)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Add the numbers below 10 in a sandbox"))
