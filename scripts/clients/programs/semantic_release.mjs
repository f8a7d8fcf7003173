// Release a package as users of semantic-release and its plug-in for GitLab do, and print a line for each call.
// Argument: the folder in which both are installed.
import cp from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { api, call, expect, TOKEN, URL_OF_SERVER } from "./calls.mjs";

const modules = path.join(process.argv[2], "node_modules");
const place = fs.mkdtempSync(path.join(os.tmpdir(), "semantic-release-"));
const folder = path.join(place, "app");
const names = { GIT_AUTHOR_NAME: "Alice", GIT_AUTHOR_EMAIL: "alice@example.org" };
const env = {
  PATH: process.env.PATH,
  HOME: place,
  GL_TOKEN: TOKEN,
  GL_URL: URL_OF_SERVER,
  GIT_TERMINAL_PROMPT: "0",
  ...names,
  GIT_COMMITTER_NAME: "Alice",
  GIT_COMMITTER_EMAIL: "alice@example.org",
};
const project = await api("POST", "projects", { name: "app", initialize_with_readme: true });
const url = project.http_url_to_repo.replace("://", `://root:${TOKEN}@`);

function run(program, values) {
  const ran = cp.spawnSync(program, values, { cwd: folder, env, encoding: "utf8", timeout: 120_000 });
  expect(ran.status === 0, `${program} ${values[0]}: ${ran.stdout} ${ran.stderr}`);
  return ran.stdout;
}

function commit(message) {
  fs.appendFileSync(path.join(folder, "app.txt"), `${message}\n`);
  run("git", ["add", "."]);
  run("git", ["commit", "-qm", message]);
  run("git", ["push", "-q", "origin", "HEAD"]);
}

const release = () => run("node", [path.join(modules, "semantic-release/bin/semantic-release.js"), "--no-ci"]);
const releases = async () => (await api("GET", "projects/1/releases")).map((one) => one.tag_name);

cp.spawnSync("git", ["clone", "-q", url, folder], { env });
const configuration = {
  branches: ["main", { name: "next", prerelease: true }],
  repositoryUrl: url,
  plugins: [
    "@semantic-release/commit-analyzer",
    "@semantic-release/release-notes-generator",
    ["@semantic-release/gitlab", { assets: [{ path: "app.txt", label: "the app", target: "generic_package" },
      { url: "https://example.org/app.zip", label: "zip" }] }],
  ],
};
const without_upload = structuredClone(configuration);
without_upload.plugins[2][1].assets.shift();
const configure = (values) => fs.writeFileSync(path.join(folder, ".releaserc.json"), JSON.stringify(values));
fs.symlinkSync(modules, path.join(folder, "node_modules"));
fs.writeFileSync(path.join(folder, ".gitignore"), "node_modules\n");
configure(without_upload);

await call("releases", "the first release", async () => {
  commit("feat: the app");
  release();
  const [found] = await api("GET", "projects/1/releases");
  expect(found.tag_name === "v1.0.0" && found.description.includes("the app"), found);
  expect(found.assets.links[0].name === "zip", found.assets);
});
await call("releases", "nothing to release", async () => {
  commit("docs: words");
  release();
  expect((await releases()).length === 1);
});
await call("releases", "a fix", async () => {
  commit("fix: a mistake");
  release();
  expect((await releases())[0] === "v1.0.1", await releases());
});
await call("releases", "what breaks", async () => {
  commit("feat: another app\n\nBREAKING CHANGE: all of it");
  release();
  expect((await releases())[0] === "v2.0.0", await releases());
});
await call("releases", "a release before the release", async () => {
  run("git", ["checkout", "-qb", "next"]);
  commit("feat: what is next");
  release();
  expect((await releases()).includes("v2.1.0-next.1"), await releases());
});
await call("releases", "merge requests are told of their release", async () => {
  run("git", ["checkout", "-q", "main"]);
  run("git", ["checkout", "-qb", "topic"]);
  commit("fix: by a merge request");
  await api("POST", "projects/1/merge_requests", { source_branch: "topic", target_branch: "main", title: "Topic" });
  await api("PUT", "projects/1/merge_requests/1/merge");
  run("git", ["checkout", "-q", "main"]);
  run("git", ["pull", "-q"]);
  release();
  const notes = await api("GET", "projects/1/merge_requests/1/notes");
  expect(notes.some((note) => note.body.includes("2.0.1")), notes.map((note) => note.body));
});
await call("releases", "with a file in the package registry", async () => {
  configure(configuration);
  commit("fix: one more");
  release();
});
fs.rmSync(place, { recursive: true });
