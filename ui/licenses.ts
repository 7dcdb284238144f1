// The licences of what is in the bundle, as a file beside it.

import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Plugin } from "vite";

const BUNDLED = ["@xterm/addon-fit", "@xterm/xterm", "react", "react-dom", "scheduler"];

/** Writes `licenses.txt`. */
export function licenses(): Plugin {
  return {
    name: "licenses",
    apply: "build",
    generateBundle() {
      const texts = BUNDLED.map((name) => {
        const file = fileURLToPath(new URL(`node_modules/${name}/LICENSE`, import.meta.url));
        if (!existsSync(file)) throw new Error(`${name} has no LICENSE`);
        return `${name}\n\n${readFileSync(file, "utf8").trim()}\n`;
      });
      this.emitFile({ type: "asset", fileName: "licenses.txt", source: texts.join(`\n${"-".repeat(80)}\n\n`) });
    },
  };
}
