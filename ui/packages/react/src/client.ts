// The HTTP API of `warren serve`: the envelope of its answers, its errors, its streams.

import { readMessages, type StreamMessage } from "./sse";
import type { Session } from "./types";

/** An answer that says no, or no answer at all (`status` 0, code `UNREACHABLE`). */
export class WarrenError extends Error {
  readonly code: string;
  readonly status: number;
  readonly details: unknown;

  constructor(message: string, code: string, status: number, details: unknown = undefined) {
    super(message);
    this.name = "WarrenError";
    this.code = code;
    this.status = status;
    this.details = details;
  }

  /** Returns true if trying again later may help. */
  get isTemporary(): boolean {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

/** How to reach the service. */
export interface WarrenClientOptions {
  /** Where it is; by default where the page came from. */
  baseUrl?: string;
  /** Its key. Not needed where the browser has the session's cookie. */
  key?: string;
  /** Called when the service asks for a login. */
  onUnauthorized?: () => void;
}

/** Calls the API. */
export class WarrenClient {
  readonly #options: WarrenClientOptions;

  constructor(options: WarrenClientOptions = {}) {
    this.#options = options;
  }

  /** Returns the address of a path of the API. */
  url(path: string): string {
    return `${this.#options.baseUrl ?? ""}${path}`;
  }

  /** Calls the API and returns the answer's data. */
  async request<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
    const headers: Record<string, string> = { accept: "application/json" };
    let payload: BodyInit | null = null;
    if (body instanceof Blob) {
      headers["content-type"] = "application/octet-stream";
      payload = body;
    } else if (body !== undefined) {
      headers["content-type"] = "application/json";
      payload = JSON.stringify(body);
    }
    const response = await this.#send(path, { method, headers, body: payload, signal: signal ?? null });
    const answer = (await response.json().catch(() => null)) as { ok?: boolean; data?: T } | null;
    if (answer?.ok !== true) throw refusal(response, answer);
    return answer.data as T;
  }

  /** Fetches a file of the API. */
  async download(path: string, signal?: AbortSignal): Promise<Blob> {
    const response = await this.#send(path, { signal: signal ?? null });
    return response.blob();
  }

  /** Follows a stream of the API. `connected` is called when the server has accepted. */
  async *stream(path: string, signal: AbortSignal, connected: () => void): AsyncGenerator<StreamMessage[]> {
    const controller = new AbortController();
    const abort = () => controller.abort();
    signal.addEventListener("abort", abort, { once: true });
    try {
      const headers = { accept: "text/event-stream" };
      const response = await this.#send(path, { headers, signal: controller.signal, cache: "no-store" });
      if (response.body === null) throw new WarrenError("The stream has no body.", "UNREACHABLE", 0);
      connected();
      yield* readMessages(response.body, abort);
    } catch (error) {
      if (signal.aborted || error instanceof WarrenError) throw error;
      throw new WarrenError("The connection was lost.", "UNREACHABLE", 0);
    } finally {
      signal.removeEventListener("abort", abort);
      abort();
    }
  }

  /** Returns a session. */
  session(id: string, signal?: AbortSignal): Promise<Session> {
    return this.request("GET", `/api/sessions/${encodeURIComponent(id)}`, undefined, signal);
  }

  /** Sends a request, and throws for every status that is not a success. */
  async #send(path: string, init: RequestInit): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.#options.key !== undefined) headers.set("authorization", `Bearer ${this.#options.key}`);
    let response: Response;
    try {
      response = await fetch(this.url(path), { credentials: "same-origin", ...init, headers });
    } catch (error) {
      if (init.signal?.aborted === true) throw error;
      throw new WarrenError("The service does not answer.", "UNREACHABLE", 0);
    }
    if (!response.ok) {
      const answer: unknown = await response.json().catch(() => null);
      if (response.status === 401) this.#options.onUnauthorized?.();
      throw refusal(response, answer);
    }
    return response;
  }
}

function refusal(response: Response, answer: unknown): WarrenError {
  const { error } = (answer ?? {}) as { error?: { code?: unknown; message?: unknown; details?: unknown } };
  const message = typeof error?.message === "string" ? error.message : `The service answered ${response.status}.`;
  const code = typeof error?.code === "string" ? error.code : "UNEXPECTED_ANSWER";
  return new WarrenError(message, code, response.status, error?.details);
}
