package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/policy"
	"github.com/lossless-group/gateway/tenancy"
)

// This file is how a policy goes live: publishing and going back, approvals of second admins, and repeated requests.

// publishPolicy makes the draft the live revision: settings and files together. It has to check without errors, its tests have to pass,
// and where the live settings say so, a second admin has to approve what may allow more. If-Match, when sent, names the version of the
// draft that is meant; Idempotency-Key names the attempt.
func (a *api) publishPolicy(c echo.Context, t tenancy.Tenant) error {
	return a.once(c, t, "publish", []string{"note", "base"}, func(in ask, request *policy.PublishRequest) (policy.Revision, error) {
		const op = "admin.publishPolicy"
		ctx := c.Request().Context()
		meant, err := ifMatch(c)
		if err != nil {
			return policy.Revision{}, err
		}
		d, err := a.Policies.History.Draft(ctx, t.Org.ID)
		if err != nil {
			return policy.Revision{}, err
		}
		if meant >= 0 && meant != d.Version {
			return policy.Revision{}, stale(nil)
		}
		if d.Version == 0 {
			return policy.Revision{}, errNoDraft(op)
		}
		if in.Base != nil && *in.Base != d.Base {
			return policy.Revision{}, fault.New(fault.Conflict, op, "policy_changed", fmt.Sprintf("The draft starts from revision %d. Compare it with what is live and publish again.", d.Base)).At("/base")
		}
		if err := a.fit(ctx, d.Source, true); err != nil {
			return policy.Revision{}, err
		}
		approvals, err := a.approved(ctx, t.Org.ID, d)
		if err != nil {
			return policy.Revision{}, err
		}
		r, err := a.publish(c, t, d.Base, policy.Revision{Source: d.Source, Note: in.Note, Approvals: approvals, Request: request}, "policy.publish")
		if err != nil {
			return r, err
		}
		// The draft is what is live now; a later one has another version and stays.
		if now, err := a.Policies.History.Draft(ctx, t.Org.ID); err == nil && now.Version == d.Version {
			if err := a.Policies.History.DropDraft(lasting(c), t.Org.ID); err != nil {
				return r, err
			}
		}
		return r, nil
	})
}

func errNoDraft(op string) error {
	return fault.New(fault.Unprocessable, op, "draft_missing", "There is no draft to publish. PUT one first.")
}

// rollbackPolicy publishes an old revision again, as a new one.
func (a *api) rollbackPolicy(c echo.Context, t tenancy.Tenant) error {
	return a.once(c, t, "rollback", []string{"revision", "note", "base"}, func(in ask, request *policy.PublishRequest) (policy.Revision, error) {
		const op = "admin.rollbackPolicy"
		ctx := c.Request().Context()
		if in.Revision < 1 {
			return policy.Revision{}, fault.Invalidf(op, "/revision", "revision is the number of the revision to bring back.")
		}
		old, err := a.Policies.Revisions.Revision(ctx, t.Org.ID, in.Revision)
		if err != nil {
			return policy.Revision{}, err
		}
		live, err := a.Policies.Revisions.Active(ctx, t.Org.ID)
		if err != nil {
			return policy.Revision{}, err
		}
		expect := live.Number
		if in.Base != nil {
			expect = *in.Base
		}
		// What was published once may break rules that are newer than it; its tests are not run, because a rollback is for emergencies.
		if err := a.fit(ctx, old.Source, false); err != nil {
			return policy.Revision{}, err
		}
		// Nor may it lift by the back door what needs two at the front; expect keeps the rule that was looked at in force.
		if live.Source.Settings.ApprovalRequiredToWiden {
			wider, err := a.widens(ctx, t.Org.ID, live.Source, old.Source)
			if err != nil {
				return policy.Revision{}, err
			}
			if len(wider) > 0 {
				return policy.Revision{}, approvalNeeded(op, t.Org.ID, wider, fmt.Sprintf("Going back to revision %d may allow more than now, and a second admin has to approve that. Save that revision as the draft, have it approved, and publish it.", old.Number))
			}
			expect = live.Number
			if in.Base != nil && *in.Base != live.Number {
				return policy.Revision{}, fault.New(fault.Conflict, op, "policy_changed", fmt.Sprintf("Revision %d is live now. Compare it with what you want and go back again.", live.Number)).At("/base")
			}
		}
		return a.publish(c, t, expect, policy.Revision{Source: old.Source, Note: in.Note, Restores: old.Number, Request: request}, "policy.rollback")
	})
}

// once reads the body and runs what publishes, and answers with the revision. With an Idempotency-Key the same request again, within
// policy.RequestKeptFor, gets the revision of the first and publishes nothing; another request under the same key is refused.
func (a *api) once(c echo.Context, t tenancy.Tenant, route string, known []string, run func(ask, *policy.PublishRequest) (policy.Revision, error)) error {
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in ask
	if err := decodeObject("admin.once", raw, "", &in, known...); err != nil {
		return err
	}
	request, err := publishRequest(c, route, raw)
	if err != nil {
		return err
	}
	r, found, err := a.earlier(c, t, request)
	if err == nil && !found {
		if r, err = run(in, request); fault.Is(err, fault.Conflict) || fault.Is(err, fault.Unprocessable) {
			// Two of the same at once: the other one was first, and its revision is the answer to both.
			if first, found, again := a.earlier(c, t, request); found && again == nil {
				r, err = first, nil
			}
		}
	}
	if err != nil {
		return err
	}
	a.Policies.Replica.Kick()
	setETag(c, r.Number)
	return c.JSON(http.StatusOK, summary(r))
}

// publishRequest reads Idempotency-Key; nil when there is none.
func publishRequest(c echo.Context, route string, raw []byte) (*policy.PublishRequest, error) {
	key := c.Request().Header.Get("Idempotency-Key")
	if key == "" {
		return nil, nil
	}
	if len(key) > policy.MaxRequestKeyBytes || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fault.Invalidf("admin.publishRequest", "", "Idempotency-Key is at most %d printable ASCII characters without spaces, such as a UUID.", policy.MaxRequestKeyBytes)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fault.Invalidf("admin.publishRequest", "", "This is not valid JSON.")
	}
	sum := sha256.Sum256([]byte(route + "\n" + c.Request().Header.Get("If-Match") + "\n" + compact.String()))
	return &policy.PublishRequest{Key: key, Body: hex.EncodeToString(sum[:])}, nil
}

// earlier returns what the same request published before.
func (a *api) earlier(c echo.Context, t tenancy.Tenant, request *policy.PublishRequest) (policy.Revision, bool, error) {
	if request == nil {
		return policy.Revision{}, false, nil
	}
	ctx := lasting(c)
	sum, number, err := a.Policies.Requests.Requested(ctx, t.Org.ID, request.Key, a.Clock().Add(-policy.RequestKeptFor))
	if err != nil || number == 0 {
		return policy.Revision{}, false, err
	}
	if sum != request.Body {
		return policy.Revision{}, false, fault.New(fault.Unprocessable, "admin.earlier", "idempotency_key_reused", fmt.Sprintf("This Idempotency-Key published revision %d with another body. Use a new key for a new request.", number))
	}
	r, err := a.Policies.Revisions.Revision(ctx, t.Org.ID, number)
	if err == nil {
		c.Response().Header().Set("Idempotency-Replayed", "true")
	}
	return r, err == nil, err
}

// fit refuses a policy that has errors, or whose tests fail.
func (a *api) fit(ctx context.Context, s policy.Source, tests bool) error {
	const op = "admin.fit"
	if !tests {
		r, err := a.Policies.Author.Check(ctx, s)
		if err != nil {
			return err
		}
		return unfit(op, r.OK, r.Diagnostics)
	}
	r, err := a.Policies.Author.Test(ctx, s)
	if err != nil {
		return err
	}
	if err := unfit(op, r.OK || r.Failed > 0, r.Diagnostics); err != nil {
		return err
	}
	for _, t := range r.Tests {
		if !t.Pass {
			return fault.New(fault.Unprocessable, op, "policy_tests_failed", fmt.Sprintf("%d of %d tests fail, the first is %s (%s:%d). A policy goes live when all of them pass.", r.Failed, len(r.Tests), t.Name, t.File, t.Line)).At("/source/files")
		}
	}
	return nil
}

func unfit(op string, ok bool, found []policy.Diagnostic) error {
	i := slices.IndexFunc(found, func(d policy.Diagnostic) bool { return d.Severity == "error" })
	if ok && i < 0 {
		return nil
	}
	why := "it could not be tested"
	if i >= 0 {
		why = found[i].Message
		if found[i].File != "" {
			why = fmt.Sprintf("%s:%d: %s", found[i].File, found[i].Line, why)
		}
	}
	return fault.New(fault.Unprocessable, op, "policy_invalid", "The policy has errors and cannot go live. "+why).At("/source/files")
}

// publish makes a revision live and writes it into the audit, also when the caller has hung up by then.
func (a *api) publish(c echo.Context, t tenancy.Tenant, expect int64, r policy.Revision, action string) (policy.Revision, error) {
	r.Author, r.CreatedAt = t.User, a.Clock()
	r, err := a.Settings.Publish(lasting(c), t.Org.ID, expect, r)
	if err != nil {
		return r, err
	}
	return r, a.note(c, t, action, map[string]any{"revision": r.Number, "sha256": r.SHA256, "note": r.Note, "restores": r.Restores, "generation": r.Generation, "approvals": r.Approvals})
}

// summary is a revision without its text.
func summary(r policy.Revision) map[string]any {
	approvals := r.Approvals
	if approvals == nil {
		approvals = []policy.Approval{}
	}
	return map[string]any{"revision": r.Number, "sha256": r.SHA256, "author": r.Author, "note": r.Note, "restores": r.Restores, "createdAt": r.CreatedAt,
		"generation": r.Generation, "approvals": approvals}
}

// approved returns the approvals of a draft. Where the live settings want a second admin for what may allow more, and nobody but its
// author has a word for it yet, it is fault.Conflict with code approval_needed and the reasons. The live settings count, not the
// draft's: no draft can lift the rule it has to pass. What is live is what the draft starts from, or publishing it will fail.
func (a *api) approved(ctx context.Context, org tenancy.OrgID, d policy.Draft) ([]policy.Approval, error) {
	const op = "admin.approved"
	list, err := a.approvals(ctx, org, d)
	if err != nil || len(list) > 0 {
		return list, err
	}
	live, err := a.Policies.Revisions.Active(ctx, org)
	if err != nil {
		return nil, err
	}
	if live.Number != d.Base {
		return nil, fault.New(fault.Conflict, op, "policy_changed", fmt.Sprintf("The draft starts from revision %d and revision %d is live. Compare them and save the draft again.", d.Base, live.Number))
	}
	if !live.Source.Settings.ApprovalRequiredToWiden {
		return nil, nil
	}
	wider, err := a.widens(ctx, org, live.Source, d.Source)
	if err != nil || len(wider) == 0 {
		return nil, err
	}
	return nil, approvalNeeded(op, org, wider, fmt.Sprintf("This draft may allow more than what is live, and another admin than %s has to approve it first.", d.Author))
}

// approvals are those of others than the draft's author, for exactly what it says.
func (a *api) approvals(ctx context.Context, org tenancy.OrgID, d policy.Draft) ([]policy.Approval, error) {
	sum, err := policy.HashSource(d.Source)
	if err != nil {
		return nil, err
	}
	list, err := a.Policies.Approvals.Approvals(ctx, org, d.Version)
	return slices.DeleteFunc(list, func(p policy.Approval) bool { return p.By == d.Author || p.SHA256 != sum }), err
}

func approvalNeeded(op string, org tenancy.OrgID, reasons []fault.Reason, sentence string) error {
	e := fault.New(fault.Conflict, op, "approval_needed", sentence)
	e.Reasons = reasons
	e.Action = &fault.Action{Kind: "approve_draft", URL: "/api/orgs/" + org.String() + "/policy/draft/approvals"}
	return e
}

// namedAtMost is how many capabilities, people and models a reason names.
const namedAtMost = 5

// widens says why a policy may allow more than another; nothing when it provably does not. Settings are compared. Rego cannot be: it is
// tried on the decisions of the last days, and when none of them shows what it does, it may allow anything. Where there was no Rego,
// any Rego only refuses more.
func (a *api) widens(ctx context.Context, org tenancy.OrgID, from, to policy.Source) ([]fault.Reason, error) {
	var out []fault.Reason
	for _, w := range policy.WidenedSettings(from.Settings, to.Settings) {
		out = append(out, fault.Reason{Code: "settings_loosened", Message: w.Message})
	}
	rego := policy.RegoChanged(from, to) && len(from.Modules()) > 0
	if len(out) == 0 && !rego {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	lines, err := a.logged(ctx, org, policy.DecisionQuery{From: a.Clock().Add(-replayWindow)}, replayLines)
	if err != nil {
		return nil, err
	}
	r, err := a.Policies.Author.Replay(ctx, policy.ReplayInput{Draft: to, Live: from, Lines: lines})
	switch {
	case err != nil:
		return nil, err
	case r.NewlyAllowed > 0:
		out = append(out, fault.Reason{Code: "newly_allowed", Message: fmt.Sprintf("%d of %d decisions of the last days would newly be allowed: %s.", r.NewlyAllowed, r.Replayed,
			strings.Join(slices.DeleteFunc([]string{newly("capabilities", r.ByCapability), newly("people", r.ByUser), newly("models", r.ByModel)}, func(s string) bool { return s == "" }), "; "))})
	case rego && r.Complete == 0:
		out = append(out, fault.Reason{Code: "rego_unproven", Message: "The Rego changed, and no decision of the last days shows what that does."})
	}
	return out, nil
}

// newly names what is newly allowed, with counts.
func newly(what string, by []policy.ReplayCount) string {
	var names []string
	more := 0
	for _, n := range by {
		switch {
		case n.NewlyAllowed == 0:
		case len(names) == namedAtMost:
			more++
		default:
			names = append(names, fmt.Sprintf("%s (%d)", n.Key, n.NewlyAllowed))
		}
	}
	if len(names) == 0 {
		return ""
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return what + " " + strings.Join(names, ", ")
}

// draftApprovals says whether the draft needs an approval, why, and who gave one.
func (a *api) draftApprovals(c echo.Context, t tenancy.Tenant) error {
	ctx := c.Request().Context()
	d, err := a.Policies.History.Draft(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	if d.Version == 0 {
		return errNoDraft("admin.draftApprovals")
	}
	view, err := a.approvalView(ctx, t.Org.ID, d)
	if err != nil {
		return err
	}
	return versioned(c, d.Version, view)
}

// approvalView is how a draft stands with its approvals.
func (a *api) approvalView(ctx context.Context, org tenancy.OrgID, d policy.Draft) (map[string]any, error) {
	live, err := a.Policies.Revisions.Active(ctx, org)
	if err != nil {
		return nil, err
	}
	wider, err := a.widens(ctx, org, live.Source, d.Source)
	if err != nil {
		return nil, err
	}
	list, err := a.approvals(ctx, org, d)
	if err != nil {
		return nil, err
	}
	sum, err := policy.HashSource(d.Source)
	if err != nil {
		return nil, err
	}
	if wider == nil {
		wider = []fault.Reason{}
	}
	if list == nil {
		list = []policy.Approval{}
	}
	return map[string]any{"version": d.Version, "sha256": sum, "author": d.Author, "required": live.Source.Settings.ApprovalRequiredToWiden && len(wider) > 0, "widens": wider, "approvals": list}, nil
}

// approveDraft is a second admin's word for the version of the draft that If-Match names.
func (a *api) approveDraft(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.approveDraft"
	ctx := c.Request().Context()
	meant, err := ifMatch(c)
	if err != nil {
		return err
	}
	if meant < 0 {
		return fault.Invalidf(op, "", "Send If-Match with the ETag of the draft you looked at, so that you approve what you have seen.")
	}
	in := struct {
		SHA256 string `json:"sha256"`
	}{}
	if c.Request().ContentLength != 0 {
		raw, err := body(c)
		if err != nil {
			return err
		}
		if err := decodeObject(op, raw, "", &in, "sha256"); err != nil {
			return err
		}
	}
	d, err := a.Policies.History.Draft(ctx, t.Org.ID)
	if err != nil {
		return err
	}
	if d.Version == 0 {
		return errNoDraft(op)
	}
	view, err := a.approvalView(ctx, t.Org.ID, d)
	if err != nil {
		return err
	}
	sum, _ := view["sha256"].(string)
	switch {
	case meant != d.Version, in.SHA256 != "" && in.SHA256 != sum:
		return stale(nil)
	case d.Author == t.User:
		return fault.New(fault.Forbidden, op, "own_draft", "You saved this draft yourself. Another admin of the organisation has to approve it.")
	}
	given := policy.Approval{Version: d.Version, SHA256: sum, By: t.User, HomeOrg: t.HomeOrg, At: a.Clock()}
	if err := a.Policies.Approvals.Approve(lasting(c), t.Org.ID, given); fault.Is(err, fault.Conflict) {
		return stale(err)
	} else if err != nil {
		return err
	}
	if err := a.note(c, t, "policy.approve", map[string]any{"version": d.Version, "sha256": sum, "author": d.Author, "widens": view["widens"]}); err != nil {
		return err
	}
	if view["approvals"], err = a.approvals(ctx, t.Org.ID, d); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, view)
}
