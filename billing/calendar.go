package billing

import "time"

// DayStart is the first moment at which a calendar day has come in a zone; only the date of day counts. A day that the zone leaves out begins
// together with the next.
func DayStart(day time.Time, zone *time.Location) time.Time {
	y, m, d := day.Date()
	return dayStart(time.Date(y, m, d, 0, 0, 0, 0, time.UTC), zone)
}

// DayOf is the calendar day of a moment in a zone, in days since 1970-01-01: the last day that has begun by then. Clocks that go back over
// midnight do not begin the day before again.
func DayOf(t time.Time, zone *time.Location) int64 {
	y, m, d := t.In(zone).Date()
	date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	for next := date.AddDate(0, 0, 1); !dayStart(next, zone).After(t); next = next.AddDate(0, 0, 1) {
		date = next
	}
	return date.Unix() / 86400
}
