package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lossless-group/gateway/redaction"
	"github.com/lossless-group/gateway/redaction/external"
)

// detectorTimeout is how long a detector has where the configuration does not say.
const detectorTimeout = 500 * time.Millisecond

// detectors makes the clients of the external detectors; the error names the setting.
func (c *Config) detectors(clock func() time.Time) ([]redaction.External, error) {
	list := make([]redaction.External, 0, len(c.Redaction.Detectors))
	for i, d := range c.Redaction.Detectors {
		if d.Fail != "" && d.Fail != "open" && d.Fail != "closed" {
			return nil, fmt.Errorf("redaction.detectors[%d].fail: must be open or closed", i)
		}
		client, err := external.New(external.Config{URL: d.URL, Timeout: cmp.Or(d.Timeout, detectorTimeout), Clock: clock})
		if err != nil {
			return nil, fmt.Errorf("redaction.detectors[%d]: %w", i, err)
		}
		list = append(list, redaction.External{Name: d.Name, Entities: d.Entities, Open: d.Fail == "open", Detector: client})
	}
	if err := redaction.ValidExternal(list); err != nil {
		return nil, fmt.Errorf("redaction.detectors: %w", err)
	}
	return list, nil
}

// detectorWatch tells operators of detectors that do not answer: where texts pass all the same, nobody else would notice. It says nothing of
// the texts.
type detectorWatch struct {
	log   *slog.Logger
	count func(detector, outcome string) // set before anything is asked
}

// over returns the detectors with a watch over each.
func (w *detectorWatch) over(list []redaction.External) []redaction.External {
	out := make([]redaction.External, len(list))
	for i, x := range list {
		x.Detector = watchedDetector{x.Detector, x.Name, x.Open, w}
		out[i] = x
	}
	return out
}

type watchedDetector struct {
	redaction.Detector
	name string
	open bool
	*detectorWatch
}

var _ redaction.Detector = watchedDetector{}

// Detect implements redaction.Detector.
func (d watchedDetector) Detect(ctx context.Context, texts, entities []string) ([][]redaction.Span, error) {
	found, err := d.Detector.Detect(ctx, texts, entities)
	switch {
	case err == nil:
		d.count(d.name, "answered")
	case ctx.Err() != nil:
		d.count(d.name, "left")
	case d.open:
		d.count(d.name, "passed")
		d.log.WarnContext(ctx, "a detector did not answer; texts go to providers without its findings", "detector", d.name, "texts", len(texts), "err", err)
	default:
		d.count(d.name, "refused")
		d.log.WarnContext(ctx, "a detector did not answer; the request is refused", "detector", d.name, "texts", len(texts), "err", err)
	}
	return found, err
}
