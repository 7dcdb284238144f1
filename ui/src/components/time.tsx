import { useSyncExternalStore } from "react";

let now = Date.now();
const listeners = new Set<() => void>();
setInterval(() => {
  now = Date.now();
  for (const listener of [...listeners]) listener();
}, 10_000);

/** Returns the time, again every ten seconds. */
export function useNow(): number {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => now,
  );
}

const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
const timeOfDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Returns the time of day of a moment. */
export function clock(at: number): string {
  return timeOfDay.format(at);
}

/** A moment, told from now; the date itself is its title. */
export function Ago({ at }: { at: string | null | undefined }) {
  const current = useNow();
  const moment = at == null ? Number.NaN : Date.parse(at);
  if (Number.isNaN(moment)) return <span className="quiet">–</span>;
  return (
    <time dateTime={new Date(moment).toISOString()} title={absolute.format(moment)}>
      {ago(moment, Math.max(current, Date.now() - 10_000))}
    </time>
  );
}

function ago(moment: number, current: number): string {
  const seconds = (moment - current) / 1_000;
  for (const [unit, length] of UNITS) {
    if (Math.abs(seconds) >= length) return relative.format(Math.trunc(seconds / length), unit);
  }
  return "just now";
}

/** Returns a duration as people write it: `4 s`, `2:05`, `1:02:05`. */
export function duration(milliseconds: number): string {
  const seconds = Math.max(0, Math.round(milliseconds / 1_000));
  const pad = (value: number) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3_600), Math.floor(seconds / 60) % 60];
  return hours > 0 ? `${hours}:${pad(minutes)}:${pad(seconds % 60)}` : `${minutes}:${pad(seconds % 60)}`;
}

/** Returns a size as people write it. */
export function size(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  let value = bytes;
  while (value >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${index === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[index] ?? ""}`;
}
