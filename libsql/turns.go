package libsql

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
	"github.com/lossless-group/gateway/transcript"
)

// Turns keeps transcripts, in each organisation's own database.
type Turns struct{ tenants *tenants }

const turnColumns = "id, org_id, user_id, project_id, project_kind, thread_id, turn_index, surface, client_turn_id, user_message, model_message, messages, tool_calls, tool_results, model, provider, key_source, tokens_in, tokens_out, cache_read_tokens, cache_creation_tokens, latency_ms, spine_hash, registry_version, policy_revision, status, sealed_map, created_ms"

// putTurn replaces a turn of the same id and person; it changes nothing when the id is another person's.
var putTurn = func() string {
	cols := strings.Split(turnColumns, ", ")
	sets := make([]string, len(cols))
	for i, c := range cols {
		sets[i] = c + " = excluded." + c
	}
	return "INSERT INTO agent_transcripts (" + turnColumns + ") VALUES (?" + strings.Repeat(", ?", len(cols)-1) + ") ON CONFLICT (id) DO UPDATE SET " +
		strings.Join(sets[1:], ", ") + " WHERE agent_transcripts.user_id = excluded.user_id"
}()

// Append writes turns, all or none; a second write of an id replaces the row. fault.Conflict when an id is another
// person's turn; fault.NotFound when the organisation is unknown.
func (t *Turns) Append(ctx context.Context, org tenancy.OrgID, turns []transcript.Turn) error {
	const op = "libsql.Turns.Append"
	args := make([][]any, len(turns))
	for i, n := range turns {
		if n.Org != org || n.ID == "" || n.User == "" {
			return fault.New(fault.Internal, op, "turn_incomplete", "A turn without id, person or organisation was to be recorded; tell us the request id.")
		}
		var messages []byte
		if len(n.Messages) > 0 {
			var err error
			if messages, err = json.Marshal(n.Messages); err != nil {
				return fault.Wrap(fault.Internal, op, "turn_encoding", "A turn could not be recorded; tell us the request id.", err)
			}
		}
		args[i] = []any{n.ID, org.String(), string(n.User), n.ProjectID, n.ProjectKind, n.ThreadID, n.Index, string(n.Surface), n.ClientTurnID, n.UserMessage, n.ModelMessage,
			jsonText(messages), jsonText(n.ToolCalls), jsonText(n.ToolResults), n.Model, n.Provider, n.KeySource, n.TokensIn, n.TokensOut, n.CacheRead, n.CacheCreation, n.LatencyMS,
			n.SpineHash, n.RegistryVersion, n.PolicyRevision, n.Status, blob(n.SealedMap), ms(n.CreatedAt)}
	}
	return t.tenants.with(ctx, op, org, func(db *database) error {
		if len(args) == 0 {
			return nil
		}
		return db.w.do(ctx, op, len(args) == 1 && len(turns[0].Findings) == 0, func(ctx context.Context, c *sql.Conn) error {
			exec := func(a []any) (sql.Result, error) { return c.ExecContext(ctx, putTurn, a...) }
			if len(args) > 1 { // parsing takes longer than writing one row
				s, err := c.PrepareContext(ctx, putTurn)
				if err != nil {
					return err
				}
				defer s.Close()
				exec = func(a []any) (sql.Result, error) { return s.ExecContext(ctx, a...) }
			}
			for i, a := range args {
				res, err := exec(a)
				if err != nil {
					return err
				}
				if n, err := res.RowsAffected(); err != nil {
					return err
				} else if n == 0 {
					return fault.New(fault.Conflict, op, "turn_conflict", "That turn belongs to another person.")
				}
				if err := putFindings(ctx, c, turns[i]); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Threads lists a person's conversations, most recently active first, and the cursor of the next page ("" at the end).
func (t *Turns) Threads(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, page transcript.Page) ([]transcript.Thread, string, error) {
	const op = "libsql.Turns.Threads"
	limit := clampLimit(page.Limit)
	at, id, err := parseCursor(op, page.Before)
	if err != nil {
		return nil, "", err
	}
	var list []transcript.Thread
	err = t.tenants.with(ctx, op, org, func(db *database) error {
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			var h transcript.Thread
			var created, updated int64
			if err := rs.Scan(&h.ID, &h.ProjectID, &h.ProjectKind, &h.Turns, &created, &updated); err != nil {
				return err
			}
			h.CreatedAt, h.UpdatedAt = fromMS(created), fromMS(updated)
			list = append(list, h)
			return nil
		}, "SELECT thread_id, max(project_id), max(project_kind), count(*), min(created_ms), max(created_ms) FROM agent_transcripts WHERE user_id = ? AND thread_id <> '' GROUP BY thread_id HAVING (max(created_ms), thread_id) < (?, ?) ORDER BY max(created_ms) DESC, thread_id DESC LIMIT ?",
			string(user), at, id, limit+1)
	})
	if err != nil || len(list) <= limit {
		return list, "", err
	}
	last := list[limit-1]
	return list[:limit], cursor(ms(last.UpdatedAt), last.ID), nil
}

// Thread returns all turns of one conversation of that person in order; fault.NotFound when there is none.
func (t *Turns) Thread(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, threadID string) ([]transcript.Turn, error) {
	const op = "libsql.Turns.Thread"
	list, err := t.query(ctx, op, org, "user_id = ? AND thread_id = ? ORDER BY turn_index, created_ms, id", string(user), threadID)
	if err == nil && len(list) == 0 {
		return nil, notFound(op, "There is no such conversation.")
	}
	return list, err
}

// TurnByClientID returns the newest turn of that person that carries the client's own id, and whether there is one. It
// makes a repeated request harmless.
func (t *Turns) TurnByClientID(ctx context.Context, org tenancy.OrgID, user tenancy.UserID, threadID, clientTurnID string) (transcript.Turn, bool, error) {
	if clientTurnID == "" {
		return transcript.Turn{}, false, needOrg("libsql.Turns.TurnByClientID", org)
	}
	list, err := t.query(ctx, "libsql.Turns.TurnByClientID", org, "user_id = ? AND thread_id = ? AND client_turn_id = ? AND client_turn_id <> '' ORDER BY created_ms DESC, id DESC LIMIT 1", string(user), threadID, clientTurnID)
	if err != nil || len(list) == 0 {
		return transcript.Turn{}, false, err
	}
	return list[0], true, nil
}

func (t *Turns) query(ctx context.Context, op string, org tenancy.OrgID, where string, args ...any) ([]transcript.Turn, error) {
	var list []transcript.Turn
	err := t.tenants.with(ctx, op, org, func(db *database) error {
		return db.rows(ctx, op, func(rs *sql.Rows) error {
			n, err := scanTurn(rs, org)
			list = append(list, n)
			return err
		}, "SELECT "+turnColumns+" FROM agent_transcripts WHERE "+where, args...)
	})
	return list, err
}

func scanTurn(rs *sql.Rows, org tenancy.OrgID) (transcript.Turn, error) {
	var (
		n                        transcript.Turn
		owner, user, surface     string
		messages, calls, results sql.NullString
		created                  int64
	)
	if err := rs.Scan(&n.ID, &owner, &user, &n.ProjectID, &n.ProjectKind, &n.ThreadID, &n.Index, &surface, &n.ClientTurnID, &n.UserMessage, &n.ModelMessage,
		&messages, &calls, &results, &n.Model, &n.Provider, &n.KeySource, &n.TokensIn, &n.TokensOut, &n.CacheRead, &n.CacheCreation, &n.LatencyMS,
		&n.SpineHash, &n.RegistryVersion, &n.PolicyRevision, &n.Status, &n.SealedMap, &created); err != nil {
		return n, err
	}
	if owner != org.String() {
		return transcript.Turn{}, fault.New(fault.Internal, "libsql.scanTurn", "tenant_mismatch", "A turn belongs to another organisation; nothing was read. Tell us the request id.")
	}
	n.Org, n.User, n.Surface, n.CreatedAt = org, tenancy.UserID(user), chat.Surface(surface), fromMS(created)
	if messages.Valid {
		if err := json.Unmarshal([]byte(messages.String), &n.Messages); err != nil {
			return n, err
		}
	}
	if calls.Valid {
		n.ToolCalls = json.RawMessage(calls.String)
	}
	if results.Valid {
		n.ToolResults = json.RawMessage(results.String)
	}
	return n, nil
}
