package rego

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/lossless-group/gateway/policy"
)

type action byte

const (
	actionChat action = 'c'
	actionTool action = 't'
)

// version is that of the input document.
const version = 1

// origin says who asked for a call. People do not call capabilities by themselves: they confirm what a model asked for.
const origin = "model"

// question is one question with the caches' share of it resolved. capability is nil for a chat turn, catalogue is nil
// when nothing that is read depends on the list of capabilities.
type question struct {
	in         *policy.Input
	capability *policy.CapabilityInfo
	step       int
	args       []byte    // as the caller gave them
	parsed     *ast.Term // the same for the document; nil when no policy reads them
	settings   *settings
	catalogue  *catalogue
	usage      *policy.Usage // nil when no policy reads it
	org        uint64        // id of the organisation's own policy; 0: none
}

// appendKey writes everything the decision can depend on: the organisation, the exact settings, the exact policy of the
// organisation, and the leaves that the policies read. Each value is preceded by its length or is of fixed size, so no two
// questions write the same bytes.
func appendKey(b []byte, act action, leaves []leaf, q *question) []byte {
	b = append(b, byte(act))
	b = appendString(b, q.in.Tenant.Org.ID.String())
	b = appendInt(b, q.in.SettingsRevision)
	b = binary.LittleEndian.AppendUint64(b, q.settings.id)
	b = binary.LittleEndian.AppendUint64(b, q.org)
	b = appendString(b, q.in.Tenant.Org.Plan) // the plan's cap is joined in Go, whether or not Rego reads the plan
	b = q.settings.appendKey(b, q)
	return appendLeaves(b, leaves, q)
}

func appendLeaves(b []byte, leaves []leaf, q *question) []byte {
	for _, l := range leaves {
		b = appendLeaf(b, l, q)
	}
	return b
}

func appendLeaf(b []byte, l leaf, q *question) []byte {
	in, t := q.in, &q.in.Tenant
	switch l {
	case leafVersion, leafAuthTokenID, leafConversationAttachments:
		return b // the same in every question
	case leafAction:
		return b // every key begins with it
	case leafTimeHour:
		return append(b, byte(in.Time.Hour()))
	case leafTimeMinute:
		return appendInt(b, int64(in.Time.Hour()*60+in.Time.Minute()))
	case leafTimeWeekday:
		return append(b, byte(in.Time.Weekday()))
	case leafOrgID:
		return appendString(b, t.Org.ID.String())
	case leafOrgSlug:
		return appendString(b, string(t.Org.Slug))
	case leafOrgBilling:
		return appendString(b, string(t.Org.Billing))
	case leafOrgPlan:
		return appendString(b, t.Org.Plan)
	case leafOrgOperating:
		return appendBool(b, t.Org.Operating)
	case leafSettingsDisabled, leafSettingsModelAllowed:
		return b // settings and what they are asked about are in every key of a question that has them
	case leafUserID:
		return appendString(b, string(t.User))
	case leafUserEmail:
		return appendString(b, t.Email)
	case leafUserRole:
		return appendString(b, string(t.Role))
	case leafUserTier:
		return append(b, byte(t.Tier()))
	case leafUserActingFor:
		if !t.ActingFor {
			return append(b, 0)
		}
		return appendString(append(b, 1), t.Org.ID.String())
	case leafUserHomeOrg:
		return appendString(b, t.HomeOrg.String())
	case leafAuthMethod:
		return appendString(b, t.Method)
	case leafRequestSurface:
		return appendString(b, string(in.Surface))
	case leafRequestModel:
		return appendString(b, in.Model)
	case leafRequestProvider:
		return appendString(b, in.Provider)
	case leafRequestKeySource:
		return appendString(b, in.KeySource)
	case leafRequestStream:
		return appendBool(b, in.Stream)
	case leafRequestMaxTokens:
		return appendInt(b, int64(in.MaxTokens))
	case leafRequestProjectID:
		return appendString(b, in.ProjectID)
	case leafRequestProjectKind:
		return appendString(b, in.ProjectKind)
	case leafRequestHasImages:
		return appendBool(b, in.HasImages)
	case leafConversationID:
		return appendString(b, in.ThreadID)
	case leafConversationMessages:
		return appendInt(b, int64(in.Messages))
	case leafConversationChars:
		return appendInt(b, int64(in.Chars))
	case leafUsageTokens, leafUsageCost:
		if q.usage == nil {
			return b
		}
		if l == leafUsageTokens {
			return appendInt(b, q.usage.TokensToday)
		}
		return appendString(b, q.usage.CostMonthUSD)
	case leafCapabilities:
		return appendCatalogue(b, q.catalogue)
	}
	c := q.capability
	if c == nil {
		return b // a chat turn has no capability, and the key begins with the action
	}
	switch l {
	case leafCapabilityName:
		return appendString(b, c.Name)
	case leafCapabilityKind:
		return appendString(b, c.Kind)
	case leafCapabilityTier:
		return append(b, byte(c.Tier))
	case leafCapabilityConfirms:
		return appendBool(b, c.Confirms)
	case leafCapabilityApp:
		return appendString(b, c.App)
	case leafCapabilityOrigin:
		return b // the same in every question
	case leafCapabilityStep:
		return appendInt(b, int64(q.step))
	case leafCapabilityArgs:
		if len(q.args) > maxArgsBytes {
			return appendInt(b, -1) // they are refused, whatever they are
		}
		return append(appendInt(b, int64(len(q.args))), q.args...)
	}
	panic("rego: a leaf has no key")
}

var (
	actionChatTerm = ast.StringTerm("chat")
	actionToolTerm = ast.StringTerm("tool")
	originTerm     = ast.StringTerm(origin)
)

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendInt(b []byte, n int64) []byte { return binary.AppendVarint(b, n) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendCatalogue(b []byte, c *catalogue) []byte {
	return binary.LittleEndian.AppendUint64(b, c.id)
}

// builder makes input documents of the leaves a policy reads. A leaf that is not read cannot be missed, so it is not
// built. Key terms are made once and shared by all documents: terms are immutable. So are groups that are the same as last time,
// which those about the organisation, the moment and the request often are.
type builder struct {
	groups []*group
}

// group is one top member of the document.
type group struct {
	top    *ast.Term
	leaves []leaf
	keys   []*ast.Term // of each leaf, the last of its path
	nested *ast.Term   // the key of those that are three deep; nil: there are none
	keeps  bool
	last   atomic.Pointer[lastGroup]
}

type lastGroup struct {
	key  []byte // what the leaves write into a key
	term *ast.Term
}

func newBuilder(leaves []leaf) *builder {
	b := &builder{}
	for i := 0; i < len(leaves); { // leaves stand in the order of their groups, so each group is one run of them
		top := leafPaths[leaves[i]][0]
		g := &group{top: ast.StringTerm(top)}
		switch top {
		case "org", "user", "time", "auth", "request":
			g.keeps = true // of the others each question has its own, or a term that is kept elsewhere
		}
		for ; i < len(leaves) && leafPaths[leaves[i]][0] == top; i++ {
			path := leafPaths[leaves[i]]
			if len(path) == 3 {
				// What the settings say is not in the key of a leaf.
				g.nested, g.keeps = ast.StringTerm(path[1]), false
			}
			g.leaves, g.keys = append(g.leaves, leaves[i]), append(g.keys, ast.StringTerm(path[len(path)-1]))
		}
		b.groups = append(b.groups, g)
	}
	return b
}

// build returns the input document of a question.
func (b *builder) build(q *question) *ast.Term {
	var room [8][2]*ast.Term // NewObject copies what it is given
	doc := room[:0]
	for _, g := range b.groups {
		if v := g.build(q); v != nil {
			doc = append(doc, ast.Item(g.top, v))
		}
	}
	return ast.ObjectTerm(doc...)
}

// build returns the group's term, nil when the question has nothing there.
func (g *group) build(q *question) *ast.Term {
	if len(g.leaves) == 1 && len(leafPaths[g.leaves[0]]) == 1 {
		return leafTerm(g.leaves[0], q)
	}
	if !g.keeps {
		return g.make(q)
	}
	var room [256]byte
	key := appendLeaves(room[:0], g.leaves, q)
	if l := g.last.Load(); l != nil && bytes.Equal(l.key, key) {
		return l.term
	}
	t := g.make(q)
	g.last.Store(&lastGroup{key: slices.Clone(key), term: t})
	return t
}

func (g *group) make(q *question) *ast.Term {
	var room, nestedRoom [10][2]*ast.Term
	items, nested := room[:0], nestedRoom[:0]
	for i, l := range g.leaves {
		v := leafTerm(l, q)
		switch {
		case v == nil:
		case len(leafPaths[l]) == 3:
			nested = append(nested, ast.Item(g.keys[i], v))
		default:
			items = append(items, ast.Item(g.keys[i], v))
		}
	}
	if len(nested) > 0 {
		items = append(items, ast.Item(g.nested, ast.ObjectTerm(nested...)))
	}
	if len(items) == 0 {
		return nil
	}
	return ast.ObjectTerm(items...)
}

// leafTerm returns the term of a leaf, nil when this question has none.
func leafTerm(l leaf, q *question) *ast.Term {
	in, t := q.in, &q.in.Tenant
	switch l {
	case leafVersion:
		return ast.InternedTerm(version)
	case leafAction:
		if q.capability != nil {
			return actionToolTerm
		}
		return actionChatTerm
	case leafAuthTokenID:
		return ast.InternedNullTerm // tokens of our own do not exist yet, and those of an issuer are not named
	case leafConversationAttachments:
		return ast.InternedTerm(0)
	case leafTimeHour:
		return ast.InternedTerm(in.Time.Hour())
	case leafTimeMinute:
		return ast.InternedTerm(in.Time.Hour()*60 + in.Time.Minute())
	case leafTimeWeekday:
		return ast.InternedTerm(in.Time.Weekday().String())
	case leafOrgID:
		return ast.StringTerm(t.Org.ID.String())
	case leafOrgSlug:
		return ast.StringTerm(string(t.Org.Slug))
	case leafOrgBilling:
		return ast.InternedTerm(string(t.Org.Billing))
	case leafOrgPlan:
		return ast.StringTerm(t.Org.Plan)
	case leafOrgOperating:
		return ast.InternedTerm(t.Org.Operating)
	case leafSettingsDisabled:
		return q.settings.disabledTerm(q)
	case leafSettingsModelAllowed:
		return ast.InternedTerm(q.settings.form.Models().Allow(in.Model))
	case leafUserID:
		return ast.StringTerm(string(t.User))
	case leafUserEmail:
		return ast.StringTerm(t.Email)
	case leafUserRole:
		return ast.InternedTerm(string(t.Role))
	case leafUserTier:
		return ast.InternedTerm(t.Tier().String())
	case leafUserActingFor:
		if !t.ActingFor {
			return ast.InternedNullTerm
		}
		return ast.StringTerm(t.Org.ID.String())
	case leafUserHomeOrg:
		return ast.StringTerm(t.HomeOrg.String())
	case leafAuthMethod:
		return ast.InternedTerm(t.Method)
	case leafRequestSurface:
		return ast.InternedTerm(string(in.Surface))
	case leafRequestModel:
		return ast.StringTerm(in.Model)
	case leafRequestProvider:
		return ast.StringTerm(in.Provider)
	case leafRequestKeySource:
		return ast.InternedTerm(in.KeySource)
	case leafRequestStream:
		return ast.InternedTerm(in.Stream)
	case leafRequestMaxTokens:
		return ast.InternedTerm(in.MaxTokens)
	case leafRequestProjectID:
		return ast.StringTerm(in.ProjectID)
	case leafRequestProjectKind:
		return ast.StringTerm(in.ProjectKind)
	case leafRequestHasImages:
		return ast.InternedTerm(in.HasImages)
	case leafConversationID:
		return ast.StringTerm(in.ThreadID)
	case leafConversationMessages:
		return ast.InternedTerm(in.Messages)
	case leafConversationChars:
		return ast.InternedTerm(in.Chars)
	case leafUsageTokens, leafUsageCost:
		if q.usage == nil {
			return nil
		}
		if l == leafUsageTokens {
			return ast.NumberTerm(json.Number(strconv.FormatInt(q.usage.TokensToday, 10)))
		}
		return ast.StringTerm(q.usage.CostMonthUSD)
	case leafCapabilities:
		return q.catalogue.term()
	}
	c := q.capability
	if c == nil {
		return nil
	}
	switch l {
	case leafCapabilityName:
		return ast.StringTerm(c.Name)
	case leafCapabilityKind:
		return ast.InternedTerm(c.Kind)
	case leafCapabilityTier:
		return ast.InternedTerm(c.Tier.String())
	case leafCapabilityConfirms:
		return ast.InternedTerm(c.Confirms)
	case leafCapabilityApp:
		return ast.StringTerm(c.App)
	case leafCapabilityOrigin:
		return originTerm
	case leafCapabilityStep:
		return ast.InternedTerm(q.step)
	case leafCapabilityArgs:
		return q.parsed
	}
	panic("rego: a leaf has no value")
}
