-- depends: 0001_accounts_and_projects
-- What a project says of its tags, and where what it has built of them lies.

CREATE TABLE releases (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    tag text NOT NULL,
    name text NOT NULL,
    description text,
    sha text NOT NULL, -- the commit of the tag when the release was made
    author_id bigint REFERENCES users ON DELETE SET NULL,
    released_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX releases_tag ON releases (project_id, tag);
CREATE INDEX releases_released ON releases (project_id, released_at, id);
CREATE INDEX releases_created ON releases (project_id, created_at, id);
CREATE INDEX releases_author ON releases (author_id); -- removing that one

CREATE TABLE release_links (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    release_id bigint NOT NULL REFERENCES releases ON DELETE CASCADE,
    name text NOT NULL,
    url text NOT NULL,
    filepath text,
    link_type text NOT NULL
);
CREATE UNIQUE INDEX release_links_name ON release_links (release_id, name);
CREATE UNIQUE INDEX release_links_url ON release_links (release_id, url);
CREATE UNIQUE INDEX release_links_filepath ON release_links (release_id, filepath);
