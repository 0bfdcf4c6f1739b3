// Bundles the page into src/fanfold/report/static; the same sources and lock file give the same bytes.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = process.argv[2] ?? fileURLToPath(new URL("../src/fanfold/report/static/", import.meta.url));

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  banner: {
    js: "/* Fanfold page. Contains Preact, Preact Signals, uPlot, TanStack Virtual (MIT) and jsdiff (BSD-3-Clause); sources: web/ */",
  },
  logLevel: "warning",
});
for (const name of ["index.html", "favicon.svg"]) await copyFile(`${here}/src/${name}`, `${out}/${name}`);
