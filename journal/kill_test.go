package journal

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/tenancy"
)

const childEnv = "JOURNAL_KILL_TEST_DIR"

// TestMain lets the test binary be its own victim: with the variable set it writes records until it is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		victim(dir)
	}
	os.Exit(m.Run())
}

// victim reports each call that returned, after it returned: what it reports must survive.
func victim(dir string) {
	cfg := config(dir, &ledger{refuse: away[[]billing.Event]}, &turns{refuse: away[tenancy.OrgID]})
	cfg.SegmentBytes = 64 << 10
	cfg.Logger = slog.New(slog.DiscardHandler)
	j, err := Open(cfg)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		id := fmt.Sprint(i)
		if err := j.Opened(attempt(id)); err != nil {
			os.Exit(1)
		}
		fmt.Println("opened", id)
		if i%3 == 2 {
			continue // stays open
		}
		if err := j.Settled(event(id)); err != nil {
			os.Exit(1)
		}
		fmt.Println("settled", id)
		if err := j.Said(turn(id, acme, "said by "+id)); err != nil {
			os.Exit(1)
		}
		fmt.Println("said", id)
	}
}

func TestKill9LosesNothing(t *testing.T) {
	exe, err := os.Executable()
	do(t, err)
	dir, l, s := t.TempDir(), &ledger{}, &turns{}
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	do(t, err)
	do(t, cmd.Start())
	var lines []string
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		lines = append(lines, sc.Text())
		if len(lines) == 3000 {
			do(t, cmd.Process.Kill())
		}
	}
	if err := cmd.Wait(); err == nil || len(lines) < 3000 {
		t.Fatalf("the child ended by itself after %d lines: %v", len(lines), err)
	}
	j := mustOpen(t, config(dir, l, s))
	do(t, j.Flush(bounded(t, 20*time.Second)))
	if st := j.Stats(); st.Rejected != 0 || st.Damaged != 0 {
		t.Errorf("%+v", st)
	}
	mustClose(t, j)
	open := map[string]bool{}
	for _, line := range lines {
		what, id, ok := strings.Cut(line, " ")
		if !ok || what == "opened" && id == "" {
			continue // the last line may be cut by the kill
		}
		switch what {
		case "opened":
			open[id] = true
		case "settled":
			delete(open, id)
			if e, ok := l.get(t, id); !ok || e.Status != billing.StatusOK {
				t.Errorf("settled %s: %+v", id, e)
			}
		case "said":
			if got, ok := s.get(id); !ok || got.ModelMessage != "said by "+id {
				t.Errorf("said %s: %+v", id, got)
			}
		}
	}
	if len(open) < 100 {
		t.Fatalf("only %d attempts were open: the test shows little", len(open))
	}
	lost := 0
	for id := range open {
		e, ok := l.get(t, id)
		if !ok || l.writes[id] != 1 {
			t.Errorf("attempt %s: %+v written %d times", id, e, l.writes[id])
		}
		if e.Status == billing.StatusOK { // settled on disk, killed before it could report
			lost++
		}
	}
	if lost > 1 {
		t.Errorf("%d attempts were settled without a report", lost)
	}
}
