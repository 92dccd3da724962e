package anthropic

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// maxName is the longest tool name every provider takes, in bytes.
const maxName = 64

// EncodeName returns the wire name of a capability: a dot becomes a hyphen and a hyphen becomes two. A name outside the
// capability grammar, or one that would be longer than 64 bytes, becomes a readable prefix, three hyphens and a hash.
// Every result matches ^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$, and different names give different results.
func EncodeName(name string) string {
	if inGrammar(name) && len(name)+strings.Count(name, "-") <= maxName {
		return strings.ReplaceAll(strings.ReplaceAll(name, "-", "--"), ".", "-")
	}
	// Only letters, digits and underscores here, so that the only run of three hyphens is the separator.
	prefix := make([]byte, 0, 46)
	for i := 0; i < len(name) && len(prefix) < cap(prefix); i++ {
		c := name[i]
		if !isWord(c) {
			c = '_'
		}
		if len(prefix) == 0 && c >= '0' && c <= '9' {
			prefix = append(prefix, '_')
		}
		prefix = append(prefix, c)
	}
	if len(prefix) == 0 {
		prefix = append(prefix, '_')
	}
	sum := sha256.Sum256([]byte(name))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:13])
	return string(prefix) + "---" + hash
}

// inGrammar reports whether name is made of segments joined by dots, each of [A-Za-z0-9_-] and neither starting nor
// ending with a hyphen, and starts with a letter or an underscore.
func inGrammar(name string) bool {
	if name == "" || !isWord(name[0]) || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	for seg := range strings.SplitSeq(name, ".") {
		if seg == "" || seg[0] == '-' || seg[len(seg)-1] == '-' {
			return false
		}
		for i := range len(seg) {
			if !isWord(seg[i]) && seg[i] != '-' {
				return false
			}
		}
	}
	return true
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// Names is the table of one request: the wire names of the capabilities it offers. It is immutable and safe for
// concurrent use.
type Names struct {
	wire map[string]string // wire name -> capability
}

// NewNames builds the table. It fails with fault.Invalid, code tool_name_conflict, when two capabilities have one wire
// name, or a name stands twice. Further wire names that are already taken, such as those of a client's own tools, go
// into reserved.
func NewNames(capabilities []string, reserved ...string) (*Names, error) {
	n := &Names{wire: make(map[string]string, len(capabilities))}
	taken := make(map[string]bool, len(reserved))
	for _, r := range reserved {
		taken[r] = true
	}
	for _, c := range capabilities {
		w := EncodeName(c)
		other, dup := n.wire[w]
		if taken[w] {
			other, dup = w, true
		}
		if dup {
			return nil, fault.New(fault.Invalid, "anthropic.NewNames", "tool_name_conflict",
				"The tools "+clip([]byte(other))+" and "+clip([]byte(c))+" have the same name on the wire. Rename one of them.")
		}
		n.wire[w] = c
	}
	return n, nil
}

// Decode returns the capability behind a wire name. An unknown name is not guessed at.
func (n *Names) Decode(wire string) (capability string, ok bool) {
	capability, ok = n.wire[wire]
	return capability, ok
}

// Len is the number of names in the table.
func (n *Names) Len() int { return len(n.wire) }
