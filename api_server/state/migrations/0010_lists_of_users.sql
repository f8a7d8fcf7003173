-- depends: 0005_operations

-- For the filters of the list of users.
CREATE INDEX users_admins ON users (id) WHERE admin;
CREATE INDEX users_external ON users (id) WHERE external;
CREATE INDEX users_created ON users (created_at, id);
