// Exercises a Hrana server with libSQL's own client over HTTP. Usage: node check.mjs URL TOKEN. Exits 1 at the first difference.
import assert from "node:assert/strict";
import { createClient, LibsqlError } from "@libsql/client/http";

const [url, authToken] = process.argv.slice(2);
const db = createClient({ url, authToken, intMode: "bigint" });

await db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE, score REAL, data BLOB)");

const inserted = await db.execute({ sql: "INSERT INTO t (name, score, data) VALUES (?, ?, ?) RETURNING id, name", args: ["é漢\"", 1.5, new Uint8Array([0, 255, 7, 1])] });
assert.deepEqual(inserted.columns, ["id", "name"]);
assert.equal(inserted.rows[0].id, 1n);
assert.equal(inserted.rows[0].name, "é漢\"");
assert.equal(inserted.rowsAffected, 1);

const plain = await db.execute("INSERT INTO t (name) VALUES ('b')");
assert.equal(plain.lastInsertRowid, 2n);

const named = await db.execute({ sql: "SELECT *, 9223372036854775807 AS big FROM t WHERE name = :n AND id = @id", args: { n: "é漢\"", id: 1 } });
assert.equal(named.rows.length, 1);
assert.equal(named.rows[0].score, 1.5);
assert.equal(named.rows[0].big, 9223372036854775807n);
assert.deepEqual(new Uint8Array(named.rows[0].data), new Uint8Array([0, 255, 7, 1]));
assert.deepEqual(named.columnTypes.slice(0, 4), ["INTEGER", "TEXT", "REAL", "BLOB"]);

await assert.rejects(db.execute("INSERT INTO t (name) VALUES ('b')"), (e) => e instanceof LibsqlError && e.code.startsWith("SQLITE_CONSTRAINT"));
await assert.rejects(db.execute("SELEC 1"), (e) => e instanceof LibsqlError);

// A failing batch leaves nothing behind.
await assert.rejects(db.batch(["INSERT INTO t (name) VALUES ('c')", "INSERT INTO t (name) VALUES ('b')"], "write"));
assert.equal((await db.execute("SELECT count(*) AS n FROM t")).rows[0].n, 2n);
const results = await db.batch(["INSERT INTO t (name) VALUES ('c')", { sql: "SELECT count(*) AS n FROM t", args: [] }], "write");
assert.equal(results[1].rows[0].n, 3n);

// Transactions are isolated until they commit.
const tx = await db.transaction("write");
await tx.execute("INSERT INTO t (name) VALUES ('d')");
assert.equal((await db.execute("SELECT count(*) AS n FROM t")).rows[0].n, 3n);
await tx.rollback();
assert.equal((await db.execute("SELECT count(*) AS n FROM t")).rows[0].n, 3n);
const kept = await db.transaction("write");
await kept.batch(["INSERT INTO t (name) VALUES ('d')", "INSERT INTO t (name) VALUES ('e')"]);
await kept.commit();
assert.equal((await db.execute("SELECT count(*) AS n FROM t")).rows[0].n, 5n);

await db.executeMultiple("CREATE TABLE u (x); INSERT INTO u VALUES (1); INSERT INTO u VALUES (';');");
assert.equal((await db.execute("SELECT count(*) AS n FROM u")).rows[0].n, 2n);
assert.equal((await db.execute("SELECT NULL AS x")).rows[0].x, null);
db.close();

const stranger = createClient({ url, authToken: "wrong" });
await assert.rejects(stranger.execute("SELECT 1"));
stranger.close();
console.log("ok");
