package chat

import "encoding/json"

// Request is a caller's request in neutral form: what each protocol's request is read into, and written from for a provider
// that speaks another one. A provider of the same protocol gets Raw with edits instead, which loses nothing.
type Request struct {
	Prompt // Prompt.MaxTokens is 0 when the caller set no limit

	Protocol Protocol // of Raw and of Extra
	Raw      []byte   // the body as it came

	Temperature, TopP                 *float64
	TopK                              *int64
	FrequencyPenalty, PresencePenalty *float64
	Seed                              *int64
	Stops                             []string // stop sequences
	Choices                           int      // how many answers; 0 is 1
	ToolChoice                        ToolChoice
	ParallelTools                     *bool // false: at most one call at a time
	Output                            Output
	Reasoning                         Reasoning
	Verbosity                         string // low, medium, high
	Logprobs                          bool
	TopLogprobs                       int
	ServiceTier                       string
	EndUser                           string  // who asks, opaque
	CacheKey                          string  // a hint which requests share a prefix
	IncludeUsage                      bool    // the stream is to tell the usage
	Hosted                            []Field // tools that run at the provider, by their type
	Extra                             []Field
}

// Field is a member of a request that has no neutral form, with its value as it came.
type Field struct {
	Name  string
	Value json.RawMessage
}

// Media is content that is not text: its bytes, or where they are.
type Media struct {
	Type   string `json:"type,omitempty"`   // media type, such as image/png; empty when only a URL or an id is known
	Data   string `json:"data,omitempty"`   // base64, standard alphabet
	URL    string `json:"url,omitempty"`    //
	FileID string `json:"fileId,omitempty"` // of a file kept by the producer of the request
	Name   string `json:"name,omitempty"`   // file name or title
	Detail string `json:"detail,omitempty"` // how closely to look, in the producer's word
}

// ToolChoice says whether and which tools are to be called.
type ToolChoice struct {
	Mode    ToolMode
	Name    string   // with ToolNamed
	Allowed []string // names the choice is limited to; nil: all
}

// ToolMode is how free the model is to call tools.
type ToolMode string

// The modes of a tool choice.
const (
	ToolUnset ToolMode = ""
	ToolAuto  ToolMode = "auto"
	ToolNone  ToolMode = "none"
	ToolAny   ToolMode = "any" // at least one call
	ToolNamed ToolMode = "tool"
)

// Output is the form the answer must have.
type Output struct {
	Kind        OutputKind
	Name        string
	Description string
	Schema      json.RawMessage // with OutputSchema
	Strict      *bool
}

// OutputKind is a form of answers.
type OutputKind string

// The forms of answers.
const (
	OutputText   OutputKind = ""
	OutputJSON   OutputKind = "json"   // some JSON object
	OutputSchema OutputKind = "schema" // JSON that fits Schema
)

// Reasoning says how much the model is to think.
type Reasoning struct {
	Effort  string // none, minimal, low, medium, high, xhigh, max; empty: the model's default
	Budget  int    // tokens; 0: not set
	Summary string // auto, concise, detailed; empty: none asked for
}

// Fate is what became of a field on its way from one protocol to another.
type Fate string

// The fates of a field. Only what is not Kept is reported as a Loss.
const (
	Kept    Fate = "kept"
	Adapted Fate = "adapted" // said in another way, nearly the same
	Dropped Fate = "dropped" // left out; the answer may differ
	Refused Fate = "refused" // leaving it out would change the meaning: the request cannot be sent there
)

// Loss is one field that did not come through as it was.
type Loss struct {
	Field string // JSON pointer (RFC 6901) into the caller's request, or a member's name
	Fate  Fate
	Why   string // for the caller, a clause without full stop
}
