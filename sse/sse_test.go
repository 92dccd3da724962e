package sse

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

type got struct {
	Name, Data, ID string
	Partial        bool
}

func collect(t testing.TB, src io.Reader, opts ...Option) ([]got, error) {
	t.Helper()
	r := NewReader(src, opts...)
	var all []got
	for {
		ev, err := r.Next()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, got{ev.Name, string(ev.Data), ev.ID, ev.Partial})
	}
}

var parseCases = []struct {
	name, in string
	final    bool
	want     []got
}{
	{name: "empty stream", in: ""},
	{name: "one event", in: "event: ping\ndata: {}\n\n", want: []got{{Name: "ping", Data: "{}"}}},
	{name: "default name", in: "data: a\n\n", want: []got{{Name: "message", Data: "a"}}},
	{name: "CRLF", in: "event: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", want: []got{{Name: "a", Data: "b"}, {Name: "message", Data: "c"}}},
	{name: "CR alone", in: "event: a\rdata: b\r\rdata: c\r\r", want: []got{{Name: "a", Data: "b"}, {Name: "message", Data: "c"}}},
	{name: "mixed endings", in: "data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\r", want: []got{{Name: "message", Data: "a\nb\nc"}, {Name: "message", Data: "d"}}},
	{name: "byte order mark", in: "\xef\xbb\xbfdata: a\n\n", want: []got{{Name: "message", Data: "a"}}},
	{name: "only the first byte order mark", in: "\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n", want: []got{{Name: "message", Data: "b"}}},
	{name: "byte order mark before a blank line", in: "\xef\xbb\xbf\ndata: b\n\n", want: []got{{Name: "message", Data: "b"}}},
	{name: "comments", in: ": hi\n:\n\n:x\ndata: a\n: y\n\n", want: []got{{Name: "message", Data: "a"}}},
	{name: "no space after colon", in: "event:x\ndata:y\n\n", want: []got{{Name: "x", Data: "y"}}},
	{name: "one space only is removed", in: "data:  y\n\n", want: []got{{Name: "message", Data: " y"}}},
	{name: "data without colon is empty data", in: "data\n\n", want: []got{{Name: "message"}}},
	{name: "two empty data lines", in: "data\ndata\n\n", want: []got{{Name: "message", Data: "\n"}}},
	{name: "no data, no event", in: "event: x\n\ndata: y\n\n", want: []got{{Name: "message", Data: "y"}}},
	{name: "id stays", in: "id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", want: []got{{"message", "a", "7", false}, {"message", "b", "7", false}, {Name: "message", Data: "c"}}},
	{name: "id with NUL is ignored", in: "id: 7\ndata: a\n\nid: 8\x00\ndata: b\n\n", want: []got{{"message", "a", "7", false}, {"message", "b", "7", false}}},
	{name: "unknown field", in: "foo: bar\ndata: a\nDATA: b\n\n", want: []got{{Name: "message", Data: "a"}}},
	{name: "many data lines", in: "data: a\ndata:\ndata: c\n\n", want: []got{{Name: "message", Data: "a\n\nc"}}},
	{name: "fields after data", in: "data: a\nid: 3\nevent: late\n\n", want: []got{{Name: "late", Data: "a", ID: "3"}}},
	{name: "unterminated is dropped", in: "data: a\n\ndata: b\n", want: []got{{Name: "message", Data: "a"}}},
	{name: "unterminated line is dropped", in: "data: a\n\ndata: b", want: []got{{Name: "message", Data: "a"}}},
	{name: "unterminated is delivered", in: "data: a\n\nevent: e\ndata: b\n", final: true, want: []got{{Name: "message", Data: "a"}, {Name: "e", Data: "b", Partial: true}}},
	{name: "unterminated line is delivered", in: "data: a\n\ndata: x\ndata: b", final: true, want: []got{{Name: "message", Data: "a"}, {Name: "message", Data: "x\nb", Partial: true}}},
	{name: "nothing left to deliver", in: "data: a\n\nevent: e\n", final: true, want: []got{{Name: "message", Data: "a"}}},
}

func TestReader(t *testing.T) {
	for _, c := range parseCases {
		t.Run(c.name, func(t *testing.T) {
			var opts []Option
			if c.final {
				opts = append(opts, DeliverFinal())
			}
			for name, src := range map[string]io.Reader{
				"whole":       strings.NewReader(c.in),
				"byte wise":   iotest.OneByteReader(strings.NewReader(c.in)),
				"eof at data": iotest.DataErrReader(strings.NewReader(c.in)),
			} {
				all, err := collect(t, src, opts...)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if d := cmp.Diff(c.want, all); d != "" {
					t.Errorf("%s: %s", name, d)
				}
			}
		})
	}
}

// A blank line that ends in CR must dispatch at once: waiting for a possible LF would hold back the last event.
func TestReaderDoesNotWaitAfterCR(t *testing.T) {
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() { _, _ = pw.Write([]byte("data: a\r\n\r")) }()
	done := make(chan error, 1)
	go func() {
		ev, err := NewReader(pr).Next()
		if err == nil && string(ev.Data) != "a" {
			err = errors.New("data " + string(ev.Data))
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("event held back until more bytes came")
	}
}

func TestReaderLimits(t *testing.T) {
	big := "data: " + strings.Repeat("x", 300<<10) + "\n\n"
	all, err := collect(t, strings.NewReader(big+big))
	if err != nil || len(all) != 2 || len(all[1].Data) != 300<<10 {
		t.Fatalf("two big events: %d, %v", len(all), err)
	}
	if _, err := collect(t, strings.NewReader(big), WithMaxEvent(100<<10)); !errors.Is(err, ErrTooLong) {
		t.Errorf("one long line: %v, want ErrTooLong", err)
	}
	many := strings.Repeat("data: "+strings.Repeat("x", 100)+"\n", 2000)
	if _, err := collect(t, strings.NewReader(many), WithMaxEvent(100<<10)); !errors.Is(err, ErrTooLong) {
		t.Errorf("many lines: %v, want ErrTooLong", err)
	}
	comments := strings.Repeat(": keep alive\n\n", 50_000) + "data: a\n\n"
	all, err = collect(t, strings.NewReader(comments), WithMaxEvent(4<<10))
	if err != nil || len(all) != 1 {
		t.Errorf("comments count toward the limit of an event: %v, %v", all, err)
	}
}

func TestReaderPassesSourceErrors(t *testing.T) {
	boom := errors.New("boom")
	all, err := collect(t, io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(boom)), DeliverFinal())
	if !errors.Is(err, boom) || len(all) != 1 {
		t.Errorf("got %v, %v; want one event and the source's error", all, err)
	}
	if _, err := collect(t, stuck{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a source without progress: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestReaderRetry(t *testing.T) {
	r := NewReader(strings.NewReader("retry: 3000\ndata: a\n\nretry: 3x\ndata: b\n\n"))
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if d, ok := r.Retry(); !ok || d != 3*time.Second {
		t.Errorf("retry %v, %v; want 3s", d, ok)
	}
}

// Many lines that end in CR alone must not cost a search through the whole buffer each.
func TestReaderIsLinearOnCR(t *testing.T) {
	in := strings.Repeat("data: x\r", 400_000) + "\r"
	start := time.Now()
	all, err := collect(t, strings.NewReader(in))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d events, %v", len(all), err)
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestAppendEvent(t *testing.T) {
	for _, c := range []struct{ name, event, data, want string }{
		{"named", "ping", "{}", "event: ping\ndata: {}\n\n"},
		{"unnamed", "", "{}", "data: {}\n\n"},
		{"line feeds", "", "a\nb", "data: a\ndata: b\n\n"},
		{"carriage returns", "", "a\r\nb\rc\n", "data: a\ndata: b\ndata: c\ndata: \n\n"},
		{"injection by name", "x\ndata: y", "z", "event: xdata: y\ndata: z\n\n"},
		{"nothing to say", "ping", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if s := string(AppendEvent(nil, c.event, []byte(c.data))); s != c.want {
				t.Errorf("got %q, want %q", s, c.want)
			}
		})
	}
	if s := string(AppendComment(nil, "hb\nx")); s != ": hbx\n\n" {
		t.Errorf("comment %q", s)
	}
}

func TestWriterWritesOncePerEvent(t *testing.T) {
	var sink counting
	flushes := 0
	w := NewWriter(&sink, func() error { flushes++; return nil })
	for _, err := range []error{w.Event("a", []byte("1\n2")), w.Comment("hb"), w.Event("", nil)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if sink.n != 2 || flushes != 2 || sink.String() != "event: a\ndata: 1\ndata: 2\n\n: hb\n\n" {
		t.Errorf("%d writes, %d flushes, %q", sink.n, flushes, sink.String())
	}
	broken := NewWriter(failing{}, nil)
	if err := broken.Event("a", []byte("b")); err == nil {
		t.Error("the sink's error is lost")
	}
}

type counting struct {
	bytes.Buffer
	n int
}

func (c *counting) Write(p []byte) (int, error) { c.n++; return c.Buffer.Write(p) }

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

// pieces hands out its parts one read at a time.
type pieces struct{ parts [][]byte }

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.parts) > 0 && len(p.parts[0]) == 0 {
		p.parts = p.parts[1:]
	}
	if len(p.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.parts[0])
	p.parts[0] = p.parts[0][n:]
	return n, nil
}

func FuzzReaderSplit(f *testing.F) {
	for _, c := range parseCases {
		f.Add([]byte(c.in), uint16(1), uint16(3), c.final)
	}
	f.Fuzz(func(t *testing.T, in []byte, a, b uint16, final bool) {
		var opts []Option
		if final {
			opts = append(opts, DeliverFinal())
		}
		want, err := collect(t, bytes.NewReader(in), opts...)
		if err != nil {
			t.Fatal(err)
		}
		i, j := int(a)%(len(in)+1), int(b)%(len(in)+1)
		if i > j {
			i, j = j, i
		}
		split, err := collect(t, &pieces{[][]byte{in[:i], in[i:j], in[j:]}}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, split); d != "" {
			t.Fatalf("cut at %d and %d: %s", i, j, d)
		}
		for _, ev := range want {
			if ev.Data == "" || ev.Partial || strings.Contains(ev.Data, "\r") {
				continue
			}
			again, err := collect(t, bytes.NewReader(AppendEvent(nil, ev.Name, []byte(ev.Data))))
			if err != nil || len(again) != 1 || again[0].Name != ev.Name || again[0].Data != ev.Data {
				t.Fatalf("written %+v, read %+v, %v", ev, again, err)
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	one := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello there\"}}\n\n")
	r := NewReader(&endless{one: one})
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Next(); err != nil {
			b.Fatal(err)
		}
	}
}

type endless struct {
	one []byte
	at  int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		c := copy(p[n:], e.one[e.at:])
		n, e.at = n+c, (e.at+c)%len(e.one)
	}
	return n, nil
}

func TestReaderDoesNotAllocatePerEvent(t *testing.T) {
	r := NewReader(&endless{one: []byte("event: content_block_delta\ndata: {\"a\":1}\n\n")})
	if n := testing.AllocsPerRun(2000, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations per event", n)
	}
}
