// Text of strangers, made fit to be shown. React keeps it from being HTML; this keeps it from
// hiding or reordering what stands beside it.

const OPERATING_SYSTEM_COMMAND = /\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g;
const CONTROL_SEQUENCE = /\u001b\[[0-?]*[ -/]*[@-~]/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Returns the text without colours of terminals, and with a mark for each other control character. */
export function plainText(text: string): string {
  return text
    .replace(OPERATING_SYSTEM_COMMAND, "")
    .replace(CONTROL_SEQUENCE, "")
    .replace(/\r\n?/g, "\n")
    .replace(CONTROLS, "\ufffd");
}

/** Returns the text in one line. */
export function plainLine(text: string): string {
  return plainText(text).replace(/[\n\t]+/g, " ");
}
