-- depends: 0150_bots
-- Searches by a part of a name. An index over all runs of three characters serves them; it needs no extension, which not
-- every PostgreSQL has and not every role may create.

-- What is searched, in lower case: each text is a line, so that a short search can ask for a whole one.
CREATE FUNCTION searchable(first text, second text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(E'\n' || first || E'\n' || second || E'\n');

-- What is searched for: a part from three characters on, else the whole of a text, as GitLab does.
CREATE FUNCTION search_pattern(search text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(CASE WHEN length(search) >= 3 THEN search ELSE E'\n' || search || E'\n' END);

CREATE FUNCTION trigrams(words text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE COST 1000
RETURN ARRAY(SELECT DISTINCT substr(words, n, 3) FROM generate_series(1, length(words) - 2) n);

CREATE INDEX users_search ON users USING gin (trigrams(searchable(username, name)));
CREATE INDEX users_public_email ON users (lower(public_email)) WHERE public_email IS NOT NULL;
CREATE INDEX projects_search ON projects USING gin (trigrams(searchable(path, name)));
CREATE INDEX namespaces_search ON namespaces USING gin (trigrams(searchable(path, name)));
