BEGIN TRANSACTION;
CREATE TABLE admin_sessions (
	"key" VARCHAR(64) NOT NULL,
	user VARCHAR(64) NOT NULL,
	created_s DOUBLE NOT NULL,
	seen_s DOUBLE NOT NULL,
	PRIMARY KEY ("key")
);
INSERT INTO "admin_sessions" VALUES('key','use',1000.5,1000.5);
CREATE TABLE admin_tokens (
	serial VARCHAR(16) NOT NULL,
	label VARCHAR(64) NOT NULL,
	scopes TEXT DEFAULT 'read' NOT NULL,
	digest VARCHAR(64) NOT NULL,
	owner VARCHAR(64) NOT NULL,
	created_s DOUBLE NOT NULL,
	expires_s DOUBLE,
	used_s DOUBLE,
	parent VARCHAR(16),
	PRIMARY KEY (serial)
);
INSERT INTO "admin_tokens" VALUES('ser','lab','sco','dig','own',1000.5,1000.5,1000.5,'par');
CREATE TABLE admin_users (
	name VARCHAR(64) NOT NULL,
	role VARCHAR(16) NOT NULL,
	password_hash TEXT NOT NULL,
	created_s DOUBLE NOT NULL,
	must_change BOOLEAN NOT NULL,
	totp_secret VARCHAR(64),
	totp_step INTEGER NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "admin_users" VALUES('nam','rol','pas',1000.5,1,'tot',7);
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0009');
CREATE TABLE arrivals (
	id INTEGER NOT NULL,
	at_s DOUBLE NOT NULL,
	client VARCHAR(128) NOT NULL,
	file TEXT NOT NULL,
	size_bytes BIGINT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "arrivals" VALUES(7,1000.5,'cli','fil',7);
CREATE TABLE cluster_lease (
	id INTEGER NOT NULL,
	epoch BIGINT NOT NULL,
	holder VARCHAR(128) NOT NULL,
	place VARCHAR(255) NOT NULL,
	expires_s DOUBLE NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "cluster_lease" VALUES(7,7,'hol','pla',1000.5);
CREATE TABLE cluster_nodes (
	name VARCHAR(160) NOT NULL,
	machine VARCHAR(128) NOT NULL,
	since_s DOUBLE NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "cluster_nodes" VALUES('nam','mac',1000.5);
CREATE TABLE cluster_secrets (
	kind VARCHAR(16) NOT NULL,
	name VARCHAR(64) NOT NULL,
	secret TEXT NOT NULL,
	made_s DOUBLE NOT NULL,
	PRIMARY KEY (kind, name)
);
INSERT INTO "cluster_secrets" VALUES('kin','nam','sec',1000.5);
CREATE TABLE counters (
	name VARCHAR(64) NOT NULL,
	value BIGINT NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "counters" VALUES('nam',7);
CREATE TABLE digests (
	"key" VARCHAR(128) NOT NULL,
	body JSON NOT NULL,
	used_s DOUBLE NOT NULL,
	PRIMARY KEY ("key")
);
INSERT INTO "digests" VALUES('key','{"a": [1]}',1000.5);
CREATE TABLE events (
	id INTEGER NOT NULL,
	at_s DOUBLE NOT NULL,
	kind VARCHAR(64) NOT NULL,
	level VARCHAR(12) NOT NULL,
	text TEXT NOT NULL,
	data JSON NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(7,1000.5,'kin','lev','tex','{"a": [1]}');
CREATE TABLE history (
	resolution_s SMALLINT NOT NULL,
	series VARCHAR(64) NOT NULL,
	at_s DOUBLE NOT NULL,
	mean DOUBLE NOT NULL,
	peak DOUBLE NOT NULL,
	PRIMARY KEY (resolution_s, series, at_s)
);
INSERT INTO "history" VALUES(7,'ser',1000.5,1000.5,1000.5);
CREATE TABLE operator_state (
	name VARCHAR(64) NOT NULL,
	body JSON NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "operator_state" VALUES('nam','{"a": [1]}');
CREATE TABLE passes (
	serial VARCHAR(64) NOT NULL,
	class_name VARCHAR(64) NOT NULL,
	weight DOUBLE NOT NULL,
	path TEXT NOT NULL,
	issued_s DOUBLE NOT NULL,
	not_before_s DOUBLE NOT NULL,
	expires_s DOUBLE NOT NULL,
	max_uses INTEGER NOT NULL,
	uses INTEGER NOT NULL,
	revoked BOOLEAN NOT NULL,
	note TEXT NOT NULL,
	PRIMARY KEY (serial)
);
INSERT INTO "passes" VALUES('ser','cla',1000.5,'pat',1000.5,1000.5,1000.5,7,7,1,'not');
CREATE TABLE revisions (
	id INTEGER NOT NULL,
	at_s DOUBLE NOT NULL,
	author VARCHAR(128) NOT NULL,
	note TEXT NOT NULL,
	policy VARCHAR(32) NOT NULL,
	settings JSON NOT NULL,
	restored_from BIGINT,
	PRIMARY KEY (id)
);
INSERT INTO "revisions" VALUES(7,1000.5,'aut','not','pol','{"a": [1]}',7);
CREATE TABLE tickets (
	number INTEGER NOT NULL,
	client VARCHAR(128) NOT NULL,
	file TEXT NOT NULL,
	size_bytes BIGINT NOT NULL,
	remaining_bytes BIGINT NOT NULL,
	weight DOUBLE NOT NULL,
	issued_s DOUBLE NOT NULL,
	state VARCHAR(12) NOT NULL,
	changed_s DOUBLE NOT NULL,
	polls INTEGER NOT NULL,
	early_polls INTEGER NOT NULL,
	priority_class VARCHAR(32) DEFAULT '' NOT NULL,
	network VARCHAR(64) DEFAULT '' NOT NULL,
	stands_back BOOLEAN DEFAULT 0 NOT NULL,
	PRIMARY KEY (number)
);
INSERT INTO "tickets" VALUES(7,'cli','fil',7,7,1000.5,1000.5,'waiting',1000.5,7,7,'pri','net',1);
CREATE TABLE usage (
	file TEXT NOT NULL,
	downloads BIGINT NOT NULL,
	complete BIGINT DEFAULT '0' NOT NULL,
	sent_bytes BIGINT NOT NULL,
	at_s DOUBLE NOT NULL,
	PRIMARY KEY (file)
);
INSERT INTO "usage" VALUES('fil',7,7,7,1000.5);
CREATE TABLE usage_hours (
	hour_s BIGINT NOT NULL,
	file TEXT NOT NULL,
	downloads BIGINT NOT NULL,
	complete BIGINT DEFAULT '0' NOT NULL,
	sent_bytes BIGINT NOT NULL,
	PRIMARY KEY (hour_s, file)
);
INSERT INTO "usage_hours" VALUES(7,'fil',7,7,7);
CREATE INDEX tickets_by_turn ON tickets (state, number);
CREATE INDEX ix_digests_used_s ON digests (used_s);
CREATE INDEX history_for_charts ON history (resolution_s, series, at_s, mean);
CREATE INDEX history_by_age ON history (resolution_s, at_s);
CREATE INDEX ix_events_at_s ON events (at_s);
CREATE INDEX ix_events_kind ON events (kind);
CREATE INDEX ix_arrivals_at_s ON arrivals (at_s);
COMMIT;
