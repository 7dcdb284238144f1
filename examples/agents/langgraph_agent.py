"""A LangChain agent on LangGraph with sandboxes from `warren mcp`.

    pip install langchain langchain-openai langchain-mcp-adapters
    OPENAI_API_KEY=… MODEL=… python langgraph_agent.py "Add the numbers below 10 in a sandbox"

Without OPENAI_API_KEY a stand-in plays the model.
"""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI

import stand_in_model


async def main(task):
    model = os.environ.get("MODEL", "stand-in")
    if "OPENAI_API_KEY" in os.environ:
        chat = ChatOpenAI(model=model)
    else:
        chat = ChatOpenAI(model=model, base_url=stand_in_model.start(), api_key="none")
    warren = {"transport": "stdio", "command": os.environ.get("WARREN", "warren"), "args": ["mcp"], "env": dict(os.environ)}
    # One session for all calls: the sandboxes of a session are deleted when it ends.
    async with MultiServerMCPClient({"warren": warren}).session("warren") as session:
        agent = create_agent(chat, await load_mcp_tools(session))
        answer = await agent.ainvoke({"messages": [{"role": "user", "content": task}]})
        print(answer["messages"][-1].content)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Add the numbers below 10 in a sandbox"))
