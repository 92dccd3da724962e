package score

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
)

func engine(tb testing.TB) *redaction.Engine {
	tb.Helper()
	e, err := redaction.New(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

const labelled = `{"entity":"EMAIL_ADDRESS","kind":"positive","tier":"strong","text":"to ann@acme.example now","spans":[[3,19]]}
{"entity":"EMAIL_ADDRESS","kind":"positive","tier":"strong","text":"to ann@acme.example now","spans":[[3,18]]}
{"entity":"EMAIL_ADDRESS","kind":"negative","text":"to ann@acme now","spans":[]}
{"entity":"EMAIL_ADDRESS","kind":"negative","text":"wrongly ann@acme.example","spans":[]}

{"entity":"US_PASSPORT","kind":"positive","tier":"weak","text":"912803456","spans":[[0,9]]}
{"entity":"US_SSN","kind":"context","text":"my ssn is 512345678"}
{"entity":"DENY_LIST","kind":"negative","text":"x","spans":[]}
{"text":"Ask ann@acme.example at 8.8.4.4 or bob@acme.example","spans":[{"entity":"EMAIL_ADDRESS","start":4,"end":20},{"entity":"IP_ADDRESS","start":24,"end":31},{"entity":"GPE","start":0,"end":3}]}
{"rule":"jwt","kind":"negative","text":"nothing here"}
`

func TestRun(t *testing.T) {
	rows, err := Read(strings.NewReader(labelled))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(engine(t), "balanced", rows)
	if err != nil {
		t.Fatal(err)
	}
	want := []Table{
		{Format: "values", Rows: []Count{
			{Name: "EMAIL_ADDRESS", Alone: true, Labelled: 2, Exact: 1, Covered: 2, Negatives: 2, Flagged: 1},
			{Name: "US_PASSPORT", Alone: true, Weak: 1, Ignored: 1, Caught: 1},
			{Name: "US_SSN", Alone: true, Present: 1, Seen: 1},
		}, All: Count{Name: "ALL", Labelled: 2, Exact: 1, Covered: 2, Negatives: 2, Flagged: 1, Weak: 1, Ignored: 1, Caught: 1, Present: 1, Seen: 1}},
		{Format: "sentences", Rows: []Count{
			{Name: "EMAIL_ADDRESS", Labelled: 1, Exact: 1, Covered: 1, Extra: 1}, {Name: "IP_ADDRESS", Alone: true, Labelled: 1, Exact: 1, Covered: 1},
		}, All: Count{Name: "ALL", Labelled: 1, Exact: 1, Covered: 1, Extra: 1}},
		{Format: "secrets", Rows: []Count{{Name: "jwt", Negatives: 1}}, Kinds: []Count{{Name: "(told by themselves)"}, {Name: "(told by the word before them)"}}, All: Count{Name: "ALL", Negatives: 1}},
	}
	if diff := cmp.Diff(want, r.Tables); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(r.NotScored) != 2 || r.NotScored["GPE"] == "" || r.NotScored["DENY_LIST"] == "" {
		t.Errorf("not scored: %v", r.NotScored)
	}
	var out bytes.Buffer
	if err := r.Write(&out, true); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"EMAIL_ADDRESS  2      50.0     100.0", "IP_ADDRESS*", "not scored: GPE", "row 2", "negative flagged"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in:\n%s", part, out.String())
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"ann@", "512345678"} {
		if strings.Contains(out.String()+string(raw), value) {
			t.Errorf("the report holds the value %s", value)
		}
	}
}

func TestReadTakesGzip(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(labelled)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	plain, err := Read(strings.NewReader(labelled))
	if err != nil {
		t.Fatal(err)
	}
	zipped, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain, zipped); diff != "" {
		t.Error(diff)
	}
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ name, text string }{
		{"no JSON", "hello"}, {"a span outside", `{"entity":"URL","text":"ab","spans":[[0,3]]}`}, {"a span backwards", `{"entity":"URL","text":"ab","spans":[[2,1]]}`},
		{"half a pair", `{"text":"ab","spans":["x"]}`}, {"no real gzip", "\x1f\x8bxxxxxxxxxxx"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if rows, err := Read(strings.NewReader(c.text)); !fault.Is(err, fault.Invalid) {
				t.Errorf("%v, %v", rows, err)
			}
		})
	}
	if _, err := Run(engine(t), "loose", nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("unknown profile: %v", err)
	}
}

// The thresholds the product promises, on the development rows where they are at hand.
func TestLabelledRows(t *testing.T) {
	const folder = "../../../shared/data/redaction"
	load := func(name string) Table {
		f, err := os.Open(filepath.Join(folder, name))
		if err != nil {
			t.Skipf("no labelled rows: %v", err)
		}
		defer f.Close()
		rows, err := Read(f)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(engine(t), "balanced", rows)
		if err != nil {
			t.Fatal(err)
		}
		return r.Tables[0]
	}
	least := func(what string, n, all int, want float64) {
		t.Helper()
		if all == 0 || float64(n) < want*float64(all) {
			t.Errorf("%s: %d of %d, want at least %.0f %%", what, n, all, 100*want)
		}
	}
	values := load("presidio_dev.jsonl")
	var phones Count
	for _, c := range values.Rows {
		switch c.Name {
		case "IBAN_CODE", "CRYPTO":
			least(c.Name, c.Exact, c.Labelled, 1)
		case "PHONE_NUMBER":
			phones = c
		default:
			if c.Labelled >= 10 && c.Name != "PERSON" {
				least(c.Name, c.Exact, c.Labelled, 0.95)
			}
		}
	}
	least("strong values", values.All.Exact, values.All.Labelled, 0.97)
	least("negatives left alone", values.All.Negatives-values.All.Flagged, values.All.Negatives, 0.99)
	// A telephone number with its country code or in national groups is one without a word about it.
	least("weak values ignored", values.All.Ignored-phones.Ignored, values.All.Weak-phones.Weak, 0.95)
	least("weak values caught with a word", values.All.Caught, values.All.Weak, 0.95)
	for _, c := range load("synth_dev.jsonl").Rows {
		switch c.Name {
		case "EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "IP_ADDRESS", "URL":
			least(c.Name, c.Exact, c.Labelled, 0.99)
			least(c.Name+" precision", c.Covered, c.Covered+c.Extra, 0.98)
		case "PHONE_NUMBER":
			least(c.Name, c.Exact, c.Labelled, 0.78)
			least(c.Name+" precision", c.Covered, c.Covered+c.Extra, 0.95)
		}
	}
	secrets := load("secrets_dev.jsonl.gz")
	for _, c := range secrets.Rows {
		if c.Labelled > 0 {
			least(c.Name, c.Covered, c.Labelled, 0.8)
		}
	}
	itself, word := secrets.Kinds[0], secrets.Kinds[1]
	least("secrets told by themselves, exact", itself.Exact, itself.Labelled, 0.99)
	least("secrets told by themselves, negatives left alone", itself.Negatives-itself.Flagged, itself.Negatives, 0.98)
	least("secrets told by a word, exact", word.Exact, word.Labelled, 0.97)
	least("secrets told by a word, negatives left alone", word.Negatives-word.Flagged, word.Negatives, 0.96)
	least("secrets whose label is cut", secrets.All.CutCovered, secrets.All.Cut, 0.99)
}

// What a row of a secrets scanner counts as: secrets are built here, so that none stands in this file.
func TestSecretRows(t *testing.T) {
	const letters = "q7Zk2Vx9Rb4Nm8Tc5Wd3Hf6Jg1Lp0Ys"
	octo, mail, mine := "gl"+"pat-"+letters[:20], letters[:31]+"3", "dc"+"kr_pat_"+letters[:27]
	row := func(rule, kind, before, value, after string, from, to int) Row {
		r := Row{Rule: rule, Kind: kind, Text: before + value + after}
		if kind == "positive" {
			r.Spans = []Span{{Start: len(before) + from, End: len(before) + len(value) + to}}
		}
		return r
	}
	positives := []Row{row("gitlab", "positive", "x = \"", octo, "\"", 0, 0), row("codecov", "positive", "codecov_token = \"", mail, "\"", 0, 0), row("docker", "positive", "x ", mine, " y", 0, 0)}
	for _, c := range []struct {
		name string
		row  Row
		want Count // without its name
	}{
		{"exact", row("gitlab", "positive", "say ", octo, "", 0, 0), Count{Labelled: 1, Exact: 1, Covered: 1}},
		{"a label with the quotes", row("gitlab", "positive", "x = \"", octo, "\";", -1, 2), Count{Labelled: 1, Exact: 1, Covered: 1}},
		{"a label cut out of the key", row("gitlab", "positive", "x = \"", octo, "\"", 6, -4), Count{Cut: 1, CutCovered: 1}},
		{"a label cut out of what is no key", row("gitlab", "positive", "say ", "conversation", "", 3, -4), Count{Cut: 1}},
		{"missed", row("gitlab", "positive", "say ", "conversation", "", 0, 0), Count{Labelled: 1}},
		{"negative left alone", row("gitlab", "negative", "x = \"", "gl"+"pat-"+strings.Repeat("x", 20), "\"", 0, 0), Count{Negatives: 1}},
		{"negative of its own shape flagged", row("gitlab", "negative", "x = \"", "gl"+"pat-"+letters[5:25], "\"", 0, 0), Count{Negatives: 1, Flagged: 1}},
		{"negative that a positive row labels", row("gitlab", "negative", "y = \"", octo, "\"", 0, 0), Count{Other: 1}},
		{"negative that another rule's row labels", row("gitlab", "negative", "y = \"", mine, "\"", 0, 0), Count{Other: 1}},
		{"negative of another rule's shape", row("gitlab", "negative", "y = \"", "dc"+"kr_pat_"+letters[3:30], "\"", 0, 0), Count{Other: 1}},
		{"negative that the word before it tells", row("gitlab", "negative", "client_secret = \"", letters[:22], "\"", 0, 0), Count{Other: 1}},
		{"negative of a rule told by a word", row("codecov", "negative", "client_secret = \"", letters[:22], "\"", 0, 0), Count{Negatives: 1, Flagged: 1}},
		{"negative of a rule without positives", row("unheard-of", "negative", "client_secret = \"", letters[:22], "\"", 0, 0), Count{Negatives: 1, Flagged: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, err := Run(engine(t), "balanced", positives)
			if err != nil {
				t.Fatal(err)
			}
			after, err := Run(engine(t), "balanced", append(positives[:len(positives):len(positives)], c.row))
			if err != nil {
				t.Fatal(err)
			}
			want := before.Tables[0].All
			want.plus(&c.want)
			if diff := cmp.Diff(want, after.Tables[0].All); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
