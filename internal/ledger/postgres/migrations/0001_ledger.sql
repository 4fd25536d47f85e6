-- The ledger's own tables. Times are microseconds since 1970, and 0 is none: a record's time is whatever its producer
-- wrote, which a timestamptz may not hold. Texts from outside that are looked up are hashed, so that no length and no
-- byte of theirs can break an index.

CREATE TABLE agent_group (
	id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	name text NOT NULL UNIQUE
);

-- Rows are never deleted: other tables name a lease by its id. Only a change of owner or epoch locks a row FOR UPDATE;
-- a commit locks it FOR NO KEY UPDATE, and a model call under the lease FOR KEY SHARE, which don't disturb each other.
CREATE TABLE lease (
	id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	group_id   integer NOT NULL,
	topic_id   uuid NOT NULL,
	part       integer NOT NULL,
	topic      text NOT NULL,
	owner      text NOT NULL,    -- '' where nobody has it
	epoch      bigint NOT NULL,
	taken      bigint NOT NULL,  -- when it was last taken
	expires    bigint NOT NULL,  -- as of then; a later beat of its owner counts instead
	next       bigint NOT NULL,  -- lowest offset that isn't finished
	finished   bytea,            -- what is finished above it, as ledger.Ranges encodes it
	seq        bigint NOT NULL,  -- last outbox number given out
	applied    bigint NOT NULL,
	duplicate  bigint NOT NULL,
	refused    bigint NOT NULL,
	skipped    bigint NOT NULL,
	ignored    bigint NOT NULL,
	dead       bigint NOT NULL,
	waiting    bigint NOT NULL,
	last_time  bigint NOT NULL,  -- of the record at the highest finished offset
	last_crc   bigint NOT NULL,
	commits    bigint NOT NULL,  -- how many batches have changed the row: tells whether a COMMIT happened
	UNIQUE (group_id, topic_id, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- What was applied. An event is named by 16 bytes of SHA-256 over its source and id: two that met there would differ
-- in their digests and be told as a conflict, never taken for a copy. A row ages by its own lease's log time.
CREATE TABLE seen (
	group_id integer NOT NULL,
	lease_id integer NOT NULL,
	log_time bigint NOT NULL,
	event    uuid NOT NULL,
	digest   uuid NOT NULL,
	PRIMARY KEY (group_id, event)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX seen_age ON seen USING brin (log_time) WITH (pages_per_range = 64);

-- How far each aggregate's history was applied, by SHA-256 over its source and subject: all of it, since two that met
-- here would lose an event.
CREATE TABLE history (
	group_id integer NOT NULL,
	history  bytea NOT NULL,
	last     bigint NOT NULL,
	PRIMARY KEY (group_id, history)
) WITH (fillfactor = 80);

CREATE TABLE outbox (
	lease_id integer NOT NULL,
	seq      bigint NOT NULL,
	topic    text NOT NULL,
	part     integer NOT NULL, -- -1: by key
	message  bytea NOT NULL,
	PRIMARY KEY (lease_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
ALTER TABLE outbox ALTER COLUMN message SET STORAGE EXTERNAL; -- it's gone soon: not worth compressing

CREATE TABLE backlog (
	lease_id    integer NOT NULL,
	position    bigint NOT NULL,  -- the record's offset
	sequence    bigint NOT NULL,
	subject_key uuid NOT NULL,    -- 16 bytes of SHA-256 of the subject
	subject     bytea NOT NULL,
	reason      text NOT NULL,
	dead        boolean NOT NULL, -- counted as dead, not as waiting
	event       uuid NOT NULL,    -- as in seen and recorded
	message     bytea NOT NULL,
	PRIMARY KEY (lease_id, position)
);
CREATE INDEX backlog_event ON backlog (event);
CREATE INDEX backlog_subject ON backlog (lease_id, subject_key, sequence, position);

-- Complete answers of models. A reusable one answers for its address.
CREATE TABLE inference (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	address    bytea NOT NULL,
	model      text NOT NULL,
	response   bytea,
	tokens_in  bigint NOT NULL,
	tokens_out bigint NOT NULL,
	time       bigint NOT NULL,
	reusable   boolean NOT NULL
);
CREATE INDEX inference_reusable ON inference (address, id) WHERE reusable;

-- What an event's step asked, and what it got: pending while inference_id is null. call is SHA-256 over the event's
-- source and id and the call's name. A pending call knows the lease, and its epoch, under which it was begun: another
-- event's call to the same address must not take its place while another worker may have it in the air.
CREATE TABLE recorded (
	group_id     integer NOT NULL,
	call         bytea NOT NULL,
	event        uuid NOT NULL,   -- as in backlog: a call of an event that waits is kept
	lease_id     integer NOT NULL,
	epoch        bigint NOT NULL,
	address      bytea NOT NULL,
	reuse        boolean NOT NULL,
	key          text NOT NULL,
	inference_id bigint,
	time         bigint NOT NULL, -- of the last change
	PRIMARY KEY (group_id, call)
);
CREATE INDEX recorded_pending ON recorded (address) WHERE inference_id IS NULL AND reuse;
CREATE INDEX recorded_age ON recorded (time) WHERE inference_id IS NOT NULL;
CREATE INDEX recorded_inference ON recorded (inference_id) WHERE inference_id IS NOT NULL;

-- Many rows, so that calls that are counted at the same time don't wait for each other.
CREATE TABLE inference_total (
	shard    integer PRIMARY KEY,
	calls    bigint NOT NULL,
	reused   bigint NOT NULL,
	in_doubt bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO inference_total SELECT n, 0, 0, 0 FROM generate_series(0, 63) n;

CREATE TABLE worker (
	id        text PRIMARY KEY,
	pool      text NOT NULL,
	started   bigint NOT NULL,
	beat      bigint NOT NULL,
	expires   bigint NOT NULL, -- of its leases, as of that beat
	in_flight bigint NOT NULL,
	oldest    bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
