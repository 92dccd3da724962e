package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/lossless-group/gateway/chat"
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

// catalogue makes the providers and the table of models.
func catalogue(cfg Config, clock func() time.Time) (*provider.Catalogue, error) {
	var list []provider.Provider
	for _, name := range slices.Sorted(maps.Keys(cfg.Providers)) {
		p, err := oneProvider(cfg, name, cfg.Providers[name], clock)
		if err != nil {
			return nil, fmt.Errorf("providers.%s: %w", name, err)
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
	return provider.NewCatalogue(list, models)
}

func oneProvider(cfg Config, name string, pc ProviderConfig, clock func() time.Time) (provider.Provider, error) {
	if pc.Kind == "demo" {
		return demo.New(demo.Config{Pace: demo.DefaultPace, Clock: clock})
	}
	transport, err := transportOf(pc)
	if err != nil {
		return nil, err
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

// transportOf is a transport of the provider's own, so that one provider's connections never wait for another's. It trusts the authorities of
// the file when there is one, and reads the proxy from the environment.
func transportOf(pc ProviderConfig) (http.RoundTripper, error) {
	t := exchange.NewTransport()
	if pc.CAFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(pc.CAFile)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile: %s holds no certificate", pc.CAFile)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}
