// A recorded session in the browser: its events, and when each of them is shown.

import { useEffect, useState } from "react";
import { decodeEvent, type Session, type SessionEvent } from "warren-react";
import { client, paths } from "./api";

/** How much of a session is loaded. More is for the exported file and a player. */
const MOST_BYTES = 64 * 1024 * 1024;
const PAGE = 2_000;

/** The longest pause that is shown when pauses are skipped. */
const SHORT_PAUSE_MS = 800;

export interface Recorded {
  events: SessionEvent[];
  /** How many bytes were read, and true once there are no more. */
  bytes: number;
  complete: boolean;
  error: Error | null;
}

const NONE: Recorded = { events: [], bytes: 0, complete: false, error: null };

/** Loads a session's events up to its present end. */
export function useRecording(session: Session): Recorded & { again: () => void } {
  const [recorded, setRecorded] = useState<Recorded>(NONE);
  const [attempts, setAttempts] = useState(0);
  const { id } = session;
  useEffect(() => {
    const controller = new AbortController();
    setRecorded(NONE);
    void load(id, controller.signal, setRecorded);
    return () => controller.abort();
  }, [id, attempts]);
  return { ...recorded, again: () => setAttempts(attempts + 1) };
}

async function load(id: string, signal: AbortSignal, tell: (recorded: Recorded) => void): Promise<void> {
  const events: SessionEvent[] = [];
  let bytes = 0;
  let from = 0;
  try {
    const { firstOffset = 0, nextOffset } = await client.session(id, signal);
    from = firstOffset;
    while (from < nextOffset && bytes < MOST_BYTES) {
      const path = `${paths.session(id)}/events?from=${from}&limit=${PAGE}`;
      const page = await client.request<{ events: unknown[]; next: number }>("GET", path, undefined, signal);
      for (const raw of page.events) {
        const event = decodeEvent(raw);
        if (event === null) continue;
        events.push(event);
        bytes += event.bytes.length;
      }
      if (page.events.length === 0 || page.next <= from) break;
      from = page.next;
      tell({ events: [], bytes, complete: false, error: null });
    }
    if (!signal.aborted) tell({ events, bytes, complete: true, error: null });
  } catch (error) {
    if (!signal.aborted) tell({ events, bytes, complete: false, error: error as Error });
  }
}

/** Returns when each event is shown, in milliseconds from the first. Never goes back, whatever the clock did. */
export function timesOf(events: readonly SessionEvent[], skipPauses: boolean): number[] {
  const times: number[] = [];
  let last = Number.NaN;
  let now = 0;
  for (const event of events) {
    const at = Date.parse(event.at);
    const pause = Number.isNaN(at) || Number.isNaN(last) ? 0 : Math.max(0, at - last);
    now += skipPauses ? Math.min(pause, SHORT_PAUSE_MS) : pause;
    if (!Number.isNaN(at)) last = at;
    times.push(now);
  }
  return times;
}

/** Returns how many of the times are not after `moment`. */
export function countUntil(times: readonly number[], moment: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((times[middle] ?? 0) <= moment) low = middle + 1;
    else high = middle;
  }
  return low;
}
