// Builds the assets that the daemon embeds. `node build.mjs DIRECTORY` writes them somewhere else.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = process.argv[2] ?? join(here, "../crates/tenure-server/assets/console");
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
});
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/app.css" },
  outdir: out,
  bundle: true,
  minify: true,
  target: "es2022",
});
for (const name of ["index.html", "icon.svg"]) {
  await copyFile(join(here, "src", name), join(out, name));
}
