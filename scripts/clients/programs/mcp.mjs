// Call the tools of a GitLab server of the Model Context Protocol, and print a line for each call.
// Arguments: the folder in which the server is installed, and its package.
import cp from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { call, expect, TOKEN, URL_OF_SERVER } from "./calls.mjs";

const [, , folder, name] = process.argv;
const CI = `stages: [build, test]
build: {stage: build, script: [make], artifacts: {paths: [out]}, variables: {FORGELET_ARTIFACTS: '{"out": "built"}'}}
check: {stage: test, script: [make check]}
deploy: {stage: test, script: [make deploy], when: manual}
`;

const { bin } = JSON.parse(fs.readFileSync(path.join(folder, "node_modules", name, "package.json")));
const server = cp.spawn("node", [path.join(folder, "node_modules", name, Object.values(bin)[0])], {
  env: {
    PATH: process.env.PATH,
    GITLAB_API_URL: `${URL_OF_SERVER}/api/v4`,
    GITLAB_PERSONAL_ACCESS_TOKEN: TOKEN,
    GITLAB_TOOLSETS: "all",
  },
  stdio: ["pipe", "pipe", "ignore"],
});
const waiting = new Map();
readline.createInterface({ input: server.stdout }).on("line", (line) => {
  const message = JSON.parse(line);
  waiting.get(message.id)?.(message);
});
const send = (message) => server.stdin.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
let number = 0;
const ask = (method, params) =>
  new Promise((resolve) => {
    number += 1;
    waiting.set(number, resolve);
    send({ id: number, method, params });
  });

// Return the answer of a tool, which is parsed if it is JSON.
async function tool(tool_name, values) {
  const answer = await ask("tools/call", { name: tool_name, arguments: values });
  const text = answer.result?.content?.map((part) => part.text).join("\n") ?? answer.error?.message;
  expect(!answer.error && !answer.result.isError, text);
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// Report a call of a tool; `right` has to accept the answer.
const use = (area, tool_name, values = {}, right = () => true, label = tool_name) =>
  call(area, label, async () => {
    const answer = await tool(tool_name, values);
    expect(right(answer), `unexpected answer: ${JSON.stringify(answer)?.slice(0, 300)}`);
    return answer;
  });

// Return the id of the created entity; some tools answer with a sentence that contains it.
const id_of = (answer) => String(answer?.id ?? /#(\d+)/.exec(answer)?.[1]);
const project = { project_id: "tools/app" };
const file = (file_path, content) => ({ file_path, content });

async function small() {
  await use("projects", "create_repository", { name: "app", initialize_with_readme: true, visibility: "private" });
  project.project_id = "root/app";
  await use("projects", "search_repositories", { search: "app" }, (found) => found.items.length === 1);
  await use("files", "create_or_update_file", {
    ...project, ...file("a.txt", "a\n"), branch: "main", commit_message: "a",
  });
  await use("files", "get_file_contents", { ...project, file_path: "a.txt", ref: "main" },
    (found) => found.content.includes("a\n"));
  await use("branches", "create_branch", { ...project, branch: "topic/one", ref: "main" });
  await use("files", "push_files", {
    ...project, branch: "topic/one", commit_message: "Two", files: [file("b.txt", "b\n"), file("d/c.txt", "c\n")],
  });
  await use("merge requests", "create_merge_request", {
    ...project, title: "Topic", source_branch: "topic/one", target_branch: "main",
  });
  await use("issues", "create_issue", { ...project, title: "An issue" });
  await use("projects", "fork_repository", { ...project });
}

async function large() {
  await use("projects", "health_check");
  await use("projects", "whoami", {}, (found) => found.username === "root");
  const group = await use("projects", "create_group", { name: "Tools", path: "tools" });
  await use("projects", "create_repository", {
    name: "app", namespace_id: id_of(group), initialize_with_readme: true, visibility: "private",
  });
  await use("projects", "get_project", project, (found) => found.path_with_namespace === "tools/app");
  await use("projects", "list_projects", { search: "app" }, (found) => found.length === 1);
  await use("projects", "list_group_projects", { group_id: "tools" }, (found) => found.length === 1);
  await use("projects", "search_repositories", { search: "app" });
  await use("projects", "update_project", { ...project, description: "An app" },
    (found) => found.description === "An app");
  await use("projects", "list_namespaces", { search: "tools" }, (found) => found.length === 1);
  await use("projects", "get_namespace", { namespace_id: "tools" });
  await use("projects", "verify_namespace", { path: "tools" });
  await use("members", "list_project_members", { ...project, include_inheritance: true });
  await use("members", "list_group_members", { group_id: "tools" }, (found) => found.length === 1);
  await use("members", "get_users", { usernames: ["root"] });
  await use("members", "get_user", { user_id: "1" });

  const commit_to = (branch) => ({ ...project, branch, commit_message: "A commit" });
  await use("files", "create_or_update_file", { ...commit_to("main"), ...file(".gitlab-ci.yml", CI) });
  await use("files", "create_or_update_file", { ...commit_to("main"), ...file("README.md", "# App\n") },
    () => true, "create_or_update_file of what is there");
  await use("files", "get_file_contents", { ...project, file_path: "README.md", ref: "main" });
  await use("files", "get_repository_tree", { ...project, recursive: true });
  await use("files", "get_file_blame", { ...project, file_path: "README.md", ref: "main" });
  await use("branches", "create_branch", { ...project, branch: "topic/one", ref: "main" });
  await use("branches", "list_branches", project, (found) => found.length === 2);
  await use("branches", "get_branch", { ...project, branch_name: "topic/one" });
  await use("branches", "protect_branch", { ...project, branch_name: "release/*", allow_force_push: false });
  await use("branches", "list_protected_branches", project);
  await use("branches", "get_protected_branch", { ...project, branch_name: "release/*" });
  await use("branches", "unprotect_branch", { ...project, branch_name: "release/*" });
  await use("branches", "update_default_branch", { ...project, default_branch: "main" });
  await use("files", "push_files", { ...commit_to("topic/one"), files: [file("a.txt", "a\n"), file("d/b.txt", "b\n")] });
  const commits = await use("commits", "list_commits", { ...project, ref_name: "topic/one" });
  const sha = commits?.[0]?.id ?? commits?.items?.[0]?.id ?? "topic/one";
  await use("commits", "get_commit", { ...project, sha });
  await use("commits", "get_commit_diff", { ...project, sha });
  await use("commits", "create_commit_status", { ...project, sha, state: "success", name: "lint" });
  await use("commits", "list_commit_statuses", { ...project, sha });
  await use("commits", "get_branch_diffs", { ...project, from: "main", to: "topic/one" });
  await use("tags", "create_tag", { ...project, tag_name: "v1.0", ref: "main", message: "Version 1" });
  await use("tags", "list_tags", project);
  await use("tags", "get_tag", { ...project, tag_name: "v1.0" });

  const made = await use("merge requests", "create_merge_request", {
    ...project, title: "Topic", source_branch: "topic/one", target_branch: "main",
  });
  const request = { ...project, merge_request_iid: String(made?.iid) };
  await use("merge requests", "get_merge_request", request);
  await use("merge requests", "list_merge_requests", { ...project, state: "opened" });
  await use("merge requests", "list_group_merge_requests", { group_id: "tools" });
  await use("merge requests", "update_merge_request", { ...request, description: "All of it" });
  for (const one of ["get_merge_request_diffs", "list_merge_request_diffs", "list_merge_request_changed_files",
    "list_merge_request_pipelines", "get_merge_request_approval_state", "get_merge_request_conflicts"])
    await use("merge requests", one, request);
  const versions = await use("merge requests", "list_merge_request_versions", request);
  await use("merge requests", "get_merge_request_version", { ...request, version_id: String(versions?.[0]?.id) });
  await use("merge requests", "approve_merge_request", request);
  await use("merge requests", "unapprove_merge_request", request);
  const note = await use("notes", "create_merge_request_note", { ...request, body: "Fine" });
  await use("notes", "get_merge_request_notes", request);
  await use("notes", "update_merge_request_note", { ...request, note_id: id_of(note), body: "Good" });
  await use("notes", "delete_merge_request_note", { ...request, note_id: id_of(note) });
  const thread = await use("notes", "create_merge_request_thread", { ...request, body: "Why?" });
  const talk = { ...request, discussion_id: thread?.id };
  await use("notes", "mr_discussions", request);
  await use("notes", "create_merge_request_discussion_note", { ...talk, body: "So" });
  await use("notes", "resolve_merge_request_thread", { ...talk, resolved: true });
  await use("notes", "create_draft_note", { ...request, body: "Later" });
  await use("merge requests", "merge_merge_request", { ...request, should_remove_source_branch: true });

  const pipeline = await use("pipelines", "create_pipeline", {
    ...project, ref: "main", variables: [{ key: "COLOUR", value: "blue" }],
  });
  const of_pipeline = { ...project, pipeline_id: id_of(pipeline) };
  await use("pipelines", "wait_for_pipeline", { ...of_pipeline, timeout_seconds: 30, poll_interval_seconds: 5 });
  for (const one of ["get_pipeline", "get_pipeline_variables", "get_pipeline_test_report",
    "get_pipeline_test_report_summary", "list_pipeline_trigger_jobs"])
    await use("pipelines", one, of_pipeline);
  await use("pipelines", "list_pipelines", { ...project, ref: "main" });
  const jobs = (await use("jobs", "list_pipeline_jobs", of_pipeline)) ?? [];
  const job = (job_name) => ({
    ...project, job_id: String((jobs.items ?? jobs).find((one) => one.name === job_name)?.id),
  });
  await use("jobs", "get_pipeline_job", job("build"));
  await use("jobs", "get_pipeline_job_output", job("build"));
  await use("jobs", "list_job_artifacts", job("build"));
  await use("jobs", "get_job_artifact_file", { ...job("build"), artifact_path: "out" });
  await use("jobs", "play_pipeline_job", job("deploy"));
  await use("jobs", "retry_pipeline_job", job("check"));
  await use("jobs", "cancel_pipeline_job", job("check"));
  await use("jobs", "erase_pipeline_job", job("build"));
  await use("pipelines", "retry_pipeline", of_pipeline);
  await use("pipelines", "cancel_pipeline", of_pipeline);
  await use("pipelines", "update_pipeline_metadata", { ...of_pipeline, name: "A name" });
  await use("pipelines", "delete_pipeline", of_pipeline);
  await use("pipelines", "validate_ci_lint", { ...project, content: CI });
  await use("pipelines", "validate_project_ci_lint", project);
  const schedule = await use("pipelines", "create_pipeline_schedule", {
    ...project, description: "Nightly", ref: "main", cron: "0 1 * * *",
  });
  const planned = { ...project, pipeline_schedule_id: id_of(schedule) };
  await use("pipelines", "list_pipeline_schedules", project);
  await use("pipelines", "get_pipeline_schedule", planned);
  await use("pipelines", "create_pipeline_schedule_variable", { ...planned, key: "NIGHT", value: "1" });
  await use("pipelines", "get_pipeline_schedule_variable", { ...planned, key: "NIGHT" });
  await use("pipelines", "update_pipeline_schedule", { ...planned, active: false });
  await use("pipelines", "play_pipeline_schedule", planned);
  await use("pipelines", "list_pipeline_schedule_pipelines", planned);
  await use("pipelines", "take_ownership_pipeline_schedule", planned);
  await use("pipelines", "delete_pipeline_schedule", planned);
  const trigger = await use("pipelines", "create_pipeline_trigger", { ...project, description: "from outside" });
  await use("pipelines", "list_pipeline_triggers", project);
  await use("pipelines", "trigger_pipeline", { ...project, token: trigger?.token, ref: "main" });
  await use("pipelines", "delete_pipeline_trigger", { ...project, trigger_id: id_of(trigger) });

  await use("variables", "create_project_variable", { ...project, key: "KEY", value: "one" });
  await use("variables", "list_project_variables", project);
  await use("variables", "get_project_variable", { ...project, key: "KEY" });
  await use("variables", "update_project_variable", { ...project, key: "KEY", value: "two" });
  await use("variables", "delete_project_variable", { ...project, key: "KEY" });
  await use("variables", "create_group_variable", { group_id: "tools", key: "KEY", value: "one" });
  await use("variables", "list_group_variables", { group_id: "tools" });
  await use("variables", "delete_group_variable", { group_id: "tools", key: "KEY" });
  const release = { ...project, tag_name: "v1.0" };
  await use("releases", "create_release", { ...release, name: "One", description: "First" });
  await use("releases", "list_releases", project);
  await use("releases", "get_release", release);
  await use("releases", "update_release", { ...release, name: "Uno" });
  await use("releases", "delete_release", release);
  await use("tags", "delete_tag", release);
  await use("issues", "list_issues", project);
  await use("issues", "create_issue", { ...project, title: "An issue" });
  await use("webhooks", "list_webhooks", project);
}

await ask("initialize", {
  protocolVersion: "2024-11-05",
  capabilities: {},
  clientInfo: { name: "forgelet", version: "1" },
});
send({ method: "notifications/initialized" });
const tools = (await ask("tools/list", {})).result.tools;
await (tools.length < 20 ? small() : large());
server.kill();
