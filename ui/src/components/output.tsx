import { useLayoutEffect, useRef } from "react";
import { plainText } from "../text";

interface OutputProps {
  label: string;
  text: string;
  testId?: string;
  /** Shows the end, as long as the reader has not scrolled away from it. */
  follow?: boolean;
}

/** How near to the end counts as the end, in pixels. */
const NEAR = 24;

/** What a command wrote: always as text. */
export function Output({ label, text, testId, follow = false }: OutputProps) {
  const element = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    const shown = element.current;
    if (follow && atEnd.current && shown !== null) shown.scrollTop = shown.scrollHeight;
  }, [text, follow]);
  return (
    <pre
      ref={element} className="output" role="region" aria-label={label} tabIndex={0} data-testid={testId}
      onScroll={({ currentTarget: shown }) => {
        atEnd.current = shown.scrollHeight - shown.scrollTop - shown.clientHeight < NEAR;
      }}
    >
      {plainText(text)}
    </pre>
  );
}
