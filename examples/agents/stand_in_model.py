"""A stand-in for a language model, to try agents without one: `python stand_in_model.py` prints its address.

It speaks the chat completions of OpenAI's API and follows a script: it makes a sandbox, runs a command in it, deletes it, and reports
the output.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMAND = "python3 -c 'print(sum(range(10)))'"


def text_of(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def answer(messages):
    """Returns the next message of the model, given the conversation."""
    results = [text_of(message) for message in messages if message["role"] == "tool"]
    if not results:
        return call("create_sandbox", {})
    name = re.search(r'"sandbox_claim_name":\s*"([^"]+)"', results[0])
    if name is None:
        return {"role": "assistant", "content": f"There is no sandbox: {results[0]}"}
    sandbox = {"sandbox_claim_name": name[1]}
    if len(results) == 1:
        return call("execute_command", sandbox | {"command": COMMAND})
    if len(results) == 2:
        return call("delete_sandbox", sandbox)
    output = re.search(r'"stdout":\s*"(.*?)(\\n)*"', results[1])
    return {"role": "assistant", "content": f"The sandbox printed {output[1] if output else results[1]}."}


def call(tool, arguments):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{tool}", "type": "function", "function": function}]}


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = answer(request["messages"])
        body = json.dumps({
            "id": "stand-in", "object": "chat.completion", "created": 0, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def start():
    """Starts the model in a thread, and returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


if __name__ == "__main__":
    print(start(), flush=True)
    threading.Event().wait()
