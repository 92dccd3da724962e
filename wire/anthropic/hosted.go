package anthropic

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/lossless-group/gateway/fault"
)

// Hosting is how the Messages API differs where another company hosts it: the model stands in the path, the version in the body.
type Hosting struct {
	Version    string   // anthropic_version of the body
	BetaInBody bool     // betas go into anthropic_beta of the body instead of a header
	KeepModel  bool     // the model stays in the body: counts of tokens
	NoStream   bool     // the path says whether to stream, and the body must not
	Betas      []string // betas the host knows; a name that ends in "*" is a prefix
}

// notHosted are members of a body that hosts do not know, and that can be left out without changing what was asked for.
var notHosted = map[string]string{
	"cache_control": "", "inference_geo": "", "diagnostics": "", "service_tier": "", "speed": "", "billing_policy": "",
	"context_management": "context-management-", // with this beta it is known
}

// refusedHosted are members without which the request would mean something else.
var refusedHosted = []string{"mcp_servers", "container", "fallbacks", "thread"}

// Hosted rewrites a body of the Messages API for such a host: the model goes, the version comes, members the host does not know
// go. Everything else keeps its bytes and its order; a body that is right already is returned as it is. betas are those the
// client asked for, and what is left of them is returned.
//
// It fails with fault.Invalid, code unsupported_field, when the body asks for something no host has.
func Hosted(raw []byte, h Hosting, betas []string) (body []byte, kept []string, err error) {
	for _, list := range betas {
		for b := range strings.SplitSeq(list, ",") {
			if b = strings.TrimSpace(b); b != "" && h.knows(b) && !slices.Contains(kept, b) {
				kept = append(kept, b)
			}
		}
	}
	type member struct {
		name string
		at   Range
	}
	var members []member
	s := scanner{b: raw}
	s.object(func(k Range, plain bool) {
		name := string(s.key(k, plain))
		s.space()
		value := s.value()
		if s.err == nil {
			members = append(members, member{name, Range{k.Start, value.End}})
		}
	})
	if s.end(); s.err != nil {
		return nil, nil, notJSON("anthropic.Hosted", s.err)
	}
	right := `"` + h.Version + `"`
	out := make([]byte, 0, len(raw)+128)
	out = append(out, '{')
	same, version := true, false
	add := func(b []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, b...)
	}
	for _, m := range members {
		beta, unknown := notHosted[m.name]
		switch {
		case slices.Contains(refusedHosted, m.name):
			return nil, nil, &fault.Error{Op: "anthropic.Hosted", Kind: fault.Invalid, Code: "unsupported_field", Field: "/" + m.name,
				Public: m.name + " works with Anthropic itself only, and this model is hosted elsewhere. Leave it out or choose another model."}
		case m.name == "model" && !h.KeepModel, m.name == "stream" && h.NoStream, m.name == "anthropic_beta",
			unknown && (beta == "" || !slices.ContainsFunc(kept, func(k string) bool { return strings.HasPrefix(k, beta) })):
			same = false
		case m.name == "anthropic_version":
			if version = strings.HasSuffix(string(m.at.In(raw)), right); !version {
				same = false
				continue
			}
			add(m.at.In(raw))
		default:
			add(m.at.In(raw))
		}
	}
	if !version {
		same = false
		add(append([]byte(`"anthropic_version":`), right...))
	}
	if h.BetaInBody && len(kept) > 0 {
		same = false
		list := []byte(`"anthropic_beta":[`)
		for i, k := range kept {
			if i > 0 {
				list = append(list, ',')
			}
			list = appendString(list, k)
		}
		add(append(list, ']'))
	}
	if same {
		return raw, kept, nil
	}
	return append(out, '}'), kept, nil
}

func (h Hosting) knows(beta string) bool {
	return slices.ContainsFunc(h.Betas, func(b string) bool {
		prefix, pattern := strings.CutSuffix(b, "*")
		return b == beta || pattern && strings.HasPrefix(beta, prefix)
	})
}

// CountBody is the answer of POST /v1/messages/count_tokens.
func CountBody(tokens int64) []byte {
	return append(strconv.AppendInt([]byte(`{"input_tokens":`), tokens, 10), '}')
}

// DecodeCount reads the answer of POST /v1/messages/count_tokens. Errors are of kind fault.Upstream, code upstream_error.
func DecodeCount(body []byte) (tokens int64, err error) {
	n := int64(-1)
	s := scanner{b: body}
	s.members(func(name []byte) {
		if string(name) != "input_tokens" {
			s.value()
			return
		}
		n = int64(s.count())
	})
	if s.end(); s.err != nil || n < 0 {
		return 0, fault.Wrap(fault.Upstream, "anthropic.DecodeCount", "upstream_error", "The provider's answer cannot be read. Try again.", errors.New("no input_tokens"))
	}
	return n, nil
}
