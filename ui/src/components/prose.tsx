import { Fragment } from "react";

/** A message of the service, with what is between backticks as code. */
export function Prose({ text }: { text: string }) {
  const parts = text.split("`");
  // An odd number of backticks is no markup.
  if (parts.length % 2 === 0) return <>{text}</>;
  return <>{parts.map((part, index) => (index % 2 === 0 ? <Fragment key={index}>{part}</Fragment> : <code key={index}>{part}</code>))}</>;
}
