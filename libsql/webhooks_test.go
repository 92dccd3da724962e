package libsql_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/budgettest"
	"github.com/lossless-group/gateway/billing/notify"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/libsql"
	"github.com/lossless-group/gateway/tenancy"
)

func TestWebhooks(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		s := open(t, config(t)).Webhooks
		ctx := t.Context()
		if _, found, err := s.Webhook(ctx, acme); err != nil || found {
			t.Fatal(found, err)
		}
		test := func(org tenancy.OrgID, id string) error {
			return s.Post(ctx, org, billing.Notice{ID: id, Kind: "k", Body: []byte(`{"a":1}`)}, start)
		}
		if err := test(acme, "x"); !fault.Is(err, fault.NotFound) {
			t.Errorf("telling nobody: %v", err)
		}
		end := notify.Endpoint{URL: "https://a.example/h", Secret: []byte("sealed"), By: "admin", At: start}
		first, err := s.PutWebhook(ctx, acme, end, 0)
		if err != nil || first.Version != 1 {
			t.Fatal(first, err)
		}
		for _, wrong := range []int64{0, 2} {
			if _, err := s.PutWebhook(ctx, acme, end, wrong); fault.From(err).Code != "webhook_changed" {
				t.Errorf("replacing version %d: %v", wrong, err)
			}
		}
		if _, err := s.PutWebhook(ctx, acme, notify.Endpoint{URL: "https://b.example/h", By: "admin", At: start}, 1); err != nil {
			t.Fatal(err)
		}
		want := notify.Endpoint{URL: "https://b.example/h", Secret: []byte("sealed"), Version: 2, By: "admin", At: start.UTC()}
		if got, found, err := s.Webhook(ctx, acme); err != nil || !found || cmp.Diff(want, got) != "" {
			t.Errorf("%v %v", err, cmp.Diff(want, got))
		}
		if _, found, err := s.Webhook(ctx, globe); err != nil || found {
			t.Error("another organisation has it")
		}
		if err := s.DeleteWebhook(ctx, globe, -1, start); !fault.Is(err, fault.NotFound) {
			t.Errorf("another organisation deletes it: %v", err)
		}
		for range 2 { // the same notice twice is one
			if err := test(acme, "one"); err != nil {
				t.Fatal(err)
			}
		}
		if list, err := s.Deliveries(ctx, globe, 10); err != nil || len(list) != 0 {
			t.Errorf("another organisation sees %v, %v", list, err)
		}
		due, err := s.Claim(ctx, start, start.Add(time.Minute), 8)
		if err != nil || len(due) != 1 || due[0].ID != "one" || due[0].Org != acme || string(due[0].Body) != `{"a":1}` || due[0].Tries != 1 {
			t.Fatalf("due %+v, %v", due, err)
		}
		if again, err := s.Claim(ctx, start.Add(59*time.Second), start.Add(time.Hour), 8); err != nil || len(again) != 0 {
			t.Errorf("claimed twice: %v, %v", again, err)
		}
		// Who claimed it died: it is due again, under the same id.
		again, err := s.Claim(ctx, start.Add(time.Minute), start.Add(time.Hour), 8)
		if err != nil || len(again) != 1 || again[0].ID != "one" || again[0].Tries != 2 {
			t.Fatalf("after the claim: %+v, %v", again, err)
		}
		d := again[0]
		d.State, d.Done, d.Status = notify.Delivered, start.Add(61*time.Second), 204
		if err := s.Finish(ctx, d); err != nil {
			t.Fatal(err)
		}
		if list, err := s.Deliveries(ctx, acme, 10); err != nil || len(list) != 1 || list[0].State != notify.Delivered || list[0].Status != 204 || !list[0].Done.Equal(d.Done) {
			t.Errorf("deliveries %+v, %v", list, err)
		}
		if err := test(acme, "two"); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteWebhook(ctx, acme, 1, start); fault.From(err).Code != "webhook_changed" {
			t.Errorf("deleting an old version: %v", err)
		}
		if err := s.DeleteWebhook(ctx, acme, 2, start); err != nil {
			t.Fatal(err)
		}
		if due, err := s.Claim(ctx, start.Add(2*time.Hour), start.Add(3*time.Hour), 8); err != nil || len(due) != 0 {
			t.Errorf("due after it was removed: %v, %v", due, err)
		}
	})
}

// A threshold is in the outbox once for ever, whoever crosses it how often, and together with the booking that crossed it: there is no moment at
// which a process could die between the two.
func TestAlertsAreInTheOutboxOnce(t *testing.T) {
	engines(t, func(t *testing.T, config func(t testing.TB) libsql.Config) {
		cfg := config(t)
		s := open(t, cfg)
		ctx := t.Context()
		if _, err := s.Webhooks.PutWebhook(ctx, acme, notify.Endpoint{URL: "https://a.example/h", Secret: []byte("sealed")}, 0); err != nil {
			t.Fatal(err)
		}
		b, err := s.Budgets.PutBudget(ctx, acme, budgettest.Budget("m", 100), 0)
		if err != nil {
			t.Fatal(err)
		}
		other, err := s.Budgets.PutBudget(ctx, globe, budgettest.Budget("m", 100), 0) // of who has no webhook
		if err != nil {
			t.Fatal(err)
		}
		book := func(s *libsql.Stores, id string, org tenancy.OrgID, amount billing.Amount, on billing.Budget) {
			t.Helper()
			if _, err := s.Budgets.Book(ctx, []billing.Booking{{ID: id, Org: org, Lines: budgettest.Hold("", amount, on).Lines}}, start); err != nil {
				t.Fatal(err)
			}
		}
		book(s, "a", acme, 85, b)
		book(s, "b", globe, 100, other)
		second := open(t, cfg) // another process, to which the journal tells it again
		book(second, "a", acme, 85, b)
		book(second, "c", acme, 1, b)
		list, err := second.Webhooks.Deliveries(ctx, acme, 10)
		if err != nil || len(list) != 2 {
			t.Fatalf("outbox %+v, %v", list, err)
		}
		percents := map[float64]bool{}
		for _, d := range list {
			var body struct {
				Type      string
				Timestamp time.Time
				Data      map[string]any
			}
			if err := json.Unmarshal(d.Body, &body); err != nil || body.Type != billing.NoticeThreshold || d.Kind != body.Type || d.State != notify.Waiting || body.Data["budget"] != "m" || body.Data["org"] != "acme.example" || body.Data["cap"] != "0.0000001" || body.Data["spent"] != "0.000000085" {
				t.Errorf("%s: %s, %v", d.ID, d.Body, err)
			}
			percent, _ := body.Data["percent"].(float64)
			percents[percent] = true
			if want := fmt.Sprintf("evt_%d_%d_%d", b.Seq, budgettest.Hold("", 0, b).Lines[0].Start.UnixMilli(), int(percent)); d.ID != want {
				t.Errorf("id %s, want %s", d.ID, want)
			}
		}
		if !percents[50] || !percents[80] {
			t.Errorf("told %v", percents)
		}
	})
}
