package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/billing"
	"github.com/lossless-group/gateway/billing/notify"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/keyring"
	"github.com/lossless-group/gateway/tenancy"
)

// Webhooks keeps where organisations want to be told of their budgets, and what they were told.
type Webhooks interface {
	Webhook(ctx context.Context, org tenancy.OrgID) (notify.Endpoint, bool, error)
	PutWebhook(ctx context.Context, org tenancy.OrgID, e notify.Endpoint, expect int64) (notify.Endpoint, error)
	DeleteWebhook(ctx context.Context, org tenancy.OrgID, expect int64, at time.Time) error
	Post(ctx context.Context, org tenancy.OrgID, n billing.Notice, at time.Time) error
	Deliveries(ctx context.Context, org tenancy.OrgID, limit int) ([]notify.Delivery, error)
}

// WebhookConfig is what the routes of webhooks need.
type WebhookConfig struct {
	Store Webhooks
	// Secret makes a secret for an organisation: as it is shown, once, and as it is stored.
	Secret func(org tenancy.OrgID) (shown keyring.Secret, sealed []byte, err error)
	// Check judges an address before it is stored; its fault says what to change.
	Check func(raw string) (*url.URL, error)
	// Wake makes deliveries go out now.
	Wake func()
}

func (a *api) mountWebhooks(org *echo.Group) {
	org.GET("/billing/webhook", a.admins(a.webhook))
	org.PUT("/billing/webhook", a.admins(a.putWebhook))
	org.DELETE("/billing/webhook", a.admins(a.deleteWebhook))
	org.POST("/billing/webhook/test", a.admins(a.testWebhook))
	org.GET("/billing/webhook/deliveries", a.admins(a.deliveries))
}

// webhookView is a webhook as read. Its secret is shown once, when it is made.
type webhookView struct {
	URL     string         `json:"url"`
	Secret  string         `json:"secret,omitempty"`
	Version int64          `json:"version"`
	By      tenancy.UserID `json:"by"`
	At      time.Time      `json:"at"`
}

// webhook answers the organisation's webhook; null where it has none.
func (a *api) webhook(c echo.Context, t tenancy.Tenant) error {
	e, found, err := a.Webhooks.Store.Webhook(c.Request().Context(), t.Org.ID)
	if err != nil {
		return err
	}
	var view *webhookView
	if found {
		view = &webhookView{URL: e.URL, Version: e.Version, By: e.By, At: e.At}
		setETag(c, e.Version)
	}
	return c.JSON(http.StatusOK, map[string]any{"org": t.Org.ID, "webhook": view})
}

// putWebhook sets the address, or with If-Match replaces the version it names. The first time, and with newSecret, it makes a secret and answers
// it; nobody can read it again.
func (a *api) putWebhook(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.putWebhook"
	raw, err := body(c)
	if err != nil {
		return err
	}
	var in struct {
		URL       string `json:"url"`
		NewSecret bool   `json:"newSecret"`
	}
	if err := decodeObject(op, raw, "", &in, "url", "newSecret"); err != nil {
		return err
	}
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	to, err := a.Webhooks.Check(in.URL)
	if err != nil {
		return fault.From(err).At("/url")
	}
	e := notify.Endpoint{URL: to.String(), By: t.User, At: a.Clock()}
	var shown keyring.Secret
	if expect < 1 || in.NewSecret {
		if shown, e.Secret, err = a.Webhooks.Secret(t.Org.ID); err != nil {
			return err
		}
	}
	saved, err := a.Webhooks.Store.PutWebhook(lasting(c), t.Org.ID, e, max(expect, 0))
	if err != nil {
		return webhookConflict(err, expect)
	}
	view := webhookView{URL: saved.URL, Version: saved.Version, By: saved.By, At: saved.At}
	if err := a.note(c, t, "billing.webhook_put", view); err != nil {
		return err
	}
	if !shown.IsZero() {
		view.Secret = shown.Reveal()
	}
	setETag(c, saved.Version)
	c.Response().Header().Set("Cache-Control", "no-store")
	status := http.StatusOK
	if saved.Version == 1 {
		status = http.StatusCreated
	}
	return c.JSON(status, view)
}

// webhookConflict tells who named a version that it is another one now, and who named none that there is a webhook.
func webhookConflict(err error, expect int64) error {
	if fault.From(err).Code != "webhook_changed" {
		return err
	}
	if expect < 0 {
		return fault.Wrap(fault.Conflict, "admin.putWebhook", "webhook_exists", "This organisation has a webhook. Send If-Match with its version to replace it.", err)
	}
	return fault.Wrap(fault.Conflict, "admin.putWebhook", "precondition_failed", fault.From(err).Public, err)
}

func (a *api) deleteWebhook(c echo.Context, t tenancy.Tenant) error {
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	if err := a.Webhooks.Store.DeleteWebhook(lasting(c), t.Org.ID, expect, a.Clock()); err != nil {
		return webhookConflict(err, expect)
	}
	if err := a.note(c, t, "billing.webhook_delete", map[string]string{}); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// testWebhook sends a notice that says nothing, and answers its id: what became of it is among the deliveries.
func (a *api) testWebhook(c echo.Context, t tenancy.Tenant) error {
	now := a.Clock()
	n, err := billing.TestNotice(t.Org.ID, now)
	if err != nil {
		return err
	}
	if err := a.Webhooks.Store.Post(lasting(c), t.Org.ID, n, now); err != nil {
		return err
	}
	a.Webhooks.Wake()
	if err := a.note(c, t, "billing.webhook_test", map[string]string{"id": n.ID}); err != nil {
		return err
	}
	return c.JSON(http.StatusAccepted, map[string]string{"id": n.ID})
}

// deliveries answers what the organisation's systems were told, or are about to be, newest first.
func (a *api) deliveries(c echo.Context, t tenancy.Tenant) error {
	list, err := a.Webhooks.Store.Deliveries(c.Request().Context(), t.Org.ID, 100)
	if err != nil {
		return err
	}
	return tagged(c, map[string]any{"org": t.Org.ID, "deliveries": append([]notify.Delivery{}, list...)})
}
