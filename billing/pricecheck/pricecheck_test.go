package pricecheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/lossless-group/gateway/billing"
)

// shared is the folder of rows that the design's own figures were made with.
const shared = "../../../shared/data/prices/usage_vectors.jsonl"

func sharedRows(t *testing.T) []byte {
	b, err := os.ReadFile(shared)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not on this machine: the rows of testdata are checked alone", shared)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSharedRows(t *testing.T) {
	rep, err := Run(bytes.NewReader(sharedRows(t)), billing.Embedded())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rep.Mismatches {
		t.Errorf("%s: %s is %s, want %s", m.ID, m.What, m.Got, m.Want)
	}
	if rep.Rows != 130 || rep.OK != 130 {
		t.Errorf("%d of %d rows are right, want 130 of 130", rep.OK, rep.Rows)
	}
}

// Each field that a row states must be able to fail.
func TestRunFindsWhatIsWrong(t *testing.T) {
	const good = `{"id":"a","provider":"demo","model":"demo-1","api":"openai.chat","at":"2026-11-15T12:00:00Z","status":200,"usage":{"prompt_tokens":10,"completion_tokens":2},"normalised":{"input":10,"output":2,"total_input":10},"expect":{"basis":"computed","cost_pico":"60000000","cost_usd":"0.00006","price_row":"demo-1","tier_above":0,"flags":[]}}`
	for _, c := range []struct{ name, old, new, what string }{
		{"as it is", "", "", ""},
		{"no JSON", good, "{", "row"},
		{"no expectation", `"basis":"computed",`, "", "row"},
		{"no time", `"at":"2026-11-15T12:00:00Z",`, "", "row"},
		{"unknown dialect", "openai.chat", "telex", "usage"},
		{"usage is a list", `{"prompt_tokens":10,"completion_tokens":2}`, `[1]`, "usage"},
		{"a count", `"input":10`, `"input":11`, "normalised.input"},
		{"a basis", "computed", "estimated", "basis"},
		{"one pico", "60000000", "60000001", "cost_pico"},
		{"unknown cost", `"60000000"`, "null", "cost_pico"},
		{"dollars", "0.00006", "0.00007", "cost_usd"},
		{"a row", `"price_row":"demo-1"`, `"price_row":"demo-2"`, "price_row"},
		{"a tier", `"tier_above":0`, `"tier_above":5`, "tier_above"},
		{"a flag", `"flags":[]`, `"flags":["estimated"]`, "flags"},
		{"another usage", `"prompt_tokens":10`, `"prompt_tokens":11`, "normalised.input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := strings.Replace(good, c.old, c.new, 1)
			rep, err := Run(strings.NewReader(row+"\n\n"), billing.Embedded())
			if err != nil {
				t.Fatal(err)
			}
			if c.what == "" {
				if rep.OK != 1 || len(rep.Mismatches) != 0 {
					t.Fatalf("%+v", rep)
				}
				return
			}
			if rep.Rows != 1 || rep.OK != 0 || len(rep.Mismatches) == 0 || rep.Mismatches[0].What != c.what || rep.Mismatches[0].Line != 1 {
				t.Errorf("%+v, want a mismatch of %s", rep, c.what)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "blank lines": "\n \n", "a line beyond the bound": strings.Repeat("x", maxLine+1)} {
		t.Run(name, func(t *testing.T) {
			if _, err := Run(strings.NewReader(text), billing.Embedded()); err == nil {
				t.Error("no error")
			}
		})
	}
}

func BenchmarkResolve(b *testing.B) {
	f, err := os.ReadFile(shared)
	if err != nil {
		b.Skip(err)
	}
	var rows []Row
	for sc := bufio.NewScanner(bytes.NewReader(f)); sc.Scan(); {
		var r Row
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			b.Fatal(err)
		}
		rows = append(rows, r)
	}
	cat := billing.Embedded()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := Resolve(rows[i%len(rows)], cat); err != nil {
			b.Fatal(err)
		}
	}
}
