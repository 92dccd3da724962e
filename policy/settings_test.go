package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/fault"
)

func TestParseSettings(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		want      Settings
	}{
		{"no bytes", "", Settings{DisabledCapabilities: []string{}, AllowedModels: []string{}}},
		{"empty object", " {} ", Settings{DisabledCapabilities: []string{}, AllowedModels: []string{}}},
		{"nulls", `{"disabled_capabilities":null,"allowed_models":null,"redaction_profile":null}`, Settings{DisabledCapabilities: []string{}, AllowedModels: []string{}}},
		{"everything", `{"disabled_capabilities":["slide.*","*","browser","a-b.c_d","*.x"],"allowed_models":["gpt-5","claude-*","meta/Llama-3.1:free"],"redaction_profile":"strict"}`,
			Settings{DisabledCapabilities: []string{"*", "*.x", "a-b.c_d", "browser", "slide.*"}, AllowedModels: []string{"claude-*", "gpt-5", "meta/Llama-3.1:free"}, RedactionProfile: "strict"}},
		{"duplicates", `{"disabled_capabilities":["b","a","b","a"]}`, Settings{DisabledCapabilities: []string{"a", "b"}, AllowedModels: []string{}}},
		{"longest entry", `{"allowed_models":["` + strings.Repeat("m", MaxEntryBytes) + `"]}`, Settings{DisabledCapabilities: []string{}, AllowedModels: []string{strings.Repeat("m", MaxEntryBytes)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseSettings([]byte(c.doc))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseSettingsRefuses(t *testing.T) {
	many := `["` + strings.Join(slices.Repeat([]string{"a"}, MaxEntries+1), `","`) + `"]`
	for _, c := range []struct {
		name, doc string
		kind      fault.Kind
		field     string
	}{
		{"not JSON", `{"allowed_models":`, fault.Invalid, ""},
		{"two documents", `{} {}`, fault.Invalid, ""},
		{"null", `null`, fault.Unprocessable, ""},
		{"a list", `[]`, fault.Unprocessable, ""},
		{"unknown member", `{"allowed_modles":[]}`, fault.Unprocessable, "/allowed_modles"},
		{"unknown member is null", `{"x":null}`, fault.Unprocessable, "/x"},
		{"other case", `{"Allowed_Models":[]}`, fault.Unprocessable, "/Allowed_Models"},
		{"pointer is escaped", `{"a/b~c":1}`, fault.Unprocessable, "/a~1b~0c"},
		{"member twice", `{"redaction_profile":"strict","redaction_profile":"off"}`, fault.Unprocessable, "/redaction_profile"},
		{"list is a string", `{"disabled_capabilities":"*"}`, fault.Unprocessable, "/disabled_capabilities"},
		{"entry is a number", `{"disabled_capabilities":["a",1]}`, fault.Unprocessable, "/disabled_capabilities/1"},
		{"entry is null", `{"allowed_models":[null]}`, fault.Unprocessable, "/allowed_models/0"},
		{"entry is empty", `{"allowed_models":["m",""]}`, fault.Unprocessable, "/allowed_models/1"},
		{"capability in upper case", `{"disabled_capabilities":["a","Slide"]}`, fault.Unprocessable, "/disabled_capabilities/1"},
		{"capability begins with a digit", `{"disabled_capabilities":["1a"]}`, fault.Unprocessable, "/disabled_capabilities/0"},
		{"capability begins with a dot", `{"disabled_capabilities":[".a"]}`, fault.Unprocessable, "/disabled_capabilities/0"},
		{"capability ends with a dot", `{"disabled_capabilities":["a."]}`, fault.Unprocessable, "/disabled_capabilities/0"},
		{"capability with two dots", `{"disabled_capabilities":["a..b"]}`, fault.Unprocessable, "/disabled_capabilities/0"},
		{"capability with a class", `{"disabled_capabilities":["a.[bc]"]}`, fault.Unprocessable, "/disabled_capabilities/0"},
		{"model with a space", `{"allowed_models":["gpt 5"]}`, fault.Unprocessable, "/allowed_models/0"},
		{"model with a control character", `{"allowed_models":["gpt\u0000"]}`, fault.Unprocessable, "/allowed_models/0"},
		{"entry too long", `{"allowed_models":["` + strings.Repeat("m", MaxEntryBytes+1) + `"]}`, fault.Unprocessable, "/allowed_models/0"},
		{"too many capabilities", `{"disabled_capabilities":` + many + `}`, fault.Unprocessable, "/disabled_capabilities"},
		{"too many models", `{"allowed_models":` + many + `}`, fault.Unprocessable, "/allowed_models"},
		{"unknown profile", `{"redaction_profile":"lenient"}`, fault.Unprocessable, "/redaction_profile"},
		{"profile in upper case", `{"redaction_profile":"Off"}`, fault.Unprocessable, "/redaction_profile"},
		{"profile is a bool", `{"redaction_profile":false}`, fault.Unprocessable, "/redaction_profile"},
		{"too large", `{"redaction_profile":"` + strings.Repeat("x", MaxSettingsBytes) + `"}`, fault.TooLarge, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseSettings([]byte(c.doc))
			var fe *fault.Error
			if !errors.As(err, &fe) {
				t.Fatalf("accepted as %+v, error %v", got, err)
			}
			if fe.Kind != c.kind || fe.Field != c.field || fe.Public == "" {
				t.Errorf("got %s at %q: %s; want %s at %q", fe.Kind, fe.Field, fe.Public, c.kind, c.field)
			}
			if len(fe.Public) > 500 {
				t.Errorf("the public sentence has %d bytes", len(fe.Public))
			}
			if d := cmp.Diff(Settings{}, got); d != "" {
				t.Errorf("settings beside an error: %s", d)
			}
		})
	}
}

func TestPatchSettings(t *testing.T) {
	current := Settings{DisabledCapabilities: []string{"a", "b"}, AllowedModels: []string{"m"}, RedactionProfile: "strict"}
	for _, c := range []struct {
		name, patch string
		want        Settings
	}{
		{"nothing", `{}`, current},
		{"null resets a list", `{"disabled_capabilities":null}`, Settings{DisabledCapabilities: []string{}, AllowedModels: []string{"m"}, RedactionProfile: "strict"}},
		{"null resets the profile", `{"redaction_profile":null}`, Settings{DisabledCapabilities: []string{"a", "b"}, AllowedModels: []string{"m"}, RedactionProfile: ""}},
		{"a list replaces a list", `{"disabled_capabilities":["c"]}`, Settings{DisabledCapabilities: []string{"c"}, AllowedModels: []string{"m"}, RedactionProfile: "strict"}},
		{"an empty list lifts the restriction", `{"allowed_models":[]}`, Settings{DisabledCapabilities: []string{"a", "b"}, AllowedModels: []string{}, RedactionProfile: "strict"}},
		{"several", `{"allowed_models":["z","y"],"redaction_profile":"off"}`, Settings{DisabledCapabilities: []string{"a", "b"}, AllowedModels: []string{"y", "z"}, RedactionProfile: "off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := PatchSettings(current, []byte(c.patch))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(Settings{DisabledCapabilities: []string{"a", "b"}, AllowedModels: []string{"m"}, RedactionProfile: "strict"}, current); d != "" {
				t.Errorf("current changed: %s", d)
			}
		})
	}
	for _, c := range []struct {
		name    string
		current Settings
		patch   string
		field   string
	}{
		{"unknown member", current, `{"plan":"gold"}`, "/plan"},
		{"not an object", current, `["a"]`, ""},
		{"empty", current, ``, ""},
		{"what was stored is bad", Settings{AllowedModels: []string{"a b"}}, `{}`, "/allowed_models/0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := PatchSettings(c.current, []byte(c.patch))
			if err == nil || fault.From(err).Field != c.field {
				t.Errorf("got %+v, %v; want a fault at %q", got, err, c.field)
			}
		})
	}
}

func TestNormalizeSettingsCopies(t *testing.T) {
	in := Settings{DisabledCapabilities: []string{"b", "a"}}
	out, err := NormalizeSettings(in)
	if err != nil {
		t.Fatal(err)
	}
	out.DisabledCapabilities[0] = "z"
	if d := cmp.Diff([]string{"b", "a"}, in.DisabledCapabilities); d != "" {
		t.Error(d)
	}
}

func TestWarnings(t *testing.T) {
	s := Settings{DisabledCapabilities: []string{"browser", "slide.*"}, AllowedModels: []string{"claude-*", "gtp-*"}}
	for _, c := range []struct {
		name                 string
		capabilities, models []string
		want                 []string
	}{
		{"all known", []string{"browser", "slide.edit"}, []string{"claude-x", "gtp-5"}, nil},
		{"two unknown", []string{"slide.edit"}, []string{"claude-x", "gpt-5"}, []string{"browser", "gtp-*"}},
		{"an empty registry", []string{}, nil, []string{"browser", "slide.*"}},
		{"nothing is known", nil, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.DisabledCapabilities = append(s.DisabledCapabilities[:2:2], "mcp.drive", "mcp.*") // tool servers are not ours to know
			got := Warnings(s, c.capabilities, c.models)
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want one each for %q", got, c.want)
			}
			for i, g := range c.want {
				if !strings.HasPrefix(got[i], fmt.Sprintf("%q ", g)) {
					t.Errorf("warning %d is %q, want one about %q", i, got[i], g)
				}
			}
		})
	}
}

// FuzzParseSettings holds that what is accepted is in normal form: it is written and read again without a change, and a
// patch that says all of it gives the same.
func FuzzParseSettings(f *testing.F) {
	for _, s := range []string{"", "{}", `{"disabled_capabilities":["slide.*","a"],"allowed_models":["b","a"],"redaction_profile":"off"}`, `{"allowed_models":null}`, `{"x":1}`, "null", `{"a":{}`, `{"disabled_capabilities":["\ud800"]}`,
		everySetting, `{"redaction":{"<":"\u2028","a":{"b":null}},"capabilities":{"a":{"mode":"ask","roles":["viewer","viewer"]}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		s, err := ParseSettings(doc)
		if err != nil {
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Public == "" {
				t.Fatalf("not a fault a reader can use: %v", err)
			}
			return
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseSettings(text)
		if err != nil {
			t.Fatalf("%s does not parse: %v", text, err)
		}
		if d := cmp.Diff(s, again); d != "" {
			t.Fatal(d)
		}
		patched, err := PatchSettings(Settings{DisabledCapabilities: []string{"q"}, AllowedModels: []string{"q"}, RedactionProfile: "strict"}, text)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, patched); d != "" {
			t.Fatal(d)
		}
	})
}

func TestALargeDictionaryFits(t *testing.T) {
	words := make([]string, 10_000)
	for i := range words {
		words[i] = fmt.Sprintf("%q", fmt.Sprintf("Project Code Name No %05d", i))
	}
	doc := `{"redaction":{"deny_dictionaries":[{"name":"CODENAMES","words":[` + strings.Join(words, ",") + `]}]}}`
	if _, err := ParseSettings([]byte(doc)); err != nil {
		t.Errorf("a document of %d bytes: %v", len(doc), err)
	}
}
