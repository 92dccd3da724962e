package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/policy/spill"
	"github.com/lossless-group/gateway/tenancy"
)

// Config is the one configuration file. What organisations can change is data, not configuration.
type Config struct {
	Listen    string `yaml:"listen"`    // address of the API
	Data      string `yaml:"data"`      // directory of the journal, and of file databases by default
	PublicURL string `yaml:"publicUrl"` // how browsers reach us; the origin session cookies are accepted from

	Database  DatabaseConfig            `yaml:"database"`  // where the databases are: file: is SQLite in this process; libsql:, https: and http: a libSQL server
	MasterKey SecretRef                 `yaml:"masterKey"` // 32 bytes, base64; several separated by commas during rotation, newest first
	Identity  IdentityConfig            `yaml:"identity"`  // whose tokens are accepted
	Providers map[string]ProviderConfig `yaml:"providers"` // by name; the name is what keys and models refer to
	Models    []ModelConfig             `yaml:"models"`    // which model goes where; the longest matching prefix wins
	Plans     map[string]PlanConfig     `yaml:"plans"`     // named sets of limits; an organisation is on one
	Chroma    ChromaConfig              `yaml:"chroma"`    // names that token and cache series carry
	Telemetry TelemetryConfig           `yaml:"telemetry"` // where metrics are served
	Limits    LimitsConfig              `yaml:"limits"`    // bounds of single requests
	Policy    PolicyConfig              `yaml:"policy"`    // what no organisation can go below
	Redaction RedactionConfig           `yaml:"redaction"` // what organisations may have looked for beside what is built in
	Apps      AppsConfig                `yaml:"apps"`      // host apps and their capabilities
	Webhooks  WebhooksConfig            `yaml:"webhooks"`  // where organisations are told of their budgets
}

// DatabaseConfig says where the databases are. file: is SQLite here, libsql:, https: and http: a libSQL server.
type DatabaseConfig struct {
	Control   string    `yaml:"control"`   // URL of the control database; empty: a file below data
	Tenant    string    `yaml:"tenant"`    // URL of a tenant database with {slug} in it once; empty: files below data
	AuthToken SecretRef `yaml:"authToken"` // bearer token for a libSQL server
}

// IdentityConfig lists whose tokens are accepted.
type IdentityConfig struct {
	Issuers []tenancy.Issuer `yaml:"issuers"` // identity services
	Proxies []string         `yaml:"proxies"` // addresses and ranges of the proxies in front of the gateway, whose X-Forwarded-For says where a request came from
	Origins []string         `yaml:"origins"` // further origins a session cookie is accepted from
}

// ProviderConfig is one model provider.
type ProviderConfig struct {
	Kind       string            `yaml:"kind"`       // which API it speaks; empty: the same as the name
	BaseURL    string            `yaml:"baseUrl"`    // empty: the provider's own
	API        string            `yaml:"api"`        // openai: chat or responses; bedrock: converse or invoke
	APIVersion string            `yaml:"apiVersion"` // azure: asks for the deployment paths of that version
	Deployment string            `yaml:"deployment"` // azure, with apiVersion: the deployment; empty: the model's name
	Region     string            `yaml:"region"`     // bedrock
	Project    string            `yaml:"project"`    // vertex: id of the Google Cloud project
	Location   string            `yaml:"location"`   // vertex: region, or global
	Publisher  string            `yaml:"publisher"`  // vertex: google or anthropic
	Headers    map[string]string `yaml:"headers"`    // openai and its kin: sent with every request; never credentials
	CAFile     string            `yaml:"caFile"`     // PEM file of the only certificate authorities that are trusted for it
	Proxy      string            `yaml:"proxy"`      // URL of the proxy in front of it, env:NAME or file:PATH of one with a password, or none; empty: as the environment says

	Connections int `yaml:"connections"` // idle connections kept for reuse; 0: 256
}

// ModelConfig maps a model name, or a prefix ending in *, to a provider.
type ModelConfig struct {
	Name          string        `yaml:"name"`          // a model's name, or a prefix ending in *
	Routes        []RouteConfig `yaml:"routes"`        // ways to reach it, in the order they are tried
	Fallbacks     []string      `yaml:"fallbacks"`     // models tried, in order, when no route answers
	Title         string        `yaml:"title"`         // what people see
	ContextWindow int           `yaml:"contextWindow"` // tokens of prompt and answer together
	MaxOutput     int           `yaml:"maxOutput"`     // tokens of an answer
	Input         []string      `yaml:"input"`         // what may be sent: text, image, pdf, audio, video
	Output        []string      `yaml:"output"`        // what comes back: text, image, audio, embedding
}

// RouteConfig is one way to reach a model.
type RouteConfig struct {
	Provider string `yaml:"provider"` // a name of providers
	Model    string `yaml:"model"`    // the provider's own name; empty: the same
	Weight   int    `yaml:"weight"`   // share of the threads among the routes that have one; 0: tried in order after those
}

// PlanConfig is a named set of limits.
type PlanConfig struct {
	RequestsPerMinute     int  `yaml:"requestsPerMinute"`     // turns per organisation, at least 1
	Burst                 int  `yaml:"burst"`                 // turns at once; 0: as many as requestsPerMinute
	InputTokensPerMinute  int  `yaml:"inputTokensPerMinute"`  // tokens of prompts per organisation; 0: no limit
	OutputTokensPerMinute int  `yaml:"outputTokensPerMinute"` // tokens of answers per organisation; 0: no limit
	CountCachedInput      bool `yaml:"countCachedInput"`      // what a provider reads from its cache counts as input too
	Concurrent            int  `yaml:"concurrent"`            // turns at the same time, at least 1
}

// ChromaConfig names where vectors live; token and cache series carry these names.
type ChromaConfig struct {
	TenantPrefix string `yaml:"tenantPrefix"` // before an organisation's slug
	Database     string `yaml:"database"`     // within the tenant
}

// TelemetryConfig says where metrics are served.
type TelemetryConfig struct {
	MetricsListen string `yaml:"metricsListen"` // separate address of /metrics; empty: on the API's
}

// LimitsConfig bounds single requests.
type LimitsConfig struct {
	MaxBodyMiB int           `yaml:"maxBodyMiB"` // largest request body
	DrainFor   time.Duration `yaml:"drainFor"`   // how long an answer is read on for its usage after the caller left
	DrainKiB   int64         `yaml:"drainKiB"`   // and how much of it
	Shutdown   time.Duration `yaml:"shutdown"`   // how long streams may go on after SIGTERM
	FirstByte  time.Duration `yaml:"firstByte"`  // how long a provider may take to accept a request
	Idle       time.Duration `yaml:"idle"`       // how long a provider's stream may be silent
	Attempts   int           `yaml:"attempts"`   // calls of providers for one request at most, before the first byte of an answer
	RetryFor   time.Duration `yaml:"retryFor"`   // no further call begins later than this after the request did
	Trip       int           `yaml:"trip"`       // failures in a row after which a provider is left alone under a key
	TripFor    time.Duration `yaml:"tripFor"`    // how long it then is
	PreviewTTL time.Duration `yaml:"previewTTL"` // how long a preview waits for a person
	Grace      time.Duration `yaml:"grace"`      // how long a run of the agent goes on when nobody listens any more
	KeepEvents time.Duration `yaml:"keepEvents"` // how long what a run said can be replayed event by event
}

// PolicyConfig is what no organisation can go below.
type PolicyConfig struct {
	RedactionFloor string        `yaml:"redactionFloor"` // off, balanced or strict; empty: off
	KeepDecisions  time.Duration `yaml:"keepDecisions"`  // how long the decision log is kept, at least an hour

	DecisionSpillMiB int `yaml:"decisionSpillMiB"` // disk space below data for decisions whose database is away; a quarter of it for one organisation

	UnreadyAfter time.Duration `yaml:"unreadyAfter"` // without having seen what was published last, a process asks for no more requests after this; at least 10s
	RefuseAfter  time.Duration `yaml:"refuseAfter"`  // and refuses them after this; not shorter than unreadyAfter
}

// RedactionConfig lists the detectors organisations may switch on by name.
type RedactionConfig struct {
	Detectors []DetectorConfig `yaml:"detectors"` // services that find what the gateway cannot, such as names; texts are sent to them
}

// DetectorConfig is one external detector.
type DetectorConfig struct {
	Name     string        `yaml:"name"`     // what redaction documents call it: a-z, 0-9 and dashes
	URL      string        `yaml:"url"`      // where it answers; http or https
	Timeout  time.Duration `yaml:"timeout"`  // for all texts of one request, at most 10s; empty: 500ms
	Fail     string        `yaml:"fail"`     // closed: nothing is sent to a provider while it does not answer; open: texts pass; empty: closed
	Entities []string      `yaml:"entities"` // what it may report, such as PERSON and LOCATION
}

// WebhooksConfig is where organisations' webhooks may lead.
type WebhooksConfig struct {
	Allow []string `yaml:"allow"` // hosts and networks webhooks may reach although they are private or speak plain HTTP
}

// SecretRef is a secret by reference: env:NAME or file:PATH. A value written out is refused, so that a configuration file can be shown.
type SecretRef string

// Resolve reads the secret; an empty reference is no secret.
func (r SecretRef) Resolve() (keyring.Secret, error) {
	kind, where, ok := strings.Cut(string(r), ":")
	switch {
	case r == "":
		return keyring.Secret{}, nil
	case ok && kind == "env":
		v, set := os.LookupEnv(where)
		if !set || v == "" {
			return keyring.Secret{}, fmt.Errorf("environment variable %s is not set", where)
		}
		return keyring.NewSecret(v), nil
	case ok && kind == "file":
		b, err := os.ReadFile(where)
		if err != nil {
			return keyring.Secret{}, err
		}
		return keyring.NewSecret(strings.TrimSpace(string(b))), nil
	}
	return keyring.Secret{}, errors.New("write secrets as env:NAME or file:PATH, never their value")
}

// defaults are the settings a file need not repeat.
func defaults() Config {
	return Config{
		Listen: "127.0.0.1:8080", Data: "./data",
		Chroma: ChromaConfig{TenantPrefix: "client__", Database: "default"},
		Plans: map[string]PlanConfig{
			"paying":    {RequestsPerMinute: 300, Concurrent: 32},
			"lingering": {RequestsPerMinute: 60, Concurrent: 4},
		},
		Limits: LimitsConfig{MaxBodyMiB: 20, DrainFor: 15 * time.Second, DrainKiB: 64, Shutdown: 25 * time.Second, FirstByte: time.Minute, Idle: 90 * time.Second, Attempts: 3, RetryFor: time.Minute, Trip: 5, TripFor: 15 * time.Second, PreviewTTL: 7 * 24 * time.Hour, Grace: 15 * time.Second, KeepEvents: 24 * time.Hour},
		Policy: PolicyConfig{KeepDecisions: 7 * 24 * time.Hour, DecisionSpillMiB: spill.DefaultBytes >> 20, UnreadyAfter: policy.DefaultUnreadyAfter, RefuseAfter: policy.DefaultRefuseAfter}, Apps: AppsConfig{Refresh: appsRefresh},
	}
}

// readConfig reads a file over base; unknown keys are refused with their line.
func readConfig(path string, base Config) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return base, fmt.Errorf("configuration: %w", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&base); err != nil && !errors.Is(err, io.EOF) {
		return base, fmt.Errorf("configuration %s: %w", path, err)
	}
	return base, nil
}

// complete fills what follows from other settings and joins everything that is wrong.
func (c *Config) complete(dev bool) error {
	var bad []error
	fail := func(format string, args ...any) { bad = append(bad, fmt.Errorf(format, args...)) }
	if c.Database.Control == "" {
		c.Database.Control = "file:" + filepath.Join(c.Data, "control.db")
	}
	if c.Database.Tenant == "" {
		c.Database.Tenant = "file:" + filepath.Join(c.Data, "tenants", "{slug}.db")
	}
	if c.PublicURL == "" {
		c.PublicURL = "http://" + c.Listen
	}
	if u, err := url.Parse(c.PublicURL); err != nil || u.Scheme == "" || u.Host == "" {
		fail("publicUrl: %q is not a URL such as https://agent.example", c.PublicURL)
	}
	if len(c.Plans) == 0 {
		fail("plans: define at least one")
	}
	for name, p := range c.Plans {
		if p.RequestsPerMinute < 1 || p.Concurrent < 1 {
			fail("plans.%s: requestsPerMinute and concurrent must be at least 1", name)
		}
		if p.Burst < 0 || p.InputTokensPerMinute < 0 || p.OutputTokensPerMinute < 0 {
			fail("plans.%s: burst, inputTokensPerMinute and outputTokensPerMinute cannot be negative", name)
		}
	}
	if len(c.Providers) == 0 {
		fail("providers: define at least one")
	}
	for name, p := range c.Providers {
		if p.Kind == "" {
			p.Kind = name
			c.Providers[name] = p
		}
		switch {
		case p.Kind == "demo" && !dev:
			fail("providers.%s: the demo provider runs under gateway dev only", name)
		case !slices.Contains(providerKinds(), p.Kind):
			fail("providers.%s.kind: %q is not a kind; use one of %s", name, p.Kind, strings.Join(providerKinds(), ", "))
		}
	}
	if len(c.Models) == 0 {
		fail("models: route at least one, for example {name: \"claude-*\", routes: [{provider: anthropic}]}")
	}
	for i, m := range c.Models {
		if len(m.Routes) == 0 {
			fail("models[%d] (%s): give at least one route", i, m.Name)
		}
	}
	if !dev {
		if len(c.Identity.Issuers) == 0 {
			fail("identity.issuers: name at least one")
		}
		if c.MasterKey == "" {
			fail("masterKey: set env:NAME or file:PATH of 32 bytes in base64")
		}
		if _, err := proxies(c.Identity.Proxies); err != nil {
			fail("%v", err)
		}
		for i, is := range c.Identity.Issuers {
			if is.ID == devIssuer {
				fail("identity.issuers[%d]: %s is the issuer of gateway dev", i, devIssuer)
			}
		}
	}
	for name, d := range map[string]time.Duration{"drainFor": c.Limits.DrainFor, "shutdown": c.Limits.Shutdown, "firstByte": c.Limits.FirstByte, "idle": c.Limits.Idle, "retryFor": c.Limits.RetryFor, "tripFor": c.Limits.TripFor, "previewTTL": c.Limits.PreviewTTL, "grace": c.Limits.Grace, "keepEvents": c.Limits.KeepEvents} {
		if d < 0 {
			fail("limits.%s: cannot be negative", name)
		}
	}
	if _, err := c.detectors(time.Now); err != nil {
		bad = append(bad, err)
	}
	if c.Policy.KeepDecisions < time.Hour {
		fail("policy.keepDecisions: must be at least 1h; replaying a draft needs the decisions of the last days")
	}
	if c.Policy.DecisionSpillMiB < 8 {
		fail("policy.decisionSpillMiB: must be at least 8; it is what keeps decisions while their database is away")
	}
	if err := policy.CheckReplicaLimits(c.Policy.UnreadyAfter, c.Policy.RefuseAfter); err != nil {
		fail("policy%s: %s", strings.ReplaceAll(fault.From(err).Field, "/", "."), fault.From(err).Public)
	}
	if c.Limits.Attempts < 1 || c.Limits.Attempts > 10 {
		fail("limits.attempts: must be between 1 and 10")
	}
	if c.Limits.Trip < 1 {
		fail("limits.trip: must be at least 1")
	}
	if c.Limits.DrainKiB < 0 {
		fail("limits.drainKiB: cannot be negative")
	}
	if c.Limits.MaxBodyMiB < 1 || c.Limits.MaxBodyMiB > 512 {
		fail("limits.maxBodyMiB: must be between 1 and 512")
	}
	return errors.Join(bad...)
}

func (c *Config) plans() map[string]billing.Plan {
	out := make(map[string]billing.Plan, len(c.Plans))
	for name, p := range c.Plans {
		out[name] = billing.Plan{RequestsPerMinute: p.RequestsPerMinute, Burst: p.Burst, InputTokensPerMinute: p.InputTokensPerMinute, OutputTokensPerMinute: p.OutputTokensPerMinute, CountCached: p.CountCachedInput, Concurrent: p.Concurrent}
	}
	return out
}

func (c *Config) origins() []string {
	origins := append([]string(nil), c.Identity.Origins...)
	if u, err := url.Parse(c.PublicURL); err == nil {
		origins = append(origins, u.Scheme+"://"+u.Host)
	}
	return origins
}
