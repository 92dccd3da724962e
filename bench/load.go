package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// loadOptions are those of a load run.
type loadOptions struct {
	streams int           // at the same time
	events  int           // text events of one stream
	gap     time.Duration // between two events of a stream
	length  time.Duration // of the measurement, after everybody is seated
	hangups int           // of a hundred streams, how many are hung up on in the middle
	timed   int           // of a hundred clients, how many read each event as it comes
	through string        // gateway, proxy or direct
}

// loaded is what a load run showed.
type loaded struct {
	streams, left int64   // ended whole, hung up on
	events        int64   // measured
	delay50       float64 // ms beyond the upstream
	delay99       float64
	delayMost     float64
	first50       float64 // ms added to the first byte
	first99       float64
	firsts        int64
	offered       float64 // events a second the upstream wrote, against those due
	rss           int64   // KiB, the most during the run
	cpu           float64 // cores the target used
	own           float64 // cores this process used
	goroutines    [2]int64
	opened, kept  int64 // connections to the upstream, and those still open for reuse
	told, ledger  tally
}

// load holds o.streams streams open at once for o.length, each client asking anew when its answer has ended. Clients are seated evenly over the length
// of one stream, so that from then on streams end and begin at a steady rate: the time to the first byte is that of a request that arrives while
// everybody else's streams run, not that of a thousand requests in the same instant.
func load(ctx context.Context, o loadOptions, binary, dir string) (_ loaded, err error) {
	var r loaded
	up, err := startFeeder(o.events, o.gap)
	if err != nil {
		return r, err
	}
	defer func() {
		if up != nil {
			up.close()
		}
	}()
	t := &target{name: o.through, addr: up.addr()}
	var gw *gateway
	switch o.through {
	case "gateway":
		if gw, err = startGateway(ctx, binary, everyCore, dir, up.addr()); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, gw.stop()) }()
		t = &target{name: o.through, addr: gw.addr, proc: gw.process, gw: gw}
	case "proxy":
		proxy, perr := startProxy(ctx, everyCore, up.addr())
		if perr != nil {
			return r, perr
		}
		defer func() { err = errors.Join(err, proxy.stop()) }()
		t = &target{name: o.through, addr: proxy.addr, proc: proxy}
	case "direct":
	default:
		return r, fmt.Errorf("-through: %q is not gateway, proxy or direct", o.through)
	}
	b := &bench{ctx: ctx, gw: gw}
	if gw == nil {
		b.gw = &gateway{}
	}
	seats, err := newSeats(t.addr, o.streams, b.request(t, 10, paced), o.events, o.hangups, o.timed)
	if err != nil {
		return r, err
	}
	defer seats.close()
	if gw != nil { // connections and caches of the first request are no leak
		if _, err := b.slices(t, b.request(t, 1, paced), 1, time.Millisecond); err != nil {
			return r, err
		}
		if r.goroutines[0], err = gw.goroutines(ctx); err != nil {
			return r, err
		}
	}
	stream := o.gap * time.Duration(o.events+2)
	last := make(chan struct{})
	over := make(chan error, 1)
	go func() { over <- seats.run(stream, last) }()
	pause := func(d time.Duration) error {
		select {
		case err := <-over:
			return errors.Join(err, errors.New("the clients stopped early"))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
	if err := pause(stream + stream/10); err != nil {
		return r, err
	}
	used, own, sent, began := t.cpuNow(), ownCPU(), up.sent.Load(), time.Now()
	seats.measuring.Store(true)
	for left := o.length; left > 0; left -= time.Second {
		if err := pause(min(left, time.Second)); err != nil {
			return r, err
		}
		if t.proc != nil {
			r.rss = max(r.rss, t.proc.rss())
		}
	}
	seats.measuring.Store(false)
	took := time.Since(began).Seconds()
	r.cpu, r.own, r.offered = (t.cpuNow()-used).Seconds()/took, (ownCPU()-own).Seconds()/took, float64(up.sent.Load()-sent)/took
	close(last)
	if err := <-over; err != nil {
		return r, err
	}
	r.streams, r.left = seats.done.Load(), seats.left.Load()
	r.events, r.delay50, r.delay99, r.delayMost = seats.delay.n, seats.delay.quantile(.5), seats.delay.quantile(.99), float64(seats.delay.most)/1e6
	r.firsts, r.first50, r.first99 = seats.first.n, seats.first.quantile(.5), seats.first.quantile(.99)
	if gw == nil {
		return r, nil
	}
	seats.close()
	if err := gw.quiet(ctx, stream+30*time.Second); err != nil {
		return r, err
	}
	if r.ledger, err = gw.ledger(ctx); err != nil {
		return r, err
	}
	r.told = up.told()
	series, err := gw.scrape(ctx)
	if err != nil {
		return r, err
	}
	r.goroutines[1] = int64(series["go_goroutines"])
	r.opened, r.kept = int64(series[`gateway_provider_connections_opened_total{provider="anthropic"}`]), int64(series[`gateway_provider_connections{provider="anthropic"}`])
	return r, nil
}

// judge names what of a run is not as it must be, whatever else the machine was doing.
func (r loaded) judge(o loadOptions) error {
	var bad []error
	if r.ledger != r.told {
		bad = append(bad, errors.New("the ledger is not what the upstream counted"))
	}
	if o.hangups > 0 && r.left == 0 {
		bad = append(bad, errors.New("no client hung up, so the totals prove little; run it longer"))
	}
	if o.through == "gateway" && r.goroutines[1] > r.goroutines[0]+2*r.kept+leakSlack {
		bad = append(bad, fmt.Errorf("%d goroutines before, %d after, with %d connections kept: something was left behind", r.goroutines[0], r.goroutines[1], r.kept))
	}
	return errors.Join(bad...)
}

// leakSlack is how many goroutines more than before may be left besides the two of each connection kept for reuse: those of timers and batches that
// happen to run.
const leakSlack = 16

// report writes what a run showed.
func (r loaded) report(o loadOptions, out io.Writer) {
	fmt.Fprintf(out, "%d streams at once through %s, %s between events, %s: %d ended whole, %d were hung up on\n", o.streams, o.through, o.gap, o.length, r.streams, r.left)
	fmt.Fprintf(out, "  events        %.0f a second of %.0f due, %d timed\n", r.offered, float64(o.streams)/o.gap.Seconds(), r.events)
	fmt.Fprintf(out, "  delay         p50 %.1f  p99 %.1f  most %.1f ms beyond the upstream\n", r.delay50, r.delay99, r.delayMost)
	fmt.Fprintf(out, "  first byte    p50 %.1f  p99 %.1f ms added, %d requests\n", r.first50, r.first99, r.firsts)
	fmt.Fprintf(out, "  processor     %.2f cores %s (%.1f us an event), %.2f cores clients and upstream\n", r.cpu, o.through, r.cpu/r.offered*1e6, r.own)
	fmt.Fprintf(out, "  memory        %d MiB resident at most\n", r.rss/1024)
	if o.through == "gateway" {
		fmt.Fprintf(out, "  goroutines    %d before, %d after; %d connections were opened to the upstream, %d are kept\n", r.goroutines[0], r.goroutines[1], r.opened, r.kept)
		fmt.Fprintf(out, "             attempts         input    cache read        output\n  upstream  %9d  %12d  %12d  %12d\n  ledger    %9d  %12d  %12d  %12d\n",
			r.told.attempts, r.told.input, r.told.cacheRead, r.told.output, r.ledger.attempts, r.ledger.input, r.ledger.cacheRead, r.ledger.output)
	}
}

// goroutines is how many the gateway has.
func (g *gateway) goroutines(ctx context.Context) (int64, error) {
	series, err := g.scrape(ctx)
	return int64(series["go_goroutines"]), err
}

// quiet waits until no attempt runs and nothing is queued for the databases.
func (g *gateway) quiet(ctx context.Context, within time.Duration) error {
	for deadline := time.Now().Add(within); ; {
		if err := g.settle(ctx); err != nil {
			return err
		}
		open, err := g.ledger(ctx)
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		again, err := g.ledger(ctx)
		if err != nil || again == open || time.Now().After(deadline) {
			return err
		}
	}
}

// cpuNow is what the target has used of the processor so far; nothing when it is this process.
func (t *target) cpuNow() time.Duration {
	if t.proc == nil {
		return 0
	}
	d, _ := t.proc.cpu() // it runs
	return d
}

// ownCPU is what this process has used of the processor.
func ownCPU() time.Duration {
	raw, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	d, _ := parseStat(string(raw))
	return d
}

// rss is the resident memory of a program in KiB, 0 when it has ended.
func (p *process) rss() int64 {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return n
}
