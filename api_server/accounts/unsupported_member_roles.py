"""Parameters of custom roles that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import attrs


@attrs.frozen(kw_only=True)
class OfRoles:
    """Rights beside those of the base access level: there are none."""

    admin_cicd_variables: bool | None = None
    admin_compliance_framework: bool | None = None
    admin_group_member: bool | None = None
    admin_integrations: bool | None = None
    admin_merge_request: bool | None = None
    admin_protected_branch: bool | None = None
    admin_push_rules: bool | None = None
    admin_runners: bool | None = None
    admin_terraform_state: bool | None = None
    admin_vulnerability: bool | None = None
    admin_web_hook: bool | None = None
    archive_project: bool | None = None
    manage_deploy_tokens: bool | None = None
    manage_group_access_tokens: bool | None = None
    manage_merge_request_settings: bool | None = None
    manage_project_access_tokens: bool | None = None
    manage_security_policy_link: bool | None = None
    read_code: bool | None = None
    read_crm_contact: bool | None = None
    read_dependency: bool | None = None
    read_runners: bool | None = None
    read_vulnerability: bool | None = None
    remove_group: bool | None = None
    remove_project: bool | None = None
