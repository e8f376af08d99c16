-- Tokens of apps that come over TCP: what they are for, and the SHA-256 by which one is recognised. Tokens are nowhere.
CREATE TABLE app_tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    namespaces_json TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER
) WITHOUT ROWID;
