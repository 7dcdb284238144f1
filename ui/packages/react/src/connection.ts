// One viewer's connection to one session: everything from the beginning or from the last offset seen, live, again
// after each loss. It knows nothing of React.

import { WarrenError, type WarrenClient } from "./client";
import { decodeEvent, jsonOf, toBase64 } from "./events";
import type { ConnectionState, Session, SessionEvent } from "./types";

/** Receives events in order. While a promise that it returns is pending, no more are read. */
export type EventListener = (events: SessionEvent[], caughtUp: boolean) => void | Promise<void>;

/** How much of a session is kept for listeners that come later. */
const MOST_KEPT_BYTES = 8 * 1024 * 1024;

/** How many events from the end a viewer begins with. */
const MOST_BACKLOG_EVENTS = 50_000;

/** The most that one call types. */
const LARGEST_INPUT = 16 * 1024;

const FIRST_RETRY_MS = 250;
const LAST_RETRY_MS = 5_000;

/** A snapshot of a connection. */
export interface ConnectionSnapshot {
  state: ConnectionState;
  session: Session | null;
  error: Error | null;
}

/** Follows a session while it is started and not paused. */
export class SessionConnection {
  readonly #client: WarrenClient;
  readonly #path: string;
  readonly #id: string;
  readonly #listeners = new Set<EventListener>();
  readonly #watchers = new Set<() => void>();
  #snapshot: ConnectionSnapshot = { state: "connecting", session: null, error: null };
  #kept: SessionEvent[] = [];
  #keptBytes = 0;
  #next: number | null = null;
  #controller: AbortController | null = null;
  #typed: Uint8Array[] = [];
  #typing = false;

  constructor(client: WarrenClient, sessionId: string) {
    this.#client = client;
    this.#id = sessionId;
    this.#path = `/api/sessions/${encodeURIComponent(sessionId)}`;
  }

  /** Returns how things are; the same object until something changes. */
  get snapshot(): ConnectionSnapshot {
    return this.#snapshot;
  }

  /** Calls `watcher` whenever the snapshot changes. */
  watch(watcher: () => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  /** Gives `listener` what is kept, then everything that comes. */
  subscribe(listener: EventListener): () => void {
    if (this.#kept.length > 0) void listener([...this.#kept], false);
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Starts or resumes. Does nothing if it is running or has ended. */
  start(): void {
    if (this.#controller !== null || this.#snapshot.state === "ended") return;
    this.#controller = new AbortController();
    void this.#run(this.#controller);
  }

  /** Stops. `start` goes on from the last event that was seen. */
  stop(): void {
    this.#controller?.abort();
    this.#controller = null;
  }

  /** Types into the terminal. Bytes reach it in the order of calls. */
  async input(data: string | Uint8Array): Promise<void> {
    this.#typed.push(typeof data === "string" ? new TextEncoder().encode(data) : data);
    if (this.#typing) return;
    this.#typing = true;
    try {
      while (this.#typed.length > 0) {
        const bytes = await new Blob(this.#typed.splice(0) as BlobPart[]).arrayBuffer();
        for (let start = 0; start < bytes.byteLength; start += LARGEST_INPUT) {
          const piece = new Uint8Array(bytes.slice(start, start + LARGEST_INPUT));
          await this.#client.request("POST", `${this.#path}/input`, { data: toBase64(piece) });
        }
      }
    } catch (error) {
      // Not sent again: the terminal may have received it, and what was typed since belongs behind it.
      this.#typed = [];
      this.#set({ error: error as Error });
    } finally {
      this.#typing = false;
    }
  }

  /** Tells the terminal its size. */
  async resize(columns: number, rows: number): Promise<void> {
    try {
      await this.#client.request("POST", `${this.#path}/resize`, { columns, rows });
    } catch (error) {
      // The size is sent again when it changes or when the connection is back.
      if (!(error instanceof WarrenError)) throw error;
    }
  }

  /** Reads the session again: its size, its state, its viewers. */
  async refresh(): Promise<void> {
    try {
      this.#set({ session: await this.#client.session(this.#id) });
    } catch {
      // The stream reports what is wrong.
    }
  }

  async #run(controller: AbortController): Promise<void> {
    const { signal } = controller;
    let delay = FIRST_RETRY_MS;
    while (!signal.aborted) {
      try {
        this.#set({ state: this.#snapshot.error === null ? "connecting" : "waiting" });
        const session = await this.#client.session(this.#id, signal);
        this.#set({ session });
        const kept = session.firstOffset ?? 0;
        // Older ones may have been dropped while this viewer was away.
        this.#next = Math.max(this.#next ?? session.nextOffset - MOST_BACKLOG_EVENTS, kept);
        const caughtUpAt = session.nextOffset;
        const connected = () => {
          delay = FIRST_RETRY_MS;
          this.#set({ state: "live", error: null });
        };
        const path = `${this.#path}/stream?from=${this.#next}`;
        for await (const messages of this.#client.stream(path, signal, connected)) {
          await this.#take(messages.map((message) => message.data), caughtUpAt);
          if (session.state === "ended" && (this.#next ?? 0) >= caughtUpAt) break;
        }
        const now = await this.#client.session(this.#id, signal);
        if (now.state === "ended" && (this.#next ?? 0) >= now.nextOffset) {
          this.#set({ state: "ended", session: now });
          return;
        }
      } catch (error) {
        if (signal.aborted) return;
        const temporary = !(error instanceof WarrenError) || error.isTemporary;
        this.#set({ state: temporary ? "waiting" : "failed", error: error as Error });
        if (!temporary) return;
      }
      await wait(delay, signal);
      delay = Math.min(delay * 2, LAST_RETRY_MS);
    }
  }

  async #take(messages: string[], caughtUpAt: number): Promise<void> {
    const events: SessionEvent[] = [];
    for (const message of messages) {
      const event = decodeEvent(parse(message));
      if (event === null || event.offset < (this.#next ?? 0)) continue;
      this.#next = event.offset + 1;
      events.push(event);
    }
    if (events.length === 0) return;
    this.#keep(events);
    this.#learn(events);
    const first = events[0]?.offset ?? 0;
    await Promise.all([...this.#listeners].map((listener) => listener(events, first >= caughtUpAt)));
  }

  /** Takes the size and the end of a terminal from its events. */
  #learn(events: SessionEvent[]): void {
    const { session } = this.#snapshot;
    if (session === null) return;
    const change: Partial<Session> = {};
    for (const event of events) {
      if (event.kind !== "state") continue;
      const fields = jsonOf(event);
      if (isSize(fields?.columns) && isSize(fields.rows)) {
        change.columns = fields.columns;
        change.rows = fields.rows;
      }
      if (fields?.state === "ended") change.state = "ended";
      if (typeof fields?.exitCode === "number") change.exitCode = fields.exitCode;
    }
    if (Object.keys(change).length > 0) this.#set({ session: { ...session, ...change } });
  }

  #keep(events: SessionEvent[]): void {
    for (const event of events) {
      this.#kept.push(event);
      this.#keptBytes += event.bytes.length + 64;
    }
    let drop = 0;
    while (this.#keptBytes > MOST_KEPT_BYTES && drop < this.#kept.length) {
      this.#keptBytes -= (this.#kept[drop]?.bytes.length ?? 0) + 64;
      drop += 1;
    }
    if (drop > 0) this.#kept.splice(0, drop);
  }

  #set(change: Partial<ConnectionSnapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...change };
    for (const watcher of [...this.#watchers]) watcher();
  }
}

/** Returns true for a number of columns or rows that a terminal can have. */
function isSize(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= 1_000;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Waits, or until the signal. */
export function wait(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", done, { once: true });
  });
}
