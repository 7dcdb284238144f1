// Server-sent events over `fetch`. Unlike `EventSource` it can send a key, sees the status of a refusal, and reads no
// faster than its consumer does.

/** One message of a stream. */
export interface StreamMessage {
  id: string | null;
  data: string;
}

/** The longest line that is read. The API's events are far below it; a longer one ends the stream. */
const LONGEST_LINE = 16 * 1024 * 1024;

/** How long a stream may be silent. The server sends a comment more often than this. */
const LONGEST_SILENCE_MS = 60_000;

/** Yields the messages of each piece that arrives. An empty list is a keep-alive. */
export async function* readMessages(
  body: ReadableStream<Uint8Array>,
  abort: () => void,
): AsyncGenerator<StreamMessage[]> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let id: string | null = null;
  let data: string[] = [];
  try {
    for (;;) {
      const silence = setTimeout(abort, LONGEST_SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      if (rest.length > LONGEST_LINE) throw new Error("a line of the stream is too long");
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      const messages: StreamMessage[] = [];
      for (const line of lines) {
        if (line === "") {
          if (data.length > 0) messages.push({ id, data: data.join("\n") });
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("id:")) {
          id = line.slice(3).trim();
        }
      }
      yield messages;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
