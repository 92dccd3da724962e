// Package usagereport owns reading what providers say was used: the usage and cost reports of their organisations' admin APIs.
//
// It refuses to know the ledger; billing/reconcile compares.
//
// Invariants: a report is read to its last page or not at all; an admin key is never in an error; a cost is a decimal that never goes through a
// float.
package usagereport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/reconcile"
	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
)

// Config says whose reports are read.
type Config struct {
	BaseURL string         // empty: the provider's own
	Key     keyring.Secret // an admin key of the provider's organisation
	Client  *http.Client
}

// Kinds of reports.
const (
	Anthropic = "anthropic"
	OpenAI    = "openai"
)

const (
	anthropicURL = "https://api.anthropic.com"
	openaiURL    = "https://api.openai.com"
	maxBody      = 32 << 20
	maxPages     = 10_000
	maxDays      = 31
)

// Read reads a provider's report of the UTC days in [from, to). fault.Invalid for a provider without reports, fault.Upstream when it refuses or
// answers what cannot be read.
func Read(ctx context.Context, provider string, c Config, from, to time.Time) (reconcile.Report, error) {
	const op = "usagereport.Read"
	if c.Client == nil || c.Key.IsZero() {
		return reconcile.Report{}, fault.Invalidf(op, "/key", "Reading a provider's reports needs an admin key of its organisation.")
	}
	if from.Unix()%86400 != 0 || to.Unix()%86400 != 0 || !from.Before(to) {
		return reconcile.Report{}, fault.Invalidf(op, "/from", "Reports are by whole UTC days, from before to.")
	}
	out := reconcile.Report{Costs: map[int64]billing.Pico{}}
	for at := from; at.Before(to); at = at.AddDate(0, 0, maxDays) {
		end := at.AddDate(0, 0, maxDays)
		if end.After(to) {
			end = to
		}
		var err error
		switch provider {
		case Anthropic:
			err = c.anthropic(ctx, at, end, &out)
		case OpenAI:
			err = c.openai(ctx, at, end, &out)
		default:
			err = fault.Invalidf(op, "/provider", "There are no reports of the provider %q; use anthropic or openai.", provider)
		}
		if err != nil {
			return reconcile.Report{}, err
		}
	}
	return out, nil
}

// pages reads every page of a report.
func (c Config) pages(ctx context.Context, base, path string, query url.Values, header http.Header, page func(raw []byte) (next string, more bool, err error)) error {
	const op = "usagereport.pages"
	if c.BaseURL != "" {
		base = c.BaseURL
	}
	seen := map[string]bool{}
	for range maxPages {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(base, "/")+path+"?"+query.Encode(), nil)
		if err != nil {
			return fault.Invalidf(op, "/baseURL", "The address of the provider cannot be used.")
		}
		req.Header = header.Clone()
		raw, err := c.get(req)
		if err != nil {
			return err
		}
		next, more, err := page(raw)
		if err != nil {
			return fault.Wrap(fault.Upstream, op, "report_unreadable", "The provider's report cannot be read; nothing was compared.", err)
		}
		if !more {
			return nil
		}
		if next == "" || seen[next] {
			return fault.New(fault.Upstream, op, "report_endless", "The provider's report has more pages and does not say which; nothing was compared.")
		}
		seen[next] = true
		query.Set("page", next)
	}
	return fault.New(fault.Upstream, op, "report_endless", "The provider's report does not end; nothing was compared. Ask for fewer days.")
}

func (c Config) get(req *http.Request) ([]byte, error) {
	const op = "usagereport.get"
	res, err := c.Client.Do(req)
	if err != nil {
		return nil, fault.Wrap(fault.Upstream, op, "report_unreachable", "The provider's reports cannot be reached; try again later.", err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, fault.Wrap(fault.Upstream, op, "report_unreachable", "The provider's report broke off; try again.", err)
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		return nil, fault.New(fault.Upstream, op, "report_key_rejected", "The provider rejected the admin key; its reports need one of an administrator of the organisation.")
	case res.StatusCode != http.StatusOK:
		return nil, fault.New(fault.Upstream, op, "report_refused", fmt.Sprintf("The provider refused its report with status %d; try again later.", res.StatusCode))
	case len(raw) > maxBody:
		return nil, fault.New(fault.Upstream, op, "report_too_large", "A page of the provider's report is too large; ask for fewer days.")
	}
	return raw, nil
}

// anthropic reads GET /v1/organizations/usage_report/messages and /v1/organizations/cost_report.
func (c Config) anthropic(ctx context.Context, from, to time.Time, out *reconcile.Report) error {
	h := http.Header{"X-Api-Key": {c.Key.Reveal()}, "Anthropic-Version": {"2023-06-01"}}
	span := url.Values{"starting_at": {from.UTC().Format(time.RFC3339)}, "ending_at": {to.UTC().Format(time.RFC3339)}, "bucket_width": {"1d"}, "limit": {strconv.Itoa(maxDays)}}
	usage := clone(span)
	usage["group_by[]"] = []string{"api_key_id", "model"}
	err := c.pages(ctx, anthropicURL, "/v1/organizations/usage_report/messages", usage, h, func(raw []byte) (string, bool, error) {
		var p struct {
			Data []struct {
				StartingAt time.Time `json:"starting_at"`
				Results    []struct {
					APIKeyID      *string `json:"api_key_id"`
					Model         *string `json:"model"`
					Uncached      int64   `json:"uncached_input_tokens"`
					CacheRead     int64   `json:"cache_read_input_tokens"`
					Output        int64   `json:"output_tokens"`
					CacheCreation struct {
						W5m int64 `json:"ephemeral_5m_input_tokens"`
						W1h int64 `json:"ephemeral_1h_input_tokens"`
					} `json:"cache_creation"`
					ServerToolUse struct {
						Searches int64 `json:"web_search_requests"`
					} `json:"server_tool_use"`
				} `json:"results"`
			} `json:"data"`
			HasMore  bool    `json:"has_more"`
			NextPage *string `json:"next_page"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return "", false, err
		}
		for _, d := range p.Data {
			for _, r := range d.Results {
				out.Lines = append(out.Lines, reconcile.Line{Day: d.StartingAt.Unix() / 86400, Key: text(r.APIKeyID), Model: text(r.Model), Usage: chat.Usage{
					Input: r.Uncached, CacheRead: r.CacheRead, CacheWrite5m: r.CacheCreation.W5m, CacheWrite1h: r.CacheCreation.W1h, Output: r.Output, Searches: r.ServerToolUse.Searches}})
			}
		}
		return text(p.NextPage), p.HasMore, nil
	})
	if err != nil {
		return err
	}
	return c.pages(ctx, anthropicURL, "/v1/organizations/cost_report", span, h, func(raw []byte) (string, bool, error) {
		var p struct {
			Data []struct {
				StartingAt time.Time `json:"starting_at"`
				Results    []struct {
					Amount   string `json:"amount"` // in cents, a decimal
					Currency string `json:"currency"`
				} `json:"results"`
			} `json:"data"`
			HasMore  bool    `json:"has_more"`
			NextPage *string `json:"next_page"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return "", false, err
		}
		for _, d := range p.Data {
			for _, r := range d.Results {
				if r.Currency != "USD" {
					return "", false, fmt.Errorf("currency %q", r.Currency)
				}
				usd, err := money(r.Amount + "e-2")
				if err != nil {
					return "", false, err
				}
				if err := add(out.Costs, d.StartingAt.Unix()/86400, usd); err != nil {
					return "", false, err
				}
			}
		}
		return text(p.NextPage), p.HasMore, nil
	})
}

// openai reads GET /v1/organization/usage/completions and /v1/organization/costs.
func (c Config) openai(ctx context.Context, from, to time.Time, out *reconcile.Report) error {
	h := http.Header{"Authorization": {"Bearer " + c.Key.Reveal()}}
	span := url.Values{"start_time": {strconv.FormatInt(from.Unix(), 10)}, "end_time": {strconv.FormatInt(to.Unix(), 10)}, "bucket_width": {"1d"}, "limit": {strconv.Itoa(maxDays)}}
	usage := clone(span)
	usage["group_by"] = []string{"api_key_id", "model"}
	err := c.pages(ctx, openaiURL, "/v1/organization/usage/completions", usage, h, func(raw []byte) (string, bool, error) {
		var p struct {
			Data []struct {
				StartTime int64 `json:"start_time"`
				Results   []struct {
					APIKeyID *string `json:"api_key_id"`
					Model    *string `json:"model"`
					Input    int64   `json:"input_tokens"` // cached ones included
					Cached   int64   `json:"input_cached_tokens"`
					Output   int64   `json:"output_tokens"`
				} `json:"results"`
			} `json:"data"`
			HasMore  bool    `json:"has_more"`
			NextPage *string `json:"next_page"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return "", false, err
		}
		for _, d := range p.Data {
			for _, r := range d.Results {
				if r.Cached > r.Input || r.Cached < 0 {
					return "", false, fmt.Errorf("%d of %d input tokens are cached", r.Cached, r.Input)
				}
				out.Lines = append(out.Lines, reconcile.Line{Day: d.StartTime / 86400, Key: text(r.APIKeyID), Model: text(r.Model), Usage: chat.Usage{Input: r.Input - r.Cached, CacheRead: r.Cached, Output: r.Output}})
			}
		}
		return text(p.NextPage), p.HasMore, nil
	})
	if err != nil {
		return err
	}
	return c.pages(ctx, openaiURL, "/v1/organization/costs", span, h, func(raw []byte) (string, bool, error) {
		var p struct {
			Data []struct {
				StartTime int64 `json:"start_time"`
				Results   []struct {
					Amount struct {
						Value    json.Number `json:"value"`
						Currency string      `json:"currency"`
					} `json:"amount"`
				} `json:"results"`
			} `json:"data"`
			HasMore  bool    `json:"has_more"`
			NextPage *string `json:"next_page"`
		}
		if err := json.Unmarshal(raw, &p); err != nil {
			return "", false, err
		}
		for _, d := range p.Data {
			for _, r := range d.Results {
				if !strings.EqualFold(r.Amount.Currency, "usd") {
					return "", false, fmt.Errorf("currency %q", r.Amount.Currency)
				}
				usd, err := money(r.Amount.Value.String())
				if err != nil {
					return "", false, err
				}
				if err := add(out.Costs, d.StartTime/86400, usd); err != nil {
					return "", false, err
				}
			}
		}
		return text(p.NextPage), p.HasMore, nil
	})
}

func add(to map[int64]billing.Pico, day int64, p billing.Pico) (err error) {
	to[day], err = to[day].Add(p)
	return err
}

// money reads a decimal, also with an exponent and with more decimals than a pico-USD has; those are cut off.
func money(s string) (billing.Pico, error) {
	mantissa, exponent, shifted := strings.Cut(strings.ToLower(s), "e")
	shift := 0
	if mantissa == "" {
		return 0, errors.New("there is no amount")
	}
	if shifted {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift < -40 || shift > 12 {
			return 0, fmt.Errorf("the amount has the exponent %q", exponent)
		}
	}
	sign := ""
	if rest, ok := strings.CutPrefix(mantissa, "-"); ok {
		sign, mantissa = "-", rest
	}
	whole, frac, _ := strings.Cut(mantissa, ".")
	for ; shift > 0; shift-- {
		if frac == "" {
			frac = "0"
		}
		whole, frac = whole+frac[:1], frac[1:]
	}
	for ; shift < 0; shift++ {
		if whole == "" {
			whole = "0"
		}
		frac, whole = whole[len(whole)-1:]+frac, whole[:len(whole)-1]
	}
	if whole == "" {
		whole = "0"
	}
	if len(frac) > 12 {
		for _, d := range frac[12:] {
			if d < '0' || d > '9' {
				return 0, fmt.Errorf("the amount %.40q is no decimal", s)
			}
		}
		frac = frac[:12]
	}
	if frac != "" {
		whole += "." + frac
	}
	return billing.ParseUSD(sign + whole)
}

func clone(v url.Values) url.Values {
	c := make(url.Values, len(v))
	for k, list := range v {
		c[k] = append([]string(nil), list...)
	}
	return c
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
