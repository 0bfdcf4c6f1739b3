// Types of the page's sources.
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const result = spawnSync(process.execPath, ["node_modules/typescript/bin/tsc", "--noEmit", "-p", "."], {
  cwd: here,
  stdio: "inherit",
});
process.exit(result.status ?? 1);
