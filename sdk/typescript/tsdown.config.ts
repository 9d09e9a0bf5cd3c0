import { defineConfig, type UserConfig } from "tsdown";

const base: UserConfig = {
  platform: "neutral",
  target: "es2022",
  clean: true,
  deps: { neverBundle: ["react"] },
  outExtensions: ({ format }) => (format === "cjs" ? { js: ".cjs", dts: ".d.cts" } : { js: ".js", dts: ".d.ts" }),
};
// Programs show and compare the names of error classes.
const keepNames = { class: true, function: false };

export default defineConfig([
  {
    ...base,
    entry: ["src/index.ts", "src/chat.ts", "src/react.ts"],
    format: ["esm", "cjs"],
    dts: { sourcemap: false },
    sourcemap: true,
    minify: { compress: { keepNames }, mangle: { keepNames }, codegen: true },
  },
  { ...base, entry: ["test/internals.ts"], format: ["esm"], dts: false, outDir: "build" },
]);
