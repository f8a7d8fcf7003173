-- Custom roles, which members and invitations may carry beside their level.
-- depends: 0051_invitations

CREATE TABLE member_roles (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE,
    description text NOT NULL,
    base_access_level smallint NOT NULL, -- of all who carry it
    created_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE members ADD FOREIGN KEY (member_role_id) REFERENCES member_roles;
CREATE INDEX members_member_role ON members (member_role_id) WHERE member_role_id IS NOT NULL;

ALTER TABLE invitations ADD member_role_id bigint REFERENCES member_roles;
CREATE INDEX invitations_member_role ON invitations (member_role_id) WHERE member_role_id IS NOT NULL;
