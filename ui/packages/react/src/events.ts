// Events as they are on the wire, read defensively: what a sandbox printed is in them.

import type { AgentState, SessionEvent } from "./types";

const encoder = new TextEncoder();

/** Decodes base64 to bytes. */
export function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) bytes[index] = binary.charCodeAt(index);
  return bytes;
}

/** Encodes bytes as base64. */
export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  // In pieces: a call takes only so many arguments.
  for (let start = 0; start < bytes.length; start += 8192) {
    binary += String.fromCharCode(...bytes.subarray(start, start + 8192));
  }
  return btoa(binary);
}

/** Returns the event, or `null` for anything that is not one. */
export function decodeEvent(raw: unknown): SessionEvent | null {
  if (typeof raw !== "object" || raw === null) return null;
  const fields = raw as Record<string, unknown>;
  const offset = fields.offset;
  if (typeof offset !== "number" || !Number.isSafeInteger(offset)) return null;
  const bytes = decodeData(fields.data, fields.encoding);
  if (bytes === null) return null;
  const source = fields.source;
  return {
    offset,
    at: String(fields.at ?? fields.time ?? ""),
    kind: String(fields.kind ?? ""),
    source: source === "agent" || source === "user" ? source : "system",
    bytes,
  };
}

function decodeData(data: unknown, encoding: unknown): Uint8Array | null {
  try {
    if (typeof data === "string") return encoding === "base64" ? fromBase64(data) : encoder.encode(data);
    if (typeof data === "object" && data !== null) {
      const { base64 } = data as { base64?: unknown };
      return typeof base64 === "string" ? fromBase64(base64) : encoder.encode(JSON.stringify(data));
    }
    return new Uint8Array();
  } catch {
    return null;
  }
}

/** Returns true for what a terminal shows. */
export function isOutput(event: SessionEvent): boolean {
  return event.kind === "terminal:output" || event.kind === "terminal:error";
}

/** Returns the JSON object that an event carries, or `null`. */
export function jsonOf(event: SessionEvent): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(new TextDecoder().decode(event.bytes));
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** Returns the agent's state if the event tells one. */
export function agentStateOf(event: SessionEvent): AgentState | null {
  if (event.kind !== "state") return null;
  const fields = jsonOf(event);
  const status = fields?.status;
  return fields !== null && typeof status === "string" ? { ...fields, status } : null;
}
