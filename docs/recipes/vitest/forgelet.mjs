// Starts the server before the tests, and ends it after them.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";

export default async function setup({ provide }) {
  const folder = await mkdtemp(join(tmpdir(), "forgelet-"));
  const file = join(folder, "ready.json");
  // The server ends when the pipe to its standard input closes: with this process, however it ends.
  const server = spawn("forgelet", ["up", "--testing", "--until-eof", "--ready-file", file], {
    stdio: ["pipe", "ignore", "inherit"],
  });
  const end = once(server, "exit");
  let ready;
  while (!(ready = await readFile(file, "utf8").catch(() => null))) {
    if (server.exitCode !== null) throw new Error("forgelet did not start; it says why above");
    await setTimeout(20);
  }
  provide("forgelet", JSON.parse(ready));
  return async () => {
    server.stdin.end();
    await end;
    await rm(folder, { recursive: true });
  };
}
