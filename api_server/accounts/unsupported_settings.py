"""Settings of the instance that GitLab knows and this service has no use for (`web/unsupported.py`), by their types.

What they are about is not there, or is a setting of the process (`docs/settings.md`)."""

from typing import Any, Literal

import attrs

from api_server.web.params import CommaList

#: `allow_local_requests_from_system_hooks` is kept and shown: there are no system hooks.
_TRUTHS = """
    admin_mode akismet_enabled allow_account_deletion allow_local_requests_from_hooks_and_services
    allow_local_requests_from_system_hooks allow_project_creation_for_guest_and_below
    allow_runner_registration_token anonymous_searches_allowed asset_proxy_enabled authorized_keys_enabled
    auto_devops_enabled automatic_purchased_storage_allocation bulk_import_enabled can_create_group
    can_create_organization check_namespace_plan container_registry_expiration_policies_caching
    delete_inactive_projects delete_unconfirmed_users disable_feed_token
    disable_overriding_approvers_per_merge_request disable_password_authentication_for_users_with_sso_identities
    disable_personal_access_tokens dns_rebinding_protection_enabled domain_denylist_enabled duo_features_enabled
    eks_integration_enabled elasticsearch_aws elasticsearch_indexing elasticsearch_limit_indexing
    elasticsearch_search email_author_in_body enable_artifact_external_redirect_warning_page
    enforce_ci_inbound_job_token_scope_enabled enforce_namespace_storage_limit enforce_terms
    external_authorization_service_enabled failed_login_attempts_unlock floc_enabled
    git_rate_limit_users_alertlist_enabled gitpod_enabled globally_allowed_ips_enabled gravatar_enabled
    group_owners_can_manage_default_branch_protection hashed_storage_enabled help_page_hide_commercial_content
    hide_third_party_offers housekeeping_enabled html_emails_enabled inactive_projects_enabled
    include_optional_metrics_in_service_ping invisible_captcha_enabled jira_connect_application_enabled
    jira_connect_public_key_storage_enabled keep_latest_artifact kroki_enabled lock_duo_features_enabled
    lock_maven_package_requests_forwarding lock_memberships_to_ldap lock_memberships_to_saml
    lock_npm_package_requests_forwarding lock_pypi_package_requests_forwarding mailgun_events_enabled
    maintenance_mode math_rendering_limits_enabled maven_package_requests_forwarding metrics_enabled
    mirror_available npm_package_requests_forwarding nuget_skip_metadata_url_validation
    package_registry_allow_anyone_to_pull_option pages_domain_verification_enabled
    pages_unique_domain_default_enabled password_authentication_enabled_for_git
    password_authentication_enabled_for_web password_lowercase_required password_number_required
    password_symbol_required password_uppercase_required plantuml_enabled prevent_merge_requests_author_approval
    prevent_merge_requests_committers_approval project_export_enabled prometheus_metrics_enabled
    protected_ci_variables pypi_package_requests_forwarding rate_limiting_response_enabled recaptcha_enabled
    receptive_cluster_agents_enabled remember_me_enabled repository_checks_enabled
    require_admin_approval_after_user_signup require_admin_two_factor_authentication
    require_personal_access_token_expiry require_two_factor_authentication resource_access_token_notify_inherited
    security_policy_global_group_approvers_enabled security_txt_enabled send_user_confirmation_email
    service_access_tokens_expiration_enforced shared_runners_enabled signin_enabled signup_enabled
    silent_admin_exports_enabled silent_mode_enabled snowplow_enabled sourcegraph_enabled sourcegraph_public_only
    spam_check_endpoint_enabled suggest_pipeline_enabled throttle_authenticated_git_http_enabled
    throttle_authenticated_packages_api_enabled throttle_authenticated_web_enabled
    throttle_unauthenticated_api_enabled throttle_unauthenticated_enabled
    throttle_unauthenticated_packages_api_enabled throttle_unauthenticated_web_enabled unique_ips_limit_enabled
    update_runner_versions_enabled updating_name_disabled_for_users usage_ping_enabled usage_ping_features_enabled
    user_deactivation_emails_enabled user_default_external user_defaults_to_private_profile user_oauth_applications
    user_show_add_ssh_key_message version_check_enabled wiki_asciidoc_allow_uri_includes
"""
_NUMBERS = """
    autocomplete_users_limit autocomplete_users_unauthenticated_limit bulk_import_concurrent_pipeline_batch_limit
    bulk_import_max_download_file_size ci_max_includes ci_max_total_yaml_size_bytes
    concurrent_bitbucket_import_jobs_limit concurrent_bitbucket_server_import_jobs_limit
    concurrent_github_import_jobs_limit container_registry_cleanup_tags_service_max_list_size
    container_registry_token_expire_delay create_organization_api_limit deactivate_dormant_users_period
    decompress_archive_file_timeout default_branch_protection deletion_adjourned_period diff_max_files
    diff_max_lines diff_max_patch_bytes downstream_pipeline_trigger_limit_per_project_user_sha dsa_key_restriction
    ecdsa_key_restriction ecdsa_sk_key_restriction ed25519_key_restriction ed25519_sk_key_restriction
    elasticsearch_indexed_field_length_limit elasticsearch_indexed_file_size_limit_kb
    elasticsearch_max_bulk_concurrency elasticsearch_max_bulk_size_mb failed_login_attempts_unlock_period_in_minutes
    file_template_project_id first_day_of_week geo_status_timeout git_two_factor_session_expiry
    gitaly_timeout_default gitaly_timeout_fast gitaly_timeout_medium gitlab_shell_operation_limit group_api_limit
    group_download_export_limit group_export_limit group_import_limit group_invited_groups_api_limit
    group_projects_api_limit group_runner_token_expiration_interval group_shared_groups_api_limit groups_api_limit
    housekeeping_full_repack_period housekeeping_gc_period housekeeping_incremental_repack_period
    housekeeping_optimize_repository_period inactive_projects_delete_after_months inactive_projects_min_size_mb
    inactive_projects_send_warning_email_after_months issues_create_limit local_markdown_version
    max_artifacts_content_include_size max_artifacts_size max_attachment_size max_decompressed_archive_size
    max_export_size max_import_remote_file_size max_import_size max_login_attempts
    max_number_of_repository_downloads max_number_of_repository_downloads_within_time_period max_pages_size
    max_personal_access_token_lifetime max_ssh_key_lifetime max_terraform_state_size_bytes max_yaml_depth
    max_yaml_size_bytes members_delete_limit minimum_password_length mirror_capacity_threshold mirror_max_capacity
    mirror_max_delay namespace_aggregation_schedule_lease_duration_in_seconds notes_create_limit
    package_registry_cleanup_policies_worker_capacity pipeline_limit_per_project_user_sha
    productivity_analytics_start_days project_api_limit project_download_export_limit project_export_limit
    project_import_limit project_invited_groups_api_limit project_jobs_api_rate_limit
    project_runner_token_expiration_interval projects_api_limit projects_api_rate_limit_unauthenticated
    push_event_activities_limit push_event_hooks_limit raw_blob_request_limit receive_max_input_size
    repository_size_limit rsa_key_restriction runner_token_expiration_interval search_rate_limit
    search_rate_limit_unauthenticated session_expire_delay shared_runners_minutes
    sidekiq_job_limiter_compression_threshold_bytes sidekiq_job_limiter_limit_bytes snippet_size_limit
    terminal_max_session_time throttle_authenticated_git_http_period_in_seconds
    throttle_authenticated_git_http_requests_per_period throttle_authenticated_packages_api_period_in_seconds
    throttle_authenticated_packages_api_requests_per_period throttle_authenticated_web_period_in_seconds
    throttle_authenticated_web_requests_per_period throttle_unauthenticated_api_period_in_seconds
    throttle_unauthenticated_api_requests_per_period throttle_unauthenticated_packages_api_period_in_seconds
    throttle_unauthenticated_packages_api_requests_per_period throttle_unauthenticated_period_in_seconds
    throttle_unauthenticated_requests_per_period throttle_unauthenticated_web_period_in_seconds
    throttle_unauthenticated_web_requests_per_period two_factor_grace_period unconfirmed_users_delete_after_days
    unique_ips_limit_per_user unique_ips_limit_time_window user_contributed_projects_api_limit
    user_projects_api_limit user_starred_projects_api_limit users_get_by_id_limit wiki_page_max_content_bytes
"""
_TEXTS = """
    abuse_notification_email admin_notification_email after_sign_out_path after_sign_up_text akismet_api_key
    asset_proxy_secret_key asset_proxy_url auto_devops_domain commit_email_hostname custom_http_clone_url_root
    customers_dot_jwt_signing_key default_artifacts_expire_in default_branch_name default_ci_config_path
    default_preferred_language default_syntax_highlighting_theme diagramsnet_url eks_access_key_id eks_account_id
    eks_secret_access_key elasticsearch_aws_access_key elasticsearch_aws_region elasticsearch_aws_secret_access_key
    elasticsearch_password elasticsearch_url elasticsearch_username email_additional_text email_restrictions
    error_tracking_api_url external_auth_client_cert external_auth_client_key external_auth_client_key_pass
    external_authorization_service_default_label external_authorization_service_url geo_node_allowed_ips gitpod_url
    globally_allowed_ips grafana_url help_page_documentation_base_url help_page_support_url help_page_text help_text
    home_page_url jira_connect_application_key jira_connect_proxy_url kroki_url lets_encrypt_notification_email
    mailgun_signing_key maintenance_mode_message performance_bar_allowed_group_id performance_bar_allowed_group_path
    personal_access_token_prefix plantuml_url product_analytics_data_collector_host rate_limiting_response_text
    recaptcha_private_key recaptcha_site_key runners_registration_token security_txt_content sentry_clientside_dsn
    sentry_dsn sentry_environment shared_runners_text sign_in_text slack_app_id slack_app_secret
    slack_app_signing_secret slack_app_verification_token snowplow_app_id snowplow_collector_hostname
    snowplow_cookie_domain sourcegraph_url spam_check_api_key spam_check_endpoint_url support_bot_email terms
"""
_LISTS = """
    asset_proxy_allowlist asset_proxy_whitelist disabled_oauth_sign_in_sources domain_allowlist domain_blacklist
    domain_denylist domain_whitelist elasticsearch_namespace_ids elasticsearch_project_ids
    git_rate_limit_users_allowlist import_sources package_metadata_purl_types repository_storages
    restricted_visibility_levels search_rate_limit_allowlist users_get_by_id_limit_allowlist valid_runner_registrars
"""
_MAPPINGS = "default_branch_protection_defaults repository_storages_weighted"
_FRACTIONS = "external_authorization_service_timeout polling_interval_multiplier"
_VISIBILITIES = "default_group_visibility default_project_visibility default_snippet_visibility"
_TYPES: tuple[tuple[Any, str], ...] = (
    (bool | None, _TRUTHS),
    (int | None, _NUMBERS),
    (str | None, _TEXTS),
    (CommaList[str] | None, _LISTS),
    (dict[str, Any] | None, _MAPPINGS),
    (float | None, _FRACTIONS),
    (Literal["private", "internal", "public"] | None, _VISIBILITIES),
    (Literal["off", "soft", "hard"] | None, "email_confirmation_setting"),
    (Literal["ssh", "http"] | None, "enabled_git_access_protocol"),
    (Literal["all_tiers", "current_tier", "disabled"] | None, "whats_new_variant"),
)

OfSettings = attrs.make_class(
    "OfSettings",
    {name: attrs.field(default=None, type=kind) for kind, names in _TYPES for name in names.split()},
    frozen=True,
    kw_only=True,
)
