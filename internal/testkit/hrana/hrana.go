// Package hrana is a libSQL server for tests: Hrana version 2 over HTTP, as docs/HTTP_V2_SPEC.md of the libSQL repository
// describes it, over SQLite files.
//
// It owns streams and their batons, the request kinds and the value encoding. It refuses to know what is stored. Each
// path prefix is its own database: http://host/a/v2/pipeline and http://host/b/v2/pipeline share nothing.
//
// Invariants: a baton works once and only for the stream it was given for; a stream owns one SQLite connection; a stream
// that is idle too long is rolled back and answers STREAM_EXPIRED; all requests of a pipeline run, even after an error.
//
// One known difference from the real server: text in a column declared DATE, DATETIME or TIMESTAMP that reads as a time
// comes back in SQLite's canonical form, because the SQLite driver beneath parses it.
package hrana

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sqlite "modernc.org/sqlite"
)

// Options are the settings of a server; the zero value is usable.
type Options struct {
	Dir   string        // where the files are; empty: a temporary directory of the test
	Token string        // the bearer token clients must send; empty: none
	Idle  time.Duration // after which an idle stream expires; 0: 10 s
	Busy  time.Duration // how long a statement waits for a lock; 0: 5 s
}

// Server is one running server.
type Server struct {
	URL string // http://127.0.0.1:port

	opt  Options
	addr string
	key  []byte

	requests atomic.Int64

	mu      sync.Mutex
	http    *http.Server
	serving chan struct{}
	dbs     map[string]*sql.DB
	streams map[uint64]*stream
	expired map[uint64]time.Time
	next    uint64
}

// Start runs a server on a loopback port until the test ends.
func Start(t testing.TB, opt Options) *Server {
	t.Helper()
	if opt.Dir == "" {
		opt.Dir = t.TempDir()
	}
	if opt.Idle == 0 {
		opt.Idle = 10 * time.Second
	}
	if opt.Busy == 0 {
		opt.Busy = 5 * time.Second
	}
	s := &Server{opt: opt, addr: "127.0.0.1:0", key: []byte(rand.Text())}
	if err := s.Start(); err != nil {
		t.Fatalf("hrana: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Start listens again after Stop, on the same address and files.
func (s *Server) Start() error {
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr, s.URL = l.Addr().String(), "http://"+l.Addr().String()
	s.dbs, s.streams, s.expired = map[string]*sql.DB{}, map[uint64]*stream{}, map[uint64]time.Time{}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	s.serving = make(chan struct{})
	go func(h *http.Server, done chan struct{}) {
		defer close(done)
		_ = h.Serve(l) // always ErrServerClosed after Stop
	}(s.http, s.serving)
	return nil
}

// Stop cuts every connection and rolls back every open transaction, as a crash of the server would. It may be called twice.
func (s *Server) Stop() {
	s.mu.Lock()
	h, done := s.http, s.serving
	s.http = nil
	s.mu.Unlock()
	if h == nil {
		return
	}
	_ = h.Close()
	<-done
	s.mu.Lock()
	streams, dbs := s.streams, s.dbs
	s.streams, s.dbs = map[uint64]*stream{}, map[string]*sql.DB{}
	s.mu.Unlock()
	for _, st := range streams {
		st.mu.Lock()
		st.end()
		st.mu.Unlock()
	}
	for _, db := range dbs {
		_ = db.Close()
	}
}

// Requests counts the pipelines answered so far.
func (s *Server) Requests() int64 { return s.requests.Load() }

// Streams counts the open streams.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// ExpireAll ends all streams that are not at work this moment, as their idle time running out would.
func (s *Server) ExpireAll() {
	s.mu.Lock()
	var all []*stream
	for _, st := range s.streams {
		all = append(all, st)
	}
	s.mu.Unlock()
	for _, st := range all {
		s.expire(st)
	}
}

var prefixGrammar = regexp.MustCompile(`^(/[a-z0-9-]{1,64})*$`)

// ServeHTTP answers GET {prefix}/v2 and POST {prefix}/v2/pipeline.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.opt.Token != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+s.opt.Token)) != 1 {
		answer(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized: the token is missing or wrong"})
		return
	}
	if prefix, ok := strings.CutSuffix(r.URL.Path, "/v2"); ok && r.Method == http.MethodGet && prefixGrammar.MatchString(prefix) {
		w.WriteHeader(http.StatusOK)
		return
	}
	prefix, ok := strings.CutSuffix(r.URL.Path, "/v2/pipeline")
	if !ok || r.Method != http.MethodPost || !prefixGrammar.MatchString(prefix) {
		answer(w, http.StatusNotFound, map[string]string{"error": "not found"})
		return
	}
	s.requests.Add(1)
	var req pipelineRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<20))
	dec.UseNumber()
	if err := dec.Decode(&req); err != nil {
		protocolError(w, http.StatusBadRequest, "could not read the pipeline: "+err.Error(), "")
		return
	}
	st, err := s.stream(r.Context(), prefix, req.Baton)
	if err != nil {
		var pe *protocolFault
		if errors.As(err, &pe) {
			protocolError(w, pe.status, pe.message, pe.code)
			return
		}
		protocolError(w, http.StatusInternalServerError, err.Error(), "")
		return
	}
	// s.stream locked it: pipelines of one stream are serial.
	defer st.mu.Unlock()
	resp := pipelineResponse{Results: []streamResult{}}
	for _, q := range req.Requests {
		// The request's own context would cancel a statement halfway; the real server runs it to the end too.
		body, err := st.run(context.WithoutCancel(r.Context()), q)
		if err != nil {
			resp.Results = append(resp.Results, streamResult{Type: "error", Error: describeError(err)})
			continue
		}
		resp.Results = append(resp.Results, streamResult{Type: "ok", Response: body})
	}
	if st.closed {
		s.forget(st)
	} else {
		st.seq++
		baton := s.baton(st.id, st.seq)
		resp.Baton = &baton
		st.timer.Reset(s.opt.Idle)
	}
	answer(w, http.StatusOK, resp)
}

// stream finds the stream of a baton, or opens a new one, and returns it locked.
func (s *Server) stream(ctx context.Context, prefix string, baton *string) (*stream, error) {
	if baton == nil || *baton == "" {
		return s.open(ctx, prefix)
	}
	id, seq, ok := s.readBaton(*baton)
	if !ok {
		return nil, &protocolFault{http.StatusBadRequest, "Received an invalid baton", ""}
	}
	s.mu.Lock()
	st, live := s.streams[id]
	at, dead := s.expired[id]
	s.mu.Unlock()
	if !live {
		if dead && time.Since(at) < 300*time.Second {
			return nil, &protocolFault{http.StatusBadRequest, "The stream has expired due to inactivity", "STREAM_EXPIRED"}
		}
		return nil, &protocolFault{http.StatusBadRequest, "Received an invalid baton: stream not found", ""}
	}
	st.mu.Lock()
	switch {
	case st.closed:
		st.mu.Unlock()
		return nil, &protocolFault{http.StatusBadRequest, "The stream has expired due to inactivity", "STREAM_EXPIRED"}
	case st.seq != seq || st.prefix != prefix:
		// A baton used twice may mean that an answer was lost: nobody knows what the client believes, so the stream ends.
		st.end()
		s.forget(st)
		st.mu.Unlock()
		return nil, &protocolFault{http.StatusBadRequest, "Received a baton that was used before", ""}
	}
	st.timer.Stop()
	return st, nil
}

func (s *Server) open(ctx context.Context, prefix string) (*stream, error) {
	db, err := s.database(prefix)
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	st := &stream{prefix: prefix, conn: conn, sqls: map[int32]string{}}
	st.mu.Lock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		st.end()
		st.mu.Unlock()
		return nil, errors.New("the server stops")
	}
	s.next++
	st.id = s.next
	s.streams[st.id] = st
	st.timer = time.AfterFunc(time.Hour, func() { s.expire(st) })
	st.timer.Stop()
	return st, nil
}

func (s *Server) database(prefix string) (*sql.DB, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(prefix, "/"), "/", "_")
	if name == "" {
		name = "main"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if db, ok := s.dbs[name]; ok {
		return db, nil
	}
	path := url.PathEscape(filepath.Join(s.opt.Dir, name+".db"))
	c, err := sqlite.NewConnector("file:" + strings.ReplaceAll(path, "%2F", "/") + "?_pragma=busy_timeout(" + milliseconds(s.opt.Busy) + ")&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(c)
	// The first connection alone turns the file to WAL: two that do it at once find it locked, whatever the busy timeout.
	if err := db.Ping(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.dbs[name] = db
	return db, nil
}

func (s *Server) expire(st *stream) {
	if !st.mu.TryLock() {
		return // at work: not idle
	}
	defer st.mu.Unlock()
	if st.closed {
		return
	}
	st.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st.id)
	s.expired[st.id] = time.Now()
}

func (s *Server) forget(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st.id)
}

func (s *Server) baton(id, seq uint64) string {
	b := binary.BigEndian.AppendUint64(nil, id)
	b = binary.BigEndian.AppendUint64(b, seq)
	return base64.StdEncoding.EncodeToString(append(b, s.mac(b)...))
}

func (s *Server) readBaton(baton string) (id, seq uint64, ok bool) {
	b, err := base64.StdEncoding.DecodeString(baton)
	if err != nil || len(b) != 16+sha256.Size || !hmac.Equal(b[16:], s.mac(b[:16])) {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), true
}

func (s *Server) mac(b []byte) []byte {
	m := hmac.New(sha256.New, s.key)
	m.Write(b)
	return m.Sum(nil)
}

type protocolFault struct {
	status        int
	message, code string
}

func (p *protocolFault) Error() string { return p.message }

func protocolError(w http.ResponseWriter, status int, message, code string) {
	answer(w, status, streamError{Message: message, Code: code})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body) // the client is gone
}
