// Call a server as users of go-gitlab do, and print a line for each call: see scripts/clients/outcomes.py.
// The client's types are strict: a value with another type than GitLab's makes the whole answer an error.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/xanzy/go-gitlab"
)

const ci = `
stages: [build, test]
build: {stage: build, script: [make], artifacts: {paths: [out]}, variables: {FORGELET_ARTIFACTS: '{"out": "built"}'}}
check: {stage: test, script: [make check]}
deploy: {stage: test, script: [make deploy], when: manual}
`

func say(area, call string, err error) {
	if err == nil {
		fmt.Printf("ok\t%s\t%s\n", area, call)
		return
	}
	fmt.Printf("failed\t%s\t%s\t%s\n", area, call, strings.Join(strings.Fields(err.Error()), " "))
}

// one reports a call that returns one value; after a failure it returns an empty value.
func one[T any](area, call string) func(*T, *gitlab.Response, error) *T {
	return func(value *T, _ *gitlab.Response, err error) *T {
		if say(area, call, err); err != nil || value == nil {
			return new(T)
		}
		return value
	}
}

// list reports a call that returns a list, which should have `length` items.
func list[T any](area, call string, length int) func([]T, *gitlab.Response, error) {
	return func(values []T, _ *gitlab.Response, err error) {
		if err == nil && len(values) != length {
			err = fmt.Errorf("%d instead of %d", len(values), length)
		}
		say(area, call, err)
	}
}

// none reports a call that returns no value.
func none(area, call string) func(*gitlab.Response, error) {
	return func(_ *gitlab.Response, err error) { say(area, call, err) }
}

// expect reports whether an answer is right.
func expect(area, call string, right bool) {
	var err error
	if !right {
		err = fmt.Errorf("unexpected answer")
	}
	say(area, call, err)
}

func main() {
	git, err := gitlab.NewClient(os.Getenv("FORGELET_TOKEN"), gitlab.WithBaseURL(os.Getenv("FORGELET_URL")), gitlab.WithoutRetries())
	if err != nil {
		panic(err)
	}
	str, num, yes := gitlab.String, gitlab.Int, gitlab.Bool(true)
	coverage := 81.5
	level := func(value gitlab.AccessLevelValue) *gitlab.AccessLevelValue { return &value }

	one[gitlab.Version]("instance", "GetVersion")(git.Version.GetVersion())
	one[gitlab.Settings]("instance", "GetSettings")(git.Settings.GetSettings())
	settings := one[gitlab.Settings]("instance", "UpdateSettings")(
		git.Settings.UpdateSettings(&gitlab.UpdateSettingsOptions{DefaultProjectsLimit: num(77)}))
	expect("instance", "UpdateSettings is kept", settings.DefaultProjectsLimit == 77)

	me := one[gitlab.User]("users", "CurrentUser")(git.Users.CurrentUser())
	alice := one[gitlab.User]("users", "CreateUser")(git.Users.CreateUser(&gitlab.CreateUserOptions{
		Username: str("alice"), Name: str("Alice"), Email: str("alice@example.org"), ForceRandomPassword: yes, SkipConfirmation: yes}))
	one[gitlab.User]("users", "GetUser")(git.Users.GetUser(alice.ID, gitlab.GetUsersOptions{}))
	list[*gitlab.User]("users", "ListUsers by name", 1)(
		git.Users.ListUsers(&gitlab.ListUsersOptions{Username: str("alice")}))
	one[gitlab.User]("users", "ModifyUser")(
		git.Users.ModifyUser(alice.ID, &gitlab.ModifyUserOptions{Name: str("Alice A.")}))
	say("users", "BlockUser", git.Users.BlockUser(alice.ID))
	say("users", "UnblockUser", git.Users.UnblockUser(alice.ID))
	mail := one[gitlab.Email]("users", "AddEmailForUser")(
		git.Users.AddEmailForUser(alice.ID, &gitlab.AddEmailOptions{
			Email: str("second@example.org"), SkipConfirmation: yes}))
	list[*gitlab.Email]("users", "ListEmailsForUser", 1)(git.Users.ListEmailsForUser(alice.ID, nil))
	none("users", "DeleteEmailForUser")(git.Users.DeleteEmailForUser(alice.ID, mail.ID))
	list[*gitlab.UserMembership]("users", "GetUserMemberships", 0)(git.Users.GetUserMemberships(alice.ID, nil))
	soon := gitlab.ISOTime(time.Now().AddDate(0, 0, 30))
	token := one[gitlab.PersonalAccessToken]("users", "CreatePersonalAccessToken")(
		git.Users.CreatePersonalAccessToken(alice.ID, &gitlab.CreatePersonalAccessTokenOptions{
			Name: str("of alice"), Scopes: &[]string{"api"}, ExpiresAt: &soon}))
	list[*gitlab.PersonalAccessToken]("users", "ListPersonalAccessTokens", 1)(
		git.PersonalAccessTokens.ListPersonalAccessTokens(&gitlab.ListPersonalAccessTokensOptions{UserID: num(alice.ID)}))
	none("users", "RevokePersonalAccessToken")(git.PersonalAccessTokens.RevokePersonalAccessToken(token.ID))

	group := one[gitlab.Group]("groups", "CreateGroup")(
		git.Groups.CreateGroup(&gitlab.CreateGroupOptions{Name: str("Tools"), Path: str("tools")}))
	one[gitlab.Group]("groups", "CreateGroup below another")(
		git.Groups.CreateGroup(&gitlab.CreateGroupOptions{Name: str("Sub"), Path: str("sub"), ParentID: num(group.ID)}))
	one[gitlab.Group]("groups", "GetGroup by path")(git.Groups.GetGroup("tools/sub", nil))
	list[*gitlab.Group]("groups", "ListSubGroups", 1)(git.Groups.ListSubGroups(group.ID, nil))
	list[*gitlab.Group]("groups", "ListDescendantGroups", 1)(git.Groups.ListDescendantGroups(group.ID, nil))
	list[*gitlab.Group]("groups", "SearchGroup", 1)(git.Groups.SearchGroup("tools"))
	one[gitlab.Group]("groups", "UpdateGroup")(
		git.Groups.UpdateGroup(group.ID, &gitlab.UpdateGroupOptions{Description: str("All tools")}))
	list[*gitlab.Namespace]("groups", "SearchNamespace", 1)(git.Namespaces.SearchNamespace("sub"))
	one[gitlab.Namespace]("groups", "GetNamespace")(git.Namespaces.GetNamespace("tools"))
	one[gitlab.GroupMember]("members", "AddGroupMember")(
		git.GroupMembers.AddGroupMember(group.ID, &gitlab.AddGroupMemberOptions{
			UserID: num(alice.ID), AccessLevel: level(gitlab.DeveloperPermissions)}))
	list[*gitlab.GroupMember]("members", "ListGroupMembers", 2)(git.Groups.ListGroupMembers(group.ID, nil))
	one[gitlab.GroupMember]("members", "GetGroupMember")(git.GroupMembers.GetGroupMember(group.ID, alice.ID))
	one[gitlab.GroupMember]("members", "EditGroupMember")(
		git.GroupMembers.EditGroupMember(group.ID, alice.ID, &gitlab.EditGroupMemberOptions{
			AccessLevel: level(gitlab.MaintainerPermissions), ExpiresAt: str("2099-12-31")}))
	none("members", "RemoveGroupMember")(git.GroupMembers.RemoveGroupMember(group.ID, alice.ID, nil))

	app := one[gitlab.Project]("projects", "CreateProject")(git.Projects.CreateProject(&gitlab.CreateProjectOptions{
		Name: str("app"), NamespaceID: num(group.ID), InitializeWithReadme: yes, Visibility: gitlab.Visibility(gitlab.PrivateVisibility)}))
	id := app.ID
	one[gitlab.Project]("projects", "GetProject by path")(git.Projects.GetProject("tools/app", nil))
	list[*gitlab.Project]("projects", "ListProjects", 1)(
		git.Projects.ListProjects(&gitlab.ListProjectsOptions{Search: str("app"), Membership: yes}))
	list[*gitlab.Project]("projects", "ListGroupProjects", 1)(git.Groups.ListGroupProjects(group.ID, nil))
	list[*gitlab.Project]("projects", "ListUserProjects", 0)(git.Projects.ListUserProjects(me.ID, nil))
	list[*gitlab.ProjectUser]("projects", "ListProjectsUsers", 1)(git.Projects.ListProjectsUsers(id, nil))
	one[gitlab.Project]("projects", "EditProject")(
		git.Projects.EditProject(id, &gitlab.EditProjectOptions{Description: str("An app")}))
	one[gitlab.Project]("projects", "ArchiveProject")(git.Projects.ArchiveProject(id))
	one[gitlab.Project]("projects", "UnarchiveProject")(git.Projects.UnarchiveProject(id))
	one[gitlab.ProjectMember]("members", "AddProjectMember")(
		git.ProjectMembers.AddProjectMember(id, &gitlab.AddProjectMemberOptions{
			UserID: alice.ID, AccessLevel: level(gitlab.DeveloperPermissions)}))
	list[*gitlab.ProjectMember]("members", "ListProjectMembers", 1)(git.ProjectMembers.ListProjectMembers(id, nil))
	list[*gitlab.ProjectMember]("members", "ListAllProjectMembers", 2)(
		git.ProjectMembers.ListAllProjectMembers(id, nil))
	one[gitlab.ProjectMember]("members", "GetInheritedProjectMember")(
		git.ProjectMembers.GetInheritedProjectMember(id, me.ID))
	one[gitlab.ProjectMember]("members", "EditProjectMember")(
		git.ProjectMembers.EditProjectMember(id, alice.ID, &gitlab.EditProjectMemberOptions{
			AccessLevel: level(gitlab.MaintainerPermissions)}))
	none("members", "DeleteProjectMember")(git.ProjectMembers.DeleteProjectMember(id, alice.ID))

	file := gitlab.CreateFileOptions{Branch: str("main"), Content: str(ci), CommitMessage: str("CI")}
	one[gitlab.FileInfo]("files", "CreateFile")(git.RepositoryFiles.CreateFile(id, ".gitlab-ci.yml", &file))
	one[gitlab.FileInfo]("files", "UpdateFile")(
		git.RepositoryFiles.UpdateFile(id, "README.md", &gitlab.UpdateFileOptions{
			Branch: str("main"), Content: str("IyBBcHAK"), Encoding: str("base64"), CommitMessage: str("Title")}))
	read := one[gitlab.File]("files", "GetFile")(
		git.RepositoryFiles.GetFile(id, "README.md", &gitlab.GetFileOptions{Ref: str("main")}))
	expect("files", "GetFile has the content and its last commit", read.Content == "IyBBcHAK" && len(read.LastCommitID) == 40)
	one[gitlab.File]("files", "GetFileMetaData")(
		git.RepositoryFiles.GetFileMetaData(id, "README.md", &gitlab.GetFileMetaDataOptions{Ref: str("main")}))
	raw, _, err := git.RepositoryFiles.GetRawFile(id, "README.md", &gitlab.GetRawFileOptions{Ref: str("main")})
	say("files", "GetRawFile", err)
	expect("files", "GetRawFile has the content", string(raw) == "# App\n")
	list[*gitlab.TreeNode]("files", "ListTree", 2)(git.Repositories.ListTree(id, nil))
	archive, _, err := git.Repositories.Archive(id, &gitlab.ArchiveOptions{Format: str("tar.gz")})
	say("files", "Archive", err)
	expect("files", "Archive is one", len(archive) > 100)

	one[gitlab.Branch]("branches", "CreateBranch")(
		git.Branches.CreateBranch(id, &gitlab.CreateBranchOptions{Branch: str("topic/one"), Ref: str("main")}))
	list[*gitlab.Branch]("branches", "ListBranches", 2)(git.Branches.ListBranches(id, nil))
	one[gitlab.Branch]("branches", "GetBranch")(git.Branches.GetBranch(id, "topic/one"))
	list[*gitlab.ProtectedBranch]("branches", "ListProtectedBranches", 1)(
		git.ProtectedBranches.ListProtectedBranches(id, nil))
	protected := one[gitlab.ProtectedBranch]("branches", "ProtectRepositoryBranches")(
		git.ProtectedBranches.ProtectRepositoryBranches(id, &gitlab.ProtectRepositoryBranchesOptions{
			Name: str("release/*"), PushAccessLevel: level(gitlab.MaintainerPermissions), MergeAccessLevel: level(gitlab.DeveloperPermissions), AllowForcePush: yes}))
	one[gitlab.ProtectedBranch]("branches", "GetProtectedBranch")(
		git.ProtectedBranches.GetProtectedBranch(id, "release/*"))
	commit := one[gitlab.Commit]("commits", "CreateCommit")(git.Commits.CreateCommit(id, &gitlab.CreateCommitOptions{
		Branch: str("topic/one"), CommitMessage: str("Two files"), Actions: []*gitlab.CommitActionOptions{
			{Action: gitlab.FileAction(gitlab.FileCreate), FilePath: str("a.txt"), Content: str("a\n")},
			{Action: gitlab.FileAction(gitlab.FileMove), FilePath: str("docs/README.md"), PreviousPath: str("README.md")}}}))
	list[*gitlab.Commit]("commits", "ListCommits", 2)(
		git.Commits.ListCommits(id, &gitlab.ListCommitsOptions{
			RefName: str("topic/one"), ListOptions: gitlab.ListOptions{PerPage: 2}}))
	list[*gitlab.Commit]("commits", "ListCommits of a range", 1)(
		git.Commits.ListCommits(id, &gitlab.ListCommitsOptions{RefName: str("main..topic/one")}))
	one[gitlab.Commit]("commits", "GetCommit")(git.Commits.GetCommit(id, commit.ID))
	list[*gitlab.Diff]("commits", "GetCommitDiff", 2)(git.Commits.GetCommitDiff(id, commit.ID, nil))
	list[*gitlab.CommitRef]("commits", "GetCommitRefs", 1)(git.Commits.GetCommitRefs(id, commit.ID, nil))
	one[gitlab.CommitStatus]("commits", "SetCommitStatus")(
		git.Commits.SetCommitStatus(id, commit.ID, &gitlab.SetCommitStatusOptions{
			State: gitlab.Success, Name: str("lint"), Coverage: &coverage}))
	list[*gitlab.CommitStatus]("commits", "GetCommitStatuses", 1)(
		git.Commits.GetCommitStatuses(id, commit.ID, &gitlab.GetCommitStatusesOptions{Name: str("lint")}))
	one[gitlab.Compare]("commits", "Compare")(
		git.Repositories.Compare(id, &gitlab.CompareOptions{From: str("main"), To: str("topic/one")}))
	one[gitlab.Commit]("commits", "MergeBase")(
		git.Repositories.MergeBase(id, &gitlab.MergeBaseOptions{Ref: &[]string{"main", "topic/one"}}))
	one[gitlab.Branch]("branches", "CreateBranch for picks")(
		git.Branches.CreateBranch(id, &gitlab.CreateBranchOptions{Branch: str("picked"), Ref: str("main")}))
	picked := one[gitlab.Commit]("commits", "CherryPickCommit")(
		git.Commits.CherryPickCommit(id, commit.ID, &gitlab.CherryPickCommitOptions{Branch: str("picked")}))
	one[gitlab.Commit]("commits", "RevertCommit")(
		git.Commits.RevertCommit(id, picked.ID, &gitlab.RevertCommitOptions{Branch: str("picked")}))
	one[gitlab.Tag]("tags", "CreateTag")(
		git.Tags.CreateTag(id, &gitlab.CreateTagOptions{TagName: str("v1.0"), Ref: str("main"), Message: str("Version 1")}))
	list[*gitlab.Tag]("tags", "ListTags", 1)(git.Tags.ListTags(id, nil))
	one[gitlab.Tag]("tags", "GetTag")(git.Tags.GetTag(id, "v1.0"))
	one[gitlab.ProtectedTag]("tags", "ProtectRepositoryTags")(
		git.ProtectedTags.ProtectRepositoryTags(id, &gitlab.ProtectRepositoryTagsOptions{
			Name: str("v*"), CreateAccessLevel: level(gitlab.MaintainerPermissions)}))
	list[*gitlab.ProtectedTag]("tags", "ListProtectedTags", 1)(git.ProtectedTags.ListProtectedTags(id, nil))
	none("tags", "UnprotectRepositoryTags")(git.ProtectedTags.UnprotectRepositoryTags(id, "v*"))

	mr := one[gitlab.MergeRequest]("merge requests", "CreateMergeRequest")(
		git.MergeRequests.CreateMergeRequest(id, &gitlab.CreateMergeRequestOptions{
			Title: str("Topic one"), SourceBranch: str("topic/one"), TargetBranch: str("main"), AssigneeIDs: &[]int{me.ID}}))
	iid := mr.IID
	list[*gitlab.MergeRequest]("merge requests", "ListProjectMergeRequests", 1)(
		git.MergeRequests.ListProjectMergeRequests(id, &gitlab.ListProjectMergeRequestsOptions{State: str("opened")}))
	list[*gitlab.MergeRequest]("merge requests", "ListMergeRequests", 1)(
		git.MergeRequests.ListMergeRequests(&gitlab.ListMergeRequestsOptions{Scope: str("all")}))
	list[*gitlab.MergeRequest]("merge requests", "ListGroupMergeRequests", 1)(
		git.MergeRequests.ListGroupMergeRequests(group.ID, nil))
	list[*gitlab.MergeRequest]("merge requests", "ListMergeRequestsByCommit", 1)(
		git.Commits.ListMergeRequestsByCommit(id, commit.ID))
	one[gitlab.MergeRequest]("merge requests", "GetMergeRequest")(git.MergeRequests.GetMergeRequest(id, iid, nil))
	changed := one[gitlab.MergeRequest]("merge requests", "UpdateMergeRequest without assignees")(
		git.MergeRequests.UpdateMergeRequest(id, iid, &gitlab.UpdateMergeRequestOptions{
			Description: str("All of it"), AssigneeIDs: &[]int{}}))
	expect("merge requests", "UpdateMergeRequest has none", len(changed.Assignees) == 0)
	one[gitlab.MergeRequest]("merge requests", "GetMergeRequestChanges")(
		git.MergeRequests.GetMergeRequestChanges(id, iid, nil))
	list[*gitlab.Commit]("merge requests", "GetMergeRequestCommits", 1)(
		git.MergeRequests.GetMergeRequestCommits(id, iid, nil))
	list[*gitlab.BasicUser]("merge requests", "GetMergeRequestParticipants", 1)(
		git.MergeRequests.GetMergeRequestParticipants(id, iid))
	pipelines, _, err := git.MergeRequests.ListMergeRequestPipelines(id, iid)
	say("merge requests", "ListMergeRequestPipelines", err)
	expect("merge requests", "ListMergeRequestPipelines has some", len(pipelines) > 0)
	list[*gitlab.MergeRequestDiffVersion]("merge requests", "GetMergeRequestDiffVersions", 1)(
		git.MergeRequests.GetMergeRequestDiffVersions(id, iid, nil))
	one[gitlab.MergeRequestApprovals]("merge requests", "ApproveMergeRequest without options")(
		git.MergeRequestApprovals.ApproveMergeRequest(id, iid, nil))
	one[gitlab.MergeRequestApprovals]("merge requests", "GetConfiguration of approvals")(
		git.MergeRequestApprovals.GetConfiguration(id, iid))
	one[gitlab.MergeRequestApprovalState]("merge requests", "GetApprovalState")(
		git.MergeRequestApprovals.GetApprovalState(id, iid))
	none("merge requests", "UnapproveMergeRequest")(git.MergeRequestApprovals.UnapproveMergeRequest(id, iid))
	note := one[gitlab.Note]("notes", "CreateMergeRequestNote")(
		git.Notes.CreateMergeRequestNote(id, iid, &gitlab.CreateMergeRequestNoteOptions{Body: str("Fine")}))
	one[gitlab.Note]("notes", "UpdateMergeRequestNote")(
		git.Notes.UpdateMergeRequestNote(id, iid, note.ID, &gitlab.UpdateMergeRequestNoteOptions{Body: str("Good")}))
	none("notes", "DeleteMergeRequestNote")(git.Notes.DeleteMergeRequestNote(id, iid, note.ID))
	talk := one[gitlab.Discussion]("notes", "CreateMergeRequestDiscussion")(
		git.Discussions.CreateMergeRequestDiscussion(id, iid, &gitlab.CreateMergeRequestDiscussionOptions{
			Body: str("Why?")}))
	one[gitlab.Note]("notes", "AddMergeRequestDiscussionNote")(
		git.Discussions.AddMergeRequestDiscussionNote(id, iid, talk.ID, &gitlab.AddMergeRequestDiscussionNoteOptions{
			Body: str("So")}))
	one[gitlab.Discussion]("notes", "ResolveMergeRequestDiscussion")(
		git.Discussions.ResolveMergeRequestDiscussion(id, iid, talk.ID, &gitlab.ResolveMergeRequestDiscussionOptions{
			Resolved: yes}))

	hook := "https://example.org/check?sig=a%2Bb"
	none("status checks", "CreateExternalStatusCheck")(
		git.ExternalStatusChecks.CreateExternalStatusCheck(id, &gitlab.CreateExternalStatusCheckOptions{
			Name: str("scan"), ExternalURL: str(hook)}))
	checks, _, err := git.ExternalStatusChecks.ListProjectStatusChecks(id, nil)
	say("status checks", "ListProjectStatusChecks", err)
	expect("status checks", "ListProjectStatusChecks has the address as it was given", len(checks) == 1 && checks[0].ExternalURL == hook)
	check := 0
	if len(checks) > 0 {
		check = checks[0].ID
	}
	none("status checks", "UpdateExternalStatusCheck")(
		git.ExternalStatusChecks.UpdateExternalStatusCheck(id, check, &gitlab.UpdateExternalStatusCheckOptions{
			Name: str("scanner"), ProtectedBranchIDs: &[]int{protected.ID}}))
	none("status checks", "UpdateExternalStatusCheck for all branches")(
		git.ExternalStatusChecks.UpdateExternalStatusCheck(id, check, &gitlab.UpdateExternalStatusCheckOptions{
			ProtectedBranchIDs: &[]int{}}))
	list[*gitlab.MergeStatusCheck]("status checks", "ListMergeStatusChecks", 1)(
		git.ExternalStatusChecks.ListMergeStatusChecks(id, iid, nil))
	none("status checks", "SetExternalStatusCheckStatus")(
		git.ExternalStatusChecks.SetExternalStatusCheckStatus(id, iid, &gitlab.SetExternalStatusCheckStatusOptions{
			SHA: str(mr.SHA), ExternalStatusCheckID: num(check), Status: str("passed")}))
	none("status checks", "DeleteExternalStatusCheck")(git.ExternalStatusChecks.DeleteExternalStatusCheck(id, check))
	merged := one[gitlab.MergeRequest]("merge requests", "AcceptMergeRequest")(
		git.MergeRequests.AcceptMergeRequest(id, iid, &gitlab.AcceptMergeRequestOptions{ShouldRemoveSourceBranch: yes}))
	expect("merge requests", "AcceptMergeRequest has merged it", merged.State == "merged")

	variables := []*gitlab.PipelineVariableOptions{{Key: str("COLOUR"), Value: str("blue")}}
	pipeline := one[gitlab.Pipeline]("pipelines", "CreatePipeline")(
		git.Pipelines.CreatePipeline(id, &gitlab.CreatePipelineOptions{Ref: str("main"), Variables: &variables}))
	list[*gitlab.PipelineVariable]("pipelines", "GetPipelineVariables", 1)(
		git.Pipelines.GetPipelineVariables(id, pipeline.ID))
	list[*gitlab.PipelineInfo]("pipelines", "ListProjectPipelines of one commit", 1)(
		git.Pipelines.ListProjectPipelines(id, &gitlab.ListProjectPipelinesOptions{Source: str("api")}))
	for i := 0; i < 300; i++ {
		if now, _, err := git.Pipelines.GetPipeline(id, pipeline.ID); err != nil || now.Status == "success" || now.Status == "manual" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	done := one[gitlab.Pipeline]("pipelines", "GetPipeline")(git.Pipelines.GetPipeline(id, pipeline.ID))
	expect("pipelines", "GetPipeline says that it has succeeded", done.Status == "success")
	one[gitlab.PipelineTestReport]("pipelines", "GetPipelineTestReport")(
		git.Pipelines.GetPipelineTestReport(id, pipeline.ID))
	jobs, _, err := git.Jobs.ListPipelineJobs(id, pipeline.ID, &gitlab.ListJobsOptions{Scope: &[]gitlab.BuildStateValue{gitlab.Success, gitlab.Manual}})
	say("jobs", "ListPipelineJobs with scopes", err)
	byName := map[string]int{}
	for _, job := range jobs {
		byName[job.Name] = job.ID
	}
	list[*gitlab.Bridge]("jobs", "ListPipelineBridges", 0)(git.Jobs.ListPipelineBridges(id, pipeline.ID, nil))
	one[gitlab.Job]("jobs", "GetJob")(git.Jobs.GetJob(id, byName["build"]))
	_, _, err = git.Jobs.GetTraceFile(id, byName["build"])
	say("jobs", "GetTraceFile", err)
	_, _, err = git.Jobs.GetJobArtifacts(id, byName["build"])
	say("jobs", "GetJobArtifacts", err)
	_, _, err = git.Jobs.DownloadArtifactsFile(id, "main", &gitlab.DownloadArtifactsFileOptions{Job: str("build")})
	say("jobs", "DownloadArtifactsFile", err)
	one[gitlab.Job]("jobs", "KeepArtifacts")(git.Jobs.KeepArtifacts(id, byName["build"]))
	one[gitlab.Job]("jobs", "PlayJob")(git.Jobs.PlayJob(id, byName["deploy"]))
	one[gitlab.Job]("jobs", "RetryJob")(git.Jobs.RetryJob(id, byName["check"]))
	one[gitlab.Job]("jobs", "CancelJob")(git.Jobs.CancelJob(id, byName["check"]))
	one[gitlab.Job]("jobs", "EraseJob")(git.Jobs.EraseJob(id, byName["build"]))
	one[gitlab.Pipeline]("pipelines", "RetryPipelineBuild")(git.Pipelines.RetryPipelineBuild(id, pipeline.ID))
	one[gitlab.Pipeline]("pipelines", "CancelPipelineBuild")(git.Pipelines.CancelPipelineBuild(id, pipeline.ID))
	none("pipelines", "DeletePipeline")(git.Pipelines.DeletePipeline(id, pipeline.ID))
	one[gitlab.ProjectLintResult]("pipelines", "ProjectNamespaceLint")(
		git.Validate.ProjectNamespaceLint(id, &gitlab.ProjectNamespaceLintOptions{Content: str(ci)}))
	one[gitlab.ProjectLintResult]("pipelines", "ProjectLint")(git.Validate.ProjectLint(id, nil))
	schedule := one[gitlab.PipelineSchedule]("pipelines", "CreatePipelineSchedule")(
		git.PipelineSchedules.CreatePipelineSchedule(id, &gitlab.CreatePipelineScheduleOptions{
			Description: str("Nightly"), Ref: str("main"), Cron: str("0 1 * * *")}))
	list[*gitlab.PipelineSchedule]("pipelines", "ListPipelineSchedules", 1)(
		git.PipelineSchedules.ListPipelineSchedules(id, nil))
	one[gitlab.PipelineVariable]("pipelines", "CreatePipelineScheduleVariable")(
		git.PipelineSchedules.CreatePipelineScheduleVariable(id, schedule.ID, &gitlab.CreatePipelineScheduleVariableOptions{
			Key: str("NIGHT"), Value: str("1")}))
	one[gitlab.PipelineSchedule]("pipelines", "TakeOwnershipOfPipelineSchedule")(
		git.PipelineSchedules.TakeOwnershipOfPipelineSchedule(id, schedule.ID))
	none("pipelines", "RunPipelineSchedule")(git.PipelineSchedules.RunPipelineSchedule(id, schedule.ID))
	none("pipelines", "DeletePipelineSchedule")(git.PipelineSchedules.DeletePipelineSchedule(id, schedule.ID))
	trigger := one[gitlab.PipelineTrigger]("pipelines", "AddPipelineTrigger")(
		git.PipelineTriggers.AddPipelineTrigger(id, &gitlab.AddPipelineTriggerOptions{Description: str("from outside")}))
	one[gitlab.Pipeline]("pipelines", "RunPipelineTrigger")(
		git.PipelineTriggers.RunPipelineTrigger(id, &gitlab.RunPipelineTriggerOptions{
			Ref: str("main"), Token: str(trigger.Token), Variables: map[string]string{"COLOUR": "red"}}))
	none("pipelines", "DeletePipelineTrigger")(git.PipelineTriggers.DeletePipelineTrigger(id, trigger.ID))

	one[gitlab.ProjectVariable]("variables", "CreateVariable")(
		git.ProjectVariables.CreateVariable(id, &gitlab.CreateProjectVariableOptions{Key: str("KEY"), Value: str("one")}))
	list[*gitlab.ProjectVariable]("variables", "ListVariables", 1)(git.ProjectVariables.ListVariables(id, nil))
	one[gitlab.ProjectVariable]("variables", "GetVariable")(git.ProjectVariables.GetVariable(id, "KEY", nil))
	one[gitlab.ProjectVariable]("variables", "UpdateVariable")(
		git.ProjectVariables.UpdateVariable(id, "KEY", &gitlab.UpdateProjectVariableOptions{
			Value: str("two"), Protected: yes}))
	none("variables", "RemoveVariable")(git.ProjectVariables.RemoveVariable(id, "KEY", nil))
	one[gitlab.GroupVariable]("variables", "CreateVariable of a group")(
		git.GroupVariables.CreateVariable(group.ID, &gitlab.CreateGroupVariableOptions{Key: str("KEY"), Value: str("one")}))
	list[*gitlab.GroupVariable]("variables", "ListVariables of a group", 1)(
		git.GroupVariables.ListVariables(group.ID, nil))
	none("variables", "RemoveVariable of a group")(git.GroupVariables.RemoveVariable(group.ID, "KEY"))
	one[gitlab.InstanceVariable]("variables", "CreateVariable of the instance")(
		git.InstanceVariables.CreateVariable(&gitlab.CreateInstanceVariableOptions{Key: str("KEY"), Value: str("one")}))
	none("variables", "RemoveVariable of the instance")(git.InstanceVariables.RemoveVariable("KEY"))

	mirror := one[gitlab.ProjectMirror]("mirrors", "AddProjectMirror")(
		git.ProjectMirrors.AddProjectMirror(id, &gitlab.AddProjectMirrorOptions{
			URL: str("https://bob:secret@example.org/app.git"), Enabled: yes}))
	expect("mirrors", "AddProjectMirror hides the password", mirror.URL != "" && !strings.Contains(mirror.URL, "secret"))
	list[*gitlab.ProjectMirror]("mirrors", "ListProjectMirror", 1)(git.ProjectMirrors.ListProjectMirror(id, nil))
	one[gitlab.ProjectMirror]("mirrors", "GetProjectMirror")(git.ProjectMirrors.GetProjectMirror(id, mirror.ID))
	one[gitlab.ProjectMirror]("mirrors", "EditProjectMirror")(
		git.ProjectMirrors.EditProjectMirror(id, mirror.ID, &gitlab.EditProjectMirrorOptions{KeepDivergentRefs: yes}))
	none("mirrors", "DeleteProjectMirror")(git.ProjectMirrors.DeleteProjectMirror(id, mirror.ID))

	invited := one[gitlab.InvitesResult]("invitations", "ProjectInvites")(
		git.Invites.ProjectInvites(id, &gitlab.InvitesOptions{
			Email: str("bob@example.org"), AccessLevel: level(gitlab.DeveloperPermissions), ExpiresAt: &soon}))
	expect("invitations", "ProjectInvites has invited", invited.Status == "success")
	refused := one[gitlab.InvitesResult]("invitations", "ProjectInvites once more")(
		git.Invites.ProjectInvites(id, &gitlab.InvitesOptions{
			Email: str("bob@example.org"), AccessLevel: level(gitlab.DeveloperPermissions)}))
	expect("invitations", "ProjectInvites says why", refused.Status == "error" && refused.Message["bob@example.org"] != "")
	list[*gitlab.PendingInvite]("invitations", "ListPendingProjectInvitations", 1)(
		git.Invites.ListPendingProjectInvitations(id, nil))
	one[gitlab.InvitesResult]("invitations", "GroupInvites of a user")(
		git.Invites.GroupInvites(group.ID, &gitlab.InvitesOptions{
			UserID: alice.ID, AccessLevel: level(gitlab.DeveloperPermissions)}))
	list[*gitlab.PendingInvite]("invitations", "ListPendingGroupInvitations", 0)(
		git.Invites.ListPendingGroupInvitations(group.ID, nil))

	before := time.Now().Add(time.Hour)
	events, _, err := git.AuditEvents.ListProjectAuditEvents(id, &gitlab.ListAuditEventsOptions{CreatedBefore: &before})
	say("audit events", "ListProjectAuditEvents", err)
	expect("audit events", "ListProjectAuditEvents has some", len(events) > 0)
	if len(events) > 0 {
		one[gitlab.AuditEvent]("audit events", "GetProjectAuditEvent")(
			git.AuditEvents.GetProjectAuditEvent(id, events[0].ID))
	}
	_, _, err = git.AuditEvents.ListGroupAuditEvents(group.ID, nil)
	say("audit events", "ListGroupAuditEvents", err)
	events, _, err = git.AuditEvents.ListInstanceAuditEvents(&gitlab.ListAuditEventsOptions{ListOptions: gitlab.ListOptions{PerPage: 100}})
	say("audit events", "ListInstanceAuditEvents", err)
	if len(events) > 0 {
		one[gitlab.AuditEvent]("audit events", "GetInstanceAuditEvent")(
			git.AuditEvents.GetInstanceAuditEvent(events[0].ID))
	}

	one[gitlab.Release]("releases", "CreateRelease")(
		git.Releases.CreateRelease(id, &gitlab.CreateReleaseOptions{TagName: str("v1.0"), Name: str("One"), Description: str("First"),
			Assets: &gitlab.ReleaseAssetsOptions{Links: []*gitlab.ReleaseAssetLinkOptions{{Name: str("zip"), URL: str("https://example.org/app.zip")}}}}))
	list[*gitlab.Release]("releases", "ListReleases", 1)(git.Releases.ListReleases(id, nil))
	one[gitlab.Release]("releases", "GetRelease")(git.Releases.GetRelease(id, "v1.0"))
	one[gitlab.Release]("releases", "UpdateRelease")(
		git.Releases.UpdateRelease(id, "v1.0", &gitlab.UpdateReleaseOptions{Name: str("Uno")}))
	link := one[gitlab.ReleaseLink]("releases", "CreateReleaseLink")(
		git.ReleaseLinks.CreateReleaseLink(id, "v1.0", &gitlab.CreateReleaseLinkOptions{
			Name: str("tar"), URL: str("https://example.org/app.tar")}))
	one[gitlab.ReleaseLink]("releases", "DeleteReleaseLink")(git.ReleaseLinks.DeleteReleaseLink(id, "v1.0", link.ID))
	one[gitlab.Release]("releases", "DeleteRelease")(git.Releases.DeleteRelease(id, "v1.0"))

	registration := one[gitlab.RunnerRegistrationToken]("runners", "ResetProjectRunnerRegistrationToken")(
		git.Runners.ResetProjectRunnerRegistrationToken(id))
	key := ""
	if registration.Token != nil {
		key = *registration.Token
	}
	runner := one[gitlab.Runner]("runners", "RegisterNewRunner")(
		git.Runners.RegisterNewRunner(&gitlab.RegisterNewRunnerOptions{
			Token: str(key), Description: str("of go"), TagList: &[]string{"go"}, Info: &gitlab.RegisterNewRunnerInfoOptions{Name: str("gitlab-runner")}}))
	none("runners", "VerifyRegisteredRunner")(
		git.Runners.VerifyRegisteredRunner(&gitlab.VerifyRegisteredRunnerOptions{Token: str(runner.Token)}))
	one[gitlab.RunnerDetails]("runners", "GetRunnerDetails")(git.Runners.GetRunnerDetails(runner.ID))
	one[gitlab.RunnerDetails]("runners", "UpdateRunnerDetails")(
		git.Runners.UpdateRunnerDetails(runner.ID, &gitlab.UpdateRunnerDetailsOptions{Paused: yes}))
	list[*gitlab.Job]("runners", "ListRunnerJobs", 0)(git.Runners.ListRunnerJobs(runner.ID, nil))
	none("runners", "RemoveRunner")(git.Runners.RemoveRunner(runner.ID))
	bot := one[gitlab.ProjectAccessToken]("projects", "CreateProjectAccessToken")(
		git.ProjectAccessTokens.CreateProjectAccessToken(id, &gitlab.CreateProjectAccessTokenOptions{
			Name: str("bot"), Scopes: &[]string{"api"}, AccessLevel: level(gitlab.DeveloperPermissions), ExpiresAt: &soon}))
	list[*gitlab.ProjectAccessToken]("projects", "ListProjectAccessTokens", 1)(
		git.ProjectAccessTokens.ListProjectAccessTokens(id, nil))
	none("projects", "RevokeProjectAccessToken")(git.ProjectAccessTokens.RevokeProjectAccessToken(id, bot.ID))
	agent := one[gitlab.Agent]("projects", "RegisterAgent")(
		git.ClusterAgents.RegisterAgent(id, &gitlab.RegisterAgentOptions{Name: str("cluster")}))
	list[*gitlab.Agent]("projects", "ListAgents", 1)(git.ClusterAgents.ListAgents(id, nil))
	none("projects", "DeleteAgent")(git.ClusterAgents.DeleteAgent(id, agent.ID))

	none("branches", "UnprotectRepositoryBranches")(git.ProtectedBranches.UnprotectRepositoryBranches(id, "release/*"))
	none("branches", "DeleteBranch")(git.Branches.DeleteBranch(id, "picked"))
	none("tags", "DeleteTag")(git.Tags.DeleteTag(id, "v1.0"))
	none("files", "DeleteFile")(
		git.RepositoryFiles.DeleteFile(id, "a.txt", &gitlab.DeleteFileOptions{
			Branch: str("main"), CommitMessage: str("No a")}))
	one[gitlab.Project]("projects", "TransferProject")(
		git.Projects.TransferProject(id, &gitlab.TransferProjectOptions{Namespace: "root"}))
	none("projects", "DeleteProject")(git.Projects.DeleteProject(id))
	none("groups", "DeleteGroup")(git.Groups.DeleteGroup(group.ID))
	none("users", "DeleteUser")(git.Users.DeleteUser(alice.ID))
}
