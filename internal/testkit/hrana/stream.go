package hrana

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	sqlite "modernc.org/sqlite"
)

type pipelineRequest struct {
	Baton    *string         `json:"baton"`
	Requests []streamRequest `json:"requests"`
}

type pipelineResponse struct {
	Baton   *string        `json:"baton"`
	BaseURL *string        `json:"base_url"`
	Results []streamResult `json:"results"`
}

type streamRequest struct {
	Type  string     `json:"type"`
	Stmt  *statement `json:"stmt"`
	Batch *batch     `json:"batch"`
	SQL   *string    `json:"sql"`
	SQLID *int32     `json:"sql_id"`
}

type streamResult struct {
	Type     string       `json:"type"`
	Response any          `json:"response,omitempty"`
	Error    *streamError `json:"error,omitempty"`
}

type streamError struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
}

type statement struct {
	SQL       *string    `json:"sql"`
	SQLID     *int32     `json:"sql_id"`
	Args      []value    `json:"args"`
	NamedArgs []namedArg `json:"named_args"`
	WantRows  *bool      `json:"want_rows"`
}

type namedArg struct {
	Name  string `json:"name"`
	Value value  `json:"value"`
}

type value struct {
	Type   string  `json:"type"`
	Value  any     `json:"value,omitempty"`
	Base64 *string `json:"base64,omitempty"`
}

type batch struct {
	Steps []struct {
		Condition *condition `json:"condition"`
		Stmt      statement  `json:"stmt"`
	} `json:"steps"`
}

type condition struct {
	Type  string      `json:"type"`
	Step  int         `json:"step"`
	Cond  *condition  `json:"cond"`
	Conds []condition `json:"conds"`
}

type column struct {
	Name     *string `json:"name"`
	DeclType *string `json:"decltype"`
}

type statementResult struct {
	Cols             []column  `json:"cols"`
	Rows             [][]value `json:"rows"`
	Affected         int64     `json:"affected_row_count"`
	LastInsertRowID  *string   `json:"last_insert_rowid"`
	ReplicationIndex *string   `json:"replication_index"`
}

type batchResult struct {
	Results          []*statementResult `json:"step_results"`
	Errors           []*streamError     `json:"step_errors"`
	ReplicationIndex *string            `json:"replication_index"`
}

type response struct {
	Type         string `json:"type"`
	Result       any    `json:"result,omitempty"`
	IsAutocommit *bool  `json:"is_autocommit,omitempty"`
}

// stream owns one SQLite connection. mu is held while a pipeline runs.
type stream struct {
	id     uint64
	prefix string

	mu     sync.Mutex
	seq    uint64
	conn   *sql.Conn
	sqls   map[int32]string
	timer  *time.Timer
	closed bool
}

// end drops the connection, and with it any transaction.
func (st *stream) end() {
	if st.closed {
		return
	}
	st.closed = true
	if st.timer != nil {
		st.timer.Stop()
	}
	_ = st.conn.Raw(func(any) error { return driver.ErrBadConn }) // so that the pool closes it
	_ = st.conn.Close()
}

func (st *stream) run(ctx context.Context, q streamRequest) (any, error) {
	if st.closed {
		return nil, &streamFault{"The stream was closed", "STREAM_CLOSED"}
	}
	switch q.Type {
	case "close":
		st.end()
		return response{Type: "close"}, nil
	case "execute":
		if q.Stmt == nil {
			return nil, missing("stmt")
		}
		res, err := st.execute(ctx, *q.Stmt)
		return response{Type: "execute", Result: res}, err
	case "batch":
		if q.Batch == nil {
			return nil, missing("batch")
		}
		res, err := st.batch(ctx, *q.Batch)
		return response{Type: "batch", Result: res}, err
	case "sequence":
		text, err := st.text(q.SQL, q.SQLID)
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(text) != "" {
			_, err = st.conn.ExecContext(ctx, text)
		}
		return response{Type: "sequence"}, err
	case "describe":
		text, err := st.text(q.SQL, q.SQLID)
		if err != nil {
			return nil, err
		}
		res, err := st.describe(ctx, text)
		return response{Type: "describe", Result: res}, err
	case "store_sql":
		if q.SQL == nil || q.SQLID == nil {
			return nil, missing("sql and sql_id")
		}
		if _, ok := st.sqls[*q.SQLID]; ok {
			return nil, &streamFault{fmt.Sprintf("SQL text %d is stored already", *q.SQLID), "SQL_STORE_TWICE"}
		}
		st.sqls[*q.SQLID] = *q.SQL
		return response{Type: "store_sql"}, nil
	case "close_sql":
		if q.SQLID == nil {
			return nil, missing("sql_id")
		}
		delete(st.sqls, *q.SQLID)
		return response{Type: "close_sql"}, nil
	case "get_autocommit":
		is, err := st.autocommit(ctx)
		return response{Type: "get_autocommit", IsAutocommit: &is}, err
	}
	return nil, &streamFault{"unknown request type " + strconv.Quote(q.Type), "PROTO_ERROR"}
}

func (st *stream) text(sql *string, id *int32) (string, error) {
	switch {
	case sql != nil && id == nil:
		return *sql, nil
	case sql == nil && id != nil:
		if t, ok := st.sqls[*id]; ok {
			return t, nil
		}
		return "", &streamFault{fmt.Sprintf("SQL text %d is not stored", *id), "SQL_NOT_FOUND"}
	}
	return "", &streamFault{"exactly one of sql and sql_id is needed", "SQL_NO_TEXT"}
}

// autocommit asks SQLite in the only way the driver offers: a transaction cannot begin inside another.
func (st *stream) autocommit(ctx context.Context) (bool, error) {
	if _, err := st.conn.ExecContext(ctx, "BEGIN DEFERRED"); err != nil {
		return false, nil
	}
	_, err := st.conn.ExecContext(ctx, "ROLLBACK")
	return true, err
}

func (st *stream) batch(ctx context.Context, b batch) (*batchResult, error) {
	res := &batchResult{Results: make([]*statementResult, len(b.Steps)), Errors: make([]*streamError, len(b.Steps))}
	for i, step := range b.Steps {
		if step.Condition != nil {
			ok, err := st.holds(ctx, *step.Condition, res, i)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
		}
		r, err := st.execute(ctx, step.Stmt)
		if err != nil {
			res.Errors[i] = describeError(err)
			continue
		}
		res.Results[i] = r
	}
	return res, nil
}

func (st *stream) holds(ctx context.Context, c condition, res *batchResult, at int) (bool, error) {
	switch c.Type {
	case "ok", "error":
		if c.Step < 0 || c.Step >= at {
			return false, &streamFault{"a condition refers to a step that is not before it", "BATCH_COND_BAD_STEP"}
		}
		if c.Type == "ok" {
			return res.Results[c.Step] != nil, nil
		}
		return res.Errors[c.Step] != nil, nil
	case "not":
		if c.Cond == nil {
			return false, missing("cond")
		}
		ok, err := st.holds(ctx, *c.Cond, res, at)
		return !ok, err
	case "and", "or":
		for _, one := range c.Conds {
			ok, err := st.holds(ctx, one, res, at)
			if err != nil || ok == (c.Type == "or") {
				return ok, err
			}
		}
		return c.Type == "and", nil
	case "is_autocommit":
		return st.autocommit(ctx)
	}
	return false, &streamFault{"unknown condition " + strconv.Quote(c.Type), "PROTO_ERROR"}
}

func (st *stream) execute(ctx context.Context, s statement) (*statementResult, error) {
	text, err := st.text(s.SQL, s.SQLID)
	if err != nil {
		return nil, err
	}
	scan := scanSQL(text)
	if scan.statements == 0 {
		return nil, &streamFault{"The SQL text contains no statement", "SQL_NO_STATEMENT"}
	}
	if scan.statements > 1 {
		return nil, &streamFault{"The SQL text contains more than one statement", "SQL_MANY_STATEMENTS"}
	}
	args, err := bind(scan.params, s)
	if err != nil {
		return nil, err
	}
	res := &statementResult{Cols: []column{}, Rows: [][]value{}}
	before, _, _, err := st.counters(ctx)
	if err != nil {
		return nil, err
	}
	err = st.conn.Raw(func(dc any) error {
		rows, err := dc.(driver.QueryerContext).QueryContext(ctx, text, args)
		if err != nil {
			return err
		}
		defer rows.Close()
		return res.read(rows, s.WantRows == nil || *s.WantRows)
	})
	if err != nil {
		return nil, err
	}
	total, changes, rowid, err := st.counters(ctx)
	if err != nil {
		return nil, err
	}
	if total != before {
		res.Affected = changes
	}
	if rowid != 0 {
		id := strconv.FormatInt(rowid, 10)
		res.LastInsertRowID = &id
	}
	return res, nil
}

func (st *stream) counters(ctx context.Context) (total, changes, rowid int64, err error) {
	err = st.conn.QueryRowContext(ctx, "SELECT total_changes(), changes(), last_insert_rowid()").Scan(&total, &changes, &rowid)
	return total, changes, rowid, err
}

func (r *statementResult) read(rows driver.Rows, want bool) error {
	names := rows.Columns()
	types, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	for i, n := range names {
		c := column{Name: &n}
		if types != nil {
			if d := types.ColumnTypeDatabaseTypeName(i); d != "" {
				c.DeclType = &d
			}
		}
		r.Cols = append(r.Cols, c)
	}
	for {
		dest := make([]driver.Value, len(names))
		switch err := rows.Next(dest); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if !want {
			continue
		}
		row := make([]value, len(dest))
		for i, v := range dest {
			row[i] = encode(v)
		}
		r.Rows = append(r.Rows, row)
	}
}

func encode(v driver.Value) value {
	switch v := v.(type) {
	case nil:
		return value{Type: "null"}
	case int64:
		return value{Type: "integer", Value: strconv.FormatInt(v, 10)}
	case bool:
		if v {
			return value{Type: "integer", Value: "1"}
		}
		return value{Type: "integer", Value: "0"}
	case float64:
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return value{Type: "null"} // JSON has no such numbers
		}
		return value{Type: "float", Value: v}
	case []byte:
		b := base64.RawStdEncoding.EncodeToString(v)
		return value{Type: "blob", Base64: &b}
	case time.Time:
		return value{Type: "text", Value: v.UTC().Format("2006-01-02 15:04:05.999999999")}
	case string:
		return value{Type: "text", Value: v}
	}
	return value{Type: "text", Value: fmt.Sprint(v)}
}

func decode(v value) (driver.Value, error) {
	bad := func() (driver.Value, error) {
		return nil, &streamFault{"a value of type " + strconv.Quote(v.Type) + " is malformed", "PROTO_ERROR"}
	}
	switch v.Type {
	case "null":
		return nil, nil
	case "integer":
		s, ok := v.Value.(string)
		n, err := strconv.ParseInt(s, 10, 64)
		if !ok || err != nil {
			return bad()
		}
		return n, nil
	case "float":
		n, ok := v.Value.(json.Number)
		if !ok {
			return bad()
		}
		f, err := n.Float64()
		if err != nil {
			return bad()
		}
		return f, nil
	case "text":
		s, ok := v.Value.(string)
		if !ok && v.Value != nil {
			return bad()
		}
		return s, nil
	case "blob":
		if v.Base64 == nil {
			return bad()
		}
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(*v.Base64, "="))
		if err != nil {
			return bad()
		}
		if b == nil {
			b = []byte{}
		}
		return b, nil
	}
	return bad()
}

// bind gives each parameter its value: a named argument with or without its prefix, else the one at its position.
func bind(params []param, s statement) ([]driver.NamedValue, error) {
	named := map[string]value{}
	for _, a := range s.NamedArgs {
		named[a.Name] = a.Value
	}
	var out []driver.NamedValue
	for _, p := range params {
		v, ok := value{}, false
		if p.name != "" {
			if v, ok = named[p.name]; !ok {
				v, ok = named[p.name[1:]]
			}
		}
		if !ok && p.index <= len(s.Args) {
			v, ok = s.Args[p.index-1], true
		}
		if !ok {
			return nil, &streamFault{fmt.Sprintf("value for parameter %d not found", p.index), "ARGS_INVALID"}
		}
		d, err := decode(v)
		if err != nil {
			return nil, err
		}
		nv := driver.NamedValue{Ordinal: p.index, Value: d}
		if p.name != "" && p.name[0] != '?' {
			nv.Name = p.name[1:]
		}
		out = append(out, nv)
	}
	return out, nil
}

type describeResult struct {
	Params     []describeParam `json:"params"`
	Cols       []describeCol   `json:"cols"`
	IsExplain  bool            `json:"is_explain"`
	IsReadonly bool            `json:"is_readonly"`
}

type describeParam struct {
	Name *string `json:"name"`
}

type describeCol struct {
	Name     string  `json:"name"`
	DeclType *string `json:"decltype"`
}

func (st *stream) describe(ctx context.Context, text string) (*describeResult, error) {
	scan := scanSQL(text)
	if scan.statements != 1 {
		return nil, &streamFault{"describe needs exactly one statement", "SQL_MANY_STATEMENTS"}
	}
	res := &describeResult{Params: []describeParam{}, Cols: []describeCol{}, IsExplain: strings.HasPrefix(strings.ToUpper(strings.TrimSpace(text)), "EXPLAIN"), IsReadonly: true}
	for _, p := range scan.params {
		d := describeParam{}
		if p.name != "" {
			d.Name = &p.name
		}
		res.Params = append(res.Params, d)
	}
	err := st.conn.Raw(func(dc any) error {
		info, err := dc.(interface {
			ColumnInfo(query string) ([]sqlite.ColumnInfo, error)
		}).ColumnInfo(text)
		for _, c := range info {
			d := describeCol{Name: c.Name}
			if c.DeclType != "" {
				d.DeclType = &c.DeclType
			}
			res.Cols = append(res.Cols, d)
		}
		return err
	})
	if err != nil || res.IsExplain {
		return res, err
	}
	// The program SQLite compiles says whether it would write: Transaction with a non-zero P2.
	args := make([]any, len(scan.params))
	for i, p := range scan.params {
		if p.name != "" && p.name[0] != '?' {
			args[i] = sql.Named(p.name[1:], nil)
		}
	}
	rows, err := st.conn.QueryContext(ctx, "EXPLAIN "+text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var addr, p1, p2, p3 int64
		var op string
		var p4, p5, comment any
		if err := rows.Scan(&addr, &op, &p1, &p2, &p3, &p4, &p5, &comment); err != nil {
			return nil, err
		}
		if op == "Transaction" && p2 != 0 {
			res.IsReadonly = false
		}
	}
	return res, rows.Err()
}

type streamFault struct{ message, code string }

func (s *streamFault) Error() string { return s.message }

func missing(what string) error {
	return &streamFault{"the request lacks " + what, "PROTO_ERROR"}
}

// describeError gives an error the text and code the real server would.
func describeError(err error) *streamError {
	var sf *streamFault
	if errors.As(err, &sf) {
		return &streamError{sf.message, sf.code}
	}
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return &streamError{err.Error(), "SQL_INPUT_ERROR"}
	}
	text := se.Error()
	if _, rest, ok := strings.Cut(text, ": "); ok {
		text = rest // the driver puts the code's own description first
	}
	if i := strings.LastIndex(text, " ("); i > 0 {
		text = text[:i]
	}
	return &streamError{"SQLite error: " + text, codeName(se.Code())}
}

func codeName(code int) string {
	names := map[int]string{
		1: "SQLITE_ERROR", 5: "SQLITE_BUSY", 6: "SQLITE_LOCKED", 8: "SQLITE_READONLY", 9: "SQLITE_INTERRUPT", 11: "SQLITE_CORRUPT", 13: "SQLITE_FULL", 14: "SQLITE_CANTOPEN", 19: "SQLITE_CONSTRAINT", 20: "SQLITE_MISMATCH", 21: "SQLITE_MISUSE",
		275: "SQLITE_CONSTRAINT_CHECK", 787: "SQLITE_CONSTRAINT_FOREIGNKEY", 1299: "SQLITE_CONSTRAINT_NOTNULL", 1555: "SQLITE_CONSTRAINT_PRIMARYKEY", 2067: "SQLITE_CONSTRAINT_UNIQUE", 2579: "SQLITE_CONSTRAINT_ROWID", 3091: "SQLITE_CONSTRAINT_DATATYPE",
	}
	if n, ok := names[code]; ok {
		return n
	}
	if n, ok := names[code&0xff]; ok {
		return n
	}
	return "SQLITE_UNKNOWN"
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
