package gateway

import "testing"

// What a request may make the provider do is read for the hold: what is missed here is not held, and a cap can be passed with it.
func TestBoundsAreReadFromTheBody(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		choices    int64
		searches   int64
		tools      bool
	}{
		{"nothing", `{"messages":[{"role":"user","content":"search \"n\": 3"}]}`, 1, 0, false},
		{"several answers", `{"n":5}`, 5, 0, false},
		{"as a fraction", `{"n":5.0e0}`, 5, 0, false},
		{"more than there can be", `{"n":100000}`, 128, 0, false},
		{"no number", `{"n":"5"}`, 128, 0, false},
		{"none", `{"n":0}`, 1, 0, false},
		{"beside a member of another form", `{"n":7,"generationConfig":1}`, 7, 0, false},
		{"an upper-case name is none of the provider's", `{"n":7,"N":1}`, 7, 0, false},
		{"a name in escapes", `{"\u006e":7}`, 128, 10, true},
		{"a name in escapes, spaced", "{\"\\u006e\" \n: 7}", 128, 10, true},
		{"a tool in escapes", `{"tools":[{"t\u0079pe":"web_search_20250305","name":"web_search"}]}`, 128, 10, true},
		{"escapes in a text", `{"messages":[{"role":"user","content":"\u0041: \u00e9"}]}`, 1, 0, false},
		{"candidates", `{"generationConfig":{"candidateCount":4}}`, 4, 0, false},
		{"candidates, the other spelling", `{"generation_config":{"candidate_count":4}}`, 4, 0, false},
		{"not JSON", `{"n":1`, 128, 0, false},
		{"an app's own tools", `{"tools":[{"name":"web_search","input_schema":{}},{"type":"function","function":{"name":"mcp"}}]}`, 1, 0, false},
		{"search", `{"tools":[{"type":"web_search_20250305","name":"web_search"}]}`, 1, 10, true},
		{"search, limited", `{"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":3}]}`, 1, 3, true},
		{"two of them", `{"tools":[{"type":"web_search","max_uses":3},{"type":"web_search_preview"}]}`, 1, 13, true},
		{"hidden behind an upper-case name", `{"tools":[{"type":"web_search"}],"TOOLS":[]}`, 1, 10, true},
		{"fetching", `{"tools":[{"type":"web_fetch_20250910"}]}`, 1, 0, true},
		{"files", `{"tools":[{"type":"file_search","vector_store_ids":["v"]}]}`, 1, 0, true},
		{"a tool server", `{"tools":[{"type":"mcp","server_url":"https://x.example"}]}`, 1, 0, true},
		{"Google", `{"tools":[{"googleSearch":{}}]}`, 1, 10, true},
		{"Google, the other spelling", `{"tools":[{"google_search":{}},{"url_context":{}}]}`, 1, 10, true},
		{"by options", `{"web_search_options":{}}`, 1, 10, true},
		{"tools of another form", `{"tools":{"type":"web_search"}}`, 1, 10, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := choices(&turn{req: Request{Native: &Native{Raw: []byte(tt.body)}}}); got != tt.choices {
				t.Errorf("%d answers, want %d", got, tt.choices)
			}
			if n, any := providerTools([]byte(tt.body)); n != tt.searches || any != tt.tools {
				t.Errorf("%d searches, tools %t; want %d, %t", n, any, tt.searches, tt.tools)
			}
		})
	}
}
