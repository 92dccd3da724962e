package admin

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/apps"
	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/tenancy"
)

// Apps registers what host apps offer.
type Apps interface {
	List(ctx context.Context) ([]apps.Registered, error)
	Document(ctx context.Context, app string) (dispatch.Document, apps.Record, error)
	History(ctx context.Context, app string, limit int) ([]apps.Record, error)
	Put(ctx context.Context, app string, raw []byte, expect int, dry bool, by tenancy.UserID) (apps.Change, error)
	Remove(ctx context.Context, app string, expect int, by tenancy.UserID) (apps.Change, error)
	Discover(ctx context.Context, app, server, url string, who tenancy.Tenant) ([]dispatch.CapabilityDocument, error)
}

// maxAppDocument bounds a document on its way in, in bytes; dispatch.ParseDocument says what it may hold.
const maxAppDocument = 4 << 20

func (a *api) mountApps(g *echo.Group) {
	if a.Apps == nil {
		return
	}
	op := g.Group("/operator/apps")
	op.GET("", a.operators(a.listApps))
	op.GET("/:app/capabilities", a.operators(a.appDocument))
	op.PUT("/:app/capabilities", a.operators(a.putApp))
	op.DELETE("/:app/capabilities", a.operators(a.removeApp))
	op.GET("/:app/revisions", a.operators(a.appRevisions))
	op.POST("/:app/discover", a.operators(a.discoverTools))
}

// operators lets only superusers through, in their own operating organisation: what they do here is no organisation's.
func (a *api) operators(next func(echo.Context, tenancy.Tenant) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		who, err := a.Principal(c)
		if err != nil {
			return err
		}
		if c.Request().Header.Get("X-Act-As-Org") != "" {
			return fault.Invalidf("admin.operators", "", "These routes belong to no organisation; leave X-Act-As-Org out.")
		}
		t, err := a.Tenants.Resolve(c.Request().Context(), who, tenancy.Hint{Org: c.Request().Header.Get("X-Org-Id")})
		if err != nil {
			return err
		}
		if t.Role != tenancy.Superuser || !t.Org.Operating {
			return fault.New(fault.Forbidden, "admin.operators", "role_required", "This needs the role superuser of the organisation that operates the gateway.")
		}
		return next(c, t)
	}
}

var appName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$`)

func appParam(c echo.Context) (string, error) {
	name := c.Param("app")
	if !appName.MatchString(name) {
		return "", fault.Invalidf("admin.apps", "", "The app's name in the path must be lower-case letters, digits, - and _, at most 64.")
	}
	return name, nil
}

func (a *api) listApps(c echo.Context, _ tenancy.Tenant) error {
	list, err := a.Apps.List(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"apps": list})
}

func (a *api) appDocument(c echo.Context, _ tenancy.Tenant) error {
	app, err := appParam(c)
	if err != nil {
		return err
	}
	d, r, err := a.Apps.Document(c.Request().Context(), app)
	if err != nil {
		return err
	}
	setETag(c, int64(r.Revision))
	return c.JSON(http.StatusOK, d)
}

// putApp registers a document as the app's next revision; ?dryRun=true says what it would change. If-Match, when sent, must name the
// newest revision.
func (a *api) putApp(c echo.Context, t tenancy.Tenant) error {
	app, err := appParam(c)
	if err != nil {
		return err
	}
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	dry := c.QueryParam("dryRun")
	if dry != "" && dry != "true" && dry != "false" {
		return fault.Invalidf("admin.putApp", "", "?dryRun must be true or false.")
	}
	raw, err := bodyUpTo(c, maxAppDocument)
	if err != nil {
		return err
	}
	change, err := a.Apps.Put(lasting(c), app, raw, int(expect), dry == "true", t.User)
	if err != nil {
		return err
	}
	return a.appChanged(c, t, "app.register", change)
}

func (a *api) removeApp(c echo.Context, t tenancy.Tenant) error {
	app, err := appParam(c)
	if err != nil {
		return err
	}
	expect, err := ifMatch(c)
	if err != nil {
		return err
	}
	change, err := a.Apps.Remove(lasting(c), app, int(expect), t.User)
	if err != nil {
		return err
	}
	return a.appChanged(c, t, "app.remove", change)
}

func (a *api) appChanged(c echo.Context, t tenancy.Tenant, action string, change apps.Change) error {
	if !change.DryRun {
		if err := a.note(c, t, action, change); err != nil {
			return err
		}
	}
	setETag(c, int64(change.Revision))
	return c.JSON(http.StatusOK, change)
}

func (a *api) appRevisions(c echo.Context, _ tenancy.Tenant) error {
	app, err := appParam(c)
	if err != nil {
		return err
	}
	limit, err := number(c, "limit", 50, 500)
	if err != nil {
		return err
	}
	list, err := a.Apps.History(c.Request().Context(), app, int(limit))
	if err != nil {
		return err
	}
	type revision struct {
		Revision int            `json:"revision"`
		SHA256   string         `json:"sha256,omitempty"`
		Removed  bool           `json:"removed,omitempty"`
		By       tenancy.UserID `json:"by"`
		At       time.Time      `json:"at"`
	}
	out := make([]revision, len(list))
	for i, r := range list {
		out[i] = revision{r.Revision, r.SHA256, r.Sealed == nil, r.By, r.At}
	}
	return c.JSON(http.StatusOK, map[string]any{"revisions": out})
}

// discoverTools answers what a tool server offers, as capabilities for the app's document. Nothing is registered by that.
func (a *api) discoverTools(c echo.Context, t tenancy.Tenant) error {
	const op = "admin.discoverTools"
	app, err := appParam(c)
	if err != nil {
		return err
	}
	raw, err := body(c)
	if err != nil {
		return err
	}
	var asked struct {
		Server string `json:"server"`
		URL    string `json:"url"`
	}
	if err := decodeObject(op, raw, "", &asked, "server", "url"); err != nil {
		return err
	}
	if !appName.MatchString(asked.Server) {
		return fault.Invalidf(op, "/server", "Name the tool server in lower-case letters, digits, - and _, at most 64.")
	}
	found, err := a.Apps.Discover(c.Request().Context(), app, asked.Server, asked.URL, t)
	if err != nil {
		return err
	}
	if found == nil {
		found = []dispatch.CapabilityDocument{}
	}
	return c.JSON(http.StatusOK, map[string]any{"app": app, "server": asked.Server, "capabilities": found})
}
