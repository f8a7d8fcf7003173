// Clone, fetch and push as users of isomorphic-git do, and print a line for each call.
import fs from "node:fs";
import os from "node:os";
import { createRequire } from "node:module";
import path from "node:path";
import { api, call, expect, TOKEN } from "./calls.mjs";

const require = createRequire(`${process.argv[2]}/`);
const git = require("isomorphic-git");
const http = require("isomorphic-git/http/node");

const place = fs.mkdtempSync(path.join(os.tmpdir(), "isomorphic-git-"));
const author = { name: "Alice", email: "alice@example.org" };
const onAuth = () => ({ username: "root", password: TOKEN });
const url = (await api("POST", "projects", { name: "app", initialize_with_readme: true })).http_url_to_repo;
const first = { fs, http, onAuth, dir: path.join(place, "first") };
const second = { ...first, dir: path.join(place, "second") };

async function commit(where, name, text) {
  fs.writeFileSync(path.join(where.dir, name), text);
  await git.add({ ...where, filepath: name });
  return git.commit({ ...where, author, message: `Write ${name}` });
}

async function refused(action, code) {
  try {
    await action();
  } catch (problem) {
    expect(problem.code === code, `${problem.code}: ${problem.message}`);
    return problem;
  }
  throw new Error("was not refused");
}

const branches = async () => (await api("GET", "projects/1/repository/branches")).map((branch) => branch.name);

await call("reading", "clone", async () => {
  await git.clone({ ...first, url });
  expect(fs.readFileSync(path.join(first.dir, "README.md"), "utf8").startsWith("# app"));
});
await call("reading", "clone of the newest commit only", async () => {
  await git.clone({ ...second, url, depth: 1, singleBranch: true });
  expect((await git.log(second)).length === 1);
});
await call("reading", "clone without credentials is refused", () =>
  refused(() => git.clone({ ...first, dir: path.join(place, "none"), onAuth: undefined, url }), "HttpError"));
await call("reading", "getRemoteInfo2", async () => {
  const info = await git.getRemoteInfo2({ http, onAuth, url });
  expect(info.protocolVersion === 2, info);
});
for (const protocolVersion of [1, 2])
  await call("reading", `listServerRefs by protocol ${protocolVersion}`, async () => {
    const refs = await git.listServerRefs({ http, onAuth, url, protocolVersion, symrefs: true });
    expect(refs.find((ref) => ref.ref === "HEAD").target === "refs/heads/main", refs);
  });
await call("writing", "push", async () => {
  const head = await commit(first, "a.txt", "a\n");
  const answer = await git.push({ ...first, url, ref: "main" });
  expect(answer.ok && answer.refs["refs/heads/main"].ok, answer);
  expect((await api("GET", "projects/1/repository/branches/main")).commit.id === head);
});
await call("writing", "push of a new branch", async () => {
  await git.branch({ ...first, ref: "topic/one", checkout: true });
  await git.push({ ...first, url, ref: "topic/one" });
  expect((await branches()).includes("topic/one"));
});
await call("writing", "push of tags", async () => {
  await git.tag({ ...first, ref: "v1" });
  await git.annotatedTag({ ...first, ref: "v1.0", message: "Version 1", tagger: author });
  await git.push({ ...first, url, ref: "v1" });
  await git.push({ ...first, url, ref: "v1.0" });
  expect((await api("GET", "projects/1/repository/tags/v1.0")).message.trim() === "Version 1");
});
await call("reading", "fetch", async () => {
  const answer = await git.fetch({ ...second, url, ref: "main", singleBranch: true });
  expect(answer.fetchHead.length === 40, answer);
});
await call("reading", "fetch of more history", async () => {
  await git.fetch({ ...second, url, ref: "main", depth: 1, relative: true });
});
await call("reading", "pull", async () => {
  await git.pull({ ...second, url, ref: "main", author, singleBranch: true });
  expect(fs.readFileSync(path.join(second.dir, "a.txt"), "utf8") === "a\n");
});
await call("reading", "fetch prunes", async () => {
  await git.fetch({ ...first, url, prune: true, tags: true });
});
await call("writing", "push that would lose commits is refused", async () => {
  await git.checkout({ ...first, ref: "main" });
  await commit(first, "b.txt", "b\n");
  await git.push({ ...first, url, ref: "main" });
  await commit(second, "c.txt", "c\n");
  await refused(() => git.push({ ...second, url, ref: "main" }), "PushRejectedError");
});
await call("writing", "push by force to a protected branch is refused", async () => {
  await refused(() => git.push({ ...second, url, ref: "main", force: true }), "GitPushError");
});
await call("writing", "push by force", async () => {
  await git.push({ ...second, url, ref: "main", remoteRef: "refs/heads/topic/one", force: true });
});
await call("writing", "a branch is deleted", async () => {
  await git.push({ ...first, url, remoteRef: "refs/heads/topic/one", ref: "topic/one", delete: true });
  expect(!(await branches()).includes("topic/one"));
});
await call("reading", "clone of a public project by its address without .git", async () => {
  await api("PUT", "projects/1", { visibility: "public" });
  await git.clone({ ...first, dir: path.join(place, "public"), onAuth: undefined, url: url.replace(/\.git$/, "") });
});
fs.rmSync(place, { recursive: true });
