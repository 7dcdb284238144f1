# Runs Python code inside a sandbox and keeps its state between requests.
#
# Requests and answers are lines of JSON on standard input and output. The code runs in a child process with streams of
# its own, so that its output, crash or exit does not disturb the protocol.
#
# Requests: {"id": NUMBER, "code": TEXT}, and {"interrupt": true} while code runs.
# Answers: {"ready": VERSION} once. While code runs: {"stdout": TEXT}, {"stderr": TEXT}, {"result": {TYPE: DATA}}.
# Then {"done": ID, "error": null} or {"done": ID, "error": {"name": …, "value": …, "traceback": …}}.
# {"ended": EXIT_CODE} after the child has ended; nothing follows.
import sys

# The working directory, whose files must not replace modules that are imported here.
if sys.path[:1] == [""]:
    sys.path.pop(0)

import ast
import base64
import codecs
import io
import json
import linecache
import os
import select
import signal
import threading
import traceback
import types

MOST_TEXT = 1000000
MOST_TRACEBACK = 50000
MOST_IMAGE = 4 << 20
INTERRUPT = {signal.SIGINT}


def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]


def encode(message):
    return json.dumps(message).encode() + b"\n"


class Child:
    def __init__(self, requests, answers):
        self.requests = os.fdopen(requests, encoding="utf-8")
        self.answers = answers
        self.lock = threading.Lock()
        self.process = os.getpid()
        self.running = False
        self.shown = []
        module = types.ModuleType("__main__")
        module.display = self.display
        sys.modules["__main__"] = module
        self.scope = module.__dict__
        sys.modules["warren_figures"] = Figures(self.figures)
        os.environ.setdefault("MPLBACKEND", "module://warren_figures")
        sys.stdin = open(0, encoding="utf-8")
        for name, descriptor in ("stdout", 1), ("stderr", 2):
            stream = open(descriptor, "wb", closefd=False)
            stream = io.TextIOWrapper(stream, "utf-8", "backslashreplace", line_buffering=True)
            setattr(sys, name, stream)
            setattr(sys, "__%s__" % name, stream)
        sys.path.insert(0, "")

    def interrupt(self, *_):
        # Once for each request: a second one would hit the code that reports the first.
        if self.running:
            self.running = False
            raise KeyboardInterrupt

    def send(self, message):
        # An interrupt waits until the line is whole.
        signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
        try:
            with self.lock:
                write_all(self.answers, encode(message))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)

    def display(self, value):
        """Shows a value: as an image if it is one, and as text."""
        data = {"text/plain": repr(value)[:MOST_TEXT]}
        for kind, image in self.images(value):
            if len(image) > MOST_IMAGE:
                text = "[image left out: it has %d bytes, and %d are possible]"
                data["text/plain"] = text % (len(image), MOST_IMAGE)
                continue
            data[kind] = base64.b64encode(image).decode()
        self.send({"result": data})

    def images(self, value):
        if isinstance(value, type):
            return
        if callable(getattr(value, "savefig", None)):
            file = io.BytesIO()
            value.savefig(file, format="png", bbox_inches="tight")
            self.shown.append(value)
            yield "image/png", file.getvalue()
            return
        for kind, name in ("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"):
            method = getattr(value, name, None)
            image = method() if callable(method) else None
            if isinstance(image, str):
                image = base64.b64decode(image)
            if isinstance(image, (bytes, bytearray)):
                yield kind, bytes(image)
                return

    def figures(self, *_, **__):
        """Shows the figures of pyplot that are open, and closes them."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                if not any(figure is shown for shown in self.shown):
                    self.display(figure)
        finally:
            pyplot.close("all")

    def execute(self, code, name):
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, name, "exec", dont_inherit=True), self.scope)
        if last is not None:
            value = eval(compile(last, name, "eval", dont_inherit=True), self.scope)
            if value is not None:
                self.scope["_"] = value
                self.display(value)
        self.figures()

    def describe(self, error):
        # Without the frames of this driver at both ends.
        frames = error.__traceback__
        while frames is not None and any(frames.tb_frame.f_globals is own for own in (globals(), vars(ast))):
            frames = frames.tb_next
        report = traceback.TracebackException(type(error), error, frames)
        if report.stack and (report.stack[-1].filename, report.stack[-1].name) == ("<string>", "interrupt"):
            del report.stack[-1]
        try:
            value = str(error)
        except Exception:
            value = "<no text>"
        text = "".join(report.format())
        return {"name": type(error).__name__, "value": value[:MOST_TRACEBACK], "traceback": text[-MOST_TRACEBACK:]}

    def run(self, code, number):
        self.shown = []
        signal.signal(signal.SIGINT, self.interrupt)
        error = None
        try:
            self.running = True
            self.execute(code, "<cell %d>" % number)
            self.running = False
        except BaseException as caught:
            self.running = False
            error = self.describe(caught)
        if os.getpid() != self.process:
            # A fork that the code made and that has come to the end of it.
            os._exit(0 if error is None else 1)
        for stream in sys.stdout, sys.stderr:
            try:
                stream.flush()
            except Exception:
                pass
        return error

    def serve(self):
        signal.signal(signal.SIGINT, self.interrupt)
        self.send({"ready": "%d.%d.%d" % sys.version_info[:3]})
        number = 0
        while True:
            line = self.requests.readline()
            if not line:
                return
            request = json.loads(line)
            number += 1
            error = self.run(request["code"], number)
            self.send({"done": request["id"], "error": error})


class Figures(types.ModuleType):
    """A backend of matplotlib that draws like Agg and shows figures as results."""

    def __init__(self, show):
        super().__init__("warren_figures")
        self.show = show

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        from matplotlib.backends import backend_agg

        for key, value in vars(backend_agg).items():
            if not key.startswith("__") and key != "show":
                setattr(self, key, value)
        if name not in vars(self):
            raise AttributeError(name)
        return vars(self)[name]


class Supervisor:
    def __init__(self, child, requests, answers, streams):
        self.child = child
        self.requests = requests
        self.answers = answers
        self.streams = {
            descriptor: (name, codecs.getincrementaldecoder("utf-8")("replace"))
            for descriptor, name in streams.items()
        }
        self.line = b""
        self.partial = b""

    def forward(self, descriptor):
        """Passes on what the code has written so far. Returns false at the end of the stream."""
        name, decoder = self.streams[descriptor]
        # A pipe holds less than this. Without a limit, a program that writes without end would hold everything else up.
        for _ in range(32):
            try:
                data = os.read(descriptor, 32768)
            except BlockingIOError:
                return True
            text = decoder.decode(data, not data)
            if text:
                write_all(1, encode({name: text}))
            if not data:
                return False
        return True

    def answer(self):
        try:
            data = os.read(self.answers, 65536)
        except BlockingIOError:
            return True
        *lines, self.partial = (self.partial + data).split(b"\n")
        for line in lines:
            for descriptor in self.streams:
                self.forward(descriptor)
            write_all(1, line + b"\n")
        return bool(data)

    def request(self):
        data = os.read(0, 65536)
        *lines, self.line = (self.line + data).split(b"\n")
        for line in lines:
            if json.loads(line).get("interrupt"):
                os.killpg(0, signal.SIGINT)
            else:
                write_all(self.requests, line + b"\n")
        return bool(data)

    def supervise(self, ended):
        poll = select.poll()
        sources = {self.answers: self.answer, 0: self.request}
        for descriptor in self.streams:
            sources[descriptor] = lambda descriptor=descriptor: self.forward(descriptor)
        for descriptor in [*sources, ended]:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == ended:
                    os.read(ended, 512)
                    process, status = os.waitpid(self.child, os.WNOHANG)
                    if process:
                        # A pipe holds less than two reads.
                        self.answer(), self.answer()
                        for stream in self.streams:
                            self.forward(stream)
                        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                        write_all(1, encode({"ended": code}))
                        return
                elif not sources[descriptor]():
                    if descriptor == 0:
                        return
                    poll.unregister(descriptor)


def main():
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    requests, answers, stdout, stderr, ended = (os.pipe() for _ in range(5))
    for reader in answers[0], stdout[0], stderr[0], ended[0], ended[1]:
        os.set_blocking(reader, False)
    # Before the fork, so that the end of the child is not missed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended[1])
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for reader, _ in answers, stdout, stderr, ended:
            os.close(reader)
        os.close(requests[1])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout[1], 1)
        os.dup2(stderr[1], 2)
        status = 1
        try:
            Child(requests[0], answers[1]).serve()
            status = 0
        finally:
            os._exit(status)
    for _, writer in answers, stdout, stderr:
        os.close(writer)
    os.close(requests[0])
    try:
        Supervisor(child, requests[1], answers[0], {stdout[0]: "stdout", stderr[0]: "stderr"}).supervise(ended[0])
    finally:
        # The processes that the code has started go with it.
        os.killpg(0, signal.SIGKILL)


main()
