import { Gitlab } from "@gitbeaker/rest";
import { beforeEach, expect, inject, test } from "vitest";

const forgelet = inject("forgelet");
const api = new Gitlab({ host: forgelet.url, token: forgelet.root_token });

async function control(method, path, body) {
  const answer = await fetch(`${forgelet.url}/-/testing/${path}`, {
    method,
    headers: { "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.status === 204 ? null : answer.json();
}

beforeEach(() => control("POST", "reset"));

test("a branch is made", async () => {
  const project = await api.Projects.create({ name: "hello", initializeWithReadme: true });
  await api.Branches.create(project.id, "topic", "main");
  const branches = await api.Branches.all(project.id);
  expect(branches.map((branch) => branch.name).sort()).toEqual(["main", "topic"]);
});

test("what the test before has made is not there", async () => {
  expect(await api.Projects.all({ owned: true })).toEqual([]);
});

test("the client tries again when it is told to wait", async () => {
  await control("POST", "failures", { method: "GET", path: "/api/v4/user", status: 429, times: 2 });
  expect((await api.Users.showCurrentUser()).username).toBe("root");
  const asked = await control("GET", "requests?path=/api/v4/user");
  expect(asked.map((request) => request.status)).toEqual([429, 429, 200]);
});
