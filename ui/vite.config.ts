import { defineConfig } from "vite";
import { licenses } from "./licenses.ts";

// `WARREN_URL` is where `warren serve` listens, for `npm run dev`.
const service = process.env.WARREN_URL ?? "http://127.0.0.1:7340";

export default defineConfig({
  plugins: [licenses()],
  build: {
    // Committed, so that cargo builds the service without npm. `cargo xtask ui --check` compares.
    outDir: process.env.WARREN_UI_OUT ?? "../crates/warren-service/ui",
    emptyOutDir: true,
    target: "es2022",
    // These know `light-dark()`, so it is not rewritten.
    cssTarget: ["chrome123", "firefox121", "safari17.5"],
    // Nothing inline: the service's Content-Security-Policy allows no data: scripts or fonts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 600,
  },
  // The service refuses requests of other origins than its own.
  server: { proxy: { "/api": { target: service, changeOrigin: true, headers: { origin: service } } } },
});
