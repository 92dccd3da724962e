package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestBodies(t *testing.T) {
	for _, kb := range []int{1, 10, 100} {
		for _, k := range []kind{whole, burst, paced} {
			b, err := body(kb, k)
			if err != nil {
				t.Fatal(err)
			}
			var doc struct {
				Stream   bool
				Messages []struct{ Role string }
			}
			if err := json.Unmarshal(b, &doc); err != nil {
				t.Fatal(err)
			}
			if len(b) < kb*850 || len(b) > kb*1300 {
				t.Errorf("the body of %d KB has %d bytes", kb, len(b))
			}
			if doc.Stream != (k != whole) || kindOf(b) != k {
				t.Errorf("the body of kind %s streams: %t, is taken for %s", k, doc.Stream, kindOf(b))
			}
			if last := doc.Messages[len(doc.Messages)-1].Role; last != "user" {
				t.Errorf("the last message is the %s's", last)
			}
			if n := bytes.Count(b, []byte("@client-")); n != max(1, kb/10) {
				t.Errorf("%d KB hold %d addresses", kb, n)
			}
		}
	}
}

// TestUpstreamCountsTheGatewayAlone talks to the upstream as the gateway and as somebody else, and leaves one stream in the middle.
func TestUpstreamCountsTheGatewayAlone(t *testing.T) {
	up, err := startUpstream(30, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer up.close()
	ask := func(header string, k kind) []byte {
		doc, err := body(1, k)
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{gw: &gateway{}}
		raw := string(b.request(&target{addr: up.addr()}, 1, k))
		return []byte(strings.Replace(raw, "Content-Type:", header+"Content-Type:", 1)[:len(raw)-len(doc)+len(header)] + string(doc))
	}
	c, err := dial(up.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for _, k := range []kind{whole, burst, paced} {
		if err := c.do(ask("", k)); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
	}
	if got := up.told(); got != (tally{}) {
		t.Errorf("a request without the key counts: %+v", got)
	}
	for _, k := range []kind{whole, paced} {
		if err := c.do(ask("X-Api-Key: "+orgKey+"\r\n", k)); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
	}
	got := up.told()
	if got.attempts != 2 || got.output != 260+7+3*30 || got.input == 0 {
		t.Errorf("counted %+v", got)
	}
	if err := c.leave(ask("X-Api-Key: "+orgKey+"\r\n", paced)); err != nil {
		t.Errorf("leaving: %v", err)
	}
}

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		name, stat string
		want       time.Duration
		bad        bool
	}{
		{"plain", "1 (gateway) S 1 1 1 0 -1 4194560 5 0 0 0 12 30 0 0 20", 420 * time.Millisecond, false},
		{"a name like a field", "1 (a) b (c) S 1 1 1 0 -1 4194560 5 0 0 0 1 2 0 0 20", 30 * time.Millisecond, false},
		{"short", "1 (gateway) S 1", 0, true},
		{"no numbers", "1 (gateway) S 1 1 1 0 -1 4194560 5 0 0 0 x y 0 0 20", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseStat(c.stat)
			if (err != nil) != c.bad || !c.bad && got != c.want {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestSample(t *testing.T) {
	s := &sample{requests: 4, elapsed: time.Second, drained: 2 * time.Second, cpu: 8 * time.Millisecond, allocs: 40, bytes: 8192,
		took: []time.Duration{4 * time.Millisecond, time.Millisecond, 3 * time.Millisecond, 2 * time.Millisecond}}
	s.add(&sample{requests: 4, elapsed: time.Second, drained: time.Second, took: []time.Duration{9 * time.Millisecond}})
	if s.rate() != 4 || s.cpuMS() != 1 || s.mallocs() != 5 || s.kib() != 1 || s.quantile(.5) != 3 || s.quantile(.99) != 9 {
		t.Errorf("rate %v, cpu %v, objects %v, KiB %v, p50 %v, p99 %v", s.rate(), s.cpuMS(), s.mallocs(), s.kib(), s.quantile(.5), s.quantile(.99))
	}
}

// TestLoad is a load run of the real binary, cut short. It judges what no other load of the machine can excuse: a failed or cut stream, totals that
// differ, goroutines left behind. Delays are for make bench-streams.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "gateway")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/gateway").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	o := loadOptions{streams: 50, events: 50, gap: 20 * time.Millisecond, length: 3 * time.Second, hangups: 10, timed: 50, through: "gateway"}
	got, err := load(t.Context(), o, binary, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := got.judge(o); err != nil {
		t.Error(err)
	}
	if got.events == 0 || got.firsts == 0 || got.streams < 50 || got.rss == 0 {
		t.Errorf("hardly anything was measured: %+v", got)
	}
	var b strings.Builder
	got.report(o, &b)
	t.Log(b.String())
}

// TestSeatReadsWhateverWayItIsCut gives a seat an answer in pieces of every size: events that lie across chunks, chunks that lie across reads.
func TestSeatReadsWhateverWayItIsCut(t *testing.T) {
	line := func(data string) string { return "event: x\ndata: " + data + "\n\n" }
	body := line(`{"type":"message_start","took":1000,"message":{}}`) + line(`{"type":"content_block_delta","index":0,"t":1700000000000000000}`) +
		line(`{"type":"content_block_delta","index":0,"t":1700000000000000000}`) + line(`{"type":"message_stop"}`)
	for _, chunk := range []int{1, 7, 100, len(body)} {
		answer := "HTTP/1.1 200 OK\r\nX: y\r\n\r\n"
		for rest := body; rest != ""; {
			n := min(chunk, len(rest))
			answer += strconv.FormatInt(int64(n), 16) + "\r\n" + rest[:n] + "\r\n"
			rest = rest[n:]
		}
		answer += "0\r\n\r\n"
		for _, piece := range []int{1, 2, 13, len(answer)} {
			s := &seats{texts: 2}
			s.measuring.Store(true)
			c := &seat{timed: true, open: true}
			over := false
			for rest := []byte(answer); len(rest) > 0; {
				n := min(piece, len(rest))
				var err error
				if over, err = c.feed(rest[:n], s, 1700000000000000000+3_000_000); err != nil {
					t.Fatalf("chunks of %d, pieces of %d: %v", chunk, piece, err)
				}
				rest = rest[n:]
			}
			if !over || !c.ended || c.got != 2 || s.delay.n != 2 || s.delay.quantile(.5) != 3.1 || s.first.n != 1 {
				t.Errorf("chunks of %d, pieces of %d: over %t, ended %t, %d events, delay %v", chunk, piece, over, c.ended, c.got, s.delay.quantile(.5))
			}
		}
	}
	for name, bad := range map[string]string{
		"a status":           "HTTP/1.1 429 Too Many Requests\r\n\r\n",
		"a chunk of no size": "HTTP/1.1 200 OK\r\n\r\nzz\r\n",
		"an error event":     "HTTP/1.1 200 OK\r\n\r\n20\r\ndata: {\"type\":\"error\",\"error\":{}}\n\r\n",
		"an event unstamped": "HTTP/1.1 200 OK\r\n\r\n25\r\ndata: {\"type\":\"content_block_delta\"}\n\r\n",
	} {
		c := &seat{open: true}
		if _, err := c.feed([]byte(bad), &seats{texts: 1}, 0); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}
