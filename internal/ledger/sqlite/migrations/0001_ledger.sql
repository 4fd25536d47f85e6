-- The ledger's own tables. Times are microseconds since 1970; 0 is none.

CREATE TABLE swarmlog_group (
	id   INTEGER PRIMARY KEY,
	name TEXT NOT NULL UNIQUE
) STRICT;

-- Rows are never deleted: other tables name a lease by its id.
CREATE TABLE swarmlog_lease (
	id         INTEGER PRIMARY KEY,
	group_id   INTEGER NOT NULL,
	topic_id   BLOB NOT NULL,
	part       INTEGER NOT NULL,
	topic      TEXT NOT NULL,
	owner      TEXT NOT NULL,    -- '' where nobody has it
	epoch      INTEGER NOT NULL,
	expires    INTEGER NOT NULL,
	next       INTEGER NOT NULL, -- lowest offset that isn't finished
	finished   BLOB,             -- what is finished above it, as ledger.Ranges encodes it
	seq        INTEGER NOT NULL, -- last outbox number given out
	applied    INTEGER NOT NULL,
	duplicate  INTEGER NOT NULL,
	refused    INTEGER NOT NULL,
	skipped    INTEGER NOT NULL,
	ignored    INTEGER NOT NULL,
	dead       INTEGER NOT NULL,
	waiting    INTEGER NOT NULL,
	last_time  INTEGER NOT NULL, -- of the record at the highest finished offset
	last_crc   INTEGER NOT NULL,
	commits    INTEGER NOT NULL, -- how many batches have changed the row: tells whether a COMMIT happened
	UNIQUE (group_id, topic_id, part)
) STRICT;

-- What was applied. Rows are in the order of commits, so that pruning walks from the oldest; each knows its lease,
-- by whose log time it ages. An event is named by 16 bytes of SHA-256 over its source and id: two that met there
-- would differ in their digests and be told as a conflict, never taken for a copy.
CREATE TABLE swarmlog_seen (
	id       INTEGER PRIMARY KEY,
	group_id INTEGER NOT NULL,
	event    BLOB NOT NULL,
	digest   BLOB NOT NULL,
	lease_id INTEGER NOT NULL,
	log_time INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX swarmlog_seen_event ON swarmlog_seen (group_id, event);

-- How far each aggregate's history was applied.
CREATE TABLE swarmlog_cursor (
	group_id INTEGER NOT NULL,
	source   TEXT NOT NULL,
	subject  TEXT NOT NULL,
	last     INTEGER NOT NULL,
	PRIMARY KEY (group_id, source, subject)
) STRICT, WITHOUT ROWID;

CREATE TABLE swarmlog_outbox (
	id       INTEGER PRIMARY KEY,
	lease_id INTEGER NOT NULL,
	seq      INTEGER NOT NULL,
	topic    TEXT NOT NULL,
	part     INTEGER NOT NULL, -- -1: by key
	message  BLOB NOT NULL,
	UNIQUE (lease_id, seq)
) STRICT;

CREATE TABLE swarmlog_backlog (
	id       INTEGER PRIMARY KEY,
	lease_id INTEGER NOT NULL,
	position INTEGER NOT NULL, -- the record's offset
	subject  TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	reason   TEXT NOT NULL,
	dead     INTEGER NOT NULL, -- 1: counted as dead, not as waiting
	message  BLOB NOT NULL,
	UNIQUE (lease_id, position)
) STRICT;
CREATE INDEX swarmlog_backlog_subject ON swarmlog_backlog (lease_id, subject, sequence, position);

-- Complete answers of models. A reusable one answers for its address.
CREATE TABLE swarmlog_inference (
	id         INTEGER PRIMARY KEY,
	address    BLOB NOT NULL,
	model      TEXT NOT NULL,
	response   BLOB,
	tokens_in  INTEGER NOT NULL,
	tokens_out INTEGER NOT NULL,
	time       INTEGER NOT NULL,
	reusable   INTEGER NOT NULL
) STRICT;
CREATE INDEX swarmlog_inference_reusable ON swarmlog_inference (address) WHERE reusable = 1;

-- What an event's step asked, and what it got: pending while inference_id is null.
CREATE TABLE swarmlog_recorded (
	group_id     INTEGER NOT NULL,
	event        BLOB NOT NULL,
	name         TEXT NOT NULL,
	address      BLOB NOT NULL,
	reuse        INTEGER NOT NULL,
	key          TEXT NOT NULL,
	inference_id INTEGER,
	time         INTEGER NOT NULL, -- of the last change
	PRIMARY KEY (group_id, event, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX swarmlog_recorded_pending ON swarmlog_recorded (address) WHERE inference_id IS NULL AND reuse = 1;
CREATE INDEX swarmlog_recorded_inference ON swarmlog_recorded (inference_id) WHERE inference_id IS NOT NULL;

CREATE TABLE swarmlog_inference_total (
	id       INTEGER PRIMARY KEY CHECK (id = 1),
	calls    INTEGER NOT NULL,
	reused   INTEGER NOT NULL,
	in_doubt INTEGER NOT NULL
) STRICT;
INSERT INTO swarmlog_inference_total VALUES (1, 0, 0, 0);

CREATE TABLE swarmlog_worker (
	id        TEXT PRIMARY KEY,
	pool      TEXT NOT NULL,
	started   INTEGER NOT NULL,
	beat      INTEGER NOT NULL,
	in_flight INTEGER NOT NULL,
	oldest    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
