package chroma

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/retrieval"
)

// Sizes of one request.
const (
	batch = 250 // records written
	page  = 500 // chunks read
)

// metadata is how a chunk's particulars are kept beside its text. All keys are always written, as updating keeps what is not named. Collections may be
// filled by others too, so what is read may hold anything.
type metadata map[string]any

func describe(c retrieval.Chunk) metadata {
	m := metadata{"source": c.Source, "date": "", "tags": strings.Join(c.Tags, ","), "project": c.Project} // no tag holds a comma
	if !c.Date.IsZero() {
		m["date"] = c.Date.UTC().Format(time.RFC3339Nano)
	}
	return m
}

func (m metadata) text(key string) string {
	s, _ := m[key].(string)
	return s
}

func (m metadata) chunk(id, text string) retrieval.Chunk {
	c := retrieval.Chunk{ID: id, Text: text, Source: m.text("source"), Project: m.text("project")}
	if tags := m.text("tags"); tags != "" {
		c.Tags = strings.Split(tags, ",")
	}
	if t, err := time.Parse(time.RFC3339Nano, m.text("date")); err == nil { // a date that is none is no date
		c.Date = t.UTC()
	}
	return c
}

// Provision makes the scope's tenant, database and collections where they are missing, and changes nothing that is there. The tenant
// is made and looked at first: the server would make a database under a tenant that is missing, and it would be nobody's.
func (c *Client) Provision(ctx context.Context) error {
	const op = "chroma.Provision"
	ctx, cancel := context.WithTimeout(ctx, c.server.cfg.Timeout)
	defer cancel()
	s := c.server
	if err := s.check(ctx); err != nil {
		return err
	}
	tenant := "/tenants/" + url.PathEscape(c.scope.Tenant())
	if err := s.do(ctx, op, http.MethodPost, "/tenants", map[string]string{"name": c.scope.Tenant()}, nil); err != nil && !fault.Is(err, fault.Conflict) {
		return err
	}
	if err := s.do(ctx, op, http.MethodGet, tenant, nil, nil); err != nil {
		return err
	}
	if err := s.do(ctx, op, http.MethodPost, tenant+"/databases", map[string]string{"name": c.scope.Database()}, nil); err != nil && !fault.Is(err, fault.Conflict) {
		return err
	}
	for _, name := range c.scope.Collections() {
		in := map[string]any{"name": string(name), "get_or_create": true, "metadata": map[string]string{"space": c.space()}, "configuration": map[string]any{"hnsw": map[string]string{"space": "cosine"}}}
		var have described
		err := s.do(ctx, op, http.MethodGet, c.path(string(name)), nil, &have) // asking first, as making again would replace the metadata
		if fault.Is(err, fault.NotFound) {
			err = s.do(ctx, op, http.MethodPost, c.path(), in, nil)
		}
		if err != nil {
			return err
		}
		if _, err := c.resolve(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Drop deletes the scope's database with all its collections. What is not there is no error. The tenant's empty name stays: the server cannot delete one.
func (c *Client) Drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.server.cfg.Timeout)
	defer cancel()
	c.server.forget(c.scope)
	err := c.server.do(ctx, "chroma.Drop", http.MethodDelete, "/tenants/"+url.PathEscape(c.scope.Tenant())+"/databases/"+url.PathEscape(c.scope.Database()), nil, nil)
	c.server.forget(c.scope) // what was learned while it went away
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// Upsert stores records, replacing those with the same id. They are sent in batches: after an error some may be stored, and sending all again is harmless.
func (c *Client) Upsert(ctx context.Context, name retrieval.Collection, records []retrieval.Record) error {
	for _, r := range records {
		if err := r.Validate(c.server.cfg.Space); err != nil {
			return err
		}
	}
	for len(records) > 0 {
		n := min(batch, len(records))
		var in struct {
			IDs        []string    `json:"ids"`
			Embeddings [][]float32 `json:"embeddings"`
			Documents  []string    `json:"documents"`
			Metadatas  []metadata  `json:"metadatas"`
		}
		last := map[string]int{} // of two records with one id the later counts; the server would refuse both
		for i, r := range records[:n] {
			last[r.ID] = i
		}
		for i, r := range records[:n] {
			if last[r.ID] != i {
				continue
			}
			in.IDs, in.Embeddings = append(in.IDs, r.ID), append(in.Embeddings, r.Vector)
			in.Documents, in.Metadatas = append(in.Documents, r.Text), append(in.Metadatas, describe(r.Chunk))
		}
		if err := c.ask(ctx, "chroma.Upsert", name, "upsert", in, nil); err != nil {
			return err
		}
		records = records[n:]
	}
	c.server.forget(c.scope) // the count is another now
	return nil
}

// Delete removes chunks by id. What is not there is no error.
func (c *Client) Delete(ctx context.Context, name retrieval.Collection, ids []string) error {
	for len(ids) > 0 { // an empty list must not reach the server, where it would mean no condition
		n := min(page, len(ids))
		if err := c.ask(ctx, "chroma.Delete", name, "delete", map[string]any{"ids": ids[:n]}, nil); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Count returns how many chunks a collection holds.
func (c *Client) Count(ctx context.Context, name retrieval.Collection) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.server.cfg.Timeout)
	defer cancel()
	k, err := c.resolve(ctx, name)
	if err != nil {
		return 0, err
	}
	var n int
	err = c.server.do(ctx, "chroma.Count", http.MethodGet, c.path(k.id, "count"), nil, &n)
	return n, err
}

// fetched is an answer to get.
type fetched struct {
	IDs       []string   `json:"ids"`
	Documents []*string  `json:"documents"`
	Metadatas []metadata `json:"metadatas"`
}

// chunks are the answer's; what has no text is left out.
func (f fetched) chunks() []retrieval.Chunk {
	out := make([]retrieval.Chunk, 0, len(f.IDs))
	for i, id := range f.IDs {
		if i >= len(f.Documents) || f.Documents[i] == nil {
			continue
		}
		var m metadata
		if i < len(f.Metadatas) {
			m = f.Metadatas[i]
		}
		out = append(out, m.chunk(id, *f.Documents[i]))
	}
	return out
}

// Export gives every chunk of a collection to yield, page by page, until yield returns an error, which is returned. What is written
// meanwhile may be missed; an organisation that leaves is locked first.
func (c *Client) Export(ctx context.Context, name retrieval.Collection, yield func(retrieval.Chunk) error) error {
	for at := 0; ; {
		var f fetched
		if err := c.ask(ctx, "chroma.Export", name, "get", map[string]any{"limit": page, "offset": at, "include": []string{"documents", "metadatas"}}, &f); err != nil {
			return err
		}
		for _, chunk := range f.chunks() {
			if err := yield(chunk); err != nil {
				return err
			}
		}
		if at += len(f.IDs); len(f.IDs) < page {
			return nil
		}
	}
}
