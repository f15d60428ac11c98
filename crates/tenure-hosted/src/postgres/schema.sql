-- The log of Tenure. One schema holds one tree of locks.
-- Roles that lock:   GRANT USAGE ON SCHEMA tenure TO role;
--                    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO role;
--                    GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO role;
-- Roles that only look (ls, why, watch): the same without EXECUTE.
CREATE SCHEMA IF NOT EXISTS tenure;

-- The index of the last entry. Appends queue for this row, so they never fail each other halfway.
CREATE TABLE IF NOT EXISTS tenure.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    last bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO tenure.head (last) VALUES (0) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS tenure.entry (
    index bigint PRIMARY KEY,
    entry bytea NOT NULL
);

CREATE TABLE IF NOT EXISTS tenure.snapshot (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    index bigint NOT NULL,
    state bytea NOT NULL
);

-- One row per lease or waiting request. A beat gives it a version that no row ever had.
CREATE TABLE IF NOT EXISTS tenure.beat (
    owner bytea NOT NULL,
    namespace bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (owner, namespace)
) WITH (fillfactor = 50);
CREATE SEQUENCE IF NOT EXISTS tenure.beat_version;

-- An acknowledged entry or beat must survive a crash, whatever the default of the database is.
CREATE OR REPLACE FUNCTION tenure.durable() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Appends an entry at exactly this index. 0: done; 1: another entry has the place; 2: a row has
-- another version.
CREATE OR REPLACE FUNCTION tenure.append(
    place bigint,
    content bytea,
    unchanged_owners bytea[], unchanged_namespaces bytea[], unchanged_versions bigint[],
    raised_owners bytea[], raised_namespaces bytea[],
    removed_owners bytea[], removed_namespaces bytea[]
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_last bigint;
    found_version bigint;
BEGIN
    PERFORM tenure.durable();
    SELECT last INTO found_last FROM tenure.head FOR UPDATE;
    IF found_last IS DISTINCT FROM place - 1 THEN
        RETURN 1;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(unchanged_owners), 0) LOOP
        -- The lock makes a beat wait: it comes before this entry or finds no row.
        SELECT version INTO found_version FROM tenure.beat
            WHERE owner = unchanged_owners[i] AND namespace = unchanged_namespaces[i] FOR UPDATE;
        IF NOT FOUND THEN
            found_version := NULL;
        END IF;
        IF found_version IS DISTINCT FROM unchanged_versions[i] THEN
            RETURN 2;
        END IF;
    END LOOP;
    INSERT INTO tenure.entry (index, entry) VALUES (place, content);
    UPDATE tenure.head SET last = place;
    DELETE FROM tenure.beat USING unnest(
            unchanged_owners || removed_owners, unchanged_namespaces || removed_namespaces
        ) AS ended (owner, namespace)
        WHERE beat.owner = ended.owner AND beat.namespace = ended.namespace;
    INSERT INTO tenure.beat (owner, namespace, version)
        SELECT raised.owner, raised.namespace, nextval('tenure.beat_version')
        FROM unnest(raised_owners, raised_namespaces) AS raised (owner, namespace)
        ON CONFLICT (owner, namespace) DO UPDATE SET version = excluded.version;
    PERFORM pg_notify('tenure', place::text);
    RETURN 0;
END $$;

-- Raises the versions of the rows that are there. Returns which ones were.
CREATE OR REPLACE FUNCTION tenure.raise_beats(owners bytea[], namespaces bytea[]) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    beaten record;
    there boolean[] := array_fill(false, ARRAY[cardinality(owners)]);
BEGIN
    PERFORM tenure.durable();
    -- In one order everywhere, so that two calls never wait for each other.
    FOR beaten IN
        SELECT owner, namespace, at
        FROM unnest(owners, namespaces) WITH ORDINALITY AS raised (owner, namespace, at)
        ORDER BY owner, namespace
    LOOP
        UPDATE tenure.beat SET version = nextval('tenure.beat_version')
            WHERE owner = beaten.owner AND namespace = beaten.namespace;
        there[beaten.at] := FOUND;
    END LOOP;
    RETURN there;
END $$;

-- Stores a snapshot, and removes entries that it covers. Those of the last moments stay for clients
-- that are a little behind.
CREATE OR REPLACE FUNCTION tenure.trim_log(place bigint, content bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM tenure.durable();
    INSERT INTO tenure.snapshot (index, state) VALUES (place, content)
        ON CONFLICT (one) DO UPDATE SET index = excluded.index, state = excluded.state
        WHERE snapshot.index < excluded.index;
    DELETE FROM tenure.entry WHERE entry.index <= place - 256;
END $$;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC;
