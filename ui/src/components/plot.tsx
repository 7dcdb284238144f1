import { useId, useRef, useState, type PointerEvent } from "react";
import { clock } from "./time";

export interface Point {
  /** Milliseconds since 1970. */
  at: number;
  value: number;
}

interface PlotProps {
  label: string;
  /** What the picture is about, where the label alone would not say it. */
  name?: string;
  /** Less high. */
  small?: boolean;
  points: readonly Point[];
  /** The moments at both ends. */
  from: number;
  to: number;
  /** The top of the scale, if the values do not decide. */
  most?: number;
  format: (value: number) => string;
  /** A value holds until the next one, instead of changing evenly. */
  steps?: boolean;
  testId?: string;
  tone?: "good" | "busy";
}

/** The drawing's own units; it is stretched to the width of its place. */
const WIDTH = 600;
const HEIGHT = 120;

/** Values over time. What the picture says, its label says in words. */
export function Plot({ label, name = label, small = false, points, from, to, most, format, steps = false, testId, tone = "busy" }: PlotProps) {
  const frame = useRef<HTMLDivElement>(null);
  const fill = useId();
  const [pointed, setPointed] = useState<number | null>(null);
  const seen = within(points, from, to);
  const top = most ?? scale(Math.max(0, ...seen.map((point) => point.value)));
  const x = (at: number) => ((at - from) / Math.max(1, to - from)) * WIDTH;
  const y = (value: number) => HEIGHT - Math.min(1, value / top) * (HEIGHT - 4) - 2;
  const move = (event: PointerEvent) => {
    const box = frame.current?.getBoundingClientRect();
    if (box === undefined || box.width === 0) return;
    setPointed(from + ((event.clientX - box.left) / box.width) * (to - from));
  };
  const shown = pointed === null ? undefined : valueAt(seen, pointed, steps);
  const last = seen.at(-1);
  return (
    <figure className={`plot plot-${tone}${small ? " is-small" : ""}`} data-testid={testId}>
      <figcaption className="plot-head">
        <span className="plot-label">{label}</span>
        <span className="numbers">
          {shown !== undefined ? `${format(shown.value)} at ${clock(shown.at)}` : last === undefined ? "" : format(last.value)}
        </span>
      </figcaption>
      <div ref={frame} className="plot-frame" onPointerMove={move} onPointerLeave={() => setPointed(null)}>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img"
          aria-label={inWords(name, seen, from, to, format)}
        >
          <defs>
            <linearGradient id={fill} x1="0" y1="0" x2="0" y2="1">
              <stop offset="0" className="plot-shade-top" />
              <stop offset="1" className="plot-shade-end" />
            </linearGradient>
          </defs>
          {[0.25, 0.5, 0.75].map((share) => (
            <line key={share} className="plot-grid" x1="0" x2={WIDTH} y1={y(top * share)} y2={y(top * share)} />
          ))}
          {seen.length > 0 && <path fill={`url(#${fill})`} d={`${line(seen, x, y, steps)}V${HEIGHT}H${x(seen[0]?.at ?? from)}Z`} />}
          {seen.length > 0 && <path className="plot-line" d={line(seen, x, y, steps)} />}
          {shown !== undefined && <line className="plot-pointer" x1={x(shown.at)} x2={x(shown.at)} y1="0" y2={HEIGHT} />}
        </svg>
        <span className="plot-top numbers" aria-hidden="true">{format(top)}</span>
      </div>
      <div className="plot-times numbers" aria-hidden="true">
        <span>{clock(from)}</span>
        <span>{clock(to)}</span>
      </div>
    </figure>
  );
}

/** Returns the points of a span, with the one before it at its beginning. */
function within(points: readonly Point[], from: number, to: number): Point[] {
  const first = points.findIndex((point) => point.at >= from);
  const start = first === -1 ? points.length : first;
  const before = points[start - 1];
  const inside = points.slice(start).filter((point) => point.at <= to);
  return before === undefined ? inside : [{ ...before, at: from }, ...inside];
}

function line(points: readonly Point[], x: (at: number) => number, y: (value: number) => number, steps: boolean): string {
  return points
    .map((point, index) => {
      if (index === 0) return `M${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`;
      return steps
        ? `H${x(point.at).toFixed(1)}V${y(point.value).toFixed(1)}`
        : `L${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`;
    })
    .join("");
}

/** Returns a round number at or above a value: 1, 2 or 5 times a power of ten. */
export function scale(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((factor) => factor * power >= value) ?? 10) * power;
}

/** Returns the point that holds at a moment, or the nearest one. */
function valueAt(points: readonly Point[], at: number, steps: boolean): Point | undefined {
  if (steps) {
    const held = points.findLast((point) => point.at <= at);
    return held === undefined ? undefined : { ...held, at };
  }
  return points.reduce<Point | undefined>(
    (best, point) => (best === undefined || Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best),
    undefined,
  );
}

function inWords(label: string, points: readonly Point[], from: number, to: number, format: (value: number) => string): string {
  const last = points.at(-1);
  if (last === undefined) return `${label}: nothing was measured yet`;
  const values = points.map((point) => point.value);
  const minutes = Math.max(1, Math.round((to - from) / 60_000));
  return `${label} over the last ${minutes === 1 ? "minute" : `${minutes} minutes`}: now ${format(last.value)}, `
    + `at least ${format(Math.min(...values))}, at most ${format(Math.max(...values))}`;
}
