-- What apps of a namespace declared that they can answer, when one of them last came.
CREATE TABLE audiences (
    namespace      TEXT NOT NULL PRIMARY KEY,
    abilities_json TEXT NOT NULL
) STRICT;
