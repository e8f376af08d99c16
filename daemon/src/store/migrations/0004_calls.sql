-- Calls that are kept. `sealed` holds what is needed to go on with one that has not ended, and the outcome of one that has;
-- it is null where there is nothing to hold. `rests` is 1 while a call waits for answers and nothing of it is under way.
CREATE TABLE calls (
    id         TEXT    NOT NULL PRIMARY KEY,
    namespace  TEXT    NOT NULL,
    server_id  TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    request_id TEXT,
    digest     BLOB    NOT NULL,
    detached   INTEGER NOT NULL,
    state      TEXT    NOT NULL,
    rests      INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    ended      INTEGER,
    expires    INTEGER,
    sealed     BLOB,
    CHECK ((state IN ('running', 'input_required')) = (ended IS NULL)),
    CHECK (rests = 0 OR state = 'input_required')
) STRICT;
CREATE UNIQUE INDEX calls_by_request ON calls (namespace, request_id) WHERE request_id IS NOT NULL;
CREATE INDEX calls_by_state ON calls (namespace, state, id);
CREATE INDEX calls_under_way ON calls (namespace, server_id) WHERE ended IS NULL;
CREATE INDEX calls_ended ON calls (ended) WHERE ended IS NOT NULL;

-- The answer to a question of a call that rests, sealed until the call goes on.
ALTER TABLE elicitations ADD COLUMN sealed BLOB;
-- What a question takes, but for a constant.
ALTER TABLE elicitations ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX elicitations_of_calls ON elicitations (call_id) WHERE call_id IS NOT NULL;
CREATE INDEX elicitations_bytes ON elicitations (bytes) WHERE state = 'pending';
