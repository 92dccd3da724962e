package policy

import (
	"encoding/json"
	"time"

	"github.com/lossless-group/gateway/fault"
)

// Diagnostic is one finding about a policy. Lines and columns count from 1; line 0 means the file, or the policy, as a whole.
type Diagnostic struct {
	Severity   string    `json:"severity"` // error, warning, info; only an error keeps a policy from being published
	Code       string    `json:"code"`
	File       string    `json:"file,omitempty"`
	Line       int       `json:"line,omitempty"`
	Col        int       `json:"col,omitempty"`
	EndCol     int       `json:"endCol,omitempty"`
	Message    string    `json:"message"`
	Hint       string    `json:"hint,omitempty"`
	Suggestion *TextEdit `json:"suggestion,omitempty"`
}

// TextEdit replaces a range of a file; the end is exclusive.
type TextEdit struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Col     int    `json:"col"`
	EndLine int    `json:"endLine"`
	EndCol  int    `json:"endCol"`
	Text    string `json:"text"`
}

// CheckReport is what a check found.
type CheckReport struct {
	OK          bool            `json:"ok"`
	Diagnostics []Diagnostic    `json:"diagnostics"`
	Entrypoints map[string]bool `json:"entrypoints"` // every entry point of the contract: whether the policy defines it
	Builtins    []string        `json:"builtins"`
	Rules       int             `json:"rules"`
	Exprs       int             `json:"exprs"`
	Tests       int             `json:"tests"`
	Weight      int             `json:"weight"`
	CompileUS   int64           `json:"compileUs,omitempty"` // CPU time of compiling in the sandbox, microseconds; 0 when it was not compiled there
}

// TestReport is one run of a policy's tests.
type TestReport struct {
	OK          bool         `json:"ok"` // the policy compiles and every test passed
	Passed      int          `json:"passed"`
	Failed      int          `json:"failed"`
	Tests       []TestCase   `json:"tests"`
	Coverage    Coverage     `json:"coverage"` // of the files that are not tests
	Diagnostics []Diagnostic `json:"diagnostics"`
}

// TestCase is one test.
type TestCase struct {
	Name    string       `json:"name"`
	File    string       `json:"file"`
	Line    int          `json:"line"`
	Pass    bool         `json:"pass"`
	US      int64        `json:"us"`
	Error   string       `json:"error,omitempty"`   // why it does not pass
	Failure *TestFailure `json:"failure,omitempty"` // where it failed
	Cases   []string     `json:"cases,omitempty"`   // of a test with variables in its head: those that failed
}

// TestFailure is the expression a test failed at.
type TestFailure struct {
	File       string            `json:"file"`
	Line       int               `json:"line"`
	Expression string            `json:"expression"`
	Values     map[string]string `json:"values"` // of the variables and documents in it, as Rego
}

// Coverage says which lines were evaluated.
type Coverage struct {
	Percent float64        `json:"percent"`
	Files   []FileCoverage `json:"files"` // sorted by name
}

// FileCoverage is the coverage of one file.
type FileCoverage struct {
	Name       string      `json:"name"`
	Percent    float64     `json:"percent"`
	Covered    []LineRange `json:"covered"`
	NotCovered []LineRange `json:"notCovered"`
}

// LineRange is a range of lines, both ends in it.
type LineRange struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// VerdictReason is one reason of a refusal and where it comes from.
type VerdictReason struct {
	fault.Reason
	Source string `json:"source"` // settings, org
}

// Redact is one redaction a policy asks for beyond the profile.
type Redact struct {
	Rule      string   `json:"rule"`
	Action    string   `json:"action"`
	AppliesTo []string `json:"applies_to"`
}

// VerdictLimits are the caps a policy sets; 0: none.
type VerdictLimits struct {
	MaxTokens int64 `json:"max_tokens,omitempty"`
}

// Verdict is what an organisation's settings and Rego contribute to a decision, in the words of schema/decision.json. The platform's own
// rules come on top and are not part of it.
type Verdict struct {
	V                    int             `json:"v"`
	Allow                bool            `json:"allow"`
	Deny                 []VerdictReason `json:"deny"`
	DisabledCapabilities []string        `json:"disabled_capabilities"`
	AllowedModels        []string        `json:"allowed_models"` // null: no restriction
	Redactions           []Redact        `json:"redactions"`
	Limits               VerdictLimits   `json:"limits"`
	RequireApproval      []string        `json:"require_approval"`
	Labels               []string        `json:"labels"`
}

// FiredRule is a rule that had a part in a decision: one of Rego, or one of the settings, whose File is FileSettings.
type FiredRule struct {
	Rule    string `json:"rule"` // of the settings: the member, as disabled_capabilities, or the name of the row, as deck.*
	File    string `json:"file"`
	Line    int    `json:"line"`              // 0 in the settings
	Value   string `json:"value,omitempty"`   // what it produced, as Rego, cut to 500 bytes
	Message string `json:"message,omitempty"` // what a rule of the settings did, in a sentence
}

// FileSettings stands for the settings where a file is named. No file of a policy can have this name.
const FileSettings = "settings"

// Evaluation is one question put to a policy, with its explanation.
type Evaluation struct {
	Decision Verdict      `json:"decision"`
	Fired    []FiredRule  `json:"fired"`
	Missing  []string     `json:"missing"` // places the policy reads that the input does not have
	Steps    int          `json:"steps"`
	US       int64        `json:"us"`
	Error    *Diagnostic  `json:"error,omitempty"`
	Warnings []Diagnostic `json:"warnings"`
}

// Replay is what a policy would have decided about decisions that were made. Counts are of decisions, by their weights.
type Replay struct {
	Total        int             `json:"total"`
	Replayed     int             `json:"replayed"`   // lines with a question
	Complete     int             `json:"complete"`   // of them, those whose question holds everything the policy reads
	Incomplete   int             `json:"incomplete"` // the others: what is said of them is a guess
	Unchanged    int             `json:"unchanged"`
	NewlyDenied  int             `json:"refused"`  // were allowed
	NewlyAllowed int             `json:"loosened"` // were refused
	Asked        int             `json:"asked"`    // calls that would newly need approval
	Errors       int             `json:"errors"`
	ByUser       []ReplayCount   `json:"byPerson"` // these three have who is hit most at the top
	ByCapability []ReplayCount   `json:"byCapability"`
	ByModel      []ReplayCount   `json:"byModel"`
	Examples     []ReplayExample `json:"examples"`              // at most 20 of each sort, in the order of the lines
	SelfRefused  bool            `json:"selfRefused"`           // the person who asks would be refused
	SelfReasons  []string        `json:"selfReasons,omitempty"` // why
	DeniedRuns   []string        `json:"deniedRuns"`            // runs among the newly denied, at most 20, sorted
	WaitingRuns  []string        `json:"waitingRuns"`           // those of ReplayInput.Waiting that are newly denied, sorted
	UnseenRuns   []string        `json:"unseenRuns"`            // those of ReplayInput.Waiting no line of which was replayed, sorted
	Exact        bool            `json:"exact"`                 // false when lines stand for several decisions: then counts are estimates
	MS           int64           `json:"ms"`
}

// ReplayCount counts what changes for one user, capability or model.
type ReplayCount struct {
	Key          string `json:"key"`
	Label        string `json:"label"` // what people call it; the key when nothing better is known
	NewlyDenied  int    `json:"refused"`
	NewlyAllowed int    `json:"loosened"`
	Asked        int    `json:"asked"`
	Errors       int    `json:"errors"`
	Incomplete   int    `json:"incomplete"` // of these, the ones whose question lacks something the policy reads
}

// The sorts of examples.
const (
	ReplayRefused  = "refused"
	ReplayLoosened = "loosened"
	ReplayAsked    = "asked"
	ReplayError    = "error"
)

// ReplayExample is one decision that changes.
type ReplayExample struct {
	ID         string    `json:"id"`
	Sort       string    `json:"sort"` // refused, loosened, asked, error
	At         time.Time `json:"at"`
	Person     string    `json:"person"`
	Label      string    `json:"label"` // of the person
	Capability string    `json:"capability,omitempty"`
	Model      string    `json:"model,omitempty"`
	RunID      string    `json:"runId,omitempty"`
	Before     string    `json:"before"`            // a sentence
	After      string    `json:"after"`             // a sentence
	Missing    []string  `json:"missing,omitempty"` // places the policy reads that the question does not have
	Incomplete bool      `json:"incomplete"`
}

// Position is a place in a file of a policy; both numbers count from 1.
type Position struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Col  int    `json:"col"`
}

// Completion is one suggestion for the place of the cursor. Insert replaces the From..cursor part of the line.
type Completion struct {
	Label  string `json:"label"`
	Kind   string `json:"kind"` // entrypoint, input, builtin, rule, import, keyword; inside a string capability, model
	Detail string `json:"detail,omitempty"`
	Doc    string `json:"doc,omitempty"`
	Insert string `json:"insert"`
	From   int    `json:"from"` // column from which Insert replaces
}

// HoverText is what is known of the word under the cursor.
type HoverText struct {
	Label string `json:"label"`
	Kind  string `json:"kind"`
	Type  string `json:"type,omitempty"`
	Doc   string `json:"doc"`
}

// ReplayInput is what is replayed.
type ReplayInput struct {
	Draft Source
	Live  Source            // what is in force, to tell what is new
	Lines []LoggedDecision  // in any order
	Self  []json.RawMessage // questions the person who asks would have; refused when all of them are

	Waiting []string     // ids of the runs that wait for somebody's decision now
	Labels  ReplayLabels // what is not in them is labelled by what the questions say, or by its key
}

// ReplayLabels are what people call what is counted, by key.
type ReplayLabels struct {
	Users, Capabilities, Models map[string]string
}
