package dispatch

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// maxDocument bounds an app's document in bytes: skills are whole texts.
const maxDocument = 4 << 20

//go:embed document.schema.json
var documentSchema []byte

// DocumentSchema is the JSON Schema of an app's document, as published.
func DocumentSchema() []byte { return bytes.Clone(documentSchema) }

var documentChecker = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(documentSchema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	const at = "app:///document"
	if err := c.AddResource(at, doc); err != nil {
		return nil, err
	}
	return c.Compile(at)
})

// Document is what an app registers: its capabilities and how to reach them. Secrets stand in it as they were written: sealed by whoever
// stores it, and never shown (Shown).
type Document struct {
	Version      int                  `json:"version"`
	App          string               `json:"app"`
	Title        string               `json:"title,omitempty"`
	Orgs         []string             `json:"orgs,omitempty"` // domains; nil: every organisation
	Webhook      *WebhookDoc          `json:"webhook,omitempty"`
	MCP          map[string]MCPDoc    `json:"mcp,omitempty"`
	Skills       map[string]string    `json:"skills,omitempty"`
	Capabilities []CapabilityDocument `json:"capabilities"`
}

// WebhookDoc is where an app is called, and with which secrets calls are signed, the newest first.
type WebhookDoc struct {
	URL          string     `json:"url"`
	Secrets      secretList `json:"secret"`
	AllowPrivate bool       `json:"allowPrivate,omitempty"`
}

// secretList is one secret or several.
type secretList []string

// UnmarshalJSON takes a text or a list of texts.
func (l *secretList) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*l = secretList{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(l))
}

// MCPDoc is one tool server: an address, or a program that the operator lets us start.
type MCPDoc struct {
	URL          string            `json:"url,omitempty"`
	Command      []string          `json:"command,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	AllowPrivate bool              `json:"allowPrivate,omitempty"`
}

// CapabilityDocument is one capability as an app writes it.
type CapabilityDocument struct {
	Name                 string          `json:"name"`
	Title                string          `json:"title,omitempty"`
	Description          string          `json:"description"`
	AdminDescription     string          `json:"adminDescription,omitempty"`
	OneLine              string          `json:"oneLine,omitempty"`
	InputSchema          json.RawMessage `json:"inputSchema"`
	OutputSchema         json.RawMessage `json:"outputSchema,omitempty"`
	Kind                 Kind            `json:"kind"`
	RequiredTier         string          `json:"requiredTier,omitempty"`
	RequiresConfirmation bool            `json:"requiresConfirmation,omitempty"`
	ConfirmBy            string          `json:"confirmBy,omitempty"`
	Gating               string          `json:"gating,omitempty"`
	Annotations          Annotations     `json:"annotations,omitzero"`
	Timeout              string          `json:"timeout,omitempty"`
	Postconditions       []Postcondition `json:"postconditions,omitempty"`
	Chat                 Hints           `json:"chat,omitzero"`
	Handler              HandlerDoc      `json:"handler"`
}

// HandlerDoc says what runs a capability.
type HandlerDoc struct {
	Kind    string `json:"kind"` // webhook, mcp, builtin, skill
	Path    string `json:"path,omitempty"`
	Server  string `json:"server,omitempty"`
	Tool    string `json:"tool,omitempty"`
	Skill   string `json:"skill,omitempty"`
	Builtin string `json:"builtin,omitempty"`
}

const opDocument = "dispatch.ParseDocument"

// ParseDocument reads an app's document and holds it against its JSON Schema. app is the name it must be for; empty: any. trusted says that
// an operator's own file is read, which alone may start programs, read secrets from this machine and reach private networks.
//
// Errors are of kind Invalid and code invalid_registry, and name the fields by JSON pointer.
func ParseDocument(raw []byte, app string, trusted bool) (Document, error) {
	invalid := func(format string, args ...any) (Document, error) {
		return Document{}, fault.New(fault.Invalid, opDocument, "invalid_registry", fmt.Sprintf(format, args...))
	}
	if len(raw) > maxDocument {
		return invalid("The document is larger than %d MiB.", maxDocument>>20)
	}
	if err := distinctKeys(raw); err != nil {
		return invalid("The document is not one JSON object: %v.", err)
	}
	checker, err := documentChecker()
	if err != nil {
		return Document{}, fault.From(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return invalid("The document is not one JSON object: %v.", err)
	}
	if message := validate(checker, doc); message != "" {
		return invalid("The document does not fit its schema. %s", message)
	}
	var d Document
	if err := json.Unmarshal(raw, &d); err != nil {
		return Document{}, fault.Wrap(fault.Invalid, opDocument, "invalid_registry", "The document could not be read.", err)
	}
	if app != "" && d.App != app {
		return invalid("At /app: the document is for the app %q, and was sent to %q.", d.App, app)
	}
	for i, o := range d.Orgs {
		if _, err := tenancy.ParseOrgID(o); err != nil {
			return invalid("At /orgs/%d: %q is not the domain of an organisation.", i, clip(o, 80))
		}
	}
	if !trusted {
		if at, why := d.needsTrust(); at != "" {
			return invalid("At %s: %s. Ask the operator to register the app from a file.", at, why)
		}
	}
	if err := d.references(); err != nil {
		return Document{}, err
	}
	return d, nil
}

// needsTrust finds what only an operator's own file may say.
func (d Document) needsTrust() (at, why string) {
	if w := d.Webhook; w != nil {
		if w.AllowPrivate {
			return "/webhook/allowPrivate", "private addresses are the operator's to allow"
		}
		for _, s := range w.Secrets {
			if !strings.HasPrefix(s, "whsec_") {
				return "/webhook/secret", "a secret that lies on the gateway's machine is the operator's to name"
			}
		}
	}
	for _, name := range sortedKeys(d.MCP) {
		switch s := d.MCP[name]; {
		case len(s.Command) > 0:
			return "/mcp/" + name + "/command", "programs are the operator's to start"
		case len(s.Env) > 0: // its values may name secrets of this machine
			return "/mcp/" + name + "/env", "the environment of programs is the operator's to set"
		case s.AllowPrivate:
			return "/mcp/" + name + "/allowPrivate", "private addresses are the operator's to allow"
		}
	}
	return "", ""
}

// references checks what one part of the document says of another.
func (d Document) references() error {
	for i, c := range d.Capabilities {
		at := fmt.Sprintf("/capabilities/%d", i)
		bad := func(field, format string, args ...any) error {
			return fault.New(fault.Invalid, opDocument, "invalid_registry", fmt.Sprintf("At %s%s: %s", at, field, fmt.Sprintf(format, args...)))
		}
		switch h := c.Handler; h.Kind {
		case "webhook":
			if d.Webhook == nil {
				return bad("/handler", "the document has no webhook to call.")
			}
		case "mcp":
			if _, ok := d.MCP[h.Server]; !ok {
				return bad("/handler/server", "there is no server %q under mcp.", h.Server)
			}
		case "skill":
			if _, ok := d.Skills[h.Skill]; !ok {
				return bad("/handler/skill", "there is no skill %q under skills.", h.Skill)
			}
		}
		if c.Gating == "mutate" && !c.RequiresConfirmation {
			return bad("/gating", "what changes something must require confirmation; set requiresConfirmation, or gating to safe.")
		}
		if c.Timeout != "" {
			if _, err := time.ParseDuration(c.Timeout); err != nil {
				return bad("/timeout", "it must be a duration such as 30s.")
			}
		}
	}
	return nil
}

// Shown is the document as people may see it: without its secrets.
func (d Document) Shown() Document {
	if d.Webhook != nil {
		w := *d.Webhook
		w.Secrets = make(secretList, len(d.Webhook.Secrets))
		for i, s := range d.Webhook.Secrets {
			w.Secrets[i] = s
			if strings.HasPrefix(s, "whsec_") {
				w.Secrets[i] = "whsec_..." + s[max(len("whsec_"), len(s)-4):]
			}
		}
		d.Webhook = &w
	}
	if len(d.MCP) > 0 {
		servers := make(map[string]MCPDoc, len(d.MCP))
		for name, s := range d.MCP {
			if len(s.Env) > 0 {
				env := make(map[string]string, len(s.Env))
				for k := range s.Env {
					env[k] = "..."
				}
				s.Env = env
			}
			servers[name] = s
		}
		d.MCP = servers
	}
	return d
}

// Handlers makes what runs a capability of an app. Its errors say what to mend.
type Handlers interface {
	Handler(d Document, c CapabilityDocument) (Handler, error)
}

// Build turns the document into capabilities, each with its handler. All faults are reported at once.
func (d Document) Build(handlers Handlers) ([]Capability, error) {
	var out []Capability
	var faults []error
	for i, c := range d.Capabilities {
		h, err := handlers.Handler(d, c)
		if err != nil {
			faults = append(faults, fmt.Errorf("/capabilities/%d (%s): %w", i, clip(c.Name, 80), publicly(err)))
			continue
		}
		tier := tenancy.TierUser
		switch c.RequiredTier {
		case "viewer":
			tier = tenancy.TierViewer
		case "admin":
			tier = tenancy.TierAdmin
		}
		by := BySelf
		if c.ConfirmBy == string(ByAdmin) || c.ConfirmBy == string(ByMember) {
			by = ConfirmBy(c.ConfirmBy)
		}
		timeout, _ := time.ParseDuration(c.Timeout) // checked by references; absent: the default
		out = append(out, Capability{
			Name: c.Name, App: d.App, Title: c.Title, Description: c.Description, AdminDescription: c.AdminDescription, OneLine: c.OneLine, InputSchema: c.InputSchema,
			OutputSchema: c.OutputSchema, Kind: c.Kind, RequiredTier: tier, RequiresConfirmation: c.RequiresConfirmation, ConfirmBy: by, Annotations: c.Annotations,
			Hints: c.Chat, Postconditions: c.Postconditions, Timeout: timeout, Handler: h,
		})
	}
	if len(faults) > 0 {
		joined := errors.Join(faults...)
		return nil, fault.Wrap(fault.Invalid, "dispatch.Build", "invalid_registry", "The app's capabilities have faults; mend each of them: "+strings.ReplaceAll(joined.Error(), "\n", "; ")+".", joined)
	}
	return out, nil
}

// publicly is an error's public sentence, for those that have one.
func publicly(err error) error {
	var fe *fault.Error
	if errors.As(err, &fe) && fe.Public != "" {
		return errors.New(strings.TrimSuffix(fe.Public, "."))
	}
	return err
}

// distinctKeys refuses an object that gives a key twice: readers differ in which they believe.
func distinctKeys(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	type level struct {
		keys  map[string]bool // nil in a list
		value bool            // the next text of an object is a value
	}
	var stack []level
	for {
		tok, err := d.Token()
		if err != nil {
			if len(stack) == 0 && errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		top := len(stack) - 1
		switch t := tok.(type) {
		case json.Delim:
			switch t {
			case '{':
				stack = append(stack, level{keys: map[string]bool{}})
			case '[':
				stack = append(stack, level{})
			default:
				stack = stack[:top]
			}
			if len(stack) > 200 {
				return errors.New("it is nested too deeply")
			}
			if (t == '}' || t == ']') && len(stack) > 0 {
				stack[len(stack)-1].value = false
			}
			continue
		case string:
			if top >= 0 && stack[top].keys != nil && !stack[top].value {
				if stack[top].keys[t] {
					return fmt.Errorf("the key %q is given twice", clip(t, 80))
				}
				stack[top].keys[t], stack[top].value = true, true
				continue
			}
		}
		if top >= 0 {
			stack[top].value = false
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
