package redaction

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// secretClasses are the entities that hold something that opens a door.
var secretClasses = setOf(secretKey, jsonWebToken, privateKey, genericSecret, urlCredentials, databaseDSN, authHeader)

// keywordRules are the rules of the labelled rows whose values are known only by the word before them; of all others the value
// itself is unmistakable.
const keywordRules = "adafruit-api-key adobe-client-id airtable-api-key algolia-api-key alibaba-secret-key asana-client-id asana-client-secret atlassian-api-token " +
	"beamer-api-token bitbucket-client-id bitbucket-client-secret bittrex-access-key bittrex-secret-key cisco-meraki-api-key cloudflare-api-key " +
	"cloudflare-global-api-key codecov-access-token cohere-api-token coinbase-access-token confluent-access-token confluent-secret-key " +
	"contentful-delivery-api-token curl-auth-header curl-auth-user database-password datadog-access-token discord-api-token discord-client-id " +
	"discord-client-secret droneci-access-token dropbox-api-token dropbox-long-lived-api-token dropbox-short-lived-api-token etsy-access-token " +
	"facebook-access-token facebook-secret fastly-api-token finicity-api-token finicity-client-secret finnhub-access-token flickr-access-token " +
	"freemius-secret-key freshbooks-access-token generic-api-key gitter-access-token gocardless-api-token hashicorp-tf-password heroku-api-key " +
	"hubspot-api-key intercom-api-key jfrog-api-key jfrog-identity-token kraken-access-token kubernetes-secret-yaml kucoin-access-token " +
	"kucoin-secret-key launchdarkly-access-token linear-client-secret linkedin-client-id linkedin-client-secret lob-api-key lob-pub-api-key " +
	"looker-client-id looker-client-secret mailchimp-api-key mailgun-private-api-token mailgun-pub-key mailgun-signing-key mapbox-api-token " +
	"mattermost-access-token messagebird-api-token messagebird-client-id netlify-access-token new-relic-browser-api-token new-relic-insert-key " +
	"new-relic-user-api-id new-relic-user-api-key nuget-config-password nytimes-access-token okta-access-token plaid-api-token plaid-client-id " +
	"plaid-secret-key privateai-api-token rapidapi-access-token sendbird-access-id sendbird-access-token sentry-access-token sidekiq-secret " +
	"snyk-api-token sonar-api-token squarespace-access-token sumologic-access-id sumologic-access-token telegram-bot-api-token " +
	"travisci-access-token twitch-api-token twitter-access-secret twitter-access-token twitter-api-key twitter-api-secret twitter-bearer-token " +
	"typeform-api-token yandex-access-token yandex-api-key yandex-aws-access-token zendesk-secret-key"

type labelledRow struct {
	Rule, Kind, Text string
	Spans            [][2]int
}

func labelledSecrets(t *testing.T) (rows []labelledRow) {
	f, err := os.Open(filepath.Join("..", "..", "shared", "data", "redaction", "secrets_dev.jsonl.gz"))
	if os.IsNotExist(err) {
		t.Skip("the labelled rows are not beside this repository: nothing to score")
	} else if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r labelledRow
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// ruleScore counts the rows of one rule, or of many.
type ruleScore struct{ positives, exact, covered, negatives, flagged int }

func (s *ruleScore) add(o ruleScore) {
	s.positives += o.positives
	s.exact += o.exact
	s.covered += o.covered
	s.negatives += o.negatives
	s.flagged += o.flagged
}

func percent(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return 100 * float64(a) / float64(b)
}

// unquoted is a labelled span without the quotes, spaces and semicolons some rules take in: a span of ours is the literal's content.
func unquoted(text string, at [2]int) [2]int {
	const around = "\"'` ;\n"
	for at[0] < at[1] && strings.IndexByte(around, text[at[0]]) >= 0 {
		at[0]++
	}
	for at[0] < at[1] && strings.IndexByte(around, text[at[1]-1]) >= 0 {
		at[1]--
	}
	return at
}

// A labelled span that takes in the key or only a piece of a token counts as covered, not as exact. The negatives of
// some rules hold another rule's secret, so their bounds are wide.
func TestSecretsOnLabelledRows(t *testing.T) {
	keyword := map[string]bool{}
	for r := range strings.FieldsSeq(keywordRules) {
		keyword[r] = true
	}
	rules := map[string]*ruleScore{}
	for _, row := range labelledSecrets(t) {
		s := rules[row.Rule]
		if s == nil {
			s = &ruleScore{}
			rules[row.Rule] = s
		}
		var sc scanner
		sc.scan(row.Text, secretClasses)
		spans := sc.merged()
		if row.Kind != "positive" {
			s.negatives++
			if len(spans) > 0 {
				s.flagged++
				t.Logf("flagged %s: %q in %.160q", row.Rule, row.Text[spans[0].start:spans[0].end], row.Text)
			}
			continue
		}
		s.positives++
		exact, covered := true, true
		for _, want := range row.Spans {
			want = unquoted(row.Text, want)
			exact = exact && slices.ContainsFunc(spans, func(x span) bool { return x.start == want[0] && x.end == want[1] })
			covered = covered && slices.ContainsFunc(spans, func(x span) bool { return x.start <= want[0] && x.end >= want[1] })
		}
		switch {
		case exact:
			s.exact++
			s.covered++
		case covered:
			s.covered++
			if os.Getenv("VERBOSE_SCORE") != "" {
				t.Logf("wider %s: %q in %.200q", row.Rule, row.Text[spans[0].start:spans[0].end], row.Text)
			}
		default:
			t.Logf("missed %s: %.300q", row.Rule, row.Text)
		}
	}
	var unique, worded ruleScore
	for name, s := range rules {
		if s.positives > 0 && percent(s.covered, s.positives) < 80 {
			t.Errorf("%s: %d of %d covered, want 80 %%", name, s.covered, s.positives)
		}
		if keyword[name] {
			worded.add(*s)
		} else {
			unique.add(*s)
		}
	}
	for _, g := range []struct {
		name             string
		s                ruleScore
		covered, flagged float64
	}{{"unique", unique, 99, 20}, {"keyword", worded, 93, 20}} {
		c, f := percent(g.s.covered, g.s.positives), percent(g.s.flagged, g.s.negatives)
		t.Logf("%s rules: %d positives, %.1f %% exact, %.1f %% covered; %d negatives, %.1f %% flagged", g.name, g.s.positives, percent(g.s.exact, g.s.positives), c, g.s.negatives, f)
		if c < g.covered {
			t.Errorf("%s rules: %.1f %% covered, want %.0f %%", g.name, c, g.covered)
		}
		if f > g.flagged {
			t.Errorf("%s rules: %.1f %% of the negatives flagged, want at most %.0f %%", g.name, f, g.flagged)
		}
	}
}
