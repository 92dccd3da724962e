// Package retrieval owns what may be searched, by whom, and how what was found is ranked.
//
// It refuses to know vector servers, files, HTTP and providers: engines give it candidates, embedders give it vectors.
//
// Invariants: a Scope is made once, checked, and never widened, and an engine's client is bound to one; collections are an
// allow-list, each at home either in the shared scope or in an organisation's own; a text is returned as it was stored, with its source and
// date; an answer has at most MaxResults hits; a part of the corpus that is away is said in a warning, never passed over in silence.
package retrieval

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
)

// Bounds of questions and of what is stored.
const (
	DefaultResults = 5
	MaxResults     = 10
	MaxQuery       = 4 << 10  // bytes of a question
	MaxText        = 16 << 10 // bytes of a chunk's text
	MaxTags        = 16       // on a chunk, and in a question
	maxLabel       = 200      // bytes of a source or a project
	maxTag         = 64       // bytes
	maxID          = 200      // bytes
	minName        = 3        // bytes of a tenant's or a database's name
	maxName        = 64
	MaxDims        = 4096
	Depth          = 50 // candidates of each kind an engine is asked for
)

// GlobalTenant is the tenant of the collections everybody may read.
const GlobalTenant = "lossless__global"

// Embedded stands for the address in scopes of the engine that needs no server.
const Embedded = "embedded:"

// Collection is one of the collections there are.
type Collection string

// The collections. The first two are in the shared scope, read only for organisations; the last is each organisation's own.
const (
	ContextVigilance  Collection = "context-vigilance-corpus"
	LosslessChangelog Collection = "lossless-changelog"
	AppSessions       Collection = "client-app-sessions"
)

// Collections lists the collections, in the order they are searched.
func Collections() []Collection {
	return []Collection{ContextVigilance, LosslessChangelog, AppSessions}
}

// ParseCollection takes a name exactly as it is in the allow-list; everything else, however spelled, is Invalid with code unknown_collection.
func ParseCollection(s string) (Collection, error) {
	for _, c := range Collections() {
		if string(c) == s {
			return c, nil
		}
	}
	return "", fault.New(fault.Invalid, "retrieval.ParseCollection", "unknown_collection",
		"There is no such collection. Search context-vigilance-corpus, lossless-changelog or client-app-sessions.")
}

// Global reports whether the collection is in the shared scope.
func (c Collection) Global() bool { return c == ContextVigilance || c == LosslessChangelog }

// Scope is the one place an engine's client can address: a server, a tenant on it, a database of the tenant. The zero value addresses nothing.
type Scope struct{ url, tenant, database string }

// NewScope makes the scope of one organisation. address is Embedded or an http or https URL of a server, without credentials, query and
// fragment. Errors are Invalid with code invalid_scope; the shared tenant is refused here.
func NewScope(address, tenant, database string) (Scope, error) {
	if tenant == GlobalTenant {
		return Scope{}, badScope("An organisation cannot have the shared tenant's name.")
	}
	return newScope(address, tenant, database)
}

// NewGlobalScope makes the scope of the collections everybody may read.
func NewGlobalScope(address, database string) (Scope, error) {
	return newScope(address, GlobalTenant, database)
}

func newScope(address, tenant, database string) (Scope, error) {
	if address != Embedded {
		u, err := url.Parse(address)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return Scope{}, badScope("The vector server's address must be an http or https URL without credentials, query and fragment.")
		}
		address = strings.TrimRight(address, "/")
	}
	for _, n := range []string{tenant, database} {
		if !goodName(n) {
			return Scope{}, badScope(fmt.Sprintf("Names of tenants and databases have %d to %d of a-z, 0-9, _ and -, the first a letter or a digit.", minName, maxName))
		}
	}
	return Scope{address, tenant, database}, nil
}

func badScope(public string) error {
	return fault.New(fault.Invalid, "retrieval.NewScope", "invalid_scope", public)
}

func goodName(s string) bool {
	if len(s) < minName || len(s) > maxName || s[0] == '_' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// URL returns the server's address without a slash at its end, or Embedded.
func (s Scope) URL() string { return s.url }

// Tenant returns the tenant's name.
func (s Scope) Tenant() string { return s.tenant }

// Database returns the database's name.
func (s Scope) Database() string { return s.database }

// IsZero reports whether the scope addresses nothing.
func (s Scope) IsZero() bool { return s == Scope{} }

// Collections lists the collections that are at home in the scope.
func (s Scope) Collections() []Collection {
	var out []Collection
	for _, c := range Collections() {
		if c.Global() == (s.tenant == GlobalTenant) && !s.IsZero() {
			out = append(out, c)
		}
	}
	return out
}

// Admit refuses a collection that is not at home in the scope: Invalid with code unknown_collection. Engines ask it before anything else.
func (s Scope) Admit(c Collection) error {
	if _, err := ParseCollection(string(c)); err != nil {
		return err
	}
	if s.IsZero() || c.Global() != (s.tenant == GlobalTenant) {
		return fault.New(fault.Invalid, "retrieval.Admit", "unknown_collection", "This collection does not live here.")
	}
	return nil
}

// Space says what vectors mean: the embedder that made them, and how many numbers they have. Vectors of two spaces cannot be compared.
type Space struct {
	Name string `json:"name"`
	Dims int    `json:"dims"`
}

// Validate refuses a space nothing can be stored in.
func (s Space) Validate() error {
	if s.Name == "" || len(s.Name) > maxLabel || s.Dims < 1 || s.Dims > MaxDims {
		return fault.New(fault.Invalid, "retrieval.Space", "invalid_space", fmt.Sprintf("An embedder needs a name and 1 to %d dimensions.", MaxDims))
	}
	return nil
}

// Chunk is one passage as it was stored.
type Chunk struct {
	ID      string    `json:"id"`
	Text    string    `json:"text"`
	Source  string    `json:"source,omitempty"`
	Date    time.Time `json:"date,omitzero"`
	Tags    []string  `json:"tags,omitempty"`
	Project string    `json:"project,omitempty"`
}

// Validate returns Invalid with code invalid_chunk for what cannot be stored.
func (c Chunk) Validate() error {
	bad := func(public string) error {
		return fault.New(fault.Invalid, "retrieval.Chunk", "invalid_chunk", public)
	}
	switch {
	case c.ID == "" || len(c.ID) > maxID || strings.ContainsFunc(c.ID, func(r rune) bool { return r <= ' ' || r > '~' }):
		return bad(fmt.Sprintf("A chunk's id has 1 to %d printable ASCII characters without spaces.", maxID))
	case c.Text == "" || len(c.Text) > MaxText || !utf8.ValidString(c.Text):
		return bad(fmt.Sprintf("A chunk's text is UTF-8 of 1 to %d bytes.", MaxText))
	case len(c.Source) > maxLabel || len(c.Project) > maxLabel || !utf8.ValidString(c.Source) || !utf8.ValidString(c.Project):
		return bad(fmt.Sprintf("A chunk's source and project are UTF-8 of at most %d bytes.", maxLabel))
	}
	return checkTags(c.Tags, bad)
}

func checkTags(tags []string, bad func(string) error) error {
	if len(tags) > MaxTags {
		return bad(fmt.Sprintf("There are at most %d tags.", MaxTags))
	}
	for _, t := range tags {
		if t == "" || len(t) > maxTag || !utf8.ValidString(t) || strings.ContainsAny(t, ",\n") {
			return bad(fmt.Sprintf("A tag has 1 to %d bytes of UTF-8 and no comma.", maxTag))
		}
	}
	return nil
}

// Record is a chunk with its vector.
type Record struct {
	Chunk
	Vector []float32
}

// Validate checks the chunk and that the vector is one of the space: its length, every number finite, not all zero.
func (r Record) Validate(s Space) error {
	if err := r.Chunk.Validate(); err != nil {
		return err
	}
	return CheckVector(r.Vector, s)
}

// CheckVector returns Invalid with code invalid_vector for a vector that is not one of the space.
func CheckVector(v []float32, s Space) error {
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if len(v) != s.Dims || !(sum > 0 && sum < 1e30) {
		return fault.New(fault.Invalid, "retrieval.CheckVector", "invalid_vector", fmt.Sprintf("A vector here has %d finite numbers, not all of them zero.", s.Dims))
	}
	return nil
}

// Probe is what an engine is asked in one collection. Vector is nil when only words are looked for, Terms is empty when only the vector is.
type Probe struct {
	Vector  []float32
	Terms   []string // of Terms
	Project string   // only chunks of this project; empty: of all
	Depth   int      // candidates of each kind
}

// Candidates are what an engine found, best first, each chunk at most once in a list.
type Candidates struct {
	ByVector []Chunk
	ByText   []Chunk
}

// Index finds candidates in one scope and cannot address another. A collection that was never provisioned is NotFound, code
// collection_missing; an engine that cannot answer is Unavailable, within its own time limit.
type Index interface {
	Scope() Scope
	Candidates(ctx context.Context, c Collection, p Probe) (Candidates, error)
}

// Embedder turns texts into vectors of its space, one each, in their order.
type Embedder interface {
	Space() Space
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}
