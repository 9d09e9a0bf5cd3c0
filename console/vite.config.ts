import { defineConfig } from "vite";

// `console/build.py` sets the folder, and moves it into the Python package when the build is complete.
export default defineConfig({
  base: "/console/",
  build: {
    outDir: process.env.CONSOLE_OUT_DIR ?? "build/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0, // the content security policy allows no inline script, and data: only for images
  },
  server: { proxy: { "/v1": "http://127.0.0.1:3000", "/console/session": "http://127.0.0.1:3000" } },
});
