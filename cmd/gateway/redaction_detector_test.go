package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// nameServer is an external detector: it finds the names it knows, or does what how says.
type nameServer struct {
	mu    sync.Mutex
	how   string // "", "fails", "hangs", "lies" or "chatters"
	texts []string
	asked map[string]int // by path
}

func (n *nameServer) set(how string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.how = how
}

func (n *nameServer) count(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[path]
}

func (n *nameServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var in struct{ Texts []string }
	if err := json.Unmarshal(raw, &in); err != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	how := n.how
	n.texts = append(n.texts, in.Texts...)
	n.asked[r.URL.Path]++
	n.mu.Unlock()
	switch how {
	case "fails":
		http.Error(w, "I saw "+strings.Join(in.Texts, " "), http.StatusInternalServerError)
		return
	case "hangs":
		<-r.Context().Done()
		return
	case "lies":
		fmt.Fprint(w, `{"results":[[{"start":0,"end":99999,"entity":"PERSON","score":1}]]}`)
		return
	case "chatters":
		fmt.Fprint(w, "I saw "+strings.Join(in.Texts, " "))
		return
	}
	type finding struct {
		Start  int     `json:"start"`
		End    int     `json:"end"`
		Entity string  `json:"entity"`
		Score  float64 `json:"score"`
	}
	results := make([][]finding, len(in.Texts))
	for i, t := range in.Texts {
		results[i] = []finding{}
		for _, name := range []string{"Quentina Abernathy", "Oslo Harbour"} {
			if k := strings.Index(t, name); k >= 0 {
				results[i] = append(results[i], finding{k, k + len(name), map[bool]string{true: "PERSON", false: "PLACE"}[name[0] == 'Q'], 0.9})
			}
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
}

// TestRedactionDetectors asks a detector of the operator's through the whole service: what it finds is hidden and comes back, and when it does
// not answer, an organisation that must have it is refused while another goes on, which is told in the log and counted.
func TestRedactionDetectors(t *testing.T) {
	names := &nameServer{asked: map[string]int{}}
	srv := httptest.NewServer(names)
	t.Cleanup(srv.Close)
	s := startPaying(t, func(c *Config) {
		for _, fail := range []string{"open", "closed"} {
			c.Redaction.Detectors = append(c.Redaction.Detectors, DetectorConfig{Name: "names-" + fail, URL: srv.URL + "/" + fail, Timeout: 150 * time.Millisecond, Fail: fail, Entities: []string{"PERSON", "PLACE"}})
		}
	})
	s.up.Answer(repeatNames)
	editor := s.token("editor", "acme.example")
	texts := 0
	ask := func(org, token string) (status int, answer, sent string) {
		t.Helper()
		texts++
		before := len(s.up.Requests())
		status, answer, _ = s.call("POST", "/v1/messages", token, strings.Replace(inputMessage, `"Hello"`, fmt.Sprintf(`"%d: ask Quentina Abernathy at Oslo Harbour please"`, texts), 1))
		if all := s.up.Requests(); len(all) > before {
			sent = string(all[len(all)-1].Body)
		}
		return status, answer, sent
	}
	counted := func(detector, outcome string) string {
		t.Helper()
		_, body, _ := s.call("GET", "/metrics", "", "")
		for line := range strings.SplitSeq(body, "\n") {
			if n, ok := strings.CutPrefix(line, fmt.Sprintf(`gateway_redaction_detector_calls_total{detector=%q,outcome=%q} `, detector, outcome)); ok {
				return n
			}
		}
		return "0"
	}
	warned := func() int { return strings.Count(s.logs.String(), "a detector did not answer") }
	for _, c := range []struct {
		fail    string // of the detector the organisation relies on
		outcome string // when it does not answer
		status  int
	}{{"open", "passed", 200}, {"closed", "refused", 503}} {
		patch(s, "acme.example", `{"redaction":{"profile":"balanced","external":["names-`+c.fail+`"]}}`)
		status, answer, sent := ask("acme.example", editor)
		if status != 200 || strings.Contains(sent, "Quentina") || strings.Contains(sent, "Harbour") || !strings.Contains(sent, "PERSON_") || !strings.Contains(sent, "PLACE_") || !strings.Contains(answer, "Quentina Abernathy at Oslo Harbour") {
			t.Errorf("%s: %d %s; sent %s", c.fail, status, answer, sent)
		}
		if counted("names-"+c.fail, "answered") != "1" || warned() != map[string]int{"open": 0, "closed": 6}[c.fail] {
			t.Errorf("%s: %s answers counted, %d warnings", c.fail, counted("names-"+c.fail, "answered"), warned())
		}
		for i, how := range []string{"fails", "hangs", "lies", "chatters", "fails", "rests"} { // five in a row, then it is left alone
			names.set(how)
			asked := names.count("/" + c.fail)
			status, answer, sent = ask("acme.example", editor)
			if status != c.status || c.status == 200 && !strings.Contains(sent, "Quentina Abernathy") || c.status != 200 && (sent != "" || !strings.Contains(answer, "redaction_detector_failed") && !strings.Contains(answer, "did not answer")) {
				t.Errorf("%s, %s: %d %s; sent %s", c.fail, how, status, answer, sent)
			}
			if got := names.count("/"+c.fail) - asked; (got == 1) != (how != "rests") {
				t.Errorf("%s, %s: it was asked %d times", c.fail, how, got)
			}
			if n := counted("names-"+c.fail, c.outcome); n != fmt.Sprint(i+1) {
				t.Errorf("%s, %s: counted %s times", c.fail, how, n)
			}
		}
		names.set("")
	}
	if n := warned(); n != 12 {
		t.Errorf("%d warnings of 12 silences", n)
	}
	if _, metrics, _ := s.call("GET", "/metrics", "", ""); strings.Contains(metrics+s.logs.String(), "Quentina") || strings.Contains(metrics+s.logs.String(), "Harbour") {
		t.Error("what a detector was asked about is in the metrics or the log")
	}
}

// TestRedactionDetectorsPerOrganisation: what a detector said of one organisation's text is neither remembered for another nor told to it.
func TestRedactionDetectorsPerOrganisation(t *testing.T) {
	names := &nameServer{asked: map[string]int{}}
	srv := httptest.NewServer(names)
	t.Cleanup(srv.Close)
	s := startPaying(t, func(c *Config) {
		c.Redaction.Detectors = []DetectorConfig{{Name: "names", URL: srv.URL + "/names", Entities: []string{"PERSON", "PLACE"}}}
	})
	s.up.Answer(repeatNames)
	for _, user := range []string{"editor", "admin"} {
		if status, body, _ := s.call("POST", "/api/agent/keys", s.token(user, "linger.example"), `{"provider":"anthropic","key":"`+drawnKey(200, 60)+`","label":"own"}`); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
	}
	patch(s, "acme.example", `{"redaction":{"external":["names"]}}`)
	say := func(org string) string {
		t.Helper()
		if status, body, _ := s.call("POST", "/v1/messages", s.token("editor", org), strings.Replace(inputMessage, `"Hello"`, `"Ask Quentina Abernathy at Oslo Harbour please"`, 1)); status != 200 {
			t.Fatalf("%s: %d %s", org, status, body)
		}
		return lastSent(s)
	}
	first := say("acme.example")
	if again := say("acme.example"); again != first || names.count("/names") != 1 {
		t.Errorf("the same text again: asked %d times, sent %s, then %s", names.count("/names"), first, again)
	}
	if sent := say("linger.example"); !strings.Contains(sent, "Quentina Abernathy") || names.count("/names") != 1 {
		t.Errorf("who switched no detector on: asked %d times, sent %s", names.count("/names"), sent)
	}
	patch(s, "linger.example", `{"redaction":{"external":["names"]}}`)
	sent := say("linger.example")
	if names.count("/names") != 2 || strings.Contains(sent, "Quentina") {
		t.Errorf("another organisation's answer was taken: asked %d times, sent %s", names.count("/names"), sent)
	}
	for _, tok := range personToken.FindAllString(first, -1) {
		if strings.Contains(sent, tok) {
			t.Errorf("both organisations have the token %s", tok)
		}
	}
	s.flush()
	for org, want := range map[string]int{"acme.example": 2, "linger.example": 1} {
		_, body, _ := s.call("GET", "/api/orgs/"+org+"/redaction/findings", s.token("admin", org), "")
		var got struct {
			Findings []struct {
				Entity string
				Count  int
			}
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		people := 0
		for _, f := range got.Findings {
			if f.Entity == "PERSON" {
				people += f.Count
			}
		}
		if people != want {
			t.Errorf("%s: %d people found, want %d: %s", org, people, want, body)
		}
	}
}
