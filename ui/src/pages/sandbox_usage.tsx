import type { Sandbox } from "../api";
import { EmptyState } from "../components/feedback";
import { Plot, type Point } from "../components/plot";
import { size } from "../components/time";
import { useSamples, type Sample } from "../usage";

/** The shortest span that is drawn: a young plot grows into it. */
const SPAN_MS = 5 * 60_000;

/** What a sandbox has used since its page was opened. */
export function UsageTab({ sandbox }: { sandbox: Sandbox }) {
  const samples = useSamples(sandbox.id);
  const first = samples[0];
  const last = samples.at(-1);
  if (first === undefined || last === undefined) {
    return sandbox.status === "running" ? (
      <EmptyState title="Not measured yet" text="A sandbox is measured some seconds after its start; the plots begin then." />
    ) : (
      <EmptyState title="It uses nothing" text="A sandbox that does not run has no processes. Start it to see what it uses." />
    );
  }
  const to = last.at;
  const from = Math.min(first.at, to - SPAN_MS);
  return (
    <div className="plots">
      <Plot
        label="Processor" points={points(samples, "cpu")} from={from} to={to} testId="plot-processor"
        format={(value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} %`}
      />
      <Plot
        label="Memory" points={points(samples, "memory")} from={from} to={to} testId="plot-memory" tone="good"
        format={(value) => size(value * 1024 * 1024)}
      />
      <p className="field-hint">100 % is one processor. Measured every five seconds while this sandbox is open in the page.</p>
    </div>
  );
}

function points(samples: readonly Sample[], of: "cpu" | "memory"): Point[] {
  return samples.flatMap((sample) => {
    const value = sample[of];
    return value === null ? [] : [{ at: sample.at, value }];
  });
}
