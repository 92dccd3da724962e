package main

import (
	"cmp"
	"fmt"
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
