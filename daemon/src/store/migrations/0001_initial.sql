-- The first schema. Never edited after a release: what changes, changes in the next file.

-- Facts about the database itself: log_id, boot_id, clean, key_check.
CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) STRICT;

-- Every namespace in which a server was ever registered.
CREATE TABLE namespaces (
    name    TEXT    NOT NULL PRIMARY KEY,
    created INTEGER NOT NULL
) STRICT;

-- Registered servers. `sealed` holds the values of the secrets that `spec_json` names, in its order.
CREATE TABLE servers (
    namespace    TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    generated_id INTEGER NOT NULL,
    name         TEXT    NOT NULL,
    target       TEXT    NOT NULL,
    spec_json    TEXT    NOT NULL,
    sealed       BLOB,
    connect      INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    created      INTEGER NOT NULL,
    updated      INTEGER NOT NULL,
    status_json  TEXT    NOT NULL,
    verdict_json TEXT,
    PRIMARY KEY (namespace, id)
) STRICT;

-- The update log. AUTOINCREMENT: a revision is never used twice, also after pruning.
-- `written` is the size of all bodies up to and with this one, since the log began.
CREATE TABLE updates (
    revision  INTEGER PRIMARY KEY AUTOINCREMENT,
    committed INTEGER NOT NULL,
    namespace TEXT    NOT NULL,
    server_id TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    body_json TEXT    NOT NULL,
    written   INTEGER NOT NULL
) STRICT;

-- Questions, without their answers. `resolved` is null exactly while `state` is pending.
CREATE TABLE elicitations (
    id               TEXT    NOT NULL PRIMARY KEY,
    namespace        TEXT    NOT NULL,
    server_id        TEXT    NOT NULL,
    server_name      TEXT    NOT NULL,
    call_id          TEXT,
    mode             TEXT    NOT NULL,
    message          TEXT    NOT NULL,
    requested_schema TEXT,
    url              TEXT,
    state            TEXT    NOT NULL,
    created          INTEGER NOT NULL,
    expires          INTEGER NOT NULL,
    resolved         INTEGER,
    request          TEXT    NOT NULL,
    CHECK ((state = 'pending') = (resolved IS NULL))
) STRICT;
CREATE INDEX elicitations_by_state ON elicitations (namespace, state, id);
CREATE INDEX elicitations_pending ON elicitations (namespace, server_id, id) WHERE state = 'pending';
CREATE INDEX elicitations_ended ON elicitations (resolved) WHERE resolved IS NOT NULL;
