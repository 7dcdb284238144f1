// Keeps the service's data up to date. Answers are cached by their path and fetched again when the
// service's stream says that they changed. While the service is away, pages keep showing the last
// data that they have.

import { useCallback, useEffect, useSyncExternalStore } from "react";
import { wait } from "warren-react";
import { client } from "./api";

/** What answers are about. `files:ID` is this page's own: the service does not tell of files. */
export type Topic = "sandboxes" | "pools" | "claims" | "sessions" | "tasks" | "network" | `files:${string}`;

export interface Resource<T> {
  data: T | undefined;
  error: Error | null;
  loading: boolean;
}

interface Entry {
  value: Resource<unknown>;
  topics: readonly Topic[];
  listeners: Set<() => void>;
  fetching: boolean;
  again: boolean;
}

const entries = new Map<string, Entry>();
const NOTHING: Resource<unknown> = { data: undefined, error: null, loading: true };

function entryOf(path: string, topics: readonly Topic[]): Entry {
  let entry = entries.get(path);
  if (entry === undefined) {
    entry = { value: NOTHING, topics, listeners: new Set(), fetching: false, again: false };
    entries.set(path, entry);
  }
  return entry;
}

async function load(path: string, entry: Entry): Promise<void> {
  if (entry.fetching) {
    // The request under way may have been answered before the change.
    entry.again = true;
    return;
  }
  entry.fetching = true;
  try {
    do {
      entry.again = false;
      try {
        const data = await client.request<unknown>("GET", path);
        entry.value = { data, error: null, loading: false };
      } catch (error) {
        entry.value = { ...entry.value, error: error as Error, loading: false };
      }
      for (const listener of [...entry.listeners]) listener();
    } while (entry.again);
  } finally {
    entry.fetching = false;
  }
}

/** Fetches again what changed with a topic, or everything that is on the page. */
export function invalidate(topic?: Topic): void {
  for (const [path, entry] of entries) {
    if (topic !== undefined && !entry.topics.includes(topic)) continue;
    if (entry.listeners.size > 0) void load(path, entry);
    else entries.delete(path);
  }
}

/** Forgets everything, as after a logout. */
export function forget(): void {
  for (const entry of entries.values()) entry.value = NOTHING;
  for (const [path, entry] of entries) if (entry.listeners.size === 0) entries.delete(path);
}

/** Returns the answer of a path, and keeps it up to date with its topics. `null` asks for nothing. */
export function useResource<T>(
  path: string | null,
  topics: readonly Topic[] = [],
): Resource<T> & { reload: () => void } {
  const subscribe = useCallback(
    (listener: () => void) => {
      if (path === null) return () => {};
      const entry = entryOf(path, topics);
      entry.listeners.add(listener);
      return () => entry.listeners.delete(listener);
    },
    // Topics belong to a path: a new array of them is not a change.
    [path],
  );
  const read = () => (path === null ? NOTHING : (entries.get(path)?.value ?? NOTHING));
  const value = useSyncExternalStore(subscribe, read) as Resource<T>;
  const reload = useCallback(() => {
    const entry = path === null ? undefined : entries.get(path);
    if (path !== null && entry !== undefined) void load(path, entry);
  }, [path]);
  useEffect(() => reload(), [reload]);
  return { ...value, reload };
}

export type StreamState = "connecting" | "live" | "lost";

let streamState: StreamState = "connecting";
const streamListeners = new Set<() => void>();

function setStream(state: StreamState): void {
  if (streamState === state) return;
  streamState = state;
  for (const listener of [...streamListeners]) listener();
}

/** Returns how the page is connected to the service. */
export function useStreamState(): StreamState {
  return useSyncExternalStore(
    (listener) => {
      streamListeners.add(listener);
      return () => streamListeners.delete(listener);
    },
    () => streamState,
  );
}

const TOPICS: readonly string[] = ["sandboxes", "pools", "claims", "sessions", "tasks", "network"];

/** Follows `/api/stream` until the signal, again after each loss, and not while the page is hidden. */
async function follow(signal: AbortSignal): Promise<void> {
  let delay = 250;
  while (!signal.aborted) {
    try {
      const connected = () => {
        delay = 250;
        setStream("live");
        // Changes may have been missed.
        invalidate();
      };
      for await (const messages of client.stream("/api/stream", signal, connected)) {
        const changed = new Set(messages.map((message) => topicOf(message.data)));
        for (const topic of changed) if (topic !== null) invalidate(topic);
      }
    } catch {
      // The loop tries again; what the reason is, the page's own requests say.
    }
    if (signal.aborted) return;
    setStream("lost");
    await wait(delay, signal);
    delay = Math.min(delay * 2, 5_000);
  }
}

function topicOf(data: string): Topic | null {
  try {
    const { topic } = JSON.parse(data) as { topic?: unknown };
    return typeof topic === "string" && TOPICS.includes(topic) ? (topic as Topic) : null;
  } catch {
    return null;
  }
}

/** Keeps the page live while it is mounted and to be seen. */
export function useLiveStream(): void {
  useEffect(() => {
    let controller: AbortController | null = null;
    const update = () => {
      if (document.hidden) {
        controller?.abort();
        controller = null;
      } else if (controller === null) {
        controller = new AbortController();
        void follow(controller.signal);
      }
    };
    update();
    document.addEventListener("visibilitychange", update);
    return () => {
      document.removeEventListener("visibilitychange", update);
      controller?.abort();
    };
  }, []);
}
