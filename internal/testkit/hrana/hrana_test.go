package hrana

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// post sends one pipeline and returns the status and the decoded answer.
func post(t *testing.T, s *Server, baton any, requests string) (int, map[string]any) {
	t.Helper()
	b, err := json.Marshal(baton)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v2/pipeline", strings.NewReader(`{"baton":`+string(b)+`,"requests":[`+requests+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, out
}

func results(out map[string]any) string {
	b, _ := json.Marshal(out["results"])
	return string(b)
}

// sameJSON compares two JSON texts.
func sameJSON(t *testing.T, want, got string) {
	t.Helper()
	var w, g any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, g); d != "" {
		t.Error(d)
	}
}

func TestRequests(t *testing.T) {
	for _, c := range []struct{ name, requests, want string }{
		{"values", `{"type":"execute","stmt":{"sql":"SELECT ?, ?2, :c, ?","args":[{"type":"null"},{"type":"integer","value":"9223372036854775807"},{"type":"float","value":0.5},{"type":"blob","base64":"AP8"}]}}`,
			`[{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"?","decltype":null},{"name":"?2","decltype":null},{"name":":c","decltype":null},{"name":"?","decltype":null}],
			"rows":[[{"type":"null"},{"type":"integer","value":"9223372036854775807"},{"type":"float","value":0.5},{"type":"blob","base64":"AP8"}]],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null}}}]`},
		{"empty text and blob", `{"type":"execute","stmt":{"sql":"SELECT '', x''"}}`,
			`[{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"''","decltype":null},{"name":"x''","decltype":null}],"rows":[[{"type":"text","value":""},{"type":"blob","base64":""}]],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null}}}]`},
		{"named arguments with and without prefix", `{"type":"execute","stmt":{"sql":"SELECT :a + $b + @c AS sum","named_args":[{"name":"a","value":{"type":"integer","value":"1"}},{"name":"$b","value":{"type":"integer","value":"2"}},{"name":"c","value":{"type":"integer","value":"4"}}]}}`,
			`[{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"sum","decltype":null}],"rows":[[{"type":"integer","value":"7"}]],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null}}}]`},
		{"rows not wanted", `{"type":"execute","stmt":{"sql":"SELECT 1 AS x","want_rows":false}}`,
			`[{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"x","decltype":null}],"rows":[],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null}}}]`},
		{"all requests run even after an error", `{"type":"sequence","sql":"CREATE TABLE t (x TEXT UNIQUE); INSERT INTO t VALUES ('a;b'); INSERT INTO t VALUES ('c')"},{"type":"execute","stmt":{"sql":"INSERT INTO t VALUES ('c')"}},{"type":"execute","stmt":{"sql":"UPDATE t SET x = x || '!'"}}`,
			`[{"type":"ok","response":{"type":"sequence"}},{"type":"error","error":{"message":"SQLite error: UNIQUE constraint failed: t.x","code":"SQLITE_CONSTRAINT_UNIQUE"}},
			{"type":"ok","response":{"type":"execute","result":{"cols":[],"rows":[],"affected_row_count":2,"last_insert_rowid":"2","replication_index":null}}}]`},
		{"two statements in one", `{"type":"execute","stmt":{"sql":"SELECT 1; SELECT 2"}}`, `[{"type":"error","error":{"message":"The SQL text contains more than one statement","code":"SQL_MANY_STATEMENTS"}}]`},
		{"no statement", `{"type":"execute","stmt":{"sql":" -- nothing"}}`, `[{"type":"error","error":{"message":"The SQL text contains no statement","code":"SQL_NO_STATEMENT"}}]`},
		{"a missing argument", `{"type":"execute","stmt":{"sql":"SELECT ?"}}`, `[{"type":"error","error":{"message":"value for parameter 1 not found","code":"ARGS_INVALID"}}]`},
		{"a number where text is due", `{"type":"execute","stmt":{"sql":"SELECT ?","args":[{"type":"integer","value":1}]}}`, `[{"type":"error","error":{"message":"a value of type \"integer\" is malformed","code":"PROTO_ERROR"}}]`},
		{"stored texts", `{"type":"store_sql","sql_id":1,"sql":"SELECT 5 AS five"},{"type":"execute","stmt":{"sql_id":1}},{"type":"close_sql","sql_id":1},{"type":"execute","stmt":{"sql_id":1}}`,
			`[{"type":"ok","response":{"type":"store_sql"}},{"type":"ok","response":{"type":"execute","result":{"cols":[{"name":"five","decltype":null}],"rows":[[{"type":"integer","value":"5"}]],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null}}},
			{"type":"ok","response":{"type":"close_sql"}},{"type":"error","error":{"message":"SQL text 1 is not stored","code":"SQL_NOT_FOUND"}}]`},
		{"conditions", `{"type":"batch","batch":{"steps":[{"stmt":{"sql":"SELECT 1"}},{"stmt":{"sql":"SELEC"}},{"stmt":{"sql":"BEGIN","want_rows":false},"condition":{"type":"and","conds":[{"type":"ok","step":0},{"type":"error","step":1},{"type":"is_autocommit"}]}},
			{"stmt":{"sql":"SELECT 3"},"condition":{"type":"or","conds":[{"type":"is_autocommit"},{"type":"ok","step":1}]}},{"stmt":{"sql":"ROLLBACK","want_rows":false},"condition":{"type":"not","cond":{"type":"ok","step":3}}}]}}`,
			`[{"type":"ok","response":{"type":"batch","result":{"step_results":[{"cols":[{"name":"1","decltype":null}],"rows":[[{"type":"integer","value":"1"}]],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null},null,
			{"cols":[],"rows":[],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null},null,{"cols":[],"rows":[],"affected_row_count":0,"last_insert_rowid":null,"replication_index":null}],
			"step_errors":[null,{"message":"SQLite error: near \"SELEC\": syntax error","code":"SQLITE_ERROR"},null,null,null],"replication_index":null}}}]`},
		{"a condition on a later step", `{"type":"batch","batch":{"steps":[{"stmt":{"sql":"SELECT 1"},"condition":{"type":"ok","step":0}}]}}`, `[{"type":"error","error":{"message":"a condition refers to a step that is not before it","code":"BATCH_COND_BAD_STEP"}}]`},
		{"autocommit", `{"type":"get_autocommit"},{"type":"sequence","sql":"BEGIN"},{"type":"get_autocommit"}`,
			`[{"type":"ok","response":{"type":"get_autocommit","is_autocommit":true}},{"type":"ok","response":{"type":"sequence"}},{"type":"ok","response":{"type":"get_autocommit","is_autocommit":false}}]`},
		{"describe", `{"type":"sequence","sql":"CREATE TABLE t (x TEXT, at TIMESTAMP)"},{"type":"describe","sql":"SELECT x, at FROM t WHERE x = ? AND at = :at"},{"type":"describe","sql":"DELETE FROM t WHERE x = ?1"}`,
			`[{"type":"ok","response":{"type":"sequence"}},{"type":"ok","response":{"type":"describe","result":{"params":[{"name":null},{"name":":at"}],"cols":[{"name":"x","decltype":"TEXT"},{"name":"at","decltype":"TIMESTAMP"}],"is_explain":false,"is_readonly":true}}},
			{"type":"ok","response":{"type":"describe","result":{"params":[{"name":"?1"}],"cols":[],"is_explain":false,"is_readonly":false}}}]`},
		{"close ends the stream", `{"type":"close"},{"type":"execute","stmt":{"sql":"SELECT 1"}}`, `[{"type":"ok","response":{"type":"close"}},{"type":"error","error":{"message":"The stream was closed","code":"STREAM_CLOSED"}}]`},
		{"unknown", `{"type":"dance"}`, `[{"type":"error","error":{"message":"unknown request type \"dance\"","code":"PROTO_ERROR"}}]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, out := post(t, Start(t, Options{}), nil, c.requests)
			if status != http.StatusOK {
				t.Fatalf("status %d: %v", status, out)
			}
			sameJSON(t, c.want, results(out))
			if closed := strings.Contains(c.requests, `"close"`); (out["baton"] == nil) != closed {
				t.Errorf("baton %v after close %v", out["baton"], closed)
			}
		})
	}
}

const one = `{"type":"execute","stmt":{"sql":"SELECT 1","want_rows":false}}`

func TestBatons(t *testing.T) {
	s := Start(t, Options{})
	_, first := post(t, s, nil, `{"type":"sequence","sql":"CREATE TABLE t (x); BEGIN; INSERT INTO t VALUES (1)"}`)
	_, second := post(t, s, first["baton"], one)
	if first["baton"] == second["baton"] || second["baton"] == nil {
		t.Errorf("batons %v and %v", first["baton"], second["baton"])
	}
	forged := []byte(second["baton"].(string))
	forged[3] ^= 1
	for name, baton := range map[string]any{"forged": string(forged), "nonsense": "xyz"} {
		if status, out := post(t, s, baton, one); status != http.StatusBadRequest {
			t.Errorf("%s: %d %v", name, status, out)
		}
	}
	if status, _ := post(t, s, second["baton"], one); status != http.StatusOK {
		t.Errorf("a forged baton harmed the stream: %d", status)
	}
	if status, _ := post(t, s, first["baton"], one); status != http.StatusBadRequest {
		t.Errorf("a baton worked twice: %d", status)
	}
	_, out := post(t, s, nil, `{"type":"execute","stmt":{"sql":"SELECT count(*) FROM t"}}`)
	if r := results(out); !strings.Contains(r, `"value":"0"`) {
		t.Errorf("the transaction of a misused stream was kept: %s", r)
	}
}

func TestIdleStreamsExpire(t *testing.T) {
	s := Start(t, Options{Idle: 30 * time.Millisecond})
	_, out := post(t, s, nil, `{"type":"sequence","sql":"CREATE TABLE t (x); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)"}`)
	for deadline := time.Now().Add(5 * time.Second); s.Streams() > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	status, late := post(t, s, out["baton"], one)
	if status != http.StatusBadRequest || late["code"] != "STREAM_EXPIRED" {
		t.Errorf("%d %v, want STREAM_EXPIRED", status, late)
	}
	// The write lock went with the stream.
	if _, out := post(t, s, nil, `{"type":"execute","stmt":{"sql":"INSERT INTO t SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM t)"}}`); !strings.Contains(results(out), `"affected_row_count":1`) {
		t.Errorf("after the expiry: %s", results(out))
	}
}

func TestStopAndStart(t *testing.T) {
	s := Start(t, Options{})
	url := s.URL
	post(t, s, nil, `{"type":"sequence","sql":"CREATE TABLE t (x); INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2)"}`)
	s.Stop()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v2", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := http.DefaultClient.Do(req); err == nil {
		_ = res.Body.Close()
		t.Error("a stopped server answers")
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if s.URL != url {
		t.Errorf("the address changed from %s to %s", url, s.URL)
	}
	if _, out := post(t, s, nil, `{"type":"execute","stmt":{"sql":"SELECT count(*) FROM t"}}`); !strings.Contains(results(out), `"value":"1"`) {
		t.Errorf("committed rows after the restart: %s", results(out))
	}
}

func TestFaces(t *testing.T) {
	s := Start(t, Options{Token: "secret"})
	for _, c := range []struct {
		name, method, path, token string
		want                      int
	}{
		{"support", http.MethodGet, "/v2", "Bearer secret", http.StatusOK},
		{"support of a named database", http.MethodGet, "/tenant/acme/v2", "Bearer secret", http.StatusOK},
		{"no token", http.MethodGet, "/v2", "", http.StatusUnauthorized},
		{"wrong token", http.MethodPost, "/v2/pipeline", "Bearer other", http.StatusUnauthorized},
		{"version 3", http.MethodGet, "/v3", "Bearer secret", http.StatusNotFound},
		{"a name that climbs", http.MethodPost, "/../x/v2/pipeline", "Bearer secret", http.StatusNotFound},
		{"not JSON", http.MethodPost, "/v2/pipeline", "Bearer secret", http.StatusBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+c.path, bytes.NewReader([]byte("{")))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", c.token)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != c.want {
				t.Errorf("status %d, want %d", res.StatusCode, c.want)
			}
		})
	}
}

func TestScan(t *testing.T) {
	for _, c := range []struct {
		sql        string
		statements int
		params     []param
	}{
		{"", 0, nil},
		{" ; ;-- x\n/* ; */", 0, nil},
		{"SELECT 1;", 1, nil},
		{"SELECT ';', \"?\", [a;?], `;`; SELECT 'it''s ?'", 2, nil},
		{"SELECT ?, ?5, ?, :a, @b, $c, :a", 1, []param{{1, ""}, {5, "?5"}, {6, ""}, {7, ":a"}, {8, "@b"}, {9, "$c"}}},
		{"CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM a; DELETE FROM b; END", 1, nil},
		{"SELECT a::b", 1, []param{{1, ":b"}}},
	} {
		got := scanSQL(c.sql)
		if d := cmp.Diff(scanned{c.statements, c.params}, got, cmp.AllowUnexported(scanned{}, param{})); d != "" {
			t.Errorf("%q: %s", c.sql, d)
		}
	}
}
