package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lossless-group/gateway/chat"
	"github.com/lossless-group/gateway/egress"
	"github.com/lossless-group/gateway/metrics"
	"github.com/lossless-group/gateway/provider"
	"github.com/lossless-group/gateway/provider/anthropic"
	"github.com/lossless-group/gateway/provider/bedrock"
	"github.com/lossless-group/gateway/provider/demo"
	"github.com/lossless-group/gateway/provider/exchange"
	"github.com/lossless-group/gateway/provider/gemini"
	"github.com/lossless-group/gateway/provider/openai"
	"github.com/lossless-group/gateway/provider/vertex"
)

// providerKinds lists the kinds of providers, sorted. An entry of the configuration is all it takes to add a provider of one of them.
func providerKinds() []string {
	kinds := slices.Collect(maps.Keys(openai.Presets()))
	kinds = append(kinds, "anthropic", "bedrock", "demo", "gemini", "vertex")
	slices.Sort(kinds)
	return kinds
}

// catalogue makes the providers, with their pools of connections by name, and the table of models.
func catalogue(cfg Config, clock func() time.Time) (*provider.Catalogue, map[string]*egress.Pool, error) {
	var list []provider.Provider
	pools := map[string]*egress.Pool{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Providers)) {
		pc := cfg.Providers[name]
		l, err := linkOf(pc)
		if err != nil {
			return nil, nil, fmt.Errorf("providers.%s: %w", name, err)
		}
		p, err := oneProvider(cfg, name, pc, l.transport, clock)
		if err != nil {
			return nil, nil, fmt.Errorf("providers.%s: %w", name, err)
		}
		if a, ok := p.(interface{ Addresses() []string }); ok { // one without stays in this process
			if err := l.confine(a.Addresses()); err != nil {
				return nil, nil, fmt.Errorf("providers.%s: %w", name, err)
			}
			pools[name] = l.pool
		}
		list = append(list, p)
	}
	var models []provider.Model
	for _, m := range cfg.Models {
		entry := provider.Model{Name: m.Name, Fallbacks: m.Fallbacks, Info: provider.Info{
			Title: m.Title, ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutput, Input: m.Input, Output: m.Output}}
		for _, r := range m.Routes {
			entry.Legs = append(entry.Legs, provider.Leg{Provider: r.Provider, Upstream: r.Model, Weight: r.Weight})
		}
		models = append(models, entry)
	}
	c, err := provider.NewCatalogue(list, models)
	if err != nil {
		return nil, nil, err
	}
	return c.Knowing(provider.NewFacts(), providerKindsByName(cfg)), pools, nil
}

func oneProvider(cfg Config, name string, pc ProviderConfig, transport http.RoundTripper, clock func() time.Time) (provider.Provider, error) {
	if pc.Kind == "demo" {
		return demo.New(demo.Config{Pace: demo.DefaultPace, Clock: clock})
	}
	x := exchange.Config{Name: name, Transport: transport, TTFB: cfg.Limits.FirstByte, IdleTimeout: cfg.Limits.Idle, Now: clock}
	switch pc.Kind {
	case "anthropic":
		return anthropic.New(anthropic.Config{Name: name, BaseURL: pc.BaseURL, Transport: transport, TTFB: cfg.Limits.FirstByte, IdleTimeout: cfg.Limits.Idle, Now: clock})
	case "gemini":
		return gemini.New(gemini.Config{BaseURL: pc.BaseURL, Exchange: x})
	case "vertex":
		return vertex.New(vertex.Config{Publisher: vertex.Publisher(pc.Publisher), Project: pc.Project, Location: pc.Location, BaseURL: pc.BaseURL, Exchange: x})
	case "bedrock":
		return bedrock.New(bedrock.Config{API: bedrock.API(pc.API), Region: pc.Region, BaseURL: pc.BaseURL, Exchange: x})
	}
	api, err := openaiAPI(pc.API)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for k, v := range pc.Headers {
		header.Set(k, v)
	}
	return openai.New(openai.Config{Preset: pc.Kind, API: api, BaseURL: pc.BaseURL, APIVersion: pc.APIVersion, Deployment: pc.Deployment, Header: header, Exchange: x})
}

func openaiAPI(name string) (chat.Protocol, error) {
	switch name {
	case "":
		return "", nil
	case "chat":
		return chat.OpenAIChat, nil
	case "responses":
		return chat.OpenAIResponses, nil
	}
	return "", fmt.Errorf("api: %q is none; use chat or responses", name)
}

// link is a provider's own way out: its transport, so that one provider's connections never wait for another's, and what can be seen of them.
type link struct {
	transport *http.Transport
	pool      *egress.Pool
	proxy     func(*http.Request) (*url.URL, error)
}

// linkOf makes a provider's way out as its configuration says. It connects to nothing before confine.
func linkOf(pc ProviderConfig) (*link, error) {
	l := &link{transport: exchange.NewTransport(), pool: &egress.Pool{}}
	proxy, err := proxyOf(pc.Proxy)
	if err != nil {
		return nil, err
	}
	l.proxy, l.transport.Proxy = proxy, proxy
	if pc.Connections < 0 {
		return nil, errors.New("connections: cannot be negative")
	}
	if pc.Connections > 0 {
		l.transport.MaxIdleConns, l.transport.MaxIdleConnsPerHost = pc.Connections, pc.Connections
	}
	nowhere := &egress.Guard{}
	l.transport.DialContext = nowhere.DialContext
	if pc.CAFile == "" {
		return l, nil
	}
	pem, err := os.ReadFile(pc.CAFile)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile: %s holds no certificate", pc.CAFile)
	}
	l.transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return l, nil
}

// confine lets the link connect to the provider's own addresses, or to the proxy in front of them, and to nothing else.
func (l *link) confine(addresses []string) error {
	allow := addresses
	for _, a := range addresses {
		u, err := url.Parse(a)
		if err != nil {
			return err
		}
		if l.proxy == nil {
			continue
		}
		via, err := l.proxy(&http.Request{URL: u})
		if err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
		if via != nil {
			port := via.Port()
			if port == "" {
				port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[via.Scheme]
			}
			if port == "" {
				port = "80"
			}
			allow = append(allow, net.JoinHostPort(via.Hostname(), port))
		}
	}
	guard, err := egress.New(egress.Config{Allow: allow})
	if err != nil {
		return err
	}
	l.transport.DialContext = l.pool.Count(guard.DialContext)
	return nil
}

// proxyOf reads the proxy setting: nothing leaves it to the environment, none is none, a URL is that proxy, and one that needs a password is read
// from where a secret may stand.
func proxyOf(setting string) (func(*http.Request) (*url.URL, error), error) {
	switch {
	case setting == "":
		return http.ProxyFromEnvironment, nil
	case setting == "none":
		return nil, nil
	}
	secret := strings.HasPrefix(setting, "env:") || strings.HasPrefix(setting, "file:")
	if secret {
		v, err := SecretRef(setting).Resolve()
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		setting = v.Reveal()
	}
	u, err := url.Parse(setting)
	if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) {
		return nil, errors.New("proxy: write none, a URL such as http://proxy.example:3128, or env:NAME of one")
	}
	if u.User != nil && !secret {
		return nil, errors.New("proxy: a URL with a password belongs into the environment or a file: write env:NAME or file:PATH")
	}
	return http.ProxyURL(u), nil
}

// poolStats reads the pools at each scrape.
func poolStats(pools map[string]*egress.Pool) func() []metrics.PoolStats {
	names := slices.Sorted(maps.Keys(pools))
	return func() []metrics.PoolStats {
		out := make([]metrics.PoolStats, 0, len(names))
		for _, name := range names {
			s := pools[name].Stats()
			out = append(out, metrics.PoolStats{Provider: name, Open: s.Open, Opened: s.Opened, Failed: s.Failed})
		}
		return out
	}
}
