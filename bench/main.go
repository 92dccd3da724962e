// Command bench measures what the gateway costs: the real binary with everything switched on, held against a bare
// httputil.ReverseProxy in front of the same upstream, in one run of interleaved slices.
//
// It knows the gateway only from outside: its command line, its HTTP faces and its /metrics. The gateway, or the proxy,
// has one core to itself; this process, which is driver and upstream in one, has another. Nothing leaves loopback.
//
// Invariants: a figure is only ever compared with figures of the same run; what the gateway still owes its databases at
// the end of a slice is waited for and counted in; at the end the ledger's tokens must equal the upstream's own count, or
// the exit status is 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are the flags of one run.
type options struct {
	binary  string
	cores   string
	sizes   string
	conns   int
	slice   time.Duration
	rounds  int
	events  int
	pace    time.Duration
	hangups int
	only    string
	keep    string
	load    bool
	clients int
	timed   int
	through string
	role    string
	target  string
}

func main() {
	var o options
	flag.StringVar(&o.binary, "gateway", "", "gateway binary; empty: build ./cmd/gateway")
	flag.StringVar(&o.cores, "cores", "0,1", "core of the gateway or proxy, and core of driver and upstream")
	flag.StringVar(&o.sizes, "sizes", "1,10,100", "request bodies in KB")
	flag.IntVar(&o.conns, "conns", 16, "connections of the throughput and stream slices")
	flag.DurationVar(&o.slice, "slice", time.Second, "length of one slice")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each slice is repeated, interleaved")
	flag.IntVar(&o.events, "events", 100, "text events of one stream")
	flag.DurationVar(&o.pace, "pace", time.Millisecond, "pause of the upstream between the events of a paced stream")
	flag.IntVar(&o.hangups, "hangups", 10, "of a hundred clients of the meter check, how many hang up in the middle")
	flag.StringVar(&o.only, "only", "throughput,latency,streams", "what to measure; the meter check always runs")
	flag.StringVar(&o.keep, "dir", "", "directory for data and logs; empty: a temporary one that is removed")
	flag.BoolVar(&o.load, "load", false, "hold many streams open at once instead of the rest; -events, -pace, -slice, -hangups and -clients say how")
	flag.IntVar(&o.clients, "clients", 1000, "with -load: streams at once")
	flag.IntVar(&o.timed, "timed", 25, "with -load: of a hundred clients, how many read each event as it comes and time it")
	flag.StringVar(&o.through, "through", "gateway", "with -load: gateway, proxy or direct")
	flag.StringVar(&o.role, "role", "", "internal: proxy")
	flag.StringVar(&o.target, "target", "", "internal: where the proxy forwards to")
	flag.Parse()
	// Whatever ends this process, also a reader of its output that left, must end the two it started.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	defer stop()
	var err error
	if o.role == "proxy" {
		err = runProxy(ctx, o.target, os.Stdout)
	} else {
		err = o.run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures everything and writes the report. Its error is what made the measurement, or the meter check, fail.
func (o options) run(ctx context.Context, out io.Writer) (err error) {
	gatewayCore, ownCore, ok := strings.Cut(o.cores, ",")
	if !ok || o.rounds < 1 || o.conns < 1 || o.slice <= 0 || o.events < 20 {
		return errors.New("-cores takes two numbers such as 0,1; -rounds, -conns and -slice must be positive, -events at least 20")
	}
	var sizes []int
	for _, s := range strings.Split(o.sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 10_000 {
			return fmt.Errorf("-sizes: %q is not a number of KB", s)
		}
		sizes = append(sizes, n)
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "gateway-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if o.binary == "" {
		o.binary = filepath.Join(dir, "gateway")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", o.binary, "./cmd/gateway")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the gateway (run bench from the top of the repository): %w", err)
		}
	}
	if o.load {
		how := loadOptions{streams: o.clients, events: o.events, gap: o.pace, length: o.slice, hangups: o.hangups, timed: o.timed, through: o.through}
		got, err := load(ctx, how, o.binary, dir)
		if err != nil {
			return err
		}
		got.report(how, out)
		return got.judge(how)
	}
	if err := pinSelf(ownCore); err != nil {
		return err
	}

	up, err := startUpstream(o.events, o.pace)
	if err != nil {
		return err
	}
	defer up.close()
	gw, err := startGateway(ctx, o.binary, gatewayCore, dir, up.addr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gw.stop()) }()
	proxy, err := startProxy(ctx, gatewayCore, up.addr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.stop()) }()

	b := &bench{options: o, ctx: ctx, up: up, gw: gw, all: []*target{
		{name: "direct", addr: up.addr()},
		{name: "proxy", addr: proxy.addr, proc: proxy},
		{name: "gateway", addr: gw.addr, proc: gw.process, gw: gw},
	}}
	return b.everything(sizes, out)
}

// target is one thing requests are sent to.
type target struct {
	name string
	addr string
	proc *process // nil: it is in this process
	gw   *gateway // nil: it is not the gateway
}

// bench is one run under way.
type bench struct {
	options
	ctx context.Context
	up  *upstream
	gw  *gateway
	all []*target
}

// everything runs what was asked for, and always the meter check.
func (b *bench) everything(sizes []int, out io.Writer) error {
	began := time.Now()
	direct, proxy, gw := b.all[0], b.all[1], b.all[2]
	// The first requests of a process are not like the rest: connections, caches, heap.
	for _, t := range b.all {
		for _, kb := range sizes {
			if _, err := b.slices(t, b.request(t, kb, whole), b.conns, b.slice/4); err != nil {
				return err
			}
		}
	}
	for _, part := range strings.Split(b.only, ",") {
		var err error
		switch part {
		case "throughput":
			err = b.throughput(sizes, proxy, gw, out)
		case "latency":
			err = b.latency(sizes, direct, proxy, gw, out)
		case "streams":
			err = b.streams(proxy, gw, out)
		default:
			err = fmt.Errorf("-only: %q is not throughput, latency or streams", part)
		}
		if err != nil {
			return err
		}
	}
	if err := b.meter(gw, out); err != nil {
		return err
	}
	fmt.Fprintf(out, "\ntook %s\n", time.Since(began).Round(time.Second))
	return nil
}

// throughput keeps every connection busy and says what a request costs.
func (b *bench) throughput(sizes []int, proxy, gw *target, out io.Writer) error {
	fmt.Fprintf(out, "whole answers, %d connections\n  body      proxy req/s  gateway req/s  ratio  ratio with drain  CPU ms proxy  CPU ms gateway  allocs/req  KiB/req\n", b.conns)
	for _, kb := range sizes {
		got, err := b.interleave([]*target{proxy, gw}, func(t *target) []byte { return b.request(t, kb, whole) }, b.conns)
		if err != nil {
			return err
		}
		p, g := got[0], got[1]
		fmt.Fprintf(out, "  %4d KB  %12.0f  %13.0f  %5.2f  %16.2f  %12.3f  %14.3f  %10.0f  %7.1f\n", kb, p.rate(), g.rate(), g.rate()/p.rate(), g.sustained()/p.rate(), p.cpuMS(), g.cpuMS(), g.mallocs(), g.kib())
	}
	return nil
}

// latency uses one connection and says how much later an answer comes than without anything in between.
func (b *bench) latency(sizes []int, direct, proxy, gw *target, out io.Writer) error {
	fmt.Fprintf(out, "\nwhole answers, 1 connection: added is against the same request sent directly\n  body      direct p50  proxy added p50  p99     gateway added p50  p99     (ms)\n")
	for _, kb := range sizes {
		got, err := b.interleave([]*target{direct, proxy, gw}, func(t *target) []byte { return b.request(t, kb, whole) }, 1)
		if err != nil {
			return err
		}
		d, p, g := got[0], got[1], got[2]
		fmt.Fprintf(out, "  %4d KB  %10.3f  %15.3f  %6.3f  %17.3f  %6.3f\n", kb, d.quantile(.5), p.quantile(.5)-d.quantile(.5), p.quantile(.99)-d.quantile(.99), g.quantile(.5)-d.quantile(.5), g.quantile(.99)-d.quantile(.99))
	}
	return nil
}

// streams says what an answer of many events costs: paced, each event travels alone; in a burst, many arrive together.
func (b *bench) streams(proxy, gw *target, out io.Writer) error {
	fmt.Fprintf(out, "\nstreams of %d events after a 10 KB body, %d connections\n  pace      proxy str/s  gateway str/s  CPU ms proxy  CPU ms gateway  ratio  allocs/stream\n", b.events, b.conns)
	for _, k := range []kind{paced, burst} {
		got, err := b.interleave([]*target{proxy, gw}, func(t *target) []byte { return b.request(t, 10, k) }, b.conns)
		if err != nil {
			return err
		}
		p, g := got[0], got[1]
		fmt.Fprintf(out, "  %-8s  %11.0f  %13.0f  %12.2f  %14.2f  %5.2f  %13.0f\n", k, p.rate(), g.rate(), p.cpuMS(), g.cpuMS(), g.cpuMS()/p.cpuMS(), g.mallocs())
	}
	return nil
}

// meter lets clients hang up and then holds the ledger of the whole run against what the upstream counted.
func (b *bench) meter(gw *target, out io.Writer) error {
	left, err := b.hangUps(gw)
	if err != nil {
		return err
	}
	ledger, err := b.gw.ledger(b.ctx)
	if err != nil {
		return err
	}
	told := b.up.told()
	fmt.Fprintf(out, "\nmeter, the whole run: %d of the last streams were hung up on in the middle\n             attempts         input    cache read        output\n  upstream  %9d  %12d  %12d  %12d\n  ledger    %9d  %12d  %12d  %12d\n", left, told.attempts, told.input, told.cacheRead, told.output, ledger.attempts, ledger.input, ledger.cacheRead, ledger.output)
	if left == 0 && b.hangups > 0 {
		return errors.New("meter check: no client hung up, so it proves nothing; try again with a longer -slice")
	}
	if told != ledger {
		return errors.New("meter check failed: the ledger is not what the upstream counted")
	}
	return nil
}

// interleave runs the same slice on several targets in turn, round after round, and adds each target's rounds up. The order
// changes from round to round, so that what disturbs the machine disturbs them alike.
func (b *bench) interleave(ts []*target, request func(*target) []byte, conns int) ([]*sample, error) {
	sums := make([]*sample, len(ts))
	for i := range sums {
		sums[i] = &sample{}
	}
	order := make([]int, len(ts))
	for i := range order {
		order[i] = i
	}
	for range b.rounds {
		for _, i := range order {
			s, err := b.slices(ts[i], request(ts[i]), conns, b.slice)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ts[i].name, err)
			}
			sums[i].add(s)
		}
		slices.Reverse(order)
	}
	return sums, nil
}
