// The usage of sandboxes while the page was open. The service measures when it is asked and keeps
// nothing, so the page remembers.

import { useEffect, useSyncExternalStore } from "react";
import { paths, type Metrics } from "./api";
import { useResource } from "./live";

export interface Sample {
  at: number;
  /** In percent of one processor. */
  cpu: number | null;
  /** In MiB. */
  memory: number | null;
}

const EVERY_MS = 5_000;
/** A young sandbox has not been measured yet, and a home without cgroups measures nothing. */
const AGAIN_MS = 20_000;

/** As many as fit into an hour. */
const MOST_SAMPLES = 720;
/** The sandboxes that are remembered; the one seen least lately goes first. */
const MOST_SANDBOXES = 20;

const NONE: readonly Sample[] = [];
const samples = new Map<string, readonly Sample[]>();
const listeners = new Set<() => void>();

function remember(id: string, metrics: Metrics): void {
  const known = samples.get(id) ?? NONE;
  const sample = { at: Date.now(), cpu: metrics.cpuUsagePercent ?? null, memory: metrics.memoryUsageMb ?? null };
  samples.delete(id);
  samples.set(id, [...known.slice(1 - MOST_SAMPLES), sample]);
  const oldest = samples.keys().next().value;
  if (samples.size > MOST_SANDBOXES && oldest !== undefined) samples.delete(oldest);
  for (const listener of [...listeners]) listener();
}

/** Measures a sandbox now and then while it is seen. Returns the last measurement. */
export function useMeasuring(id: string): Metrics | null {
  const { data, error, reload } = useResource<Metrics>(paths.metrics(id));
  const failed = error !== null;
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && reload(), failed ? AGAIN_MS : EVERY_MS);
    return () => clearInterval(timer);
  }, [reload, failed]);
  useEffect(() => {
    if (data !== undefined) remember(id, data);
  }, [id, data]);
  return failed ? null : (data ?? null);
}

/** Returns what was measured of a sandbox since the page was opened. */
export function useSamples(id: string): readonly Sample[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => samples.get(id) ?? NONE,
  );
}
