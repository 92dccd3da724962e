package rego

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// leaf is one place of the input document that is read or not read as a whole.
type leaf uint8

// The leaves. The order is the order of the key.
const (
	leafVersion leaf = iota
	leafAction
	leafTimeHour
	leafTimeMinute
	leafTimeWeekday
	leafOrgID
	leafOrgSlug
	leafOrgBilling
	leafOrgPlan
	leafOrgOperating
	leafSettingsDisabled
	leafSettingsModelAllowed
	leafUserID
	leafUserEmail
	leafUserRole
	leafUserTier
	leafUserActingFor
	leafUserHomeOrg
	leafAuthMethod
	leafAuthTokenID
	leafRequestSurface
	leafRequestModel
	leafRequestProvider
	leafRequestKeySource
	leafRequestStream
	leafRequestMaxTokens
	leafRequestProjectID
	leafRequestProjectKind
	leafRequestHasImages
	leafConversationID
	leafConversationMessages
	leafConversationChars
	leafConversationAttachments
	leafUsageTokens
	leafUsageCost
	leafCapabilities
	leafCapabilityName
	leafCapabilityKind
	leafCapabilityTier
	leafCapabilityConfirms
	leafCapabilityApp
	leafCapabilityOrigin
	leafCapabilityStep
	leafCapabilityArgs
	leafCount
)

// leafPaths says where each leaf stands; at most three keys deep.
var leafPaths = [leafCount][]string{
	leafVersion:                 {"v"},
	leafAction:                  {"action"},
	leafTimeHour:                {"time", "hour"},
	leafTimeMinute:              {"time", "minuteOfDay"},
	leafTimeWeekday:             {"time", "weekday"},
	leafOrgID:                   {"org", "id"},
	leafOrgSlug:                 {"org", "slug"},
	leafOrgBilling:              {"org", "billingStatus"},
	leafOrgPlan:                 {"org", "plan"},
	leafOrgOperating:            {"org", "operating"},
	leafSettingsDisabled:        {"org", "settings", "disabled"},
	leafSettingsModelAllowed:    {"org", "settings", "modelAllowed"},
	leafUserID:                  {"user", "id"},
	leafUserEmail:               {"user", "email"},
	leafUserRole:                {"user", "role"},
	leafUserTier:                {"user", "tier"},
	leafUserActingFor:           {"user", "actingFor"},
	leafUserHomeOrg:             {"user", "homeOrg"},
	leafAuthMethod:              {"auth", "method"},
	leafAuthTokenID:             {"auth", "tokenId"},
	leafRequestSurface:          {"request", "surface"},
	leafRequestModel:            {"request", "model"},
	leafRequestProvider:         {"request", "provider"},
	leafRequestKeySource:        {"request", "keySource"},
	leafRequestStream:           {"request", "stream"},
	leafRequestMaxTokens:        {"request", "maxTokens"},
	leafRequestProjectID:        {"request", "projectId"},
	leafRequestProjectKind:      {"request", "projectKind"},
	leafRequestHasImages:        {"request", "hasImages"},
	leafConversationID:          {"conversation", "id"},
	leafConversationMessages:    {"conversation", "messages"},
	leafConversationChars:       {"conversation", "chars"},
	leafConversationAttachments: {"conversation", "attachments"},
	leafUsageTokens:             {"usage", "tokensToday"},
	leafUsageCost:               {"usage", "costMonthUsd"},
	leafCapabilities:            {"capabilities"},
	leafCapabilityName:          {"capability", "name"},
	leafCapabilityKind:          {"capability", "kind"},
	leafCapabilityTier:          {"capability", "tier"},
	leafCapabilityConfirms:      {"capability", "confirms"},
	leafCapabilityApp:           {"capability", "app"},
	leafCapabilityOrigin:        {"capability", "origin"},
	leafCapabilityStep:          {"capability", "step"},
	leafCapabilityArgs:          {"capability", "args"},
}

// reads is what a compiled policy can see of its input.
type reads struct {
	leaves []leaf // ascending
	all    bool   // the policy takes the whole input in hand, so its decisions are not kept
}

// and returns what two policies read between them.
func (r reads) and(o reads) reads {
	leaves := append(slices.Clone(r.leaves), o.leaves...)
	slices.Sort(leaves)
	return reads{leaves: slices.Compact(leaves), all: r.all || o.all}
}

// usage reports whether what the organisation has used has to be known.
func (r reads) usage() bool { return r.has(leafUsageTokens) || r.has(leafUsageCost) }

func (r reads) has(l leaf) bool { _, ok := slices.BinarySearch(r.leaves, l); return ok }

// readsOf collects every reference to input in compiled modules.
func readsOf(modules map[string]*ast.Module) (reads, error) {
	var rules []*ast.Rule
	for _, m := range modules {
		rules = append(rules, m.Rules...)
	}
	return readsOfRules(rules)
}

// reachable returns the rules below the given places and those they refer to, down to the last. A reference counts up to its first
// key that is not constant, so it is every rule it could mean and more.
func reachable(c *ast.Compiler, places []ast.Ref) []*ast.Rule {
	var out []*ast.Rule
	seen := map[*ast.Rule]bool{}
	add := func(rules []*ast.Rule) {
		for _, r := range rules {
			if !seen[r] {
				seen[r], out = true, append(out, r)
			}
		}
	}
	everything := func() {
		for _, m := range c.Modules {
			add(m.Rules)
		}
	}
	for _, p := range places {
		add(c.GetRules(p))
	}
	var visit func(any) bool
	walk := func(x any) { ast.NewGenericVisitor(visit).Walk(x) }
	visit = func(x any) bool {
		switch x := x.(type) {
		case ast.Var:
			if x == ast.DefaultRootDocument.Value.(ast.Var) {
				everything()
			}
		case ast.Ref:
			if len(x) == 0 || !x[0].Equal(ast.DefaultRootDocument) {
				return false
			}
			prefix := ast.Ref{x[0]}
			for _, key := range constantPrefix(x[1:]) {
				prefix = append(prefix, ast.StringTerm(key))
			}
			if len(prefix) == 1 {
				everything()
			} else {
				add(c.GetRules(prefix))
			}
			for _, t := range x[1:] {
				walk(t)
			}
			return true
		}
		return false
	}
	for i := 0; i < len(out); i++ { // out grows
		walk(out[i])
	}
	return out
}

// readsOfRules collects every reference to input in compiled rules, down to its first key that is not constant. It does
// not ask whether a rule can be reached or a value matters: an over-estimate costs a cache hit, an under-estimate would
// answer one caller with another's decision.
//
// A reference to a place the input never has is an error, because a refusal that waits for it would never fire.
func readsOfRules(rules []*ast.Rule) (reads, error) {
	var (
		seen  [leafCount]bool
		all   bool
		bad   []string
		visit func(any) bool
	)
	walk := func(x any) { ast.NewGenericVisitor(visit).Walk(x) }
	visit = func(x any) bool {
		switch x := x.(type) {
		case ast.Var:
			all = all || x == ast.InputRootDocument.Value.(ast.Var)
		case ast.Ref:
			if len(x) == 0 || !x[0].Equal(ast.InputRootDocument) {
				return false
			}
			path := constantPrefix(x[1:])
			if len(path) == 0 {
				all = true
			} else if !mark(&seen, path) {
				bad = append(bad, "input."+strings.Join(path, "."))
			}
			for _, t := range x[1:] {
				walk(t)
			}
			return true
		}
		return false
	}
	for _, r := range rules {
		walk(r)
	}
	if len(bad) > 0 {
		slices.Sort(bad)
		return reads{}, fmt.Errorf("the policy reads places the input does not have: %s", strings.Join(slices.Compact(bad), ", "))
	}
	out := reads{all: all}
	for l := range leafCount {
		if seen[l] || all {
			out.leaves = append(out.leaves, l)
		}
	}
	return out, nil
}

func constantPrefix(terms []*ast.Term) []string {
	var path []string
	for _, t := range terms {
		s, ok := t.Value.(ast.String)
		if !ok {
			break
		}
		path = append(path, string(s))
	}
	return path
}

// mark notes the leaves above, at and below a path, and reports whether there is any.
func mark(seen *[leafCount]bool, path []string) bool {
	hit := false
	for l, p := range leafPaths {
		n := min(len(p), len(path))
		if slices.Equal(p[:n], path[:n]) {
			seen[l], hit = true, true
		}
	}
	return hit
}
