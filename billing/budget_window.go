package billing

import "time"

// WindowKind says how long a budget counts before it starts again.
type WindowKind string

// The kinds of windows.
const (
	WindowDay      WindowKind = "day"
	WindowWeek     WindowKind = "week" // from Monday
	WindowMonth    WindowKind = "month"
	WindowRolling  WindowKind = "rolling" // the last Days days, today included
	WindowLifetime WindowKind = "lifetime"
)

// Window is a budget's rhythm.
type Window struct {
	Kind     WindowKind `json:"kind"`
	Days     int        `json:"days,omitempty"`     // of a rolling window, 2 to 366
	StartDay int        `json:"startDay,omitempty"` // of a month, 1 to 28; 0: 1
}

func (w Window) validate() string {
	switch {
	case w.Kind == WindowRolling && (w.Days < 2 || w.Days > maxRolling):
		return "A rolling window has 2 to 366 days."
	case w.Kind != WindowRolling && w.Days != 0:
		return "Only a rolling window has days."
	case w.Kind == WindowMonth && (w.StartDay < 0 || w.StartDay > 28):
		return "A month starts on a day from 1 to 28."
	case w.Kind != WindowMonth && w.StartDay != 0:
		return "Only a month has a startDay."
	}
	switch w.Kind {
	case WindowDay, WindowWeek, WindowMonth, WindowRolling, WindowLifetime:
		return ""
	}
	return "kind is day, week, month, rolling or lifetime."
}

// Span is the window a moment lies in. What is used then is booked under Start; what counts against the cap is everything booked from
// From on, which is earlier than Start in a rolling window only. End is when the next window begins, and so the first moment there can be
// room again; it is zero for a lifetime, whose Start is the Unix epoch.
type Span struct{ From, Start, End time.Time }

// At returns the window of a moment in a zone. The windows of a zone follow one another without gap or overlap, whatever its clocks do: a
// day begins at the first moment at which the local date has come, be that midnight or, where midnight is skipped, what is there instead.
// A midnight that comes twice begins the day once. A day that a zone leaves out has no window.
func (w Window) At(t time.Time, zone *time.Location) Span {
	if w.Kind == WindowLifetime {
		epoch := time.Unix(0, 0).UTC()
		return Span{From: epoch, Start: epoch}
	}
	y, m, d := t.In(zone).Date()
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC) // a date, not a moment
	// The local date may have come before, when clocks went back over midnight; a day that is left out begins together with the next.
	for !dayStart(date.AddDate(0, 0, 1), zone).After(t) {
		date = date.AddDate(0, 0, 1)
	}
	first, next, from := date, date, date
	switch w.Kind {
	case WindowWeek:
		first = date.AddDate(0, 0, -(int(date.Weekday())+6)%7)
		next, from = first.AddDate(0, 0, 7), first
	case WindowMonth:
		first = time.Date(date.Year(), date.Month(), max(w.StartDay, 1), 0, 0, 0, 0, time.UTC)
		if date.Before(first) {
			first = first.AddDate(0, -1, 0)
		}
		next, from = first.AddDate(0, 1, 0), first
	case WindowRolling:
		next, from = date.AddDate(0, 0, 1), date.AddDate(0, 0, 1-w.Days)
	default:
		next = date.AddDate(0, 0, 1)
	}
	s := Span{Start: dayStart(first, zone), End: dayStart(next, zone), From: dayStart(from, zone)}
	for days := 1; !s.End.After(s.Start); days++ { // the next day is one that is left out
		s.End = dayStart(next.AddDate(0, 0, days), zone)
	}
	return s
}

// dayStart is the first moment at which a zone's clocks show the date, or a later one where the date is left out.
func dayStart(date time.Time, zone *time.Location) time.Time {
	local := date.Unix()
	// No zone is further than 15 hours from UTC, and none moved further than a day at once.
	for t := time.Unix(local-40*3600, 0).In(zone); ; {
		_, offset := t.Zone()
		at := max(local-int64(offset), t.Unix())
		_, end := t.ZoneBounds()
		if end.IsZero() || at < end.Unix() {
			return time.Unix(at, 0).UTC()
		}
		t = end.In(zone)
	}
}
