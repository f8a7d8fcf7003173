# Call a server as users of Ruby's gitlab gem do, and print a line for each call: see scripts/clients/outcomes.py.
require "gitlab"

GITLAB = Gitlab.client(endpoint: "#{ENV.fetch('FORGELET_URL')}/api/v4", private_token: ENV.fetch("FORGELET_TOKEN"))
$stdout.sync = true

# Return the result of the block, or nil if it raises an exception.
def try(area, call, message = nil)
  value = yield GITLAB
  puts "ok\t#{area}\t#{call}"
  value
rescue StandardError => e
  puts "failed\t#{area}\t#{call}\t#{e.class}: #{e.message}".tr("\n", " ")
  nil
end

def expect(what)
  raise "unexpected answer" unless what
end

def wait_for(seconds = 30)
  (seconds * 10).times do
    return true if yield
    sleep 0.1
  end
  raise "nothing after #{seconds} s"
end

CI = <<~YAML
  stages: [build, test]
  build: {stage: build, script: [make], artifacts: {paths: [out]}, variables: {FORGELET_ARTIFACTS: '{"out": "built"}'}}
  check: {stage: test, script: [make check]}
  deploy: {stage: test, script: [make deploy], when: manual}
YAML

try("instance", "version") { |g| expect g.version.version }
try("instance", "application_settings") { |g| expect g.application_settings.respond_to?(:default_projects_limit) }
try("instance", "edit_application_settings") do |g|
  expect g.edit_application_settings(default_projects_limit: 77).default_projects_limit == 77
end

me = try("users", "user") { |g| g.user }
alice = try("users", "create_user") { |g| g.create_user("alice@example.org", "correct-horse-9", "alice", name: "Alice") }
try("users", "user by id") { |g| expect g.user(alice.id).username == "alice" }
try("users", "users, walked through") { |g| expect g.users(per_page: 1).auto_paginate.map(&:username).include?("alice") }
try("users", "edit_user") { |g| expect g.edit_user(alice.id, name: "Alice A.").name == "Alice A." }
try("users", "user_search") { |g| expect g.user_search("alice").map(&:id) == [alice.id] }
try("users", "block_user") { |g| expect g.block_user(alice.id) }
try("users", "unblock_user") { |g| expect g.unblock_user(alice.id) }
mail = try("users", "add_email") { |g| g.add_email("second@example.org", alice.id) }
try("users", "emails") { |g| expect g.emails(alice.id).map(&:email).include?("second@example.org") }
try("users", "delete_email") { |g| g.delete_email(mail.id, alice.id) }

group = try("groups", "create_group") { |g| g.create_group("Tools", "tools") }
try("groups", "create_group below another") { |g| expect g.create_group("Sub", "sub", parent_id: group.id).parent_id == group.id }
try("groups", "group by path") { |g| expect g.group("tools/sub").full_path == "tools/sub" }
try("groups", "groups") { |g| expect g.groups.map(&:path).include?("tools") }
try("groups", "group_search") { |g| expect g.group_search("tool").first.id == group.id }
try("groups", "group_subgroups") { |g| expect g.group_subgroups(group.id).map(&:path) == ["sub"] }
try("groups", "edit_group") { |g| expect g.edit_group(group.id, description: "All tools").description == "All tools" }
try("members", "add_group_member") { |g| expect g.add_group_member(group.id, alice.id, 30).access_level == 30 }
try("members", "group_members") { |g| expect g.group_members(group.id).map(&:id).include?(alice.id) }
try("members", "group_member") { |g| expect g.group_member(group.id, alice.id).username == "alice" }
try("members", "edit_group_member") { |g| expect g.edit_group_member(group.id, alice.id, 40).access_level == 40 }
try("members", "remove_group_member") { |g| g.remove_group_member(group.id, alice.id) }

app = try("projects", "create_project") { |g| g.create_project("app", namespace_id: group.id, initialize_with_readme: true) }
id = app&.id
try("projects", "project by path") { |g| expect g.project("tools/app").id == id }
try("projects", "projects") { |g| expect g.projects(membership: true).map(&:id).include?(id) }
try("projects", "project_search") { |g| expect g.project_search("app").map(&:id).include?(id) }
try("projects", "group_projects") { |g| expect g.group_projects(group.id).map(&:id) == [id] }
try("projects", "user_projects") { |g| expect g.user_projects(me.id).to_a == [] }
try("projects", "edit_project") { |g| expect g.edit_project(id, description: "An app", only_allow_merge_if_pipeline_succeeds: false).description == "An app" }
try("projects", "archive_project") { |g| expect g.archive_project(id).archived }
try("projects", "unarchive_project") { |g| expect !g.unarchive_project(id).archived }
try("members", "add_team_member") { |g| expect g.add_team_member(id, alice.id, 30).access_level == 30 }
try("members", "team_members") { |g| expect g.team_members(id).map(&:username) == ["alice"] }
try("members", "all_members") { |g| expect g.all_members(id).map(&:username).sort == %w[alice root] }
try("members", "team_member") { |g| expect g.team_member(id, alice.id).access_level == 30 }
try("members", "edit_team_member") { |g| expect g.edit_team_member(id, alice.id, 40).access_level == 40 }
try("members", "remove_team_member") { |g| g.remove_team_member(id, alice.id) }

try("files", "create_file") { |g| expect g.create_file(id, ".gitlab-ci.yml", "main", CI, "CI").file_path == ".gitlab-ci.yml" }
try("files", "create_file of bytes") { |g| expect g.create_file(id, "a b/é.bin", "main", "\x00\xff".b, "Bytes").branch == "main" }
try("files", "edit_file") { |g| expect g.edit_file(id, "README.md", "main", "# App\n", "Title").branch == "main" }
try("files", "get_file") { |g| expect g.get_file(id, "README.md", "main").content.unpack1("m") == "# App\n" }
try("files", "file_contents") { |g| expect g.file_contents(id, "README.md", "main").to_s.start_with?("# App") }
try("files", "remove_file") { |g| g.remove_file(id, "a b/é.bin", "main", "No bytes") }
try("files", "tree") { |g| expect g.tree(id, ref: "main").map(&:path).sort == %w[.gitlab-ci.yml README.md] }
try("branches", "create_branch") { |g| expect g.create_branch(id, "topic/one", "main").name == "topic/one" }
try("branches", "branches") { |g| expect g.branches(id).map(&:name).sort == %w[main topic/one] }
try("branches", "branch") { |g| expect g.branch(id, "topic/one").commit.id.size == 40 }
try("branches", "protected_branches") { |g| expect g.protected_branches(id).map(&:name) == ["main"] }
try("branches", "protected_branch") { |g| expect g.protected_branch(id, "main").push_access_levels }
try("branches", "unprotect_branch") { |g| g.unprotect_branch(id, "main") }
try("branches", "protect_branch") { |g| g.protect_branch(id, "main") }
commit = try("commits", "create_commit") do |g|
  g.create_commit(id, "topic/one", "Three files", [
    { action: "create", file_path: "a.txt", content: "a\n" },
    { action: "create", file_path: "b.bin", content: ["b"].pack("m"), encoding: "base64" },
    { action: "move", file_path: "docs/README.md", previous_path: "README.md" }
  ])
end
try("commits", "commits") { |g| expect g.commits(id, ref_name: "topic/one", per_page: 2).size == 2 }
try("commits", "commit") { |g| expect g.commit(id, commit.id).title == "Three files" }
try("commits", "commit_diff") { |g| expect g.commit_diff(id, commit.id).size == 3 }
try("commits", "commit_refs") { |g| expect g.commit_refs(id, commit.id).map(&:name) == ["topic/one"] }
try("commits", "update_commit_status") { |g| expect g.update_commit_status(id, commit.id, "success", name: "lint").status == "success" }
try("commits", "commit_status") { |g| expect g.commit_status(id, commit.id).map(&:name).include?("lint") }
try("commits", "compare") { |g| expect g.compare(id, "main", "topic/one").commits.size == 1 }
try("commits", "merge_base") { |g| expect g.merge_base(id, %w[main topic/one]).id }
try("commits", "cherry_pick_commit") do |g|
  g.create_branch(id, "picked", "main")
  expect g.cherry_pick_commit(id, commit.id, "picked").title == "Three files"
end
try("commits", "revert_commit") { |g| expect g.revert_commit(id, g.branch(id, "picked").commit.id, "picked").title.start_with?("Revert") }
try("commits", "repo_archive") { |g| expect g.repo_archive(id, "main").to_s != "" }
try("commits", "commit_comments") { |g| expect g.commit_comments(id, commit.id).to_a == [] }
try("tags", "create_tag") { |g| expect g.create_tag(id, "v1.0", "main", "Version 1").message == "Version 1" }
try("tags", "tags") { |g| expect g.tags(id).map(&:name) == ["v1.0"] }
try("tags", "tag") { |g| expect g.tag(id, "v1.0").commit.id.size == 40 }
try("tags", "protect_repository_tag") { |g| expect g.protect_repository_tag(id, "v*", create_access_level: 40).name == "v*" }
try("tags", "protected_tags") { |g| expect g.protected_tags(id).map(&:name) == ["v*"] }
try("tags", "protected_tag") { |g| expect g.protected_tag(id, "v*").create_access_levels }
try("tags", "unprotect_repository_tag") { |g| g.unprotect_repository_tag(id, "v*") }

mr = try("merge requests", "create_merge_request") do |g|
  g.create_merge_request(id, "Topic one", source_branch: "topic/one", target_branch: "main", assignee_id: me.id)
end
iid = mr&.iid
try("merge requests", "merge_requests") { |g| expect g.merge_requests(id, state: "opened").map(&:iid) == [iid] }
try("merge requests", "user_merge_requests") { |g| expect g.user_merge_requests(scope: "all").map(&:iid) == [iid] }
try("merge requests", "group_merge_requests") { |g| expect g.group_merge_requests(group.id).map(&:iid) == [iid] }
try("merge requests", "merge_request") { |g| expect g.merge_request(id, iid).sha.size == 40 }
try("merge requests", "update_merge_request") { |g| expect g.update_merge_request(id, iid, description: "All of it").description == "All of it" }
try("merge requests", "update_merge_request without assignees") { |g| expect g.update_merge_request(id, iid, assignee_ids: [0]).assignees == [] }
try("merge requests", "merge_request_changes") { |g| expect g.merge_request_changes(id, iid).changes.size == 3 }
try("merge requests", "merge_request_commits") { |g| expect g.merge_request_commits(id, iid).size == 1 }
try("merge requests", "merge_request_participants") { |g| expect g.merge_request_participants(id, iid).map(&:username) == ["root"] }
try("merge requests", "merge_request_pipelines") { |g| g.merge_request_pipelines(id, iid) }
try("merge requests", "merge_request_closes_issues") { |g| expect g.merge_request_closes_issues(id, iid).to_a == [] }
try("merge requests", "merge_request_diff_versions") { |g| expect g.merge_request_diff_versions(id, iid).size == 1 }
try("merge requests", "merge_request_diff_version") { |g| expect g.merge_request_diff_version(id, iid, g.merge_request_diff_versions(id, iid).first.id).diffs.size == 3 }
try("merge requests", "approve_merge_request") { |g| g.approve_merge_request(id, iid) }
try("merge requests", "merge_request_approvals") { |g| expect g.merge_request_approvals(id, iid).approved_by.size == 1 }
try("merge requests", "merge_request_approval_state") { |g| expect g.merge_request_approval_state(id, iid).rules == [] }
try("merge requests", "unapprove_merge_request") { |g| g.unapprove_merge_request(id, iid) }
try("merge requests", "commit_merge_requests") { |g| expect g.commit_merge_requests(id, commit.id).map(&:iid) == [iid] }
note = try("notes", "create_merge_request_note") { |g| g.create_merge_request_note(id, iid, "Fine") }
try("notes", "merge_request_notes") { |g| expect g.merge_request_notes(id, iid).map(&:body).include?("Fine") }
try("notes", "merge_request_note") { |g| expect g.merge_request_note(id, iid, note.id).body == "Fine" }
try("notes", "edit_merge_request_note") { |g| expect g.edit_merge_request_note(id, iid, note.id, "Good").body == "Good" }
try("notes", "delete_merge_request_note") { |g| g.delete_merge_request_note(id, iid, note.id) }
talk = try("notes", "create_merge_request_discussion") { |g| g.create_merge_request_discussion(id, iid, body: "Why?") }
try("notes", "merge_request_discussions") { |g| expect g.merge_request_discussions(id, iid).map(&:id).include?(talk.id) }
try("notes", "create_merge_request_discussion_note") { |g| expect g.create_merge_request_discussion_note(id, iid, talk.id, body: "So").body == "So" }
try("notes", "resolve_merge_request_discussion") { |g| expect g.resolve_merge_request_discussion(id, iid, talk.id, resolved: true).notes.first["resolved"] }
try("merge requests", "accept_merge_request") { |g| expect g.accept_merge_request(id, iid, should_remove_source_branch: true).state == "merged" }

lint = try("pipelines", "validate_gitlab_ci_yml") { |g| g.validate_gitlab_ci_yml(CI) }
pipeline = try("pipelines", "create_pipeline") { |g| g.create_pipeline(id, "main", COLOUR: "blue") }
try("pipelines", "pipelines") { |g| expect g.pipelines(id, ref: "main").map(&:id).include?(pipeline.id) }
try("pipelines", "pipeline") do |g|
  wait_for { %w[success manual].include? g.pipeline(id, pipeline.id).status }
end
try("pipelines", "pipeline_test_report") { |g| expect g.pipeline_test_report(id, pipeline.id).total_count == 0 }
jobs = try("jobs", "pipeline_jobs") { |g| g.pipeline_jobs(id, pipeline.id).to_a }
build = jobs&.find { |one| one.name == "build" }
manual = jobs&.find { |one| one.name == "deploy" }
try("jobs", "jobs with scopes") { |g| expect g.jobs(id, scope: %w[success manual]).map(&:name).uniq.sort == %w[build check deploy] }
try("jobs", "job") { |g| expect g.job(id, build.id).stage == "build" }
try("jobs", "job_trace") { |g| expect g.job_trace(id, build.id).to_s != "" }
try("jobs", "job_artifacts") { |g| expect g.job_artifacts(id, build.id).to_s != "" }
try("jobs", "job_artifacts_download") { |g| expect g.job_artifacts_download(id, "main", "build").to_s != "" }
try("jobs", "job_artifacts_keep") { |g| g.job_artifacts_keep(id, build.id) }
try("jobs", "job_artifacts_delete") { |g| g.job_artifacts_delete(id, build.id) }
try("jobs", "job_play") { |g| expect g.job_play(id, manual.id).id }
try("jobs", "job_retry") { |g| expect g.job_retry(id, build.id).id > build.id }
try("jobs", "job_cancel") { |g| g.job_cancel(id, g.create_pipeline(id, "main").then { |one| g.pipeline_jobs(id, one.id).map(&:id).min }) }
try("jobs", "job_erase") { |g| expect g.job_erase(id, build.id).erased_at }
try("jobs", "pipeline_bridges") { |g| expect g.pipeline_bridges(id, pipeline.id).to_a == [] }
try("pipelines", "retry_pipeline") { |g| g.retry_pipeline(id, pipeline.id) }
try("pipelines", "cancel_pipeline") { |g| g.cancel_pipeline(id, g.create_pipeline(id, "main").id) }
try("pipelines", "delete_pipeline") { |g| g.delete_pipeline(id, pipeline.id) }
schedule = try("pipelines", "create_pipeline_schedule") { |g| g.create_pipeline_schedule(id, description: "Nightly", ref: "main", cron: "0 1 * * *") }
try("pipelines", "pipeline_schedules") { |g| expect g.pipeline_schedules(id).map(&:id) == [schedule.id] }
try("pipelines", "pipeline_schedule") { |g| expect g.pipeline_schedule(id, schedule.id).active }
try("pipelines", "edit_pipeline_schedule") { |g| expect !g.edit_pipeline_schedule(id, schedule.id, active: false).active }
try("pipelines", "pipeline_schedule_take_ownership") { |g| g.pipeline_schedule_take_ownership(id, schedule.id) }
try("pipelines", "create_pipeline_schedule_variable") { |g| g.create_pipeline_schedule_variable(id, schedule.id, key: "NIGHT", value: "1") }
try("pipelines", "edit_pipeline_schedule_variable") { |g| expect g.edit_pipeline_schedule_variable(id, schedule.id, "NIGHT", value: "2").value == "2" }
try("pipelines", "delete_pipeline_schedule_variable") { |g| g.delete_pipeline_schedule_variable(id, schedule.id, "NIGHT") }
try("pipelines", "delete_pipeline_schedule") { |g| g.delete_pipeline_schedule(id, schedule.id) }
trigger = try("pipelines", "create_trigger") { |g| g.create_trigger(id, "from outside") }
try("pipelines", "triggers") { |g| expect g.triggers(id).map(&:id) == [trigger.id] }
try("pipelines", "trigger") { |g| expect g.trigger(id, trigger.id).description == "from outside" }
try("pipelines", "update_trigger") { |g| expect g.update_trigger(id, trigger.id, description: "new").description == "new" }
try("pipelines", "run_trigger") { |g| expect g.run_trigger(id, trigger.token, "main", COLOUR: "red").ref == "main" }
try("pipelines", "remove_trigger") { |g| g.remove_trigger(id, trigger.id) }

try("variables", "create_variable") { |g| expect g.create_variable(id, "KEY", "one").value == "one" }
try("variables", "variables") { |g| expect g.variables(id).map(&:key) == ["KEY"] }
try("variables", "variable") { |g| expect g.variable(id, "KEY").value == "one" }
try("variables", "update_variable") { |g| expect g.update_variable(id, "KEY", "two").value == "two" }
try("variables", "remove_variable") { |g| g.remove_variable(id, "KEY") }
try("variables", "create_group_variable") { |g| expect g.create_group_variable(group.id, "KEY", "one", protected: true).protected }
try("variables", "group_variables") { |g| expect g.group_variables(group.id).map(&:key) == ["KEY"] }
try("variables", "update_group_variable") { |g| expect g.update_group_variable(group.id, "KEY", "two").value == "two" }
try("variables", "remove_group_variable") { |g| g.remove_group_variable(group.id, "KEY") }

try("releases", "create_project_release") do |g|
  links = { links: [{ name: "zip", url: "https://example.org/app.zip" }] }
  expect g.create_project_release(id, tag_name: "v1.0", name: "One", description: "First", assets: links).assets.to_h
end
try("releases", "project_releases") { |g| expect g.project_releases(id).map(&:tag_name) == ["v1.0"] }
try("releases", "project_release") { |g| expect g.project_release(id, "v1.0").name == "One" }
try("releases", "update_project_release") { |g| expect g.update_project_release(id, "v1.0", name: "Uno").name == "Uno" }
link = try("releases", "create_project_release_link") { |g| g.create_project_release_link(id, "v1.0", name: "tar", url: "https://example.org/app.tar") }
try("releases", "project_release_links") { |g| expect g.project_release_links(id, "v1.0").map(&:name).sort == %w[tar zip] }
try("releases", "delete_project_release_link") { |g| g.delete_project_release_link(id, "v1.0", link.id) }
try("releases", "delete_project_release") { |g| g.delete_project_release(id, "v1.0") }

runner = try("runners", "register_runner") do |g|
  g.register_runner(g.post("/runners/reset_registration_token").token, description: "of ruby", tag_list: %w[ruby])
end
try("runners", "all_runners") { |g| expect g.all_runners.map(&:id).include?(runner.id) }
try("runners", "runners") { |g| g.runners.to_a }
try("runners", "runner") { |g| expect g.runner(runner.id).description == "of ruby" }
try("runners", "update_runner") { |g| expect g.update_runner(runner.id, tag_list: %w[ruby fast]).tag_list.sort == %w[fast ruby] }
try("runners", "runner_jobs") { |g| expect g.runner_jobs(runner.id).to_a == [] }
try("runners", "project_runners") { |g| g.project_runners(id).to_a }
try("runners", "group_runners") { |g| expect g.group_runners(group.id).map(&:id) }
try("runners", "verify_auth_registered_runner") { |g| g.verify_auth_registered_runner(runner.token) }
try("runners", "delete_registered_runner") { |g| g.delete_registered_runner(runner.token) }

try("branches", "delete_branch") { |g| g.delete_branch(id, "picked") }
try("tags", "delete_tag") { |g| g.delete_tag(id, "v1.0") }
try("projects", "transfer_project") { |g| expect g.transfer_project(id, "root").path_with_namespace == "root/app" }
try("projects", "delete_project") { |g| g.delete_project(id) }
try("groups", "delete_group") { |g| g.delete_group(group.id) }
try("users", "delete_user") { |g| g.delete_user(alice.id) }
