package apps

import (
	"context"
	"slices"
	"time"

	"github.com/lossless-group/gateway/dispatch"
	"github.com/lossless-group/gateway/tenancy"
)

const (
	recallWithin = time.Minute // how far a turn's registry may be from the revisions of its time: replicas learn of them late, clocks differ
	recallDepth  = 200         // revisions of one app that are looked through
	recallTries  = 32          // registries that are put together at most
)

// Recall finds the registry of a version that a turn of an organisation began with at a time, though its apps registered anew since and this
// process was not there: it puts the revisions of that time together again. It reports false when they do not give that version, as when the
// gateway or an operator's file offered something else then. The error is the store's.
func (b *Book) Recall(ctx context.Context, org tenancy.OrgID, version string, at time.Time) (*dispatch.Registry, bool, error) {
	newest, err := b.Store.Newest(ctx)
	if err != nil {
		return nil, false, err
	}
	histories := map[string][]Record{} // the newest first
	cuts := []time.Time{at}
	for _, n := range newest {
		if b.fixed[n.App] {
			continue
		}
		h, err := b.Store.History(ctx, n.App, recallDepth)
		if err != nil {
			return nil, false, err
		}
		histories[n.App] = h
		for _, r := range h {
			if off := at.Sub(r.At); off.Abs() <= recallWithin {
				cuts = append(cuts, r.At, r.At.Add(-time.Nanosecond))
			}
		}
	}
	// The nearest times first: they are the likeliest.
	slices.SortStableFunc(cuts, func(x, y time.Time) int { return int(at.Sub(x).Abs() - at.Sub(y).Abs()) })
	cuts = slices.CompactFunc(cuts, time.Time.Equal)
	built := map[string]*dispatch.Offer{} // by app and revision; nil: it cannot be built here any more
	for _, cut := range cuts[:min(len(cuts), recallTries)] {
		var offers []dispatch.Offer
		for _, o := range b.Library.Offers() {
			if b.fixed[o.App] {
				offers = append(offers, o)
			}
		}
		for _, h := range histories {
			i := slices.IndexFunc(h, func(r Record) bool { return !r.At.After(cut) })
			if i < 0 || h[i].Sealed == nil {
				continue
			}
			key := sealID(h[i].App, h[i].Revision)
			if _, done := built[key]; !done {
				built[key] = b.rebuild(h[i])
			}
			if o := built[key]; o != nil {
				offers = append(offers, *o)
			}
		}
		if r, ok := b.Library.Recall(offers, org, version); ok {
			return r, true, nil
		}
	}
	return nil, false, nil
}

func (b *Book) rebuild(r Record) *dispatch.Offer {
	d, err := b.open(r)
	if err != nil {
		return nil
	}
	o, err := b.offer(d)
	if err != nil {
		return nil
	}
	return &o
}
