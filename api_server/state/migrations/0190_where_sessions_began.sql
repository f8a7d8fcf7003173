-- depends: 0051_invitations
ALTER TABLE sessions
    ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN ip_address text, -- from which somebody signed in
    ADD COLUMN user_agent text; -- with which browser, as it says
