// Environment variables as people type them.

/** Reads a variable from each line, or returns the first line that is not `NAME=value`. */
export function environment(text: string): { variables: Record<string, string> } | { wrong: string } {
  const variables: Record<string, string> = {};
  for (const line of text.split("\n").filter((line) => line.trim() !== "")) {
    const [, name, value] = /^\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)$/.exec(line) ?? [];
    if (name === undefined || value === undefined) return { wrong: line.trim() };
    variables[name] = value;
  }
  return { variables };
}
