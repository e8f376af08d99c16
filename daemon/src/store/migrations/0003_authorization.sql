-- The tokens of servers. `sealed` holds the tokens and the keys and secrets that renew them.
CREATE TABLE grants (
    namespace  TEXT    NOT NULL,
    server_id  TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    facts_json TEXT    NOT NULL,
    sealed     BLOB    NOT NULL,
    PRIMARY KEY (namespace, server_id)
) STRICT;

-- Clients that were registered dynamically. `sealed` holds the client secret, if there is one.
CREATE TABLE registrations (
    namespace  TEXT NOT NULL,
    server_id  TEXT NOT NULL,
    issuer     TEXT NOT NULL,
    facts_json TEXT NOT NULL,
    sealed     BLOB NOT NULL,
    PRIMARY KEY (namespace, server_id, issuer)
) STRICT;

-- Sign-ins. `sealed` holds the state parameter, the code verifier and keys; it is null once a sign-in is over.
CREATE TABLE sign_ins (
    id         TEXT    NOT NULL PRIMARY KEY,
    namespace  TEXT    NOT NULL,
    server_id  TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    expires    INTEGER NOT NULL,
    facts_json TEXT    NOT NULL,
    sealed     BLOB
) STRICT;
CREATE INDEX sign_ins_by_server ON sign_ins (namespace, server_id);
