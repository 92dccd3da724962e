package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Bounds of what an organisation may write.
const (
	MaxFiles         = 16        // of a policy
	MaxFileBytes     = 64 << 10  // of each file
	MaxSourceBytes   = 256 << 10 // of all files together
	MaxFileNameBytes = 105       // with .rego
	MaxNoteBytes     = 2 << 10   // of a revision's note
)

// Bounds of one line of the decision log; a store leaves out what is over.
const (
	MaxDecisionInputBytes = 16 << 10 // of the question; a larger one is left out whole, as half of it is not JSON
	MaxDecisionCodesBytes = 4 << 10  // of all codes together; those that no longer fit are left out
)

// Change is one organisation whose live revision became another one. Generation rises with every publish of any organisation, so
// whoever saw one generation needs only those above it.
type Change struct {
	Org        tenancy.OrgID `json:"orgId"`
	Generation int64         `json:"generation"`
	Revision   int64         `json:"revision"`
}

// ValidFileName reports whether a file may have that name: [a-z0-9_/.-]{1,100} and .rego, where no segment is empty or begins with
// a dot, so that the files of a policy can be written into a folder.
func ValidFileName(name string) bool {
	stem, ok := strings.CutSuffix(name, ".rego")
	if !ok || stem == "" || len(name) > MaxFileNameBytes {
		return false
	}
	for i := range len(stem) {
		c := stem[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '/' || c == '.' || c == '-') {
			return false
		}
	}
	for seg := range strings.SplitSeq(name, "/") {
		if seg == "" || seg[0] == '.' {
			return false
		}
	}
	return true
}

// NormalizeSource checks a policy's settings and the names and sizes of its files, and returns its normal form as a copy: settings
// as NormalizeSettings has them, files sorted by name and never nil. It does not read Rego. Faults point at the place, such as
// /files/2/name: TooLarge for too many or too large files, Unprocessable otherwise.
func NormalizeSource(s Source) (Source, error) {
	const op = "policy.NormalizeSource"
	settings, err := NormalizeSettings(s.Settings)
	if err != nil {
		fe := fault.From(err)
		return Source{}, fe.At("/settings" + fe.Field)
	}
	if len(s.Files) > MaxFiles {
		return Source{}, tooLarge(op, "/files", "A policy has at most %d files; join some of them.", MaxFiles)
	}
	total, seen := 0, map[string]bool{}
	for i, f := range s.Files {
		at := fmt.Sprintf("/files/%d", i)
		refuse := func(field, format string, args ...any) error {
			return fault.New(fault.Unprocessable, op, "invalid_policy_file", fmt.Sprintf(format, args...)).At(at + field)
		}
		switch total += len(f.Source); {
		case !ValidFileName(f.Name):
			return Source{}, refuse("/name", "%q cannot be the name of a policy file; use up to 100 of a-z, 0-9, _, -, . and /, then .rego, such as org.rego.", strings.ToValidUTF8(clip(f.Name), "?"))
		case seen[f.Name]:
			return Source{}, refuse("/name", "There are two files called %s; rename or remove one of them.", f.Name)
		case len(f.Source) > MaxFileBytes:
			return Source{}, tooLarge(op, at+"/source", "%s has %d bytes and may have %d; split it.", f.Name, len(f.Source), MaxFileBytes)
		case total > MaxSourceBytes:
			return Source{}, tooLarge(op, at+"/source", "The files of a policy may have %d bytes together, and from %s on they have more; shorten them.", MaxSourceBytes, f.Name)
		case !utf8.ValidString(f.Source):
			return Source{}, refuse("/source", "%s is not UTF-8; save it in that encoding.", f.Name)
		}
		seen[f.Name] = true
	}
	files := append(make([]File, 0, len(s.Files)), s.Files...)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return Source{Settings: settings, Files: files}, nil
}

func tooLarge(op, pointer, format string, args ...any) error {
	return fault.New(fault.TooLarge, op, "policy_too_large", fmt.Sprintf(format, args...)).At(pointer)
}

// CanonicalSource returns the one JSON text of a policy: its normal form, members in the order of their declaration, no spaces, and
// no escapes beyond those JSON demands and those of U+2028 and U+2029. Faults are those of NormalizeSource.
func CanonicalSource(s Source) ([]byte, error) {
	n, err := NormalizeSource(s)
	if err != nil {
		return nil, err
	}
	return compactJSON(n)
}

// HashSource returns the SHA-256 of a policy's canonical JSON in hex. Faults are those of NormalizeSource.
func HashSource(s Source) (string, error) {
	doc, err := CanonicalSource(s)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:]), nil
}

// compactJSON is json.Marshal without its escapes for HTML.
func compactJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fault.From(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
