// Package httpapi owns the HTTP faces of the turn: routes per surface, who is calling, event streams, and the one error writer.
//
// It refuses to know stores, prices and keys: it may import only gateway, dispatch, chat, tenancy, fault, sse and wire, and reaches
// everything else through gateway.Gateway.
//
// Invariants: 200 is committed only after the provider accepted the request; an event is written in one call, or not at all; a cut
// never looks like a clean end; a session cookie changes nothing without a matching Origin.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/gateway"
	"github.com/lossless-group/gateway/tenancy"
)

// Verifier checks a bearer token.
type Verifier interface {
	Verify(ctx context.Context, token string) (tenancy.Principal, error)
}

// Observer counts answers; surface is agent, anthropic, admin or infrastructure.
type Observer interface {
	Answered(surface string, status int)
}

// Config is everything the server needs. All fields are required unless they say otherwise.
type Config struct {
	Gateway   *gateway.Gateway
	Verifier  Verifier
	Cookies   []string       // names of session cookies; may be empty
	Proxies   []netip.Prefix // whose X-Forwarded-For is believed; may be empty
	Origins   []string       // origins a cookie is accepted from on unsafe methods: our public URL and the apps'
	MaxBody   int64          // bytes; 0: 20 MiB
	MaxBodies int64          // bytes of all request bodies held at one time; 0: 512 MiB
	Heartbeat time.Duration
	Observer  Observer
	Logger    *slog.Logger
	Clock     func() time.Time
	Ready     func(context.Context) error
	Metrics   http.Handler // nil: not served here
	// SigningKeys is the JWK Set that verifies what this gateway sends to host apps; nil: not served.
	SigningKeys func() ([]byte, error)
	Version     string
}

// Server is the HTTP side of the gateway.
type Server struct {
	Config
	echo   *echo.Echo
	bodies atomic.Int64 // bytes of request bodies held right now
}

// New registers the routes of the turn and returns the server. Admin adds its own through Group.
func New(c Config) *Server {
	if c.MaxBody == 0 {
		c.MaxBody = 20 << 20
	}
	if c.MaxBodies == 0 {
		c.MaxBodies = 512 << 20
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = 10 * time.Second
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	s := &Server{Config: c, echo: e}
	e.HTTPErrorHandler = s.writeError
	e.Use(s.frame)
	s.routes()
	return s
}

func (s *Server) routes() {
	e := s.echo
	agent := e.Group("/api/agent")
	agent.POST("/chat", s.agentChat)
	agent.POST("/confirm", s.agentConfirm)
	agent.GET("/chat/:id/stream", s.threadStream)
	agent.GET("/runs", s.listRuns)
	agent.GET("/runs/:id/events", s.runEvents)
	agent.DELETE("/runs/:id", s.cancelRun)
	agent.POST("/dispatches/:id/resolve", s.resolveDispatch)
	agent.GET("/previews", s.previews)
	agent.GET("/capabilities", s.capabilities)
	agent.GET("/models", s.models)
	agent.GET("/models/*", s.modelSupport)
	agent.GET("/threads", s.threads)
	agent.GET("/threads/:id", s.thread)
	agent.GET("/keys", s.listKeys)
	agent.POST("/keys", s.saveKey)
	agent.POST("/keys/:id/rotate", s.rotateKey)
	agent.DELETE("/keys/:id", s.revokeKey)
	agent.GET("/org-state", s.orgState)
	// Clients disagree whether the version belongs to their base URL, so each surface is there with and without it.
	for _, base := range []string{"/v1", "", "/anthropic/v1", "/anthropic"} {
		e.POST(base+"/messages", s.messages)
		e.POST(base+"/messages/count_tokens", s.countMessages)
	}
	for _, base := range []string{"/v1", "", "/openai/v1", "/openai"} {
		e.POST(base+"/chat/completions", s.completions)
		e.POST(base+"/responses", s.responses)
		e.POST(base+"/embeddings", s.embeddings)
	}
	for _, base := range []string{"/v1", "/openai/v1", "/openai", "/anthropic/v1", "/anthropic"} {
		e.GET(base+"/models", s.listModels)
		e.GET(base+"/models/*", s.oneModel)
	}
	for _, base := range []string{"/v1beta", "/gemini/v1beta", "/gemini/v1", "/gemini"} {
		e.GET(base+"/models", s.listGemini)
		e.GET(base+"/models/*", s.oneGemini)
		e.POST(base+"/models/*", s.generate)
	}
	e.POST("/v1/models/*", s.generate)
	e.GET("/healthz", func(c echo.Context) error {
		return c.JSON(http.StatusOK, map[string]string{"status": "ok", "version": s.Version})
	})
	e.GET("/readyz", s.ready)
	e.HEAD("/api/hello", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	if s.Metrics != nil {
		e.GET("/metrics", echo.WrapHandler(s.Metrics))
	}
	if s.SigningKeys != nil {
		e.GET("/.well-known/jwks.json", s.signingKeys)
	}
}

// Group is where another package mounts routes that share our authentication and error writer.
func (s *Server) Group(prefix string) *echo.Group { return s.echo.Group(prefix) }

// Handler returns the server as a plain handler.
func (s *Server) Handler() http.Handler { return s.echo }

// Routes lists what is registered, as "METHOD /path", for the tests that hold the route tables against it.
func (s *Server) Routes() []string {
	var out []string
	for _, r := range s.echo.Routes() {
		out = append(out, r.Method+" "+r.Path)
	}
	return out
}

func (s *Server) ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), 2*time.Second)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		return fault.Wrap(fault.Unavailable, "httpapi.ready", "not_ready", "A dependency is away. GET /metrics and the log say which.", err)
	}
	return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
}

// Keys of what a request carries in its echo context.
const (
	keyRequestID = "gateway.requestId"
	keyBodyBytes = "gateway.bodyBytes"
)

func requestID(c echo.Context) string {
	id, _ := c.Get(keyRequestID).(string)
	return id
}

// frame gives every request its id and, when it is over, one log line and one count. It never logs a body, a header or a query.
func (s *Server) frame(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := s.Clock()
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		rid := "req_" + id.String()
		c.Set(keyRequestID, rid)
		info := &tenancy.RequestInfo{ID: rid, Method: c.Request().Method, Route: c.Path(), From: s.clientAddr(c.Request()), Agent: c.Request().UserAgent()}
		ctx, standing := gateway.WithStanding(tenancy.WithRequest(c.Request().Context(), info))
		c.SetRequest(c.Request().WithContext(ctx))
		c.Set(keyStanding, standing)
		h := c.Response().Header()
		h.Set("X-Request-Id", rid)
		h.Set("X-Content-Type-Options", "nosniff")
		face := faceOf(c.Request())
		if face == faceAnthropic {
			h.Set("Request-Id", rid)
		}
		err = next(c)
		if err != nil {
			c.Error(err)
		}
		if n, ok := c.Get(keyBodyBytes).(int64); ok {
			s.bodies.Add(-n)
		}
		status := c.Response().Status
		s.Observer.Answered(face.String(), status)
		if path := c.Path(); path != "/healthz" && path != "/readyz" && path != "/metrics" && path != "/api/hello" {
			s.logAnswer(c, rid, face, status, s.Clock().Sub(began), err)
		}
		return nil
	}
}

func (s *Server) logAnswer(c echo.Context, rid string, f face, status int, took time.Duration, err error) {
	level := slog.LevelInfo
	if status >= 500 {
		level = slog.LevelError
	}
	ctx := c.Request().Context()
	if !s.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("requestId", rid), slog.String("method", c.Request().Method), slog.String("route", c.Path()),
		slog.String("surface", f.String()), slog.Int("status", status), slog.Duration("took", took)}
	if info := tenancy.RequestOf(ctx); info != nil && !info.Org.IsZero() {
		attrs = append(attrs, slog.String("org", info.Org.String()))
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fe := fault.From(err)
		attrs = append(attrs, slog.String("code", fe.CodeOrKind()), slog.String("op", fe.Op))
		if fe.Cause != nil {
			attrs = append(attrs, slog.String("cause", fe.Cause.Error()))
		}
	}
	s.Logger.LogAttrs(ctx, level, "request", attrs...)
}

// face is the shape of errors and heartbeats a path has.
type face uint8

const (
	faceOurs face = iota
	faceAnthropic
	faceOpenAI
	faceGemini
	faceAdmin
	faceInfra
)

func (f face) String() string {
	return [...]string{"agent", "anthropic", "openai", "gemini", "admin", "infrastructure"}[f]
}

// faceOf tells the face of a request by its path, and where one path serves clients of two by what they send.
func faceOf(r *http.Request) face {
	path := r.URL.Path
	switch {
	case strings.HasPrefix(path, "/v1/models") && r.Method == http.MethodGet && r.Header.Get("Anthropic-Version") == "" && r.Header.Get("X-Api-Key") == "":
		return faceOpenAI
	case strings.HasPrefix(path, "/api/agent"):
		return faceOurs
	case strings.HasPrefix(path, "/v1beta/"), strings.HasPrefix(path, "/gemini/"), strings.HasPrefix(path, "/v1/models/") && strings.Contains(path, ":"):
		return faceGemini
	case strings.HasPrefix(path, "/openai/"), path == "/chat/completions", path == "/responses", path == "/embeddings",
		path == "/v1/chat/completions", path == "/v1/responses", path == "/v1/embeddings":
		return faceOpenAI
	case strings.HasPrefix(path, "/v1/"), strings.HasPrefix(path, "/anthropic/"), path == "/messages", path == "/messages/count_tokens":
		return faceAnthropic
	case strings.HasPrefix(path, "/api/"):
		return faceAdmin
	}
	return faceInfra
}
